// The GPU's side of kernels/device: memory, products, the stream.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cuda/cublas.h"
#include "kernels/device/pairs.h"
#include "kernels/ops.h"

namespace vcas::cuda {

// Throws what the status means. `what` says what was tried.
// Error(kOutOfMemory): the device has no memory left.
// Error(kUnavailable): there is no device or driver, or the device failed in mid-run.
// Error(kInternal): a kernel failed. InternalError: the rest, mistakes of calls.
void check(cudaError_t status, const std::string& what);
// Throws Error(kUnavailable) where there is no device.
void check_device();
// `check` for `bytes` asked of the host.
void check_host(cudaError_t status, std::size_t bytes);

struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, DestroyEvent>;
Event make_event(unsigned flags = cudaEventDisableTiming);

// What a captured body has begun beside its launches: `body` after `reached`, an event that each
// launch of the graph records.
struct Note {
  Event reached;
  std::function<void()> body;
};

// Launches with their arguments, which the device is given at once, and what runs beside them.
class LaunchGraph {
 public:
  LaunchGraph(cudaGraph_t captured, std::vector<Note> notes);
  LaunchGraph(LaunchGraph&& other) noexcept
      : exec_(std::exchange(other.exec_, nullptr)), notes_(std::move(other.notes_)) {}
  LaunchGraph& operator=(LaunchGraph&& other) noexcept {
    std::swap(exec_, other.exec_);
    std::swap(notes_, other.notes_);
    return *this;
  }
  ~LaunchGraph();

  cudaGraphExec_t exec() const { return exec_; }
  const std::vector<Note>& notes() const { return notes_; }

 private:
  cudaGraphExec_t exec_ = nullptr;
  std::vector<Note> notes_;
};

// Page-locked memory of the host. The device copies from or to it while the host goes on.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();

  // Makes it at least so large. What it held is lost.
  void reserve(std::size_t bytes);
  char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  // Marks what the stream has been given so far. Then: whether, and until, that is done.
  void mark(cudaStream_t stream);
  bool done() const;
  void wait() const;

 private:
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
  Event marked_;
};

// How many choices have names that begin with `chooser`. A run resumed on another device or library
// keeps those of the last.
std::int64_t choices_by(const std::string& chooser, const ProductChoices& choices);

// The current device. Operations run in the order of their calls, on one stream, but those of
// `run_side` on another.
// Large copies to the device cross the bus beside the operations. The host waits for these copies:
//   from the device (copy_to_host)
//   to the device, of more than kMostStagingBytes
//   to the device, not done when kStagingBytes of others have been made since
class Context {
 public:
  explicit Context(Precision precision = Precision::kF32);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

  std::string name() const { return "cuda"; }
  unsigned multiprocessors() const { return multiprocessors_; }
  // Bytes of shared memory that a block can have.
  std::size_t most_shared_bytes() const { return most_shared_bytes_; }
  Precision precision() const { return precision_; }
  // Whether the device has compute capability 9.0 and this build has code for sm_90a.
  bool warpgroup_products() const { return warpgroup_products_; }
  cudaStream_t stream() const { return branch_.stream; }

  void* allocate(std::size_t bytes);
  void deallocate(void* data);
  void copy_to_device(void* device, const void* host, std::size_t bytes);
  void copy_to_host(void* host, const void* device, std::size_t bytes);
  std::unique_ptr<Mailbox> make_mailbox(std::size_t bytes);
  std::unique_ptr<Timeline> make_timeline();
  void copy(void* to, const void* from, std::size_t bytes);
  // Workspace. It holds until the next call.
  void* scratch(std::size_t bytes) { return at_least(branch_.scratch, bytes); }
  // So many counts of 0, which kernels leave at 0 (ends_last).
  unsigned* counts(std::size_t number) {
    return static_cast<unsigned*>(at_least(branch_.counts, number * sizeof(unsigned)));
  }
  // How often these have moved.
  int grown() const { return grown_; }

  // `to` = `from` by ascending key, by CUB. Pairs of a key keep their order.
  // `workspace` has sort_bytes(count).
  void sort(const Pairs& to, const Pairs& from, std::int64_t count, std::int32_t keys_below,
            void* workspace);
  std::size_t sort_bytes(std::int64_t count) const;

  using LaunchGraph = cuda::LaunchGraph;
  // What `body` launches, without running it.
  LaunchGraph capture(const std::function<void()>& body);
  void replay(const LaunchGraph& graph);

  // Ops::beside and Ops::join. A body has a stream, workspace and counts of its own. A graph that
  // is captured has both branches.
  std::int64_t run_side(const std::function<void()>& body);
  void join_side(std::int64_t ticket);

