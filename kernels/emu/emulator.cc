#include "kernels/emu/emulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "kernels/emu/leave_out.h"
#include "kernels/emu/sanitizers.h"

namespace vcas::emu {
namespace {

#if VCAS_ASAN || VCAS_TSAN
constexpr std::size_t kStackBytes = 256 * 1024;
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif
constexpr unsigned kMaxGridYz = 65535, kMaxBlockZ = 64;

thread_local Emulator* current_emulator = nullptr;
thread_local std::string left_out;  // "<file>:<line>" of a barrier; empty: none

std::string text(const dim3& d) { return fmt::format("({}, {}, {})", d.x, d.y, d.z); }

bool same(const Place& a, const Place& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string text(const Place& place) { return fmt::format("{}:{}", place.file, place.line); }

bool is_left_out(const Place& place) {
  if (left_out.empty()) return false;
  const Unwatched unwatched;
  return text(place).ends_with(left_out);
}

dim3 position(std::uint64_t index, const dim3& extent) {
  return {static_cast<unsigned>(index % extent.x),
          static_cast<unsigned>(index / extent.x % extent.y),
          static_cast<unsigned>(index / extent.x / extent.y)};
}

}  // namespace

void leave_out_barrier(const std::string& place) { left_out = place.empty() ? "" : "/" + place; }

// To the thread sanitizer, threads of neighbouring blocks are different ones on different stacks.
constexpr unsigned kFibers = VCAS_TSAN ? 2 : 1;

// In lines of the cache of its own: most switches read the first two.
struct alignas(64) Emulator::Thread {
  Thread() {
    for (auto& own : fiber) own = std::make_unique<Fiber>(kStackBytes);
  }
  std::unique_ptr<Fiber> fiber[kFibers];
  State state = State::kReady;
  dim3 index;
  Place place{};            // of its last barrier or collective
  std::uint64_t value = 0;  // given to a collective, then its result
  unsigned source = 0;      // lane of a shuffle
  WarpWork work = nullptr;
  const void* given = nullptr;                    // to that work
  std::vector<std::vector<AsyncCopy>> copies{1};  // by group, the last one open
  std::uint64_t started = 0, landed = 0;          // copies
  std::uint64_t handed_over = 0;                  // copies that those at a barrier wait for
  // Since its last fence_async_proxy: copies of its own, which it waited for; those of others.
  bool own_landed = false, others_landed = false;
  const std::uint32_t* fenced = nullptr;  // fragments of its next wgmma
};

void Emulator::Free::operator()(void* memory) const {
  const Unwatched unwatched;
  std::free(memory);
}

Emulator::Emulator(ThreadOrder order, std::uint64_t seed, std::size_t most_shared_bytes)
    : order_(order),
      random_state_(seed * 0x9E3779B97F4A7C15ull | 1),
      most_shared_bytes_(most_shared_bytes) {}

Emulator::~Emulator() = default;

Emulator& Emulator::current() { return *current_emulator; }

std::uint64_t Emulator::random() {  // xorshift64 (Marsaglia 2003)
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return random_state_;
}

Emulator::Memory Emulator::poisoned(std::size_t bytes) {
  const Unwatched unwatched;
  constexpr std::size_t kAlignment = 1024;  // of what wgmma reads
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, bytes) != 0)
    throw Error(ExitCode::kOutOfMemory,
                "no memory for " + std::to_string(bytes) + " bytes of emulated shared memory");
  std::memset(memory, 0xFF, bytes);
  return Memory(memory);
}

