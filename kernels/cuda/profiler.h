// NVTX ranges in the domain "vcas", and the switch of profilers that wait for it.
#pragma once

#include <memory>

#include "kernels/decorators/range_ops.h"

namespace vcas {

std::unique_ptr<Profiler> make_cuda_profiler();

}  // namespace vcas
