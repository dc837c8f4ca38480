#include "kernels/cpu/gemm.h"

#include <algorithm>

#if VCAS_OPENBLAS
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "core/error.h"
#include "kernels/cpu/cpu_ops.h"

// As OpenBLAS 0.3 declares them. Its headers come with 58 MB of a static library.
extern "C" {
void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                 const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
void cblas_dgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, double alpha,
                 const double* a, int lda, const double* b, int ldb, double beta, double* c,
                 int ldc);
void openblas_set_num_threads(int threads);
char* openblas_get_config();
char* openblas_get_corename();
}
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

constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;  // of the CBLAS standard

int order(bool transposed) { return transposed ? kTranspose : kNoTranspose; }

template <class T>
constexpr auto cblas_gemm = cblas_sgemm;
template <>
constexpr auto cblas_gemm<double> = cblas_dgemm;

template <class T>
void product(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<T>& a, const Factor<T>& b,
             T* c, std::int64_t c_stride, bool accumulate) {
  cblas_gemm<T>(kRowMajor, order(a.transposed), order(b.transposed), static_cast<int>(m),
                static_cast<int>(n), static_cast<int>(k), 1, a.data, static_cast<int>(leading(a)),
                b.data, static_cast<int>(leading(b)), accumulate ? T(1) : T(0), c,
                static_cast<int>(c_stride));
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
namespace {

// OpenBLAS has these kernels for processors without AVX2. A newer processor may get one as well.
constexpr std::string_view kOldKernels[] = {"Prescott",  "Core2",        "Penryn",     "Dunnington",
                                            "Nehalem",   "Sandybridge",  "Atom",       "Nano",
                                            "Opteron",   "Opteron_SSE3", "Barcelona",  "Bobcat",
                                            "Bulldozer", "Piledriver",   "Steamroller"};
// These kernels use AVX2 and nothing wider.
constexpr std::string_view kAvx2Kernels[] = {"Haswell", "Zen", "Excavator"};

std::string better_kernel(std::string_view kernel) {
  const bool is_old = std::ranges::count(kOldKernels, kernel) > 0;
  const bool is_avx2 = std::ranges::count(kAvx2Kernels, kernel) > 0;
  const char* better = cpu_has(CpuLevel::kV4) && (is_old || is_avx2) ? "SkylakeX"
                       : cpu_has(CpuLevel::kV3) && is_old            ? "Haswell"
                                                                     : "";
  // A library that has no such kernel takes another one for it.
  const char* set = std::getenv("OPENBLAS_CORETYPE");
  return set && better == std::string_view(set) ? "" : better;
}

}  // namespace

GemmLibrary gemm_library() {
  std::istringstream build(openblas_get_config());  // "OpenBLAS 0.3.21 NO_LAPACKE ..."
  std::string name, version;
  build >> name >> version;
  const std::string kernel = openblas_get_corename();
  const bool chooses = build.str().find("DYNAMIC_ARCH") != std::string::npos;
  return {"openblas " + version, kernel, chooses ? better_kernel(kernel) : ""};
}
void gemm_use_one_thread() {
  const std::string build = openblas_get_config();
  VCAS_CHECK(build.find("USE64BITINT") == std::string::npos, "an OpenBLAS of 64-bit integers");
  openblas_set_num_threads(1);
}
#else
GemmLibrary gemm_library() {
  return {"eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." +
              std::to_string(EIGEN_MAJOR_VERSION) + "." + std::to_string(EIGEN_MINOR_VERSION),
          "", ""};
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
