// SampleW: the weight gradient of one linear map, from a sample of its rows (docs/sampling.md).
#pragma once

#include "layers/layer.h"

namespace vcas {

// Adds dW = dy^T x over the rows of `rows` to the gradient of parameter 0 of `io`, as io.context
// says: all rows, or a sample with P(r) proportional to ||dy_r|| ||x_r|| (capped) and weights
// 1/P(r). Fills entry blocks and the closed-form variance where they are wanted. The host waits for
// the number of rows of an independent draw; of a systematic one it knows it.
//   dy: T [rows.rows, D]; x_full: T [full rows, C]
void accumulate_weight_gradient(Exec& exec, const BackwardIo& io, const Tensor& dy,
                                const Tensor& x_full, const RowSet& rows);

// Scratch that a call takes for at most `max_rows` rows.
std::size_t weight_sampler_scratch_bytes(std::int64_t max_rows);

}  // namespace vcas
