// What a probe keeps of the weight gradient of each sampled linear: sketches
// (kernels/ops/sketch.h).
#pragma once

#include <vector>

#include "layers/graph.h"

namespace vcas {

// A linear's sketch: A x B buckets, and what of it is wanted.
struct GradientSketch {
  std::int64_t out_buckets = 0, in_buckets = 0;  // A, B
  Tensor out_sign, in_sign;                      // S [D], [C]: 1 or -1
  Tensor total;                                  // S [A * B]: of the whole gradient; or empty
  Tensor gram;       // S [items, items]: inner products of the items' gradients; or empty
  Tensor row_score;  // S [rows]: ||dy_r|| ||x_r||; or empty
  // With row_score, and where drawn_ratio is below 1. Else they stay as they are.
  Tensor drawn;           // S [A * B]: of the gradient of rows that SampleW draws systematically
  Tensor drawn_variance;  // f64 [1]: of that draw by Eq. 3
  double drawn_ratio = 1;

  std::int64_t buckets() const { return out_buckets * in_buckets; }
};

// Items whose inner products and row scores are kept, at most: the first of a batch.
// Inner products are quadratic in number.
constexpr std::int64_t kMostItemsCompared = 128;

// The weight gradients that wait to be sketched, in one backward.
class GradientSketches {
 public:
  std::vector<GradientSketch> linears;  // none: nothing is sketched
  Tensor space;                         // S [items, buckets] or more

  void add(const WeightUse& use) {
    if (use.site >= 0 && !linears.empty()) waiting_.push_back(use);
  }
  bool waits() const { return !waiting_.empty(); }
  void clear() { waiting_.clear(); }
  // Computes what is wanted of those that wait.
  void flush(Exec& exec);

 private:
  std::vector<WeightUse> waiting_;
};

}  // namespace vcas
