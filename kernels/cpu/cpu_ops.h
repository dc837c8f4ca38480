// The operations on the host: OpenMP threads, BLAS products, loops for the best instruction set.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace vcas {

// Which build of the loops runs. kBase is x86-64-v2, or the only one on other architectures.
enum class CpuLevel { kBest, kBase, kV3, kV4 };

bool cpu_has(CpuLevel level);

// What kBest stands for: the highest level of this processor, or v2, v3 or v4 as VCAS_CPU_LEVEL
// says. Throws Error(kBadConfig) where that is none of these.
CpuLevel best_cpu_level();

// Throws Error(kUnavailable) for a level that this processor lacks.
std::unique_ptr<Ops> make_cpu_ops(CpuLevel level = CpuLevel::kBest);

}  // namespace vcas