  // Gives what `body` calls to a stream of its own, of high priority. That begins after the
  // operations called so far and runs beside those called next, until `join`. `body` uses neither
  // scratch nor counts nor products nor copies from or to the host.
  // While a graph is captured, `body` is called after each launch of it: NCCL has no part in
  // graphs, which all ranks would have to capture and launch alike.
  void beside(const std::function<void()>& body);
  // Operations called next see what ran beside those before.
  void join();
  // Whether ranks exchange by NCCL.
  static bool has_nccl() { return true; }

  ProductChoices* product_choices() { return &choices_; }

  // c[m, n] = a[m, k] b[k, n], or +=, by cuBLASLt. `bias`[n] is added if there is one.
  // Takes the algorithm that `product_choices` names. Else it times some, if it is to, or takes
  // the one that cuBLASLt thinks best.
  // Does nothing, and gives false, if that has no algorithm.
  // f32 is rounded to TF32 if the precision says so. Sums of bf16 are f32, rounded once for c in
  // bf16.
  template <class T, class Out>
  [[nodiscard]] bool gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<T>& a,
                          const Factor<T>& b, Out* c, bool accumulate, const Out* bias = nullptr);

 private:
  // The workspace of cuBLAS on Hopper; others need less.
  static constexpr std::size_t kProductBytes = std::size_t{32} << 20;
  static constexpr std::size_t kStagingBytes = std::size_t{32} << 20,
                               kMostStagingBytes = std::size_t{256} << 20;
  // A longer copy takes more time than handing it from one stream to the other.
  static constexpr std::size_t kLargeBytes = std::size_t{1} << 20;
  // Places get this many copies of weights and no more: when they are made and when read.
  static constexpr int kSingleCopies = 2;

  // Where copies to the device wait for it.
  struct Staging {
    PinnedMemory host;
    void* device = nullptr;  // as much, once there was a large copy that comes again
    std::size_t device_bytes = 0;
  };

  struct Workspace {
    void* data = nullptr;
    std::size_t bytes = 0;
  };

  // A stream, and memory that only its operations use.
  struct Branch {
    cudaStream_t stream = nullptr;
    void* products = nullptr;  // workspace of products
    Workspace scratch, counts;
  };

  cudaEvent_t side_event(std::int64_t ticket) const {
    return side_events_[static_cast<std::size_t>(ticket) % side_events_.size()].get();
  }
  void* at_least(Workspace& workspace, std::size_t bytes);
  template <class Value>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
    cublas_.check(cublas_.set_preference(preference_, attribute, &value, sizeof value),
                  "what products prefer");
  }
  void check_not_capturing(const char* what) const;
  void wait(const std::string& for_what);
  static cudaGraph_t captured_on(cudaStream_t stream, const std::function<void()>& body);
  // How long what `body` launches takes the device, again and again, when nothing else runs.
  double seconds_of(const std::function<void()>& body);
  void run_beside(const Event& after, const std::function<void()>& body);
  bool copy_beside(void* device, Staging& staging, std::size_t bytes);

  const Precision precision_;
  Branch branch_;         // of the operations called now
  Branch side_;           // changes places with branch_ while a body of run_side is called
  bool in_side_ = false;  // whether it has
  Event forked_;          // where the last body begins
  // Behind bodies, of which a later one takes the place of an older (side_event).
  std::array<Event, 16> side_events_;
  std::int64_t last_ticket_ = 0, joined_ticket_ = 0;
  cudaStream_t bus_ = nullptr;     // of large copies to the device
  Event crossed_;                  // behind the last of them
  cudaStream_t beside_ = nullptr;  // changes places with branch_.stream while a body runs beside
  Event reached_, ended_;          // where `beside` begins and `join` waits
  std::vector<Note> notes_;        // of the graph that is being captured
  // Filled in turns, each growing to the largest copy. One is filled again on two conditions:
  // copies no longer fit the other, and its own are done.
  Staging staging_[2];
  int filling_ = 0;
  std::unordered_map<void*, int> large_copies_;  // how many have come to a place
  std::size_t staged_ = 0;                       // bytes of the one that is filled
  Cublas cublas_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  ProductChoices choices_;
  std::string chooser_;  // the device and the version of cuBLASLt: names of choices begin so
  int grown_ = 0;
  unsigned multiprocessors_ = 0;
  std::size_t most_shared_bytes_ = 0;
  bool warpgroup_products_ = false;
  bool capturing_ = false;
};

}  // namespace vcas::cuda
