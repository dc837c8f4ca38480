// A library that stands for NCCL in tests. Ranks are threads or processes of one machine. Buffers
// are memory of the host, and a call is done when it returns. Where NCCL would hang for ever, a
// call fails and names the ranks.
//
// VCAS_FAKE_NCCL_VERSION=N  the version that it has
// VCAS_FAKE_NCCL_FAIL=N     of each rank, send, receive or gather N fails, counted from 1
// VCAS_FAKE_NCCL_WAIT=S     seconds that a rank waits for the others; 60
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/nccl.h"
#if VCAS_ASAN
#include <sanitizer/asan_interface.h>
#endif

using vcas::Nccl, vcas::NcclComm, vcas::NcclId;

namespace {

// What the real library calls them.
enum Status { kSuccess, kUnhandled, kSystem, kInternal, kInvalidArgument, kInvalidUsage, kRemote };

enum class Kind { kSend, kReceive, kGather };
constexpr const char* kNames[] = {"sends", "receives", "gathers"};

struct Call {
  Kind kind;
  int peer;  // of a send or receive
  std::size_t bytes;
  std::size_t at;  // of what it sends, in `data`
};

constexpr int kMostRanks = 8, kMostCalls = 32;
constexpr std::size_t kMostBytes = std::size_t{8} << 20;

// What a rank shows the others.
struct Board {
  unsigned long meetings;  // that it came to
  int calls;
  Call call[kMostCalls];
  std::byte data[kMostBytes];
};

// In memory that the ranks share.
struct Meeting {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  unsigned long held;  // meetings that all came to
  Board board[kMostRanks];
};

struct Waiting {
  NcclComm* comm;
  Call call;
  const std::byte* from;
  std::byte* to;
};

thread_local std::string last_error;
thread_local int group_depth = 0, group_status = 0;
thread_local std::vector<Waiting> group;
std::atomic<int> ids = 0;
std::atomic<NcclComm*> last_aborted = nullptr;

int fail(Status status, const std::string& why) {
  last_error = why;
  return status;
}

long number(const char* variable, long otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atol(text) : otherwise;
}

Meeting* open_meeting(const char* name, int flags) {
  const int file = ::shm_open(name, flags, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(Meeting)) != 0) return nullptr;
  void* const memory =
      ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) return nullptr;
#if VCAS_ASAN
  // Where a thread's stack has been, the sanitizer still holds its frames.
  __asan_unpoison_memory_region(memory, sizeof(Meeting));
#endif
  return static_cast<Meeting*>(memory);
}

}  // namespace

namespace vcas {

struct NcclComm {
  Meeting* meeting;
  int rank, size;
  long calls = 0;
  std::atomic<bool> aborted = false;
  NcclComm* aborted_before = nullptr;

  Board& own() const { return meeting->board[rank]; }
};

}  // namespace vcas

