// The operations on the host, with OpenMP threads and BLAS products.
// Loops run in the build for the best instruction set.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace vcas {

// Which build of the loops runs. kBase is x86-64-v2. Other architectures have kBase alone.
enum class CpuLevel { kBest, kBase, kV3, kV4 };

bool cpu_has(CpuLevel level);

// What kBest stands for: the highest level of this processor.
// VCAS_CPU_LEVEL changes it to v2, v3 or v4. Empty changes nothing.
// Throws Error(kBadConfig) for another value.
CpuLevel best_cpu_level();

// Throws Error(kUnavailable) for a level that this processor lacks.
std::unique_ptr<Ops> make_cpu_ops(CpuLevel level = CpuLevel::kBest);

}  // namespace vcas
