#include "kernels/cpu/gemm.h"

#include <algorithm>

#if VCAS_OPENBLAS
#include <cblas.h>

#include <sstream>
#else
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#endif

namespace vcas {
namespace {

// Leading dimensions may not be 0, even for an empty matrix.
template <class T>
std::int64_t leading(const Factor<T>& f) {
  return std::max<std::int64_t>(f.stride, 1);
}

#if VCAS_OPENBLAS

CBLAS_TRANSPOSE order(bool transposed) { return transposed ? CblasTrans : CblasNoTrans; }

void multiply(blasint m, blasint n, blasint k, const Factor<float>& a, const Factor<float>& b,
              float* c, blasint c_stride, float beta) {
  cblas_sgemm(CblasRowMajor, order(a.transposed), order(b.transposed), m, n, k, 1, a.data,
              static_cast<blasint>(leading(a)), b.data, static_cast<blasint>(leading(b)), beta, c,
              c_stride);
}
void multiply(blasint m, blasint n, blasint k, const Factor<double>& a, const Factor<double>& b,
              double* c, blasint c_stride, double beta) {
  cblas_dgemm(CblasRowMajor, order(a.transposed), order(b.transposed), m, n, k, 1, a.data,
              static_cast<blasint>(leading(a)), b.data, static_cast<blasint>(leading(b)), beta, c,
              c_stride);
}

template <class T>
void product(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<T>& a, const Factor<T>& b,
             T* c, std::int64_t c_stride, bool accumulate) {
  multiply(static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), a, b, c,
           static_cast<blasint>(c_stride), accumulate ? T(1) : T(0));
}

#else

template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using ConstMap = Eigen::Map<const RowMajor<T>, Eigen::Unaligned, Eigen::OuterStride<> >;

template <class T>
void product(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<T>& a, const Factor<T>& b,
             T* c, std::int64_t c_stride, bool accumulate) {
  Eigen::Map<RowMajor<T>, Eigen::Unaligned, Eigen::OuterStride<> > out(
      c, m, n, Eigen::OuterStride<>(c_stride));
  const ConstMap<T> left(a.data, a.transposed ? k : m, a.transposed ? m : k,
                         Eigen::OuterStride<>(leading(a)));
  const ConstMap<T> right(b.data, b.transposed ? n : k, b.transposed ? k : n,
                          Eigen::OuterStride<>(leading(b)));
  if (!accumulate) out.setZero();
  if (a.transposed && b.transposed) {
    out.noalias() += left.transpose() * right.transpose();
  } else if (a.transposed) {
    out.noalias() += left.transpose() * right;
  } else if (b.transposed) {
    out.noalias() += left * right.transpose();
  } else {
    out.noalias() += left * right;
  }
}

#endif

template <class T>
void checked_product(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<T>& a,
                     const Factor<T>& b, T* c, std::int64_t c_stride, bool accumulate) {
  if (m == 0 || n == 0) return;
  if (k > 0) return product(m, n, k, a, b, c, c_stride, accumulate);
  if (accumulate) return;
  for (std::int64_t i = 0; i < m; ++i) std::fill_n(c + i * c_stride, n, T(0));
}

}  // namespace

#if VCAS_OPENBLAS
GemmLibrary gemm_library() {
  std::istringstream build(openblas_get_config());  // "OpenBLAS 0.3.21 NO_LAPACKE ..."
  std::string name, version;
  build >> name >> version;
  return {"openblas " + version, openblas_get_corename()};
}
void gemm_use_one_thread() { openblas_set_num_threads(1); }
#else
GemmLibrary gemm_library() {
  return {"eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." +
              std::to_string(EIGEN_MAJOR_VERSION) + "." + std::to_string(EIGEN_MINOR_VERSION),
          ""};
}
void gemm_use_one_thread() {}
#endif

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<float>& a,
          const Factor<float>& b, float* c, std::int64_t c_stride, bool accumulate) {
  checked_product(m, n, k, a, b, c, c_stride, accumulate);
}
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<double>& a,
          const Factor<double>& b, double* c, std::int64_t c_stride, bool accumulate) {
  checked_product(m, n, k, a, b, c, c_stride, accumulate);
}

}  // namespace vcas
