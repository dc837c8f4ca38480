// Every operation, for the interface, its implementations and decorators (kernels/ops/op.h).
#pragma once

#include "kernels/ops/attention.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/group_norm.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/losses.h"
#include "kernels/ops/max_pool.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/pointwise.h"
#include "kernels/ops/sampling.h"
#include "kernels/ops/sketch.h"
#include "kernels/ops/tokens.h"

// clang-format off
#define VCAS_FOR_EACH_OP(X)                                                                    \
  VCAS_LINEAR_OPS(X) VCAS_SAMPLING_OPS(X) VCAS_SKETCH_OPS(X) VCAS_LAYER_NORM_OPS(X)            \
  VCAS_GROUP_NORM_OPS(X) VCAS_MAX_POOL_OPS(X)                                                  \
  VCAS_POINTWISE_OPS(X) VCAS_ELEMENTWISE_OPS(X) VCAS_ATTENTION_OPS(X) VCAS_TOKENS_OPS(X)       \
  VCAS_LOSSES_OPS(X) VCAS_OPTIMIZER_OPS(X)
// clang-format on

namespace vcas {

#define VCAS_OP(Args) static_assert(kIsOperation<Args>);
VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

}  // namespace vcas
