// A test of the tests: a kernel without one of its barriers.
#pragma once

#include <string>

namespace vcas::emu {

// From now on the barriers (__syncthreads, __syncwarp), waits (copy_async_wait, wgmma_wait) and
// fences (fence_async_proxy, wgmma_fence) of this line, "<file>:<line>" with the file as it lies in
// kernels/device, do nothing on this thread; empty: none is left out.
void leave_out_barrier(const std::string& place);

}  // namespace vcas::emu
