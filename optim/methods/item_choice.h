// What methods share that choose items on the host.
#pragma once

#include <string>

#include "kernels/ops/sampling.h"
#include "optim/methods/method.h"

namespace vcas {

// The setting "selection" of a method: "systematic" or "bernoulli".
Selection selection_of(const std::string& setting);

// All of them, with weight 1.
ItemChoice all_items(std::int64_t items);

// Items of infinite score are kept with weight 1. The others are drawn as at a gate (Draw), by
// `host`: in proportion to their scores, `ratio` times their number of them.
// Systematic draws round that number up.
ItemChoice draw_items(Ops& host, std::vector<double> score, double ratio, Selection selection,
                      const RandomKey& key);

// Whether a layer mixes the items of a batch.
bool mixes_items(const Graph& graph);
// LoaderOptions::label_run of training with such micro-batches. 0 where a layer mixes items: it may
// look at their order, and probes need halves of a batch that are random.
std::int64_t label_run(const Graph& graph, std::int64_t micro_batch);
// For a method that leaves items out by its setting `setting`, and draws no echoes.
// Throws Error(kBadConfig) for a graph that mixes items.
void check_items_apart(const Graph& graph, const std::string& setting);

// For a method that leaves items out before the forward, by its setting `setting`.
// `instead`: what to do where it cannot. Throws Error(kBadConfig) unless an item is one term of the
// loss.
void check_one_term(const Model& model, const std::string& setting, const std::string& instead);
// Throws Error(kBadConfig) for a model or a step that forbids it.
void check_forward_choice(const Training& training, const std::string& setting,
                          const std::string& instead);

}  // namespace vcas