void Emulator::launch(dim3 grid, dim3 block, std::size_t dynamic_shared_bytes, void (*body)(void*),
                      void* argument) {
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  VCAS_CHECK(threads >= 1 && threads <= kMaxThreads && block.z <= kMaxBlockZ && blocks >= 1 &&
                 grid.x <= 0x7FFFFFFF && grid.y <= kMaxGridYz && grid.z <= kMaxGridYz &&
                 dynamic_shared_bytes <= most_shared_bytes_,
             "a device refuses a grid of " + text(grid) + " blocks of " + text(block) +
                 " threads with " + std::to_string(dynamic_shared_bytes) +
                 " bytes of shared memory");
  VCAS_CHECK(!current_emulator, "a kernel launches a kernel");
  body_ = body;
  argument_ = argument;
  threads_ = static_cast<unsigned>(threads);
  dynamic_shared_bytes_ = dynamic_shared_bytes;
  gridDim = grid;
  blockDim = block;
  while (thread_.size() < threads_) thread_.push_back(std::make_unique<Thread>());
  error_.clear();

  std::vector<std::uint64_t> turn(order_ == ThreadOrder::kRandom ? blocks : 0);
  std::iota(turn.begin(), turn.end(), std::uint64_t{0});
  for (std::uint64_t i = turn.size(); i > 1; --i) std::swap(turn[i - 1], turn[random() % i]);
  current_emulator = this;
  release(&launch_order_);
  for (std::uint64_t i = 0; i < blocks && error_.empty(); ++i) {
    const std::uint64_t number = order_ == ThreadOrder::kForward   ? i
                                 : order_ == ThreadOrder::kReverse ? blocks - 1 - i
                                                                   : turn[i];
    blockIdx = position(number, grid);
    run_block(dynamic_shared_bytes);
  }
  acquire(&end_order_);
  current_emulator = nullptr;
  if (!error_.empty()) throw InternalError("emulated kernel: " + error_);
}

Fiber& Emulator::fiber_of(unsigned thread) { return *thread_[thread]->fiber[blocks_ % kFibers]; }

void Emulator::run_block(std::size_t dynamic_shared_bytes) {
  ++blocks_;
  warp_.resize((threads_ + kWarp - 1) / kWarp);
  for (Warp& warp : warp_) {
    warp.meetings.clear();
    warp.products = {};
  }
  ready_.clear();
  waiting_.clear();
  for (NamedBarrier& barrier : named_) {
    barrier.arrived.clear();
    barrier.waiting.clear();
  }
  memory_barriers_ = 0;
  left_ = threads_;
  shared_.clear();
  shared_bytes_ = 0;
  dynamic_shared_ = dynamic_shared_bytes ? poisoned(dynamic_shared_bytes) : nullptr;
  std::vector<unsigned> all(threads_);
  std::iota(all.begin(), all.end(), 0u);
  for (const unsigned i : all) {
    fiber_of(i).start(&Emulator::thread_entry);
    Thread& thread = *thread_[i];
    thread.index = position(i, blockDim);
    thread.place = {};
    thread.copies.assign(1, {});
    thread.started = thread.landed = thread.handed_over = 0;
    thread.own_landed = thread.others_landed = false;
    thread.fenced = nullptr;
  }
  make_ready(all);
  release(&launch_order_);
  running_ = next();
  threadIdx = thread_[running_]->index;
  Fiber::switch_between(caller_, fiber_of(running_));
  if (left_ > 0 && error_.empty()) report_deadlock();
  for (const NamedBarrier& barrier : named_)
    if (!barrier.arrived.empty())
      fail("a barrier that too few reached: " + where(barrier.arrived.front()));
}

// The first function on a thread's stack. Nothing switches back to it after its end.
void Emulator::thread_entry() {
  Fiber::entered();
  Emulator& emulator = current();
  acquire(&emulator.launch_order_);
  emulator.body_(emulator.argument_);
  emulator.end_asynchronous();
  emulator.thread_[emulator.running_]->state = State::kDone;
  --emulator.left_;
  emulator.run_next();
}

// The threads come before those that were ready already. So a warp runs ahead up to a barrier: that
// shows where one is missing, and its stacks stay in the cache.
void Emulator::make_ready(std::vector<unsigned>& threads) {
  if (order_ == ThreadOrder::kForward) std::sort(threads.rbegin(), threads.rend());
  if (order_ == ThreadOrder::kReverse) std::sort(threads.begin(), threads.end());
  for (const unsigned i : threads) thread_[i]->state = State::kReady;
  ready_.insert(ready_.end(), threads.begin(), threads.end());
  threads.clear();
}

