#include <climits>
#include <cstring>

#include "kernels/cuda/context.h"

namespace vcas::cuda {
namespace {

// Of cuBLAS on Hopper; others need less.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

int narrow(std::int64_t extent) {
  VCAS_CHECK(extent <= INT_MAX, "a product of " + std::to_string(extent) + " rows or columns");
  return static_cast<int>(extent);
}

}  // namespace

void check(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  const std::string why = what + ": " + cudaGetErrorString(status);
  cudaGetLastError();  // forget it, where it can be forgotten
  switch (status) {
    case cudaErrorMemoryAllocation:
      throw Error(ExitCode::kOutOfMemory, "GPU out of memory: " + why,
                  "a smaller train.micro_batch needs less memory and keeps the result; "
                  "train.eval_batch too must be small");
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorStubLibrary:
      throw Error(ExitCode::kUnavailable, "no CUDA device (" + why + ")",
                  "device=\"auto\" uses the CPU here");
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      throw Error(ExitCode::kUnavailable, "this build has no code for this GPU (" + why + ")",
                  "build with CMAKE_CUDA_ARCHITECTURES=native");
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchTimeout:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      throw Error(ExitCode::kUnavailable, "the GPU was lost (" + why + ")",
                  "look at dmesg for Xid messages; the last checkpoint is whole, and --resume goes "
                  "on from it once the GPU works again");
    default:
      throw InternalError("CUDA: " + why);
  }
}

Graph::Graph(cudaGraph_t captured) {
  const cudaError_t status = cudaGraphInstantiate(&exec_, captured, 0);
  cudaGraphDestroy(captured);
  check(status, "making a graph");
}

Graph::~Graph() {
  if (exec_) cudaGraphExecDestroy(exec_);
}

Context::Context(Precision precision) : precision_(precision) {
  int devices = 0, device = 0, multiprocessors = 0, major = 0, minor = 0;
  check(cudaGetDeviceCount(&devices), "looking for devices");
  check(devices > 0 ? cudaSuccess : cudaErrorNoDevice, "looking for devices");
  check(cudaGetDevice(&device), "the current device");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "number of multiprocessors");
  multiprocessors_ = static_cast<unsigned>(multiprocessors);
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "compute capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "compute capability");
  warpgroup_products_ = VCAS_SM90A && major == 9 && minor == 0;
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  cudaMemPool_t pool = nullptr;
  std::uint64_t keep_all = UINT64_MAX;  // freed memory stays with the process
  check(cudaDeviceGetDefaultMemPool(&pool, device), "the memory pool");
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all),
        "the memory pool");
  check(cudaMallocHost(&staging_, kStagingBytes), "page-locked memory");
  workspace_ = allocate(kWorkspaceBytes);
  cublas_.check(cublas_.create(&handle_), "starting cuBLAS");
  cublas_.check(cublas_.set_stream(handle_, stream_), "the stream of cuBLAS");
  cublas_.check(cublas_.set_workspace(handle_, workspace_, kWorkspaceBytes), "its workspace");
  if (precision == Precision::kTf32)
    cublas_.check(cublas_.set_math_mode(handle_, CUBLAS_TF32_TENSOR_OP_MATH), "TF32 of cuBLAS");
  if (precision == Precision::kBf16)  // parts of a sum stay f32 too
    cublas_.check(cublas_.set_math_mode(handle_, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
                  "sums of cuBLAS");
}

