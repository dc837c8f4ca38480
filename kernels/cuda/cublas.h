// The functions of cuBLAS in use, from the library that is found when the first device is made: a
// program with CUDA support starts, and runs on the CPU, where cuBLAS is not installed.
#pragma once

#include <cublas_v2.h>

#include <string>
#include <type_traits>

namespace vcas::cuda {

class Cublas {
 public:
  // Loads the library. Throws Error(kUnavailable) naming it where it is not found.
  Cublas();

  // Throws Error(kOutOfMemory) or InternalError; `what` says what was tried.
  void check(cublasStatus_t status, const std::string& what) const;

  template <class T>
  auto product() const {
    if constexpr (std::is_same_v<T, float>)
      return product_f32;
    else
      return product_f64;
  }

  decltype(&cublasCreate_v2) create;
  decltype(&cublasDestroy_v2) destroy;
  decltype(&cublasSetStream_v2) set_stream;
  decltype(&cublasSetWorkspace_v2) set_workspace;
  decltype(&cublasSetMathMode) set_math_mode;
  decltype(&cublasGetStatusString) status_text;
  decltype(&cublasSgemm_v2) product_f32;
  decltype(&cublasDgemm_v2) product_f64;
  decltype(&cublasGemmEx_64) product_of_types;
};

}  // namespace vcas::cuda
