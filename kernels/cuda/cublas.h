// The functions of cuBLASLt in use. The library is found when the first device is made.
// So a program with CUDA support starts, and runs on the CPU, without cuBLAS.
#pragma once

#include <cublasLt.h>

#include <optional>
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
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose_algorithms;
  decltype(&cublasLtMatmulAlgoCheck) check_algorithm;
  decltype(&cublasLtMatmul) multiply;
};

// An algorithm in hexadecimal digits, and back. Empty: they are none.
// The same version of the library has it again (cuBLASLt, cublasLtMatmulAlgo_t).
std::string text_of(const cublasLtMatmulAlgo_t& algorithm);
std::optional<cublasLtMatmulAlgo_t> algorithm_of(const std::string& text);

}  // namespace vcas::cuda
