// What one call of an operation costs, from its real sizes.
//
// FLOPs are those of the method: linear layers and attention products, 2 for a multiply and an add.
// Embeddings and elementwise operations count as zero.
// Bytes are those of the tensors given. Outputs that are added to count twice.
// A tensor read through `row` or `kept` counts the rows named.
// Launches are the kernels, products and copies that a GPU is given (kernels/device).
#pragma once

#include "kernels/ops.h"

namespace vcas {

struct Cost {
  double flops = 0;
  double bytes = 0;
  std::int64_t launches = 0;
};

// From shapes and numbers alone: looks at no memory.
#define VCAS_OP(Args) Cost op_cost(const Args& args);
VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

}  // namespace vcas
