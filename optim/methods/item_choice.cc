#include "optim/methods/item_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "optim/methods/gradient_sketch.h"
#include "optim/methods/sample_gate.h"

namespace vcas {

namespace {

// The name of a layer that mixes the items of a batch; empty: there is none.
std::string find_mixing(const Graph& graph) {
  for (const GraphNode& node : graph.plan().nodes)
    if (mixes_items(node.plan.coupling)) return node.name;
  return {};
}

}  // namespace

Selection selection_of(const std::string& setting) {
  return setting == "bernoulli" ? Selection::kBernoulli : Selection::kSystematic;
}

ItemChoice all_items(std::int64_t items) {
  ItemChoice all;
  all.kept.resize(items);
  std::iota(all.kept.begin(), all.kept.end(), std::int64_t{0});
  return all;
}

ItemChoice draw_items(Ops& host, std::vector<double> score, double ratio, Selection selection,
                      const RandomKey& key) {
  const auto items = std::ssize(score);
  const auto certain =
      std::ranges::count_if(score, [](double number) { return std::isinf(number); });
  const auto open = static_cast<double>(items - certain);
  const bool systematic = selection == Selection::kSystematic;
  const double budget = systematic ? whole_budget(ratio * open) : ratio * open;
  if (budget >= open) return all_items(items);

  std::vector<double> prob(score.size());
  const std::int64_t most = systematic ? certain + static_cast<std::int64_t>(budget) : items;
  std::int32_t count = static_cast<std::int32_t>(most);
  std::vector<std::int32_t> kept(static_cast<std::size_t>(most));
  std::vector<double> scale(kept.size());
  host.run(Draw{.kept = {kept.data(), DType::kI32, {most}},
                .scale = {scale.data(), DType::kF64, {most}},
                .count = systematic ? Tensor{} : Tensor{&count, DType::kI32, {1}},
                .prob = {prob.data(), DType::kF64, {items}},
                .score = {score.data(), DType::kF64, {items}},
                .id = {},
                .budget = static_cast<double>(certain) + budget,
                .selection = selection,
                .key = key,
                .step = {}});
  return {{kept.begin(), kept.begin() + count}, {scale.begin(), scale.begin() + count}};
}

bool mixes_items(const Graph& graph) { return !find_mixing(graph).empty(); }

// Probes take the first items of a micro-batch for random ones. So these are a run.
std::int64_t label_run(const Graph& graph, std::int64_t micro_batch) {
  return mixes_items(graph) ? 0 : std::min(micro_batch, kMostItemsCompared);
}

void check_items_apart(const Graph& graph, const std::string& setting) {
  if (const std::string layer = find_mixing(graph); !layer.empty())
    throw Error(ExitCode::kBadConfig,
                setting + ": " + layer +
                    " mixes the items of a batch, so dropping items would bias the others",
                "choose layers that keep items apart, as model.norm group or frozen");
}

void check_one_term(const Model& model, const std::string& setting, const std::string& instead) {
  if (model.graph.spec(model.loss).layout != Layout::items(1))
    throw Error(ExitCode::kBadConfig,
                setting +
                    ": the loss has a term for each predicted word or part of an item, and nobody "
                    "knows how many an item has that is not read",
                instead);
}

void check_forward_choice(const Training& training, const std::string& setting,
                          const std::string& instead) {
  const auto fail = [&](const std::string& why, const std::string& hint) {
    throw Error(ExitCode::kBadConfig, setting + ": " + why, hint);
  };
  const Model& model = training.model;
  check_one_term(model, setting, instead);
  if (model.weights.index < 0) fail("the loss of this model takes no weights of items", instead);
  check_items_apart(model.graph, setting);
  if (training.batch * training.ranks->size() == 1)
    fail("a step of one item has nothing to drop", "raise train.batch_size, or " + instead);
}

}  // namespace vcas
