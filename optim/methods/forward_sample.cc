#include "optim/methods/forward_sample.h"

#include <cmath>
#include <limits>

#include "optim/methods/item_choice.h"

namespace vcas {

std::span<const RowSets> ItemNormReader::at_gate(Exec& exec, const GateSite& site,
                                                 Gradient& gradient, const RowSets& rows) {
  if (site.number == top_gate_) {
    const RowSet& own = rows.of(site.layout);
    exec.ops.enter(site.sample_place);
    exec.ops.run(ItemNorm{
        .norm = {norm_.data, norm_.dtype, {own.items}}, .x = gradient.dy, .offsets = own.offsets});
  }
  return inner_->at_gate(exec, site, gradient, rows);
}

ForwardSample::ForwardSample(const Training& training, const ForwardOptions& options,
                             NeedsAll needs_all)
    : ItemMemory(training, "SampleF", std::move(needs_all)),
      ops_(training.ops),
      floor_(options.forward_floor),
      ratio_(options.forward_ratio) {
  check_forward_choice(training, "method.forward", "set method.forward=false");
  const Graph& graph = training.model.graph;
  if (graph.gates() == 0)
    throw Error(ExitCode::kBadConfig,
                "method.forward: this model has no gate, where gradient norms of items are read",
                "set method.forward=false");
  pass_norm_ = {nullptr, statistics_dtype(graph.dtype()), {training.micro_batch}};
  norms_ = Buffer(ops_, std::vector<Tensor*>{&pass_norm_});
  reader_.set(graph.gates() - 1, pass_norm_);
}

// The mean over items seen before; 1 where all norms are 0.
double ForwardSample::mean_norm(std::span<const std::int64_t> items) const {
  double sum = 0, seen = 0;
  for (const std::int64_t item : items) {
    const float norm = number_of(item);
    if (norm == kNeverSeen) continue;
    ++seen;
    sum += static_cast<double>(norm);
  }
  return sum > 0 ? sum / seen : 1;
}

// Negative: it was never seen.
double ForwardSample::score_of(std::int64_t item, double rows, double mean) const {
  const auto norm = static_cast<double>(number_of(item));
  return norm < 0 ? norm : ((1 - floor_) * norm + floor_ * mean) / std::sqrt(rows);
}

std::vector<double> ForwardSample::scores(std::span<const std::int64_t> items,
                                          std::span<const double> rows) const {
  const double mean = mean_norm(items);
  std::vector<double> out;
  for (std::size_t i = 0; i < rows.size(); ++i) out.push_back(score_of(items[i], rows[i], mean));
  return out;
}

ItemChoice ForwardSample::draw(std::int64_t step, std::span<const std::int64_t> items,
                               std::span<const std::int64_t> rows) {
  std::vector<double> score = scores(items, std::vector<double>(rows.begin(), rows.end()));
  for (double& known : score)
    if (known < 0) known = std::numeric_limits<double>::infinity();
  return draw_items(host(), std::move(score), ratio_, Selection::kSystematic, key(step));
}

BackwardHooks* ForwardSample::hooks(BackwardHooks* inner) {
  reader_.wrap(inner);
  return &reader_;
}

void ForwardSample::end_pass(const Batch& batch, std::int64_t first, std::int64_t items) {
  ItemMemory::end_pass(batch, first, {pass_norm_.data, pass_norm_.dtype, {items}});
  step_share_ = static_cast<double>(batch.items) / static_cast<double>(batch.items + batch.dropped);
}

}  // namespace vcas
