// Runs CUDA kernels on the host, for their correctness (docs/kernels.md).
// One block runs at a time, with one fiber a thread.
// A fiber is left only at a barrier or a warp collective.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/emu/fiber.h"
#include "kernels/emu/wgmma.h"

namespace vcas::emu {

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// Built-in variables of the running thread.
inline thread_local constinit dim3 threadIdx{}, blockIdx{}, blockDim{}, gridDim{};

// The order in which threads, and blocks, get their turn.
enum class ThreadOrder { kForward, kReverse, kRandom };

// A line of a kernel.
struct Place {
  const char* file;
  int line;
};

enum class Collective { kShuffle, kBallot, kSync, kWork };

// A copy that a thread has started and not waited for. land(to, from) does it.
struct AsyncCopy {
  void* to;
  const void* from;
  void (*land)(void* to, const void* from);
};
// Computes the results of all lanes. `lanes` points to what they gave and get.
using WarpWork = void (*)(const void* const* lanes);

class Emulator {
 public:
  // What every device from sm_80 on accepts.
  static constexpr unsigned kMaxThreads = 1024, kWarp = 32;
  static constexpr unsigned kBarriers = 16;                  // per block, and as many in memory
  static constexpr std::size_t kMaxSharedBytes = 99 * 1024;  // per block
  static constexpr std::size_t kMaxStaticSharedBytes = 48 * 1024;  // of it, not dynamic
  // What sm_90 accepts.
  static constexpr std::size_t kMaxSharedBytesOfSm90 = 227 * 1024;

  explicit Emulator(ThreadOrder order, std::uint64_t seed = 1,
                    std::size_t most_shared_bytes = kMaxSharedBytes);
  ~Emulator();
  std::size_t most_shared_bytes() const { return most_shared_bytes_; }

  // Calls body(argument) once for each thread of each block.
  // A block starts with shared memory of `bytes` that read as NaN.
  // Throws InternalError for a launch that a device would refuse.
  // Throws it with block, thread and line for these faults:
  //   threads of a barrier or collective that do not all reach the same line
  //   a lane missing from its own mask
  //   a failed check
  void launch(dim3 grid, dim3 block, std::size_t dynamic_shared_bytes, void (*body)(void*),
              void* argument);

  // The rest is for the running thread (kernels/emu/simt.h).
  static Emulator& current();
  void barrier(Place place);
  // Barrier 1 to 15 of the block, of so many of its threads, in whole warps.
  // A thread that does not wait only arrives.
  // These are faults, besides another number of threads:
  // to arrive again before the others have, to end a block at a barrier that too few reached.
  void barrier(unsigned number, unsigned threads, bool waits, Place place);
  // kShuffle gives the value of lane `source`. kBallot gives the lanes of `mask` with a value not
  // 0.
  std::uint64_t collective(Collective kind, unsigned mask, std::uint64_t value, unsigned source,
                           Place place);
  // Calls `work` once for the whole warp, with what each lane gave.
  void warp_work(WarpWork work, const void* own, Place place);
  // Asynchronous copies of the running thread. A copy joins the thread's open group.
  // A wait lets all but the last `groups` closed groups land.
  // These are faults:
  //   a copy to where another of the thread is on its way
  //   a thread that ends before its copies have landed
  void copy_async(const AsyncCopy& copy, Place place);
  void copy_async_commit();
  void copy_async_wait(unsigned groups, Place place);
  // A barrier in shared memory (PTX: mbarrier), for so many arrivals in each of its phases.
  // A thread arrives as soon as the copies that it has started land: when somebody waits for them.
  // A wait is for the end of the first phase of that parity that has not ended.
  void mbarrier_init(std::uint64_t* barrier, unsigned arrivals, Place place);
  void copy_async_arrive(const std::uint64_t* barrier, Place place);
  void mbarrier_wait(const std::uint64_t* barrier, unsigned parity, Place place);
  // Asynchronous products of the running thread's warp, by all its lanes together.
  // A product starts, the started ones become a group, a wait ends all but the last `groups` of
  // these.
  // These are faults, besides what AsyncProducts finds:
  //   no wgmma_fence of the lane's fragments just before
  //   landed copies of the block without the fence_async_proxy of the thread that waited for them
  //   a thread that ends before its products
  void wgmma(const WgmmaLane& own, Place place);
  void wgmma_commit(Place place);
  void wgmma_wait(unsigned groups, Place place);
  void wgmma_fence(const std::uint32_t* a, Place place);
  void fence_async_proxy(Place place);
  // atomicInc between fences of the device.
  unsigned count_in_order(unsigned* count, unsigned last);
  // In the dynamic shared memory.
  std::uint32_t shared_address(const void* data, Place place);
  // The block's memory of one declaration. The address `site` identifies it.
  void* shared(const void* site, std::size_t bytes, Place place);
  void* dynamic_shared() const { return dynamic_shared_.get(); }
  unsigned lane() const { return running_ % kWarp; }
  void check(bool holds, const char* text, Place place);