namespace {

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

bool all_came(const NcclComm& comm) {
  for (int rank = 0; rank < comm.size; ++rank)
    if (comm.meeting->board[rank].meetings <= comm.meeting->held) return false;
  return true;
}

// Waits for all ranks.
int meet(NcclComm& comm) {
  Meeting& meeting = *comm.meeting;
  const time_t until = ::time(nullptr) + number("VCAS_FAKE_NCCL_WAIT", 60);
  ::pthread_mutex_lock(&meeting.mutex);
  const unsigned long held = meeting.held;
  ++comm.own().meetings;
  if (all_came(comm)) {
    ++meeting.held;
    ::pthread_cond_broadcast(&meeting.changed);
  }
  while (meeting.held == held && !comm.aborted && ::time(nullptr) <= until) {
    timespec soon;
    ::clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 20'000'000;  // then it looks at `aborted` again
    soon.tv_sec += soon.tv_nsec / 1'000'000'000;
    soon.tv_nsec %= 1'000'000'000;
    ::pthread_cond_timedwait(&meeting.changed, &meeting.mutex, &soon);
  }
  std::string missing;
  for (int rank = 0; meeting.held == held && rank < comm.size; ++rank)
    if (meeting.board[rank].meetings <= held) missing += ' ' + rank_name(rank);
  ::pthread_mutex_unlock(&meeting.mutex);
  if (missing.empty()) return kSuccess;
  if (comm.aborted) return fail(kRemote, "aborted");
  return fail(kInternal, rank_name(comm.rank) + " would hang: it waits for" + missing);
}

// The n-th call of this kind, with this peer unless it is a gather; null: there are not so many.
const Call* find(const Board& board, Kind kind, int peer, int n) {
  for (int i = 0; i < board.calls; ++i)
    if (const Call& call = board.call[i];
        call.kind == kind && (kind == Kind::kGather || call.peer == peer) && n-- == 0)
      return &call;
  return nullptr;
}

// What other rank's call a rank's n-th call of a kind needs.
const Call* partner(const Meeting& meeting, const Call& call, int rank, int other, int n) {
  const Kind wanted = call.kind == Kind::kSend      ? Kind::kReceive
                      : call.kind == Kind::kReceive ? Kind::kSend
                                                    : Kind::kGather;
  return find(meeting.board[other], wanted, rank, n);
}

// The first call that lacks its partner; empty: none does.
std::string mismatch(const Meeting& meeting, int size) {
  for (int rank = 0; rank < size; ++rank)
    for (int other = 0; other < size; ++other)
      for (const Kind kind : {Kind::kSend, Kind::kReceive, Kind::kGather})
        for (int n = 0; const Call* call = find(meeting.board[rank], kind, other, n); ++n) {
          const Call* const needed = partner(meeting, *call, rank, other, n);
          if (needed && needed->bytes == call->bytes) continue;
          return rank_name(rank) + ' ' + kNames[static_cast<int>(kind)] + ' ' +
                 std::to_string(call->bytes) + " bytes, and " + rank_name(other) +
                 (needed ? " has another number" : " does not: NCCL would hang");
        }
  return {};
}

void copy_in(Board& own, const std::vector<Waiting>& calls) {
  std::size_t at = 0;
  own.calls = 0;
  for (const Waiting& waiting : calls) {
    Call& call = own.call[own.calls++] = waiting.call;
    if (call.kind == Kind::kReceive) continue;
    call.at = at;
    std::memcpy(own.data + at, waiting.from, call.bytes);
    at += call.bytes;
  }
}

void copy_out(const NcclComm& comm, const std::vector<Waiting>& calls) {
  int gathers = 0, receives[kMostRanks] = {};
  const auto copy = [&](std::byte* to, const Call& call, int from, int n) {
    const Call& sent = *partner(*comm.meeting, call, comm.rank, from, n);
    std::memcpy(to, comm.meeting->board[from].data + sent.at, sent.bytes);
  };
  for (const auto& [_, call, from, to] : calls) {
    if (call.kind == Kind::kReceive) copy(to, call, call.peer, receives[call.peer]++);
    if (call.kind != Kind::kGather) continue;
    for (int rank = 0; rank < comm.size; ++rank)
      copy(to + static_cast<std::size_t>(rank) * call.bytes, call, rank, gathers);
    ++gathers;
  }
}

int run(const std::vector<Waiting>& calls) {
  if (calls.empty()) return kSuccess;
  NcclComm& comm = *calls.front().comm;
  std::size_t bytes = 0;
  for (const Waiting& waiting : calls) bytes += waiting.call.bytes;
  if (calls.size() > kMostCalls || bytes > kMostBytes) return fail(kInternal, "too much at once");
  copy_in(comm.own(), calls);
  if (const int status = meet(comm)) return status;
  const std::string wrong = mismatch(*comm.meeting, comm.size);
  if (wrong.empty()) copy_out(comm, calls);
  if (const int status = meet(comm)) return status;  // all have read the boards
  return wrong.empty() ? kSuccess : fail(kInvalidUsage, wrong);
}

int check(const Waiting& waiting, int type, CUstream_st* stream) {
  NcclComm* const comm = waiting.comm;
  if (!comm) return fail(kInvalidArgument, "no communicator");
  if (comm->aborted) return fail(kRemote, "aborted");
  if (++comm->calls == number("VCAS_FAKE_NCCL_FAIL", 0))
    return fail(kSystem, "call " + std::to_string(comm->calls) + " was to fail");
  if (!stream) return fail(kInvalidArgument, "on the stream of the operations");
  if (type != Nccl::kBytes) return fail(kInvalidArgument, "another type than bytes");
  if (waiting.call.kind != Kind::kGather &&
      (waiting.call.peer < 0 || waiting.call.peer >= comm->size))
    return fail(kInvalidArgument, "no such peer");
  return kSuccess;
}

int call(const Waiting& waiting, int type, CUstream_st* stream) {
  const int status = check(waiting, type, stream);
  if (group_depth == 0) return status ? status : run({waiting});
  if (status) group_status = status;
  group.push_back(waiting);
  return status;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = static_cast<int>(number("VCAS_FAKE_NCCL_VERSION", 22809));
  return kSuccess;
}

const char* ncclGetErrorString(int status) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error",
                                    "system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "a remote process has gone"};
  return kTexts[status];
}

const char* ncclGetLastError(NcclComm*) { return last_error.c_str(); }

