#include "kernels/cuda/profiler.h"

#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>

#include "kernels/cuda/context.h"

namespace vcas {
namespace {

class CudaProfiler final : public Profiler {
 public:
  void push(const std::string& name) override {
    nvtxEventAttributes_t event{};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = name.c_str();
    nvtxDomainRangePushEx(domain_, &event);
  }
  void pop() override { nvtxDomainRangePop(domain_); }
  void start() override { cuda::check(cudaProfilerStart(), "starting the profiler"); }
  void stop() override {
    // What the steps have queued is part of them.
    cuda::check(cudaDeviceSynchronize(), "the last step of the profile");
    cuda::check(cudaProfilerStop(), "stopping the profiler");
  }

 private:
  nvtxDomainHandle_t domain_ = nvtxDomainCreateA("vcas");
};

}  // namespace

std::unique_ptr<Profiler> make_cuda_profiler() { return std::make_unique<CudaProfiler>(); }

}  // namespace vcas
