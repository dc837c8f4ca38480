// What one call of an operation costs, from its real sizes.
//
// FLOPs are those of the method's accounting: linear layers, attention products and convolutions
// (as linear layers on patches), a multiply and an add counted as two. Embeddings and elementwise
// operations count as zero. Bytes are those of all tensors given, outputs that are added to twice:
// an upper bound where an operation reads only some rows of a tensor.
//
// Row counts and offsets that decide the cost must lie in memory the host can read.
#pragma once

#include "kernels/args.h"

namespace vcas {

struct Cost {
  double flops = 0;
  double bytes = 0;
};

#define VCAS_OP(Args) Cost op_cost(const Args& args);
VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

}  // namespace vcas