 private:
  enum class State { kReady, kAtBarrier, kInCollective, kDone };
  struct Thread;
  // A warp may be in several collectives at once. Their masks have no lane in common.
  struct Meeting {
    unsigned mask = 0, arrived = 0;
    Collective kind = Collective::kSync;
    Place place{};
  };
  struct Warp {
    std::vector<Meeting> meetings;
    char order[4] = {};  // as barrier_order_
    unsigned round = 0;
    AsyncProducts products;
  };
  struct NamedBarrier {
    unsigned threads = 0;                    // that take part, as the first to arrive said
    std::vector<unsigned> arrived, waiting;  // of them
    char order[4] = {};                      // as barrier_order_
    unsigned round = 0;
  };
  struct Arrival {
    unsigned thread;
    std::uint64_t copies;  // it had started so many
  };
  struct MemoryBarrier {
    unsigned arrivals = 0, phase = 0;
    std::vector<Arrival> arrived;  // in this phase
    std::vector<unsigned> waiting;
    char order[4] = {};  // as barrier_order_
  };
  struct Free {
    void operator()(void* memory) const;
  };
  using Memory = std::unique_ptr<void, Free>;
  struct Declaration {
    const void* site;
    Memory memory;
  };

  static Memory poisoned(std::size_t bytes);
  static void thread_entry();
  void run_block(std::size_t dynamic_shared_bytes);
  Fiber& fiber_of(unsigned thread);
  void make_ready(std::vector<unsigned>& threads);
  void run_next();
  unsigned next();
  void arrive_at_barrier(Place place);
  void arrive_at_barrier(NamedBarrier& barrier, unsigned threads, bool waits, Place place);
  MemoryBarrier& memory_barrier(const std::uint64_t* barrier, Place place);
  char* order_of(MemoryBarrier& barrier);
  void wait_at(MemoryBarrier& barrier, Place place);
  void land(MemoryBarrier& barrier);
  void arrive_at_collective(Collective kind, unsigned mask, Place place);
  void meet(unsigned warp, Meeting& meeting);
  void end_asynchronous();
  AsyncProducts& products() { return warp_[running_ / kWarp].products; }
  SharedWindow window() const;
  void check_products(Place place);
  void* find_shared(const void* site, std::size_t bytes, Place place);
  void fail(const std::string& what);
  void report_deadlock();
  std::string where(unsigned thread) const;
  std::uint64_t random();

  ThreadOrder order_;
  std::uint64_t random_state_;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  unsigned threads_ = 0, left_ = 0, running_ = 0;
  Fiber caller_;
  std::vector<std::unique_ptr<Thread>> thread_;
  std::vector<Warp> warp_;
  std::vector<unsigned> ready_, waiting_;  // threads; the last of ready_ comes next
  std::vector<unsigned> meeting_;          // those of the last collective
  Place barrier_place_{};
  unsigned barrier_round_ = 0;
  // Addresses for release and acquire, in turn. Neighbouring blocks have others: barriers do not
  // order them.
  char barrier_order_[4] = {};
  char launch_order_ = 0, end_order_ = 0;
  NamedBarrier named_[kBarriers];
  MemoryBarrier memory_barrier_[kBarriers];  // the first `memory_barriers_` are in use
  unsigned memory_barriers_ = 0;
  std::vector<Declaration> shared_;
  Memory dynamic_shared_;
  std::uint64_t blocks_ = 0;
  std::size_t most_shared_bytes_, shared_bytes_ = 0, dynamic_shared_bytes_ = 0;
  std::string error_;
};

}  // namespace vcas::emu
