// Runs every operation on two backends and compares what they compute.
#pragma once

#include "kernels/ops.h"

namespace vcas {

// "check:a,b". Memory, and what callers see of every output, is a's; b works on copies of the
// inputs. An output of a that differs from b's throws InternalError naming operation, place,
// output, the first bad index and both values. Integers must be equal; for floating point numbers
// the tolerance follows from operation, dtype and reduction length, times `tolerance_scale`.
std::unique_ptr<Ops> make_check_ops(std::unique_ptr<Ops> a, std::unique_ptr<Ops> b,
                                    double tolerance_scale = 1);

}  // namespace vcas
