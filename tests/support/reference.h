// The specification of every operation: naive loops in double, written from the formulas of
// kernels/ops. Every floating point tensor is f64 here (images and targets stay f32, as they are
// everywhere).
#pragma once

#include "tests/support/reference/attention.h"
#include "tests/support/reference/elementwise.h"
#include "tests/support/reference/group_norm.h"
#include "tests/support/reference/layer_norm.h"
#include "tests/support/reference/linear.h"
#include "tests/support/reference/losses.h"
#include "tests/support/reference/max_pool.h"
#include "tests/support/reference/optimizer.h"
#include "tests/support/reference/pointwise.h"
#include "tests/support/reference/sampling.h"
#include "tests/support/reference/sketch.h"
#include "tests/support/reference/tokens.h"

namespace vcas::reference {

template <class Args>
void run(const Group<Args>& group) {
  for (const Args& one : group) run(one);
}
template <Chain Args>
void run(const Args& chain) {
  for_each_part(chain, [](const auto& part) { run(part); });
}

}  // namespace vcas::reference
