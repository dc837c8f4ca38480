// A test of the tests: a kernel without one of its barriers.
#pragma once

#include <string>

namespace vcas::emu {

// From now on these do nothing on this thread if they stand in this line:
// barriers (__syncthreads, __syncwarp, barrier_arrive, copy_async_arrive),
// waits (copy_async_wait, mbarrier_wait, wgmma_wait),
// fences (fence_async_proxy, wgmma_fence). barrier_sync then arrives and does not wait.
// The line is "<file>:<line>". The file is named from kernels/device. Empty: none is left out.
void leave_out_barrier(const std::string& place);

}  // namespace vcas::emu
