#include "core/tensor.h"

namespace vcas {

std::string Tensor::holds_not(DType wanted) const {
  return "tensor " + shape.text() + " holds " + std::string(dtype_name(dtype)) + ", not " +
         std::string(dtype_name(wanted));
}

}  // namespace vcas
