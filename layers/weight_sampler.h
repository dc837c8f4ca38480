// SampleW: the weight gradients of linear maps, from samples of their rows (docs/sampling.md).
#pragma once

#include "layers/layer.h"

namespace vcas {

// The sampled weight gradients of a graph. They wait for each other, and so do those of biases.
// A device then scores, draws and multiplies for several at once.
class WeightSampler {
 public:
  // Computes the gradient of parameter 0 of `io`: dW = io.dy^T x, x = io.inputs_full[0].
  // io.adds_gradients: adds it instead. io.context says which rows count:
  // - all of `rows`: immediately,
  // - a sample: P(r) proportional to ||dy_r|| ||x_r||, capped, weights 1/P(r), at the next `flush`.
  // dy, x and their norms must stay until then.
  // `dbias`, if given, gets the sum of the rows of dy at the flush.
  // Without io.weight_site it gets it immediately.
  // Entry blocks are filled immediately, the closed-form variance (if wanted) at the flush.
  //   io.dy: T [rows.rows, D]; x: T [full rows, C]; dbias: S [D], optional
  void add(Exec& exec, const BackwardIo& io, const RowSet& rows, const Tensor& dbias = {});

  // Does what waits, in the same context. The host waits for nothing.
  // Only the device knows how many rows an independent draw keeps. Costs count the expected number.
  void flush(Exec& exec, const BackwardContext& context);
  bool empty() const { return waiting_.empty() && waiting_biases_.size() == 0; }
  // Forgets what a backward that threw has left.
  void clear() {
    waiting_.clear();
    waiting_biases_ = {};
  }

  // Scratch that a flush takes for each that waits, of at most `max_rows` rows.
  static std::size_t scratch_bytes(std::int64_t max_rows);

 private:
  struct Waiting {
    Tensor dweight;  // empty: only the variance is wanted
    bool accumulate;
    Tensor dy, x_full, dy_norm, x_norm_full, row;  // as of RowScore
    std::size_t site;
  };

  // Draws, and gives the products over what was drawn.
  void multiply(Exec& exec, const BackwardContext& context, const Group<Draw>& draws) const;

  std::vector<Waiting> waiting_;
  Group<ColumnSum> waiting_biases_;
};

}  // namespace vcas