Context::~Context() {
  if (handle_) cublas_.destroy(handle_);
  for (void* data : {workspace_, scratch_})
    if (data) cudaFreeAsync(data, stream_);
  if (stream_) {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  cudaFreeHost(staging_);
}

void Context::wait(const std::string& for_what) {
  check(cudaStreamSynchronize(stream_), for_what);
  staged_ = 0;
}

void Context::check_not_capturing(const char* what) const {
  VCAS_CHECK(!capturing_, std::string(what) + " while a graph is captured");
}

void* Context::allocate(std::size_t bytes) {
  check_not_capturing("memory asked for");
  void* data = nullptr;
  const std::size_t at_least_one = bytes ? bytes : 1;
  const cudaError_t status = cudaMallocAsync(&data, at_least_one, stream_);
  if (status == cudaErrorMemoryAllocation) {
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    const auto mib = [](std::size_t n) { return std::to_string(n >> 20); };
    check(status, mib(bytes) + " MiB more are needed, and " + mib(free) + " of " + mib(total) +
                      " MiB are free");
  }
  check(status, std::to_string(bytes) + " bytes");
  check(cudaMemsetAsync(data, 0, at_least_one, stream_), "clearing memory");
  return data;
}

void Context::deallocate(void* data) {
  if (data) cudaFreeAsync(data, stream_);  // called by destructors
}

void Context::copy_to_device(void* device, const void* host, std::size_t bytes) {
  check_not_capturing("a copy from the host");
  if (bytes == 0) return;
  const std::string what = "copy to the device";
  if (bytes > kStagingBytes) {
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), what);
    return wait(what);
  }
  if (staged_ + bytes > kStagingBytes) wait(what);
  std::memcpy(staging_ + staged_, host, bytes);
  check(cudaMemcpyAsync(device, staging_ + staged_, bytes, cudaMemcpyHostToDevice, stream_), what);
  staged_ += bytes;
}

void Context::copy_to_host(void* host, const void* device, std::size_t bytes) {
  check_not_capturing("a copy to the host");
  if (bytes == 0) return;
  check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "copy to the host");
  wait("kernels before a copy to the host");
}

void Context::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copy");
}

void* Context::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    deallocate(scratch_);
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    scratch_ = allocate(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_;
}

Graph Context::capture(const std::function<void()>& body) {
  check_not_capturing("a capture");
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "starting a capture");
  cudaGraph_t captured = nullptr;
  capturing_ = true;
  try {
    body();
  } catch (...) {
    capturing_ = false;
    cudaStreamEndCapture(stream_, &captured);
    if (captured) cudaGraphDestroy(captured);
    cudaGetLastError();  // that it was broken off
    throw;
  }
  capturing_ = false;
  check(cudaStreamEndCapture(stream_, &captured), "capturing a graph");
  return Graph(captured);
}

void Context::replay(const Graph& graph) {
  check(cudaGraphLaunch(graph.exec(), stream_), "launching a graph");
}

// cuBLAS stores matrices by columns: there c^T = b^T a^T.
template <class T, class Out>
void Context::gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<T>& a,
                   const Factor<T>& b, Out* c, bool accumulate) {
  if (m == 0 || n == 0) return;
  const Compute<T> one = 1, beta = accumulate ? 1 : 0;
  const auto op = [](const Factor<T>& f) { return f.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  cublasStatus_t status;
  if constexpr (std::is_same_v<T, bfloat16>)
    status = cublas_.product_of_types(handle_, op(b), op(a), n, m, k, &one, b.data, CUDA_R_16BF,
                                      b.stride, a.data, CUDA_R_16BF, a.stride, &beta, c,
                                      std::is_same_v<Out, float> ? CUDA_R_32F : CUDA_R_16BF, n,
                                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  else
    status =
        cublas_.product<T>()(handle_, op(b), op(a), narrow(n), narrow(m), narrow(k), &one, b.data,
                             narrow(b.stride), a.data, narrow(a.stride), &beta, c, narrow(n));
  cublas_.check(status, "a product of " + std::to_string(m) + " x " + std::to_string(n) + " x " +
                            std::to_string(k));
}

template void Context::gemm(std::int64_t, std::int64_t, std::int64_t, const Factor<float>&,
                            const Factor<float>&, float*, bool);
template void Context::gemm(std::int64_t, std::int64_t, std::int64_t, const Factor<double>&,
                            const Factor<double>&, double*, bool);
template void Context::gemm(std::int64_t, std::int64_t, std::int64_t, const Factor<bfloat16>&,
                            const Factor<bfloat16>&, bfloat16*, bool);
template void Context::gemm(std::int64_t, std::int64_t, std::int64_t, const Factor<bfloat16>&,
                            const Factor<bfloat16>&, float*, bool);

}  // namespace vcas::cuda
