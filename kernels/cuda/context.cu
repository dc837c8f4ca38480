#include <bit>
#include <cstring>
#include <cub/device/device_radix_sort.cuh>
#include <memory>

#include "kernels/cuda/context.h"

namespace vcas::cuda {
namespace {

// Copies from page-locked memory, and within the device, begin at multiples of it.
constexpr std::size_t kAlignment = 256;

}  // namespace

void check(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  // This status is also what the runtime has where no driver is installed.
  const std::string why = what + ": " +
                          (status == cudaErrorInsufficientDriver
                               ? "no NVIDIA driver, or one older than this build needs"
                               : cudaGetErrorString(status));
  cudaGetLastError();  // forget it, where it can be forgotten
  switch (status) {
    case cudaErrorMemoryAllocation:
      throw Error(ExitCode::kOutOfMemory, "GPU out of memory: " + why,
                  "a smaller train.micro_batch needs less memory and keeps exact gradients, unless "
                  "there are BatchNorms or dropout; train.eval_batch too must be small, or the "
                  "model smaller (model.*)");
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorStubLibrary:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorDeviceNotLicensed:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsServerNotReady:
    case cudaErrorMpsMaxClientsReached:
    case cudaErrorMpsMaxConnectionsReached:
    case cudaErrorMpsClientTerminated:
      throw Error(ExitCode::kUnavailable, "no CUDA device (" + why + ")",
                  "device=\"auto\" uses the CPU here");
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInvalidKernelImage:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
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
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMisalignedAddress:
      throw Error(ExitCode::kInternal, "a kernel failed on the GPU (" + why + ")",
                  "this is a bug in vcas, please report it, unless Xid messages in dmesg tell of "
                  "broken hardware; the last checkpoint is whole, and --resume goes on from it");
    default:
      throw InternalError("CUDA: " + why);
  }
}

void check_host(cudaError_t status, std::size_t bytes) {
  const std::string what = std::to_string(bytes) + " bytes of page-locked memory";
  if (status != cudaErrorMemoryAllocation) return check(status, what);
  cudaGetLastError();  // forget it
  throw Error(ExitCode::kOutOfMemory, "host out of memory: no " + what,
              "free memory on this machine, or raise the limit of its control group");
}

Event make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, flags), "an event");
  return Event(event);
}

LaunchGraph::LaunchGraph(cudaGraph_t captured, std::vector<Note> notes) : notes_(std::move(notes)) {
  const cudaError_t status =
      cudaGraphInstantiate(&exec_, captured, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(captured);
  check(status, "making a graph");
}

LaunchGraph::~LaunchGraph() {
  if (exec_) cudaGraphExecDestroy(exec_);
}

PinnedMemory::~PinnedMemory() {
  if (marked_) cudaEventSynchronize(marked_.get());
  cudaFreeHost(data_);
}

void PinnedMemory::reserve(std::size_t bytes) {
  if (bytes <= bytes_) return;
  cudaFreeHost(data_);
  data_ = nullptr;
  bytes_ = 0;
  check_host(cudaMallocHost(&data_, bytes), bytes);
  bytes_ = bytes;
}

void PinnedMemory::mark(cudaStream_t stream) {
  if (!marked_) marked_ = make_event();
  check(cudaEventRecord(marked_.get(), stream), "an event behind a copy");
}

bool PinnedMemory::done() const {
  const cudaError_t status = marked_ ? cudaEventQuery(marked_.get()) : cudaSuccess;
  if (status == cudaSuccess) return true;
  if (status != cudaErrorNotReady) check(status, "kernels before a copy");
  cudaGetLastError();  // or the next launch would report it
  return false;
}

void PinnedMemory::wait() const {
  if (marked_) check(cudaEventSynchronize(marked_.get()), "kernels before a copy");
}

void check_device() {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "looking for devices");
  check(devices > 0 ? cudaSuccess : cudaErrorNoDevice, "looking for devices");
}