int ncclGetUniqueId(NcclId* id) {
  std::snprintf(id->bytes, sizeof id->bytes, "/vcas_fake_nccl_%d_%d", ::getpid(), ++ids);
  Meeting* const meeting = open_meeting(id->bytes, O_CREAT | O_EXCL | O_RDWR);
  if (!meeting) return fail(kSystem, "no shared memory");
  pthread_mutexattr_t of_mutex;
  ::pthread_mutexattr_init(&of_mutex);
  ::pthread_mutexattr_setpshared(&of_mutex, PTHREAD_PROCESS_SHARED);
  ::pthread_mutex_init(&meeting->mutex, &of_mutex);
  pthread_condattr_t of_condition;
  ::pthread_condattr_init(&of_condition);
  ::pthread_condattr_setpshared(&of_condition, PTHREAD_PROCESS_SHARED);
  ::pthread_cond_init(&meeting->changed, &of_condition);
  ::munmap(meeting, sizeof(Meeting));
  return kSuccess;
}

int ncclCommDestroy(NcclComm* comm) {
  ::munmap(comm->meeting, sizeof(Meeting));
  delete comm;
  return kSuccess;
}

int ncclCommInitRank(NcclComm** comm, int ranks, NcclId id, int rank) {
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks)
    return fail(kInvalidArgument, "no such rank");
  Meeting* const meeting = open_meeting(id.bytes, O_RDWR);
  if (!meeting) return fail(kSystem, "an unknown id");
  *comm = new NcclComm{meeting, rank, ranks};
  const int status = meet(**comm);
  if (rank == 0) ::shm_unlink(id.bytes);
  if (status) ncclCommDestroy(std::exchange(*comm, nullptr));
  return status;
}

// It stays: a call of another thread may be at it. It is linked, lest it pass for a leak.
int ncclCommAbort(NcclComm* comm) {
  comm->aborted_before = last_aborted.exchange(comm);
  comm->aborted = true;
  return kSuccess;
}

int ncclCommGetAsyncError(NcclComm* comm, int* status) {
  if (!comm) return fail(kInvalidArgument, "no communicator");
  *status = kSuccess;
  return kSuccess;
}

int ncclSend(const void* from, std::size_t count, int type, int peer, NcclComm* comm,
             CUstream_st* stream) {
  return call({comm, {Kind::kSend, peer, count, 0}, static_cast<const std::byte*>(from), nullptr},
              type, stream);
}

int ncclRecv(void* to, std::size_t count, int type, int peer, NcclComm* comm, CUstream_st* stream) {
  return call({comm, {Kind::kReceive, peer, count, 0}, nullptr, static_cast<std::byte*>(to)}, type,
              stream);
}

int ncclAllGather(const void* from, void* to, std::size_t count, int type, NcclComm* comm,
                  CUstream_st* stream) {
  const auto* const own = static_cast<const std::byte*>(from);
  auto* const all = static_cast<std::byte*>(to);
  // The rule for work in place. Other overlaps are mistakes.
  if (comm && own + count > all && own < all + count * static_cast<std::size_t>(comm->size) &&
      own != all + count * static_cast<std::size_t>(comm->rank))
    return fail(kInvalidArgument, "the own part is at another place of all");
  return call({comm, {Kind::kGather, 0, count, 0}, own, all}, type, stream);
}

int ncclGroupStart() {
  ++group_depth;
  return kSuccess;
}

int ncclGroupEnd() {
  if (group_depth == 0) return fail(kInvalidUsage, "no group was started");
  if (--group_depth > 0) return kSuccess;
  const std::vector<Waiting> calls = std::exchange(group, {});
  const int status = std::exchange(group_status, kSuccess);
  return status ? status : run(calls);
}

}  // extern "C"

// The functions have the types that the program gives them.
template <class Function>
constexpr bool is_type_of(Function*, Function* Nccl::*) {
  return true;
}
static_assert(is_type_of(ncclGetVersion, &Nccl::get_version));
static_assert(is_type_of(ncclGetErrorString, &Nccl::error_text));
static_assert(is_type_of(ncclGetLastError, &Nccl::last_error));
static_assert(is_type_of(ncclGetUniqueId, &Nccl::make_id));
static_assert(is_type_of(ncclCommInitRank, &Nccl::join));
static_assert(is_type_of(ncclCommDestroy, &Nccl::destroy));
static_assert(is_type_of(ncclCommAbort, &Nccl::abort));
static_assert(is_type_of(ncclCommGetAsyncError, &Nccl::async_error));
static_assert(is_type_of(ncclSend, &Nccl::send));
static_assert(is_type_of(ncclRecv, &Nccl::receive));
static_assert(is_type_of(ncclAllGather, &Nccl::all_gather));
static_assert(is_type_of(ncclGroupStart, &Nccl::group_start));
static_assert(is_type_of(ncclGroupEnd, &Nccl::group_end));
