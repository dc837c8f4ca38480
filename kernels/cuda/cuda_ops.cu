#include "kernels/cuda/cuda_ops.h"
#include "kernels/device/device_ops.cuh"

namespace vcas {

std::unique_ptr<Ops> make_cuda_ops(Precision precision) {
  cuda::check_device();  // before cuBLAS is looked for
  return std::make_unique<cuda::DeviceOps>(precision);
}

std::string cuda_missing() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return devices > 0 ? "" : "no device";
}

std::vector<std::string> cuda_devices() {
  std::vector<std::string> names;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return names;
  for (int device = 0; device < devices; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return names;
    names.emplace_back(properties.name);
  }
  return names;
}

std::unique_ptr<Exchange> make_cuda_nccl_exchange(Ops& ops, Ranks& ranks) {
  return cuda::make_nccl_exchange(dynamic_cast<cuda::DeviceOps&>(ops).context(), ranks);
}

}  // namespace vcas
