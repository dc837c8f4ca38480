// The functions of cuBLASLt in use. The library is found when the first device is made.
// So a program with CUDA support starts, and runs on the CPU, without cuBLAS.
#pragma once

#include <cublasLt.h>

#include <string>

namespace vcas::cuda {

class Cublas {
 public:
  // Loads the library. Throws Error(kUnavailable), naming it, if it is not found.
  Cublas();

  // Throws Error(kOutOfMemory) or InternalError; `what` says what was tried.
  void check(cublasStatus_t status, const std::string& what) const;

  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) status_text;
  decltype(&cublasLtMatmulDescCreate) create_product;
  decltype(&cublasLtMatmulDescDestroy) destroy_product;
  decltype(&cublasLtMatmulDescSetAttribute) set_product;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose_algorithm;
  decltype(&cublasLtMatmul) multiply;
};

}  // namespace vcas::cuda
