// What one call of an operation costs, from its real sizes.
//
// FLOPs are those of the method's accounting: linear layers, attention products and convolutions
// (as linear layers on patches), a multiply and an add counted as two. Embeddings and elementwise
// operations count as zero. Bytes are those of all tensors given, outputs that are added to twice:
// an upper bound where an operation reads only some rows of a tensor.
//
#pragma once

#include <vector>

#include "kernels/ops.h"

namespace vcas {

struct Cost {
  double flops = 0;
  double bytes = 0;
};

// Row counts and offsets that decide the cost must lie in memory the host can read.
#define VCAS_OP(Args) Cost op_cost(const Args& args);
VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

// For tensors of `ops`, which it waits for where the cost depends on what they hold. `host` only
// grows.
template <class Args>
Cost op_cost(Args args, Ops& ops, std::vector<std::int64_t>& host) {
  const auto fetch = [&](Tensor& tensor) {
    if (!tensor) return;
    if (const std::size_t words = tensor.bytes() / sizeof(std::int64_t) + 1; host.size() < words)
      host.resize(words);
    ops.copy_to_host(host.data(), tensor.data, tensor.bytes());
    tensor.data = host.data();
  };
  if constexpr (requires { args.heads, args.offsets; }) fetch(args.offsets);
  if constexpr (requires { args.dweight, args.count; }) fetch(args.count);
  return op_cost(args);
}

}  // namespace vcas
