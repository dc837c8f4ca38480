// Whether the gradients of a model are right, on weights and data of one's own:
// exact ones against differences of the loss, sampled ones against exact ones.
// Both checks throw Error(kBadConfig) while the weights are not set.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/model.h"

namespace vcas {

struct SamplingCheckOptions {
  std::int64_t draws = 64;  // of each kind of sampling, at least 2
  double ratio = 0.5;       // that is kept, of items and of rows
  double level = 1e-3;      // chance that a right model fails
  std::uint64_t seed = 0;
  double rounding = 0;  // of a product's factors; 0: that of the model's element type
  // The batch again, without the items that a chooser leaves out: for draws before the forward.
  // Null: they are not checked.
  std::function<Batch(ItemChooser&)> reload;
};

// What one kind of sampling makes of the gradient of one parameter.
struct SampledTensor {
  std::string sampling;  // "items, systematic"; "before the forward, systematic"
  std::string tensor;
  // Mean - exact in standard errors, as of a normal distribution.
  // The largest over the directions: along the exact gradient, and random ones.
  double z = 0;
  double shift = 0;        // mean - exact along the exact gradient, as a share of its norm
  double least_shift = 0;  // that would be beyond the bound
  double variance = 0;     // mean ||sampled - exact||^2 over ||exact||^2
  // The same from its formula; 0: there is none, as of a weight that two nodes use.
  double closed_form = 0;
};

struct SamplingCheck {
  std::vector<SampledTensor> tensors;  // worst first
  std::int64_t tests = 0;
  double bound = 0;  // of |z|, by Bonferroni: the level divided by the number of tests

  bool fails(const SampledTensor& tensor) const;
  bool fails(const std::string& sampling) const;  // in one of its tensors
  std::int64_t failed() const;
};

// Draws gradients of the first `items` items of `batch` by items, by rows and by both.
// Each is drawn systematically and independently, both also with as many items as their norms
// ask for (ItemThreshold). With `reload` items are also drawn before the
// forward (SampleF), systematically, by scores at random. A kind that fails is drawn anew, 8 times
// as often, and judged by these draws. The graph is finished for so many items. Dropout is on, but
// not before the forward: its mask belongs to an item's place. The gradients of the model are
// overwritten, nothing else is.
SamplingCheck check_sampling(Model& model, Ops& ops, const Batch& batch, std::int64_t items,
                             const SamplingCheckOptions& options);

// The slope of the mean loss along a direction in the space of all parameters.
struct Slope {
  double gradient = 0;    // from a backward
  double difference = 0;  // from forwards beside the weights
  double scale = 0;       // the sum over the parameters of the slopes' absolute values

  double error() const;  // relative to the scale
};

// The largest error that rounding of f64 leaves.
constexpr double kMostSlopeError = 1e-6;

// Along random directions, each leaning on the gradient of every parameter. For a model in f64.
// The weights are as before when it returns or throws.
std::vector<Slope> check_slopes(Model& model, Ops& ops, const Batch& batch, std::int64_t items,
                                int directions, std::uint64_t seed);

}  // namespace vcas
