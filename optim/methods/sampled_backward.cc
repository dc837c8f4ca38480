#include "optim/methods/sampled_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optim/methods/row_draw.h"

namespace vcas {

namespace {

void check_ratios(const std::vector<double>& ratios, std::size_t count, const char* of_what) {
  if (ratios.size() != count)
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("{} keep ratios, and the graph has {} {}", ratios.size(), count, of_what),
        "set one for each in SampledBackward::pass.ratios");
  for (const double ratio : ratios)
    if (!(ratio > 0 && ratio <= 1))
      throw Error(ExitCode::kBadConfig,
                  fmt::format("a keep ratio of {} among those of the {}", ratio, of_what),
                  "it must be above 0 and at most 1");
}

}  // namespace

KeepRatios equal_ratios(const GraphPlan& plan, double act, double weight) {
  return {std::vector<double>(plan.gate_nodes.size(), act),
          std::vector<double>(plan.sampled_weights.size(), weight)};
}

bool drops_some(const std::vector<double>& ratios) {
  return std::ranges::any_of(ratios, [](double ratio) { return ratio < 1; });
}

SampledBackward::SampledBackward(Ops& ops, const GraphPlan& plan)
    : linears_(plan.sampled_weights.size()) {
  if (!plan.gate_nodes.empty() && plan.limits.max_items == 0)
    throw Error(ExitCode::kBadConfig, "SampledBackward of a graph before Graph::finish",
                "make it when the graph is finished");
  pass.ratios = equal_ratios(plan, 1, 1);
  for (const int node : plan.gate_nodes) {
    gates_.emplace_back(ops, plan);
    last_layout_ = plan.nodes[node].plan.output.layout;
  }
}

std::size_t SampledBackward::bytes() const {
  std::size_t sum = 0;
  for (const SampleGate& gate : gates_) sum += gate.bytes();
  return sum;
}

void SampledBackward::begin(Exec& exec) {
  check_ratios(pass.ratios.act, gates_.size(), "gates");
  check_ratios(pass.ratios.weight, linears_, "sampled linears");
  BackwardHooks::begin(exec);
  waiting_.clear();
  sketches.clear();
  ratio_above_ = 1;
}

std::int64_t SampledBackward::echoes(const GateSite& site) const {
  if (pass.echoes > 0) return pass.echoes;
  const std::int64_t share = site.layout == last_layout_ ? 32 : 128;
  return (site.batch_items + share - 1) / share;
}

bool SampledBackward::passes(const GateSite& site, double ratio, const RowSets& rows) const {
  if (site.mixing == 0) return !(ratio < ratio_above_);
  if (rows.items() < site.batch_items) return false;
  const double kept = whole_budget(ratio * static_cast<double>(site.batch_items));
  return kept + static_cast<double>(site.mixing * echoes(site)) >=
         static_cast<double>(site.batch_items);
}

std::span<const RowSets> SampledBackward::at_gate(Exec& exec, const GateSite& site,
                                                  Gradient& gradient, const RowSets& rows) {
  const auto number = static_cast<std::size_t>(site.number);
  VCAS_CHECK(number < gates_.size(), "SampledBackward of another graph");
  exec.ops.enter(site.sample_place);
  const double ratio = pass.ratios.act[number];
  ItemThreshold* const threshold = thresholds.empty() ? nullptr : &thresholds[number];
  if (passes(site, ratio, rows)) {
    if (threshold && pass.moves_thresholds) *threshold = {};  // scores change until it draws again
    return {&rows, 1};
  }
  ratio_above_ = ratio;
  SampleGate& gate = gates_[number];
  const Tensor dy = gradient.dy;
  if (!times.gate.empty()) clock_.lap(exec.ops, dy, nullptr);
  const std::span<const RowSets> kept = gate.draw(exec,
                                                  {.ratio = ratio,
                                                   .selection = pass.selection,
                                                   .repeat = pass.repeat,
                                                   .per_token = pass.scores_per_token,
                                                   .echoes = echoes(site),
                                                   .threshold = threshold,
                                                   .moves_threshold = pass.moves_thresholds},
                                                  site, gradient.dy, rows);
  gradient = gate.compact(exec, site, dy);
  if (!times.gate.empty()) clock_.lap(exec.ops, dy, &times.gate[number]);
  return kept;
}

void SampledBackward::weight_gradient(Exec& exec, const WeightUse& use) {
  if (use.site < 0) return BackwardHooks::weight_gradient(exec, use);
  const auto site = static_cast<std::size_t>(use.site);
  VCAS_CHECK(site < pass.ratios.weight.size(), "SampledBackward of another graph");
  const bool draw = pass.samples_rows && pass.ratios.weight[site] < 1.0 && use.dweight;
  if (draw)
    bias_gradient(exec, use);
  else
    BackwardHooks::weight_gradient(exec, use);
  sketches.add(use);
  if (draw || pass.weight_variance)
    waiting_.push_back({.dweight = draw ? use.dweight : Tensor{},
                        .accumulate = use.accumulate,
                        .score = row_score_of(use),
                        .site = site});
}

void SampledBackward::flush(Exec& exec) {
  BackwardHooks::flush(exec);
  if (!times.linear.empty())
    flush_timed(exec);
  else if (!waiting_.empty())
    flush_rows(exec);
  sketches.flush(exec);
}

void SampledBackward::flush_timed(Exec& exec) {
  for (const Waiting& one : std::exchange(waiting_, {})) {
    clock_.lap(exec.ops, one.score.dy, nullptr);
    waiting_ = {one};
    flush_rows(exec);
    clock_.lap(exec.ops, one.score.dy, &times.linear[one.site]);
    times.linear_rows[one.site] = static_cast<double>(one.score.dy.rows());
  }
}

void SampledBackward::flush_rows(Exec& exec) {
  ArenaFrame frame(exec.scratch_beside);
  Group<RowScore> scores;  // for probes alone
  DrawRows drawn;
  std::vector<KeepProbability> variances;
  Group<LinearBackwardWeight> products;
  for (const Waiting& of : waiting_) {
    RowScore score = of.score;
    score.score = exec.scratch_beside.take(statistics_dtype(exec.dtype), {score.dy.rows()});
    const RowDraw rows =
        row_draw(exec, score, pass.ratios.weight[of.site], pass.selection,
                 exec.key(Stream::kWeight, static_cast<std::uint32_t>(of.site), pass.repeat));
    if (pass.weight_variance) {
      variances.push_back(rows.probability);
      variances.back().variance = {pass.weight_variance.ptr<double>() + of.site, DType::kF64, {1}};
    }
    if (!of.dweight) {
      scores.add(score);
      continue;
    }
    drawn.scores.add(score);
    drawn.draws.add(rows.draw);
    products.add({.dweight = of.dweight,
                  .dy = score.dy,
                  .x_full = score.x_full,
                  .patches = score.patches,
                  .row = score.row,
                  .kept = rows.draw.kept,
                  .scale = rows.draw.scale,
                  .count = rows.draw.count,
                  .expected = rows.expected,
                  .accumulate = of.accumulate});
  }
  waiting_.clear();
  if (scores.size() > 0) exec.ops.run(scores);
  if (products.size() > 0) {
    exec.ops.run(drawn);
    exec.ops.run(products);
  }
  for (const KeepProbability& variance : variances) exec.ops.run(variance);
}

}  // namespace vcas
