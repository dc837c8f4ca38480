// What operations have written, to compare bit by bit.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/decorators/each_tensor.h"
#include "kernels/ops.h"

namespace vcas {

// Adds the bytes of every output of an operation to `outputs`.
void add_outputs(Ops& ops, const auto& args, std::vector<std::vector<std::byte>>& outputs) {
  args.visit(EachTensor{[&](const char*, const Tensor& tensor, bool is_output) {
    if (is_output) outputs.push_back(to_host<std::byte>(ops, tensor));
  }});
}

}  // namespace vcas