// Leaves the running thread, which waits or is done, for one that is ready. If none is ready, or
// something failed, the thread is left for the caller of `launch`, and for good.
void Emulator::run_next() {
  Fiber& from = fiber_of(running_);
  release(&end_order_);
  if (!error_.empty() || ready_.empty()) return Fiber::switch_between(from, caller_);
  const unsigned self = running_;
  running_ = next();
  if (running_ != self) {
    threadIdx = thread_[running_]->index;
    Fiber::switch_between(from, fiber_of(running_));
  }
}

unsigned Emulator::next() {
  if (order_ == ThreadOrder::kRandom) std::swap(ready_.back(), ready_[random() % ready_.size()]);
  const unsigned thread = ready_.back();
  ready_.pop_back();
  return thread;
}

void Emulator::barrier(Place place) {
  if (is_left_out(place)) return;
  const unsigned round = (barrier_round_ & 1) + 2 * (blocks_ % kFibers);
  release(&barrier_order_[round]);
  arrive_at_barrier(place);
  run_next();
  acquire(&barrier_order_[round]);
}

void Emulator::arrive_at_barrier(Place place) {
  const Unwatched unwatched;
  thread_[running_]->place = place;
  thread_[running_]->state = State::kAtBarrier;
  if (!waiting_.empty() && !same(place, barrier_place_))
    return fail("__syncthreads by " + where(running_) + ", but others wait at " +
                text(barrier_place_));
  barrier_place_ = place;
  waiting_.push_back(running_);
  if (waiting_.size() < threads_) return;
  ++barrier_round_;
  make_ready(waiting_);
}

void Emulator::barrier(unsigned number, unsigned threads, bool waits, Place place) {
  if (is_left_out(place)) {
    if (!waits) return;
    waits = false;
  }
  check(number > 0 && number < kBarriers && threads > 0 && threads % kWarp == 0 &&
            threads <= threads_,
        "no such barrier", place);
  NamedBarrier& barrier = named_[number];
  const unsigned round = (barrier.round & 1) + 2 * (blocks_ % kFibers);
  release(&barrier.order[round]);
  arrive_at_barrier(barrier, threads, waits, place);
  if (!waits) return;
  run_next();
  acquire(&barrier.order[round]);
}

void Emulator::arrive_at_barrier(NamedBarrier& barrier, unsigned threads, bool waits, Place place) {
  const Unwatched unwatched;
  thread_[running_]->place = place;
  if (barrier.arrived.empty()) barrier.threads = threads;
  if (barrier.threads != threads)
    return fail("a barrier with another number of threads: " + where(running_));
  if (std::count(barrier.arrived.begin(), barrier.arrived.end(), running_))
    return fail("arrives again at a barrier before the others: " + where(running_));
  barrier.arrived.push_back(running_);
  if (waits) {
    thread_[running_]->state = State::kAtBarrier;
    barrier.waiting.push_back(running_);
  }
  if (barrier.arrived.size() < threads) return;
  barrier.arrived.clear();
  ++barrier.round;
  make_ready(barrier.waiting);
}

std::uint64_t Emulator::collective(Collective kind, unsigned mask, std::uint64_t value,
                                   unsigned source, Place place) {
  if (kind == Collective::kSync && is_left_out(place)) return 0;
  Thread& self = *thread_[running_];
  Warp& warp = warp_[running_ / kWarp];
  const unsigned round = (warp.round & 1) + 2 * (blocks_ % kFibers);
  if (kind == Collective::kSync) release(&warp.order[round]);
  self.value = value;
  self.source = source;
  arrive_at_collective(kind, mask, place);
  run_next();
  if (kind == Collective::kSync) {
    acquire(&warp.order[round]);
    warp.round = round + 1;
  }
  return self.value;
}