Context::Context(Precision precision) : precision_(precision) {
  int device = 0, multiprocessors = 0, major = 0, minor = 0, has_pools = 0;
  check(cudaGetDevice(&device), "the current device");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "number of multiprocessors");
  multiprocessors_ = static_cast<unsigned>(multiprocessors);
  int most_shared_bytes = 0;
  check(cudaDeviceGetAttribute(&most_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "shared memory of a block");
  most_shared_bytes_ = static_cast<std::size_t>(most_shared_bytes);
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "compute capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "compute capability");
  warpgroup_products_ = VCAS_SM90A && major == 9 && minor == 0;
  check(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device),
        "memory pools");
  if (!has_pools)
    throw Error(ExitCode::kUnavailable, "the GPU or its driver has no memory pools",
                "a newer driver may have them, a share of a virtual GPU may not; device=\"cpu\" "
                "works everywhere");
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "priorities of streams");
  const auto make_stream = [](cudaStream_t& stream, int priority) {
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "a stream");
  };
  // The end of this one is waited for, so it goes before the other one.
  make_stream(branch_.stream, lowest + (highest - lowest - 1) / 2);
  make_stream(side_.stream, lowest);
  make_stream(bus_, lowest);
  make_stream(beside_, highest);
  for (Event* event : {&crossed_, &reached_, &ended_, &forked_}) *event = make_event();
  for (Event& event : side_events_) event = make_event();
  cudaMemPool_t pool = nullptr;
  std::uint64_t keep_all = UINT64_MAX;  // freed memory stays with the process
  check(cudaDeviceGetDefaultMemPool(&pool, device), "the memory pool");
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all),
        "the memory pool");
  for (Staging& staging : staging_) staging.host.reserve(kStagingBytes);
  for (Branch* branch : {&branch_, &side_}) branch->products = allocate(kProductBytes);
  check(cudaStreamSynchronize(branch_.stream), "workspace");  // the other stream must find it made
  cublas_.check(cublas_.create(&handle_), "starting cuBLASLt");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "the name of the device");
  chooser_ =
      std::string(properties.name) + ", cuBLASLt " + std::to_string(cublas_.version()) + ": ";
  cublas_.check(cublas_.create_preference(&preference_), "a preference");
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kProductBytes});
  // Parts of a sum are never rounded to bf16.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
}

Context::~Context() {
  const cudaStream_t streams[] = {side_.stream, bus_, beside_, branch_.stream};
  for (const cudaStream_t stream : streams)
    if (stream) cudaStreamSynchronize(stream);
  if (preference_) cublas_.destroy_preference(preference_);
  if (handle_) cublas_.destroy(handle_);
  for (const Branch& branch : {branch_, side_})
    for (void* data : {branch.products, branch.scratch.data, branch.counts.data}) deallocate(data);
  for (const Staging& staging : staging_) deallocate(staging.device);
  for (const cudaStream_t stream : streams)
    if (stream) {
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
}

// Nothing that was staged is still on its way then. That holds in a body of run_side too: its
// stream comes after all that was called before, and it stages nothing.
void Context::wait(const std::string& for_what) {
  check(cudaStreamSynchronize(branch_.stream), for_what);
  staged_ = 0;
}

void Context::check_not_capturing(const char* what) const {
  VCAS_CHECK(!capturing_, std::string(what) + " while a graph is captured");
}

void* Context::allocate(std::size_t bytes) {
  check_not_capturing("memory asked for");
  void* data = nullptr;
  const std::size_t at_least_one = bytes ? bytes : 1;
  const cudaError_t status = cudaMallocAsync(&data, at_least_one, branch_.stream);
  if (status == cudaErrorMemoryAllocation) {
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    const auto mib = [](std::size_t n) { return std::to_string(n >> 20); };
    check(status, mib(bytes) + " MiB more are needed, and " + mib(free) + " of " + mib(total) +
                      " MiB are free");
  }
  check(status, std::to_string(bytes) + " bytes");
  check(cudaMemsetAsync(data, 0, at_least_one, branch_.stream), "clearing memory");
  return data;
}

void Context::deallocate(void* data) {
  if (data) cudaFreeAsync(data, branch_.stream);  // called by destructors
}

void Context::copy_to_device(void* device, const void* host, std::size_t bytes) {
  check_not_capturing("a copy from the host");
  VCAS_CHECK(!in_side_, "a copy from the host in a body beside others");
  if (bytes == 0) return;
  const std::string what = "copy to the device";
  if (bytes > kMostStagingBytes) {
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, branch_.stream), what);
    return wait(what);
  }
  if (staged_ + bytes > staging_[filling_].host.bytes()) {
    filling_ = 1 - filling_;
    staging_[filling_].host.wait();
    staging_[filling_].host.reserve(bytes);
    staged_ = 0;
  }
  Staging& staging = staging_[filling_];
  char* const from = staging.host.data() + staged_;
  std::memcpy(from, host, bytes);
  if (!copy_beside(device, staging, bytes))
    check(cudaMemcpyAsync(device, from, bytes, cudaMemcpyHostToDevice, branch_.stream), what);
  staging.host.mark(branch_.stream);
  staged_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The last `bytes` of `staging`: over the bus while the stream is at the operations before, then
