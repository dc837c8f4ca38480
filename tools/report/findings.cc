#include "tools/report/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/evaluation.h"

namespace vcas {
namespace {

constexpr double kNearOne = 0.9, kPoorConversion = 0.5;

void find_losses_that_are_none(const RunRecord& run, std::vector<Finding>& out) {
  const std::vector<double> losses = column(run.train, "loss");
  const auto bad = std::ranges::count_if(losses, [](double x) { return !std::isfinite(x); });
  if (bad > 0)
    out.push_back({fmt::format("{} of {} logged steps have no finite loss.", bad, losses.size()),
                   "Lower schedule.learning_rate, or warm it up for longer."});
}

void find_clipping(const RunRecord& run, std::vector<Finding>& out) {
  const nlohmann::json& optimizer = member(run.config, "optimizer");
  const double limit = number(optimizer, "max_gradient_norm");
  if (text(optimizer, "clip") == "predicted") return;  // which keeps the mean
  const auto clipped = std::ranges::count_if(run.train, [&](const nlohmann::json& step) {
    const double factor = number(step, "clip_factor");  // 0 of a step that was skipped
    return std::isfinite(factor) ? 0 < factor && factor < 1 : number(step, "gradient_norm") > limit;
  });
  if (run.samples() && limit > 0 && 2 * clipped > std::ssize(run.train))
    out.push_back({fmt::format("{} of {} logged gradients were clipped, which costs accuracy where "
                               "they are sampled.",
                               clipped, run.train.size()),
                   fmt::format("Set optimizer.max_gradient_norm ({:g}) above the usual norm, or "
                               "to 0.",
                               limit)});
}

void find_time_unknown(const RunRecord& run, const RunRecord* twin, std::vector<Finding>& out) {
  if (run.samples() && !run.end.is_null() && !std::isfinite(time_saved(run, twin)))
    out.push_back(
        {"The seconds saved are not known: the run has no exact twin here, and too few "
         "exact steps of its own.",
         "Measure them by vcas compare, and report its folder."});
}

// So far two models that are equally good may differ: two standard errors of a difference of
// shares, or of correlations. That of F1 depends on how many items are of its class.
double chance(const std::string& measure, double items) {
  const bool is_share = measure.starts_with("accuracy") || measure.starts_with("top5");
  return 2 * std::sqrt((is_share ? 0.5 : 2.0) / items);
}

// The best evaluation, by the measure that chose it: by more than chance among its items.
void find_worse_than_exact(const RunRecord& run, const RunRecord* twin, std::vector<Finding>& out) {
  constexpr double kOfMeasure = 0.02, kOfLoss = 0.05;
  constexpr std::string_view kBest = "best_";
  if (!twin || !run.samples() || !run.end.is_object()) return;
  const double items = run.eval.empty() ? 0 : number(run.eval.back(), "items");
  for (const auto& [key, value] : run.end.items()) {
    if (!key.starts_with(kBest) || key == "best_step") continue;
    const std::string measure = key.substr(kBest.size());
    if (measure.starts_with("f1")) continue;
    const double own = number(run.end, key), exact = number(twin->end, key);
    const bool is_worse = lower_is_better(measure)
                              ? own > (1 + kOfLoss) * exact
                              : own < exact - std::max(kOfMeasure, chance(measure, items));
    if (is_worse)
      out.push_back(
          {fmt::format("{} is {:.4f}, and {:.4f} of the exact twin.", key, own, exact),
           fmt::format("See by several seeds whether it is chance (vcas compare "
                       "--seeds 0,1,2). If not, {}.",
                       run.has_ratios() ? "lower the budget (method.tau_act, method.tau_w)"
                                        : "keep more")});
  }
}

void find_rows_in_step(const RunRecord& run, std::vector<Finding>& out) {
  constexpr double kMuch = 2;
  double most = 0;
  if (text(member(run.config, "method"), "selection") == "bernoulli") return;
  for (const double eta : numbers(run.variance.back(), "row_factor")) most = std::max(most, eta);
  if (most > kMuch)
    out.push_back({fmt::format("Draws of rows add up to {:.1f} times as much variance as Eq. 3 "
                               "says (row_factor).",
                               most),
                   "Rows may repeat in step with the draws: try method.selection=bernoulli."});
}

}  // namespace

std::optional<Finding> ratios_near_one(const nlohmann::json& ratios) {
  const double items = mean(numbers(ratios, "act_ratio")),
               rows = mean(numbers(ratios, "weight_ratio"));
  if (!(items > kNearOne && rows > kNearOne)) return {};
  return Finding{fmt::format("The last keep ratios are near 1 (items {:.2f}, rows {:.2f}), so "
                             "little is saved.",
                             items, rows),
                 "Train for longer, raise the budget (method.tau_act, method.tau_w), or set "
                 "method.type=exact."};
}

std::optional<Finding> poor_conversion(double flops, double time) {
  if (!(flops > 0.01 && time < kPoorConversion * flops)) return {};
  return Finding{
      fmt::format("{:.1f} % of FLOPs saved are only {:.1f} % of seconds: a conversion of {:.2f}.",
                  100 * flops, 100 * time, time / flops),
      "Use larger batches, a wider model or fewer probes (method.update_every); vcas bench times "
      "steps and probes, and --timing layers."};
}

std::vector<Finding> findings(const RunRecord& run, const RunRecord* twin) {
  std::vector<Finding> out;
  find_losses_that_are_none(run, out);
  find_worse_than_exact(run, twin, out);
  find_clipping(run, out);
  const auto add = [&](const std::optional<Finding>& finding) {
    if (finding) out.push_back(*finding);
  };
  if (!run.variance.empty()) {
    find_rows_in_step(run, out);
    add(ratios_near_one(run.variance.back()));
  }
  if (run.samples()) add(poor_conversion(run.last_number("flops_saved"), time_saved(run, twin)));
  find_time_unknown(run, twin, out);
  return out;
}

}  // namespace vcas
