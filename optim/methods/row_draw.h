// SampleW: the draw of the rows of a weight gradient (docs/sampling.md).
#pragma once

#include "layers/backward_hooks.h"

namespace vcas {

// ||dy_r|| ||x_r|| of the rows of a weight gradient, without memory for it.
RowScore row_score_of(const WeightUse& use);

struct RowDraw {
  KeepProbability probability;  // P(r), proportional to the score, capped; no variance is wanted
  Draw draw;                    // a kept row has the weight 1/P(r)
  double expected = 0;          // kept rows
};

// A draw by these scores, which keeps a share of the rows, above 0.
// Its memory is of Exec::scratch_beside: two numbers and an index a row.
RowDraw row_draw(Exec& exec, const RowScore& score, double ratio, Selection selection,
                 const RandomKey& key);

}  // namespace vcas
