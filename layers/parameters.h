// All parameters of a model and their gradients, each in one slab, and the state of its layers.
// In bf16 layers read a rounded copy of the parameters. Its slab has the same places.
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
  Tensor value;     // compute dtype: what layers read
  Tensor master;    // statistics dtype: what is updated and saved; `value` itself but in bf16
  Tensor gradient;  // statistics dtype
};

// Elements [begin, end) of a slab.
struct SlabRange {
  std::int64_t begin = 0, end = 0;
};

class Parameters {
 public:
  Parameters() = default;
  // Lays the slab out: decayed parameters first, so that weight decay is one range.
  // `state`: of all layers (NodePlan::state). `value` and `master` are the same, of type S.
  // Slabs for several `ranks` have padding at their end, such that they have equal parts
  // (kernels/exchange.h).
  Parameters(Ops& ops, DType dtype, std::vector<Parameter> list, std::vector<Parameter> state = {},
             int ranks = 1);

  std::size_t size() const { return list_.size(); }
  const Parameter& operator[](std::size_t i) const { return list_[i]; }
  const std::vector<Parameter>& list() const { return list_; }
  const std::vector<Parameter>& state() const { return state_; }
  // What files have: parameters, then state.
  std::vector<Parameter> stored() const;

  // Where a parameter's gradient lies in the slab of gradients.
  SlabRange range(const Parameter& parameter) const;

  // Whole slabs, [elements]. The padding between parameters is zero and stays zero.
  const Tensor& values() const { return values_; }
  const Tensor& masters() const { return masters_; }
  const Tensor& gradients() const { return gradients_; }
  // The slab of all state of layers, of type S.
  Tensor state_values() const;
  // The gradient of each parameter, as BackwardContext takes them.
  std::vector<Tensor> gradient_list() const;
  // Elements of a slab but for the padding at its end: what files have.
  std::int64_t elements() const { return elements_; }
  // Elements at the front of the slab that weight decay applies to.
  std::int64_t decayed_elements() const { return decayed_; }
  // Number of parameters without padding.
  std::int64_t count() const;

  // Bytes of all slabs.
  std::size_t bytes() const;

  // Sets the initial values. Random ones are addressed by (seed, parameter number, element).
  void initialize(Ops& ops, std::uint64_t seed);
  // Rounds the masters into the values. For callers that write masters: the weights are set then.
  // An optimizer's step does both at once.
  void round_values(Ops& ops);
  bool are_set() const { return are_set_; }

 private:
  std::vector<Parameter> list_, state_;
  Buffer value_buffer_, master_buffer_, gradient_buffer_;  // master_buffer_ in bf16 only
  Buffer state_buffer_;
  Tensor values_, masters_, gradients_;
  std::int64_t decayed_ = 0, elements_ = 0;
  bool are_set_ = false;
};

}  // namespace vcas
