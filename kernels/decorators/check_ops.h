// Runs every operation on two backends and compares what they compute.
#pragma once

#include "kernels/ops.h"

namespace vcas {

// The backend "check:a,b". Memory, and what callers see of every output, is a's.
// b works on copies of the inputs. Integers must be equal.
// The tolerance of floating point numbers follows from operation, dtype and reduction length.
// `tolerance_scale` multiplies it. Throws InternalError if an output of a differs from b's.
// It names operation, place, output, the first bad index and both values.
std::unique_ptr<Ops> make_check_ops(std::unique_ptr<Ops> a, std::unique_ptr<Ops> b,
                                    double tolerance_scale = 1);

}  // namespace vcas