// within the device when it has done them. Whether it is worth it, and has been done.
bool Context::copy_beside(void* device, Staging& staging, std::size_t bytes) {
  if (bytes < kLargeBytes || ++large_copies_[device] <= kSingleCopies) return false;
  const std::string what = "a copy to the device beside kernels";
  if (staging.device_bytes < staging.host.bytes()) {
    deallocate(staging.device);
    staging.device = nullptr;
    staging.device_bytes = 0;
    if (cudaMallocAsync(&staging.device, staging.host.bytes(), branch_.stream) != cudaSuccess) {
      cudaGetLastError();  // or the next launch would report it
      staging.device = nullptr;
      return false;
    }
    staging.device_bytes = staging.host.bytes();
    check(cudaStreamSynchronize(branch_.stream), what);  // the other stream must find it made
  }
  const char* const from = staging.host.data() + staged_;
  char* const beside = static_cast<char*>(staging.device) + staged_;
  check(cudaMemcpyAsync(beside, from, bytes, cudaMemcpyHostToDevice, bus_), what);
  check(cudaEventRecord(crossed_.get(), bus_), what);
  check(cudaStreamWaitEvent(branch_.stream, crossed_.get()), what);
  check(cudaMemcpyAsync(device, beside, bytes, cudaMemcpyDeviceToDevice, branch_.stream), what);
  return true;
}

void Context::copy_to_host(void* host, const void* device, std::size_t bytes) {
  check_not_capturing("a copy to the host");
  if (bytes == 0) return;
  check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, branch_.stream),
        "copy to the host");
  wait("kernels before a copy to the host");
}

std::unique_ptr<Mailbox> Context::make_mailbox(std::size_t bytes) {
  class PinnedMailbox final : public Mailbox {
   public:
    PinnedMailbox(const Context& context, std::size_t bytes) : context_(context) {
      host_.reserve(bytes);
    }
    void send(const void* device, std::size_t bytes) override {
      context_.check_not_capturing("a copy to the host");
      check(cudaMemcpyAsync(host_.data(), device, bytes, cudaMemcpyDeviceToHost, context_.stream()),
            "copy to the host");
      host_.mark(context_.stream());
    }
    bool arrived() override { return host_.done(); }
    const std::byte* receive() override {
      host_.wait();
      return reinterpret_cast<const std::byte*>(host_.data());
    }

   private:
    const Context& context_;
    PinnedMemory host_;
  };
  return std::make_unique<PinnedMailbox>(*this, bytes);
}

std::unique_ptr<Timeline> Context::make_timeline() {
  class EventTimeline final : public Timeline {
   public:
    explicit EventTimeline(const Context& context) : context_(context) {}
    void mark() override {
      context_.check_not_capturing("a mark in time");
      if (used_ == events_.size()) events_.push_back(make_event(cudaEventDefault));
      check(cudaEventRecord(events_[used_++].get(), context_.stream()), "a mark in time");
    }
    std::vector<double> take_seconds() override {
      std::vector<double> seconds;
      if (used_ > 0) check(cudaEventSynchronize(events_[used_ - 1].get()), "kernels before a mark");
      for (std::size_t i = 1; i < used_; ++i) {
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, events_[i - 1].get(), events_[i].get()),
              "two marks");
        seconds.push_back(1e-3 * static_cast<double>(milliseconds));
      }
      used_ = 0;
      return seconds;
    }

   private:
    const Context& context_;
    std::vector<Event> events_;  // kept for the next marks
    std::size_t used_ = 0;
  };
  return std::make_unique<EventTimeline>(*this);
}

void Context::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, branch_.stream), "copy");
}

void* Context::at_least(Workspace& workspace, std::size_t bytes) {
  if (bytes > workspace.bytes) {
    deallocate(workspace.data);
    workspace = {};
    workspace = {allocate(bytes), bytes};
    ++grown_;
  }
  return workspace.data;
}

