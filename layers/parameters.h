// All parameters of a model and their gradients, each in one slab.
#pragma once

#include <string>
#include <vector>

#include "kernels/buffer.h"
#include "layers/layer.h"

namespace vcas {

struct Parameter {
  std::string name;
  Shape shape;
  Initializer init;
  bool decay = true;
  Tensor value;     // compute dtype
  Tensor gradient;  // compute dtype
};

class Parameters {
 public:
  Parameters() = default;
  // Lays the slab out: decayed parameters first, so that weight decay is one range.
  Parameters(Ops& ops, DType dtype, std::vector<Parameter> list);

  std::size_t size() const { return list_.size(); }
  const Parameter& operator[](std::size_t i) const { return list_[i]; }
  const std::vector<Parameter>& list() const { return list_; }

  // Whole slabs, [elements]; the padding between parameters is zero and stays zero.
  const Tensor& values() const { return values_; }
  const Tensor& gradients() const { return gradients_; }
  // Elements at the front of the slab that weight decay applies to.
  std::int64_t decayed_elements() const { return decayed_; }
  // Number of parameters without padding.
  std::int64_t count() const;

  // Draws the initial values, addressed by (seed, parameter number, element).
  void initialize(Ops& ops, std::uint64_t seed);

 private:
  std::vector<Parameter> list_;
  Buffer value_buffer_, gradient_buffer_;
  Tensor values_, gradients_;
  std::int64_t decayed_ = 0;
};

}  // namespace vcas
