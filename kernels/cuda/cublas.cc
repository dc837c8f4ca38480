#include "kernels/cuda/cublas.h"

#include <dlfcn.h>

#include "core/error.h"

namespace vcas::cuda {
namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function)
    throw Error(ExitCode::kUnavailable, std::string("the cuBLASLt library has no function ") + name,
                "install the CUDA toolkit that vcas was built with");
}

}  // namespace

Cublas::Cublas() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  // Never closed: the library keeps threads and device memory of its own.
  void* library = dlopen(name.c_str(), RTLD_NOW);
  if (!library) library = dlopen((VCAS_CUDA_LIBRARIES "/" + name).c_str(), RTLD_NOW);
  if (!library)
    throw Error(ExitCode::kUnavailable, "cannot load " + name + ": " + dlerror(),
                "install cuBLAS, or add its folder to LD_LIBRARY_PATH");
  find(library, "cublasLtCreate", create);
  find(library, "cublasLtDestroy", destroy);
  find(library, "cublasLtGetStatusString", status_text);
  find(library, "cublasLtMatmulDescCreate", create_product);
  find(library, "cublasLtMatmulDescDestroy", destroy_product);
  find(library, "cublasLtMatmulDescSetAttribute", set_product);
  find(library, "cublasLtMatrixLayoutCreate", create_layout);
  find(library, "cublasLtMatrixLayoutDestroy", destroy_layout);
  find(library, "cublasLtMatmulPreferenceCreate", create_preference);
  find(library, "cublasLtMatmulPreferenceDestroy", destroy_preference);
  find(library, "cublasLtMatmulPreferenceSetAttribute", set_preference);
  find(library, "cublasLtMatmulAlgoGetHeuristic", choose_algorithm);
  find(library, "cublasLtMatmul", multiply);
}

void Cublas::check(cublasStatus_t status, const std::string& what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string why = what + ": " + status_text(status);
  if (status == CUBLAS_STATUS_ALLOC_FAILED)
    throw Error(ExitCode::kOutOfMemory, "GPU out of memory: " + why,
                "a smaller batch or micro-batch needs less");
  throw InternalError("cuBLASLt: " + why);
}

}  // namespace vcas::cuda