void Emulator::arrive_at_collective(Collective kind, unsigned mask, Place place) {
  const Unwatched unwatched;
  Warp& warp = warp_[running_ / kWarp];
  thread_[running_]->place = place;
  thread_[running_]->state = State::kInCollective;
  const unsigned own = 1u << lane();
  if (!(mask & own)) return fail("a lane missing from its own mask: " + where(running_));
  Meeting* meeting = nullptr;
  for (Meeting& other : warp.meetings) {
    if (!(other.arrived && (other.mask & mask))) continue;
    if (other.mask != mask || other.kind != kind || !same(other.place, place))
      return fail("a warp collective by " + where(running_) + ", but others of the warp wait at " +
                  text(other.place) + (other.mask != mask ? " with another mask" : ""));
    meeting = &other;
  }
  for (Meeting& free : warp.meetings)
    if (!meeting && free.arrived == 0) meeting = &free;
  if (!meeting) meeting = &warp.meetings.emplace_back();
  meeting->mask = mask;
  meeting->kind = kind;
  meeting->place = place;
  meeting->arrived |= own;
  if (meeting->arrived == mask) meet(running_ / kWarp, *meeting);
}

void Emulator::warp_work(WarpWork work, const void* own, Place place) {
  constexpr unsigned kAllLanes = 0xFFFFFFFFu;
  Thread& self = *thread_[running_];
  self.given = own;
  self.work = work;
  arrive_at_collective(Collective::kWork, kAllLanes, place);
  run_next();
}

void Emulator::copy_async(const AsyncCopy& copy, Place place) {
  Thread& self = *thread_[running_];
  bool free = true;
  for (const std::vector<AsyncCopy>& group : self.copies)
    for (const AsyncCopy& other : group) free &= other.to != copy.to;
  check(free, "an asynchronous copy to where another is on its way", place);
  const Unwatched unwatched;
  self.place = place;
  self.copies.back().push_back(copy);
  ++self.started;
}

void Emulator::copy_async_commit() {
  const Unwatched unwatched;
  thread_[running_]->copies.emplace_back();
}

void Emulator::copy_async_wait(unsigned groups, Place place) {
  if (is_left_out(place)) return;
  Thread& self = *thread_[running_];
  std::vector<std::vector<AsyncCopy>>& copies = self.copies;
  const std::size_t landing = copies.size() - std::min<std::size_t>(copies.size(), groups + 1);
  for (std::size_t group = 0; group < landing; ++group) {
    for (const AsyncCopy& copy : copies[group]) copy.land(copy.to, copy.from);
    self.landed += copies[group].size();
  }
  const Unwatched unwatched;
  if (landing > 0 && self.landed > self.handed_over) self.own_landed = true;
  copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(landing));
  // Threads that wait at a barrier see what has landed for it here.
  for (unsigned i = 0; i < memory_barriers_; ++i)
    for (const Arrival& arrival : memory_barrier_[i].arrived)
      if (arrival.thread == running_) release(order_of(memory_barrier_[i]));
}

char* Emulator::order_of(MemoryBarrier& barrier) {
  return &barrier.order[barrier.phase % 2 + 2 * (blocks_ % kFibers)];
}

void Emulator::mbarrier_init(std::uint64_t* barrier, unsigned arrivals, Place place) {
  check(memory_barriers_ < kBarriers, "too many barriers in memory", place);
  MemoryBarrier& made = memory_barrier_[memory_barriers_];
  made.arrivals = arrivals;
  made.phase = 0;
  made.arrived.clear();
  made.waiting.clear();
  *barrier = memory_barriers_++;
}

Emulator::MemoryBarrier& Emulator::memory_barrier(const std::uint64_t* barrier, Place place) {
  check(*barrier < memory_barriers_, "no barrier was made here", place);
  return memory_barrier_[*barrier];
}

