// The functions of NCCL in use. They are declared here, so vcas is built without NCCL.
// The library is loaded when ranks with GPUs first exchange something.
#pragma once

#include <cstddef>
#include <string>

struct CUstream_st;  // a stream of CUDA

namespace vcas {

struct NcclComm;  // a communicator: one rank's end of all that it exchanges with the others

// What rank 0 makes and all need to find each other.
struct NcclId {
  char bytes[128];
};

// Functions return 0, or an error that `check` explains. NCCL 2.18 is the oldest that is taken.
class Nccl {
 public:
  static constexpr int kOldest = 21800;  // major * 10000 + minor * 100 + patch
  static constexpr int kBytes = 0;       // the type whose count is one of bytes

  // Loads the library that VCAS_NCCL names, else libnccl.so.2. Throws Error(kUnavailable) with what
  // was looked for, if there is none or it is too old.
  Nccl();

  // Throws Error(kUnavailable) of a status that is not 0; `what` says what was tried.
  void check(int status, const std::string& what) const;

  int (*get_version)(int* version);
  int (*make_id)(NcclId* id);
  // All ranks call it, with the current device.
  int (*join)(NcclComm** comm, int ranks, NcclId id, int rank);
  // All ranks have done what they exchange.
  int (*destroy)(NcclComm* comm);
  // At any time and from any thread: what is under way ends, and the others wait in vain.
  int (*abort)(NcclComm* comm);
  // What befell work that was queued without an error.
  int (*async_error)(NcclComm* comm, int* status);
  const char* (*error_text)(int status);
  const char* (*last_error)(NcclComm* comm);

  // Queued on the stream. Between `group_start` and `group_end` calls wait for each other.
  int (*send)(const void* from, std::size_t count, int type, int peer, NcclComm* comm,
              CUstream_st* stream);
  int (*receive)(void* to, std::size_t count, int type, int peer, NcclComm* comm,
                 CUstream_st* stream);
  // In place if `from` is this rank's part of `to`. `count` is that of a part.
  int (*all_gather)(const void* from, void* to, std::size_t count, int type, NcclComm* comm,
                    CUstream_st* stream);
  int (*group_start)();
  int (*group_end)();
};

}  // namespace vcas
