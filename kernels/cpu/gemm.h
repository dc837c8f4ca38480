// Matrix products on the calling thread. OpenBLAS makes them if it was found, else Eigen.
#pragma once

#include <cstdint>
#include <string>

namespace vcas {

// op(A): A or its transpose. A is row-major, with `stride` elements between its rows.
template <class T>
struct Factor {
  const T* data;
  std::int64_t stride;
  bool transposed = false;

  // op(A) from its row (or column) `first` on.
  Factor from_row(std::int64_t first) const { return moved(transposed ? first : first * stride); }
  Factor from_column(std::int64_t first) const {
    return moved(transposed ? first * stride : first);
  }

 private:
  Factor moved(std::int64_t elements) const { return {data + elements, stride, transposed}; }
};

// What computes the products.
struct GemmLibrary {
  std::string name;    // "openblas 0.3.21" or "eigen 3.4.0"
  std::string kernel;  // of OpenBLAS: which of its kernels this process uses, "SkylakeX"
  // One of its kernels that uses more instructions of this CPU, or "". OpenBLAS takes its oldest
  // kernel on a processor that is newer than itself.
  std::string better;
};
GemmLibrary gemm_library();

// Called once before the first product. The library must not start threads of its own.
void gemm_use_one_thread();

// c[m, n] = a[m, k] b[k, n], or +=. The product is exactly 0 for k = 0.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<float>& a,
          const Factor<float>& b, float* c, std::int64_t c_stride, bool accumulate);
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<double>& a,
          const Factor<double>& b, double* c, std::int64_t c_stride, bool accumulate);

}  // namespace vcas