void Emulator::copy_async_arrive(const std::uint64_t* barrier, Place place) {
  if (is_left_out(place)) return;
  MemoryBarrier& at = memory_barrier(barrier, place);
  if (at.arrived.size() == at.arrivals) land(at);
  release(order_of(at));
  const Unwatched unwatched;
  Thread& self = *thread_[running_];
  self.handed_over = self.started;
  at.arrived.push_back({running_, self.started});
  if (at.arrived.size() == at.arrivals) make_ready(at.waiting);
}

void Emulator::mbarrier_wait(const std::uint64_t* barrier, unsigned parity, Place place) {
  if (is_left_out(place)) return;
  MemoryBarrier& at = memory_barrier(barrier, place);
  while (at.phase % 2 == parity && at.arrived.size() < at.arrivals) {
    wait_at(at, place);
    run_next();
  }
  if (at.phase % 2 == parity) land(at);
  acquire(&at.order[parity + 2 * (blocks_ % kFibers)]);
  thread_[running_]->others_landed = true;
}

void Emulator::wait_at(MemoryBarrier& barrier, Place place) {
  const Unwatched unwatched;
  thread_[running_]->place = place;
  thread_[running_]->state = State::kAtBarrier;
  barrier.waiting.push_back(running_);
}

// Lets the copies of all arrivals land, which ends the phase.
void Emulator::land(MemoryBarrier& barrier) {
  char* const order = order_of(barrier);
  acquire(order);
  for (const Arrival& arrival : barrier.arrived) {
    Thread& thread = *thread_[arrival.thread];
    for (std::vector<AsyncCopy>& group : thread.copies) {
      const std::size_t landing = std::min<std::size_t>(
          group.size(), arrival.copies - std::min(arrival.copies, thread.landed));
      for (std::size_t i = 0; i < landing; ++i) group[i].land(group[i].to, group[i].from);
      const Unwatched unwatched;
      group.erase(group.begin(), group.begin() + static_cast<std::ptrdiff_t>(landing));
      thread.landed += landing;
    }
  }
  release(order);
  const Unwatched unwatched;
  barrier.arrived.clear();
  ++barrier.phase;
}

SharedWindow Emulator::window() const {
  return {static_cast<const std::byte*>(dynamic_shared()), dynamic_shared_bytes_};
}

std::uint32_t Emulator::shared_address(const void* data, Place place) {
  const SharedWindow shared = window();
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - shared.data);
  check(offset < shared.bytes, "no address of dynamic shared memory", place);
  return SharedWindow::kFirst + static_cast<std::uint32_t>(offset);
}

void Emulator::fence_async_proxy(Place place) {
  if (is_left_out(place)) return;
  thread_[running_]->own_landed = thread_[running_]->others_landed = false;
}

unsigned Emulator::count_in_order(unsigned* count, unsigned last) {
  release(count);
  const unsigned before = *count;
  *count = before < last ? before + 1 : 0;
  acquire(count);
  return before;
}

void Emulator::wgmma_fence(const std::uint32_t* a, Place place) {
  if (!is_left_out(place)) thread_[running_]->fenced = a;
}

void Emulator::wgmma(const WgmmaLane& own, Place place) {
  check(thread_[running_]->fenced == own.a, "wgmma without wgmma_fence", place);
  thread_[running_]->fenced = nullptr;
  bool fenced = !thread_[running_]->others_landed;
  for (unsigned i = 0; i < threads_; ++i) fenced &= !thread_[i]->own_landed;
  check(fenced, "wgmma behind copies without fence_async_proxy", place);
  const auto start = [](const void* const* lanes) {
    current().products().start(lanes, current().window());
  };
  warp_work(start, &own, place);
  check_products(place);
}

void Emulator::wgmma_commit(Place place) {
  warp_work([](const void* const*) { current().products().commit(); }, nullptr, place);
}

