// A model of two linears below one gate, and what a probe measures of it.
#pragma once

#include "optim/methods/budget_controller.h"

namespace vcas {

constexpr std::size_t kProbeItems = 32;

inline ControlledModel two_linears() {
  return {.gates = 1, .linears = {{0, 2.0, 2.0}, {0, 1.0, 1.0}}};
}

inline VcasOptions budget_options() {
  VcasOptions options;
  options.controller = "budget";
  options.tau_act = options.tau_w = 0.05;
  return options;
}

// Items of orthogonal gradients, of sizes 1, 1/2, 1/3 ...; two rows an item.
inline MeasuredBatch batch_of(double scale = 1) {
  MeasuredBatch batch;
  batch.items = kProbeItems;
  batch.tokens.assign(kProbeItems, 1.0);
  std::vector<double> score;
  for (std::size_t i = 0; i < kProbeItems; ++i) score.push_back(scale / static_cast<double>(i + 1));
  batch.item_score = {score};
  for (int k = 0; k < 2; ++k) {
    std::vector<double> gram(kProbeItems * kProbeItems, 0.0), rows;
    std::vector<std::int64_t> offsets = {0};
    for (std::size_t i = 0; i < kProbeItems; ++i) {
      gram[i * (kProbeItems + 1)] = score[i] * score[i];
      rows.insert(rows.end(), {0.9 * score[i], 0.4 * score[i]});
      offsets.push_back(std::ssize(rows));
    }
    batch.gram.push_back(gram);
    batch.row_score.push_back(rows);
    batch.offsets.push_back(offsets);
  }
  batch.v_act = batch.v_w = batch.drawn_error = batch.drawn_variance = {0, 0};
  return batch;
}

// All items and rows are alike: a share that is enough for batch_of() is far from it.
inline MeasuredBatch even_batch() {
  MeasuredBatch even = batch_of();
  even.item_score = {std::vector<double>(kProbeItems, 1.0)};
  for (int k = 0; k < 2; ++k) {
    for (std::size_t i = 0; i < kProbeItems; ++i) even.gram[k][i * (kProbeItems + 1)] = 1;
    even.row_score[k].assign(2 * kProbeItems, 0.7);
  }
  return even;
}

}  // namespace vcas
