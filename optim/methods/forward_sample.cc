#include "optim/methods/forward_sample.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "optim/methods/item_choice.h"

namespace vcas {

std::span<const RowSets> ItemNormReader::at_gate(Exec& exec, const GateSite& site,
                                                 Gradient& gradient, const RowSets& rows) {
  if (site.number == top_gate_) {
    const RowSet& own = rows.of(site.layout);
    exec.ops.enter(site.sample_place);
    exec.ops.run(
        ItemNorm{.norm = norm_.range(0, own.items), .x = gradient.dy, .offsets = own.offsets});
  }
  return inner_->at_gate(exec, site, gradient, rows);
}

ForwardSample::ForwardSample(const Training& training, const ForwardOptions& options,
                             NeedsAll needs_all)
    : ItemMemory(training, "SampleF", std::move(needs_all)),
      step_items_(training.batch * training.ranks->size()),
      floor_(options.forward_floor),
      ratio_(options.forward_ratio),
      forecast_(static_cast<double>(training.items) / 2) {
  check_forward_choice(training, "method.forward", "set method.forward=false");
  const Graph& graph = training.model.graph;
  if (graph.gates() == 0)
    throw Error(ExitCode::kBadConfig,
                "method.forward: this model has no gate, where gradient norms of items are read",
                "set method.forward=false");
  pass_norm_ = {nullptr, statistics_dtype(graph.dtype()), {training.micro_batch}};
  norms_ = Buffer(training.ops, {&pass_norm_});
  reader_.set(graph.gates() - 1, pass_norm_);
}

float ForwardSample::renewed(float known, float norm, float weight) {
  forecast_.learn(static_cast<double>(known), static_cast<double>(norm),
                  static_cast<double>(weight));
  return 0.7F * norm + 0.3F * known;
}

ForwardSample::Forecast ForwardSample::forecast(std::span<const std::int64_t> items,
                                                std::span<const double> rows) const {
  std::vector<double> before;
  for (std::size_t i = 0; i < rows.size(); ++i)
    before.push_back(static_cast<double>(memory()[items[i]]));
  Forecast out{.norm = forecast_.of(before), .score = {}};
  double sum = 0, seen = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (before[i] < 0)
      out.norm[i] = -1;
    else
      sum += out.norm[i], ++seen;
  }
  const double mean = sum / seen;
  for (std::size_t i = 0; i < rows.size(); ++i)
    out.score.push_back(
        before[i] < 0 ? -1 : ((1 - floor_) * out.norm[i] + floor_ * mean) / std::sqrt(rows[i]));
  return out;
}

ItemChoice ForwardSample::draw(std::int64_t step, std::span<const std::int64_t> items,
                               std::span<const std::int64_t> rows) {
  std::vector<double> score = forecast(items, std::vector<double>(rows.begin(), rows.end())).score;
  for (double& known : score)
    if (known < 0) known = std::numeric_limits<double>::infinity();
  return draw_items(host(), std::move(score), ratio_, Selection::kSystematic, key(step));
}

BackwardHooks* ForwardSample::hooks(BackwardHooks* inner) {
  reader_.wrap(inner);
  return &reader_;
}

void ForwardSample::end_pass(const Batch& batch, std::int64_t first, std::int64_t items) {
  ItemMemory::end_pass(batch, first, pass_norm_.range(0, items));
  step_share_ = static_cast<double>(batch.items) / static_cast<double>(batch.items + batch.dropped);
}

nlohmann::json ForwardSample::state() const {
  nlohmann::json state = ItemMemory::state();
  state["forecast"] = forecast_.state();
  state["step_items"] = step_items_;
  return state;
}

// Norms are of mean losses over a step, so those of other steps have another size. What norms
// become is learned anew then, as where the state of an older program does not tell it.
void ForwardSample::restore(const nlohmann::json& state) {
  ItemMemory::restore(state);
  const std::int64_t before = state.value("step_items", step_items_);
  if (before < 1)
    throw Error(ExitCode::kBadData, fmt::format("the state of SampleF: step_items is {}", before),
                "resume from an earlier checkpoint");
  if (before != step_items_)
    scale_numbers(static_cast<float>(before) / static_cast<float>(step_items_));
  else if (state.contains("forecast"))
    forecast_.restore(state.at("forecast"));
}

}  // namespace vcas
