// SampleW: the weight gradients of linear maps, from samples of their rows (docs/sampling.md).
#pragma once

#include "layers/layer.h"

namespace vcas {

// Of one graph. Weight gradients that are to be sampled wait for others, so that a device scores,
// draws and multiplies for several at once; so do the gradients of their biases.
class WeightSampler {
 public:
  // The gradient of parameter 0 of `io` becomes dW = io.dy^T x, x = io.inputs_full[0], or that is
  // added to it (io.adds_gradients), as io.context says: over all of `rows` immediately, or over a
  // sample with P(r) proportional to ||dy_r|| ||x_r|| (capped) and weights 1/P(r) at the next
  // `flush`, until when dy, x and the norms that io has of them must stay. Likewise that of the
  // bias, if `dbias` is given: the sum of the rows of dy, at the flush (immediately where io has no
  // weight_site). Fills entry blocks immediately and, where it is wanted, the closed-form variance
  // at the flush.
  //   io.dy: T [rows.rows, D]; x: T [full rows, C]; dbias: S [D], optional
  void add(Exec& exec, const BackwardIo& io, const RowSet& rows, const Tensor& dbias = {});

  // Does what waits, in the same context. The host waits for nothing: how many rows an independent
  // draw keeps only the device knows, and costs are counted for as many as are expected.
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