void Context::sort(const Pairs& to, const Pairs& from, std::int64_t count, std::int32_t keys_below,
                   void* workspace) {
  std::size_t bytes = sort_bytes(count);
  const int bits = std::bit_width(static_cast<std::uint32_t>(keys_below));
  check(cub::DeviceRadixSort::SortPairs(workspace, bytes, from.key, to.key, from.value, to.value,
                                        count, 0, bits, branch_.stream),
        "sorting pairs");
}

std::size_t Context::sort_bytes(std::int64_t count) const {
  const std::int32_t* const from = nullptr;
  std::int32_t* const to = nullptr;
  std::size_t bytes = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, from, to, from, to, count),
        "the workspace of a sort");
  return bytes;
}

LaunchGraph Context::capture(const std::function<void()>& body) {
  check_not_capturing("a capture");
  join_side(last_ticket_);  // its own branch has one workspace with what is no part of it
  capturing_ = true;
  notes_.clear();
  try {
    cudaGraph_t const captured = captured_on(branch_.stream, [&] {
      body();
      VCAS_CHECK(joined_ticket_ == last_ticket_, "a graph ends before what runs beside it");
    });
    capturing_ = false;
    return LaunchGraph(captured, std::move(notes_));
  } catch (...) {
    capturing_ = false;
    joined_ticket_ = last_ticket_;
    throw;
  }
}

cudaGraph_t Context::captured_on(cudaStream_t stream, const std::function<void()>& body) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "starting a capture");
  cudaGraph_t captured = nullptr;
  try {
    body();
  } catch (...) {
    cudaStreamEndCapture(stream, &captured);
    if (captured) cudaGraphDestroy(captured);
    cudaGetLastError();  // that it was broken off
    throw;
  }
  check(cudaStreamEndCapture(stream, &captured), "capturing a graph");
  return captured;
}

void Context::replay(const LaunchGraph& graph) {
  join_side(last_ticket_);
  check(cudaGraphLaunch(graph.exec(), branch_.stream), "launching a graph");
  for (const Note& note : graph.notes()) run_beside(note.reached, note.body);
}

std::int64_t Context::run_side(const std::function<void()>& body) {
  VCAS_CHECK(!in_side_, "a body beside others begins a further one");
  check(cudaEventRecord(forked_.get(), branch_.stream), "the beginning of a branch");
  check(cudaStreamWaitEvent(side_.stream, forked_.get()), "waiting for what comes before");
  const auto change = [this] {
    std::swap(branch_, side_);
    in_side_ = !in_side_;
  };
  const auto end = [&] {
    change();
    return cudaEventRecord(side_event(++last_ticket_), side_.stream);
  };
  change();
  try {
    body();
  } catch (...) {
    end();  // what it has launched is waited for too
    throw;
  }
  check(end(), "the end of a branch");
  return last_ticket_;
}

void Context::join_side(std::int64_t ticket) {
  ticket = std::min(ticket, last_ticket_);
  if (in_side_ || ticket <= joined_ticket_) return;
  joined_ticket_ = ticket;
  check(cudaStreamWaitEvent(branch_.stream, side_event(ticket)), "waiting for a branch");
}

void Context::beside(const std::function<void()>& body) {
  if (!capturing_) {
    check(cudaEventRecord(reached_.get(), branch_.stream), "the beginning of what runs beside");
    return run_beside(reached_, body);
  }
  notes_.push_back({make_event(), body});
  check(cudaEventRecordWithFlags(notes_.back().reached.get(), branch_.stream,
                                 cudaEventRecordExternal),
        "an event in a graph");
}

void Context::run_beside(const Event& after, const std::function<void()>& body) {
  check(cudaStreamWaitEvent(beside_, after.get()), "waiting for what comes before");
  struct Exchanged {
    cudaStream_t &a, &b;
    Exchanged(cudaStream_t& a, cudaStream_t& b) : a(a), b(b) { std::swap(a, b); }
    ~Exchanged() { std::swap(a, b); }
  };
  const Exchanged until_the_end(branch_.stream, beside_);
  body();
}

void Context::join() {
  check_not_capturing("waiting for what runs beside");
  check(cudaEventRecord(ended_.get(), beside_), "the end of what runs beside");
  check(cudaStreamWaitEvent(branch_.stream, ended_.get()), "waiting for what runs beside");
}

}  // namespace vcas::cuda
