// The declarations of kernels/device/nccl.h are those of NCCL's own header.
#include <nccl.h>

#include <type_traits>

#include "kernels/device/nccl.h"
#include "tests/support/catch.h"

namespace vcas {
namespace {

// Whether a function is called the same way with either type: both are pointers, structs or numbers
// of one size.
template <class A, class B>
constexpr bool passes_as =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>&& std::is_class_v<A> ==
                                  std::is_class_v<B>;

template <class R, class... A, class Q, class... B>
constexpr bool is_same_call(R (*)(A...), Q (*Nccl::*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B))
    return passes_as<R, Q> && (passes_as<A, B> && ...);
  else
    return false;
}

static_assert(is_same_call(ncclGetVersion, &Nccl::get_version));
static_assert(is_same_call(ncclGetErrorString, &Nccl::error_text));
static_assert(is_same_call(ncclGetLastError, &Nccl::last_error));
static_assert(is_same_call(ncclGetUniqueId, &Nccl::make_id));
static_assert(is_same_call(ncclCommInitRank, &Nccl::join));
static_assert(is_same_call(ncclCommDestroy, &Nccl::destroy));
static_assert(is_same_call(ncclCommAbort, &Nccl::abort));
static_assert(is_same_call(ncclCommGetAsyncError, &Nccl::async_error));
static_assert(is_same_call(ncclSend, &Nccl::send));
static_assert(is_same_call(ncclRecv, &Nccl::receive));
static_assert(is_same_call(ncclAllGather, &Nccl::all_gather));
static_assert(is_same_call(ncclGroupStart, &Nccl::group_start));
static_assert(is_same_call(ncclGroupEnd, &Nccl::group_end));
static_assert(!is_same_call(ncclSend, &Nccl::all_gather));

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId) && alignof(NcclId) == alignof(ncclUniqueId));
static_assert(ncclSuccess == 0 && ncclInt8 == Nccl::kBytes);
static_assert(NCCL_VERSION(2, 18, 0) == Nccl::kOldest);

TEST_CASE("nccl: declarations are those of its own header", "[nccl]") {
  int version = NCCL_VERSION_CODE;
  CHECK(version >= Nccl::kOldest);
}

}  // namespace
}  // namespace vcas
