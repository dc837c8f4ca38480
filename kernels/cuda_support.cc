#include "kernels/cuda_support.h"

#ifdef VCAS_CUDA_BUILD
#include "kernels/cuda/cuda_ops.h"
#endif

namespace vcas {

CudaSupport cuda_support() {
#ifdef VCAS_CUDA_BUILD
  return {VCAS_CUDA_BUILD, cuda_devices(), cuda_missing()};
#else
  return {.missing = "this build has no CUDA support"};
#endif
}

}  // namespace vcas
