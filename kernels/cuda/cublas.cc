#include "kernels/cuda/cublas.h"

#include <dlfcn.h>

#include "core/error.h"

namespace vcas::cuda {
namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function)
    throw Error(ExitCode::kUnavailable, std::string("the cuBLAS library has no function ") + name,
                "install the CUDA toolkit that vcas was built with");
}

}  // namespace

Cublas::Cublas() {
  const std::string name = "libcublas.so." + std::to_string(CUBLAS_VER_MAJOR);
  // Never closed: the library keeps threads and device memory of its own.
  void* library = dlopen(name.c_str(), RTLD_NOW);
  if (!library) library = dlopen((VCAS_CUDA_LIBRARIES "/" + name).c_str(), RTLD_NOW);
  if (!library)
    throw Error(ExitCode::kUnavailable, "cannot load " + name + ": " + dlerror(),
                "install cuBLAS, or add its folder to LD_LIBRARY_PATH");
  find(library, "cublasCreate_v2", create);
  find(library, "cublasDestroy_v2", destroy);
  find(library, "cublasSetStream_v2", set_stream);
  find(library, "cublasSetWorkspace_v2", set_workspace);
  find(library, "cublasSetMathMode", set_math_mode);
  find(library, "cublasGetStatusString", status_text);
  find(library, "cublasSgemm_v2", product_f32);
  find(library, "cublasDgemm_v2", product_f64);
  find(library, "cublasGemmEx_64", product_of_types);
}

void Cublas::check(cublasStatus_t status, const std::string& what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string why = what + ": " + status_text(status);
  if (status == CUBLAS_STATUS_ALLOC_FAILED)
    throw Error(ExitCode::kOutOfMemory, "GPU out of memory: " + why,
                "a smaller batch or micro-batch needs less");
  throw InternalError("cuBLAS: " + why);
}

}  // namespace vcas::cuda