void Emulator::wgmma_wait(unsigned groups, Place place) {
  if (is_left_out(place)) return;
  const auto wait = [](const void* const* lanes) {
    current().products().wait(*static_cast<const unsigned*>(lanes[0]), current().window());
  };
  warp_work(wait, &groups, place);
  check_products(place);
}

void Emulator::check_products(Place place) {
  const char* fault = products().fault();
  check(!fault, fault, place);
}

void Emulator::end_asynchronous() {
  const Unwatched unwatched;
  if (products().in_flight()) return fail("ends before its products: " + where(running_));
  for (const std::vector<AsyncCopy>& group : thread_[running_]->copies)
    if (!group.empty())
      return fail("ends before its asynchronous copies have landed: " + where(running_));
}

// The last lane has arrived: works out every lane's result.
void Emulator::meet(unsigned warp, Meeting& meeting) {
  std::array<std::uint64_t, kWarp> value{};
  std::uint64_t ballot = 0;
  const void* given[kWarp] = {};
  meeting_.clear();
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (!(meeting.mask >> lane & 1)) continue;
    meeting_.push_back(warp * kWarp + lane);
    value[lane] = thread_[meeting_.back()]->value;
    if (value[lane]) ballot |= std::uint64_t{1} << lane;
    given[lane] = thread_[meeting_.back()]->given;
  }
  if (meeting.kind == Collective::kWork) thread_[meeting_.front()]->work(given);
  for (const unsigned i : meeting_) {
    Thread& thread = *thread_[i];
    if (meeting.kind == Collective::kBallot) thread.value = ballot;
    if (meeting.kind != Collective::kShuffle) continue;
    if (!(meeting.mask >> thread.source & 1))
      return fail("a shuffle reads lane " + std::to_string(thread.source) +
                  ", which is not in the mask: " + where(i));
    thread.value = value[thread.source];
  }
  meeting.arrived = 0;
  make_ready(meeting_);
}

void* Emulator::shared(const void* site, std::size_t bytes, Place place) {
  void* memory = find_shared(site, bytes, place);
  if (!memory) run_next();
  return memory;
}

void* Emulator::find_shared(const void* site, std::size_t bytes, Place place) {
  const Unwatched unwatched;
  for (const Declaration& declaration : shared_)
    if (declaration.site == site) return declaration.memory.get();
  thread_[running_]->place = place;
  shared_bytes_ += bytes;
  if (shared_bytes_ > kMaxStaticSharedBytes ||
      shared_bytes_ + dynamic_shared_bytes_ > most_shared_bytes_) {
    fail("too much shared memory, " + std::to_string(shared_bytes_) + " bytes and " +
         std::to_string(dynamic_shared_bytes_) + " dynamic: " + where(running_));
    return nullptr;
  }
  shared_.push_back({site, poisoned(bytes)});
  return shared_.back().memory.get();
}

void Emulator::check(bool holds, const char* text, Place place) {
  if (holds) return;
  {
    const Unwatched unwatched;
    thread_[running_]->place = place;
    fail(std::string(text) + ": " + where(running_));
  }
  run_next();
}

// The launch ends when the running thread next waits: it and all others are left as they are.
void Emulator::fail(const std::string& what) {
  if (error_.empty()) error_ = what;
}

void Emulator::report_deadlock() {
  constexpr unsigned kShown = 4;
  error_ = "deadlock, " + std::to_string(left_) + " of " + std::to_string(threads_) +
           " threads wait for the others:";
  unsigned shown = 0;
  for (unsigned i = 0; i < threads_ && shown < kShown; ++i) {
    if (thread_[i]->state == State::kDone) continue;
    ++shown;
    error_ +=
        "\n  " + where(i) +
        (thread_[i]->state == State::kAtBarrier ? ", at a barrier" : ", in a warp collective");
  }
}

std::string Emulator::where(unsigned thread) const {
  return "thread " + text(thread_[thread]->index) + " of block " + text(blockIdx) + " at " +
         text(thread_[thread]->place);
}

}  // namespace vcas::emu
