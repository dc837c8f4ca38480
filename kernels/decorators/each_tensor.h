// What decorators share that look into the tensors of an operation.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "core/tensor.h"

namespace vcas {

// Calls visit(name, tensor, is_output) for the tensors of an operation that are given.
template <class F>
struct EachTensor {
  F visit;
  void in(const char* name, const Tensor& tensor) {
    if (tensor) visit(name, tensor, false);
  }
  void out(const char* name, const Tensor& tensor, bool /*accumulate*/ = false) {
    if (tensor) visit(name, tensor, true);
  }
};
template <class F>
EachTensor(F) -> EachTensor<F>;

// "3, 17"
inline std::string index_text(const Shape& shape, std::int64_t index) {
  std::string text;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    text = fmt::format("{}{}{}", index % shape[axis], text.empty() ? "" : ", ", text);
    index /= shape[axis];
  }
  return text;
}

}  // namespace vcas
