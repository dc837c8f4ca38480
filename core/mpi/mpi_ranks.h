// Ranks that mpirun or srun has started.
#pragma once

#include <memory>

#include "core/ranks.h"

namespace vcas {

// Whether the environment is that of a process of MPI.
bool started_by_mpi();

// The ranks that this process was started with; one_rank() where MPI did not start it.
// They end with the object. Throws Error(kUnavailable) when libvcas_mpi.so cannot be loaded.
std::shared_ptr<Ranks> ranks_of_environment();

// Throws Error(kUnavailable) when a batch system or torchrun has started several processes, and
// each of them would train alone.
void check_launcher(const Ranks& ranks);

}  // namespace vcas
