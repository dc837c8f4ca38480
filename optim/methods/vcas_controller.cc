#include "optim/methods/vcas_controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/error.h"

namespace vcas {
namespace {

std::vector<double> fixed_ratios(const char* key, const std::vector<double>& given, int count,
                                 const char* what) {
  const auto size = static_cast<std::size_t>(count);
  if (given.empty()) return std::vector<double>(size, 1.0);
  if (given.size() == 1) return std::vector<double>(size, given.front());
  if (given.size() == size) return given;
  throw Error(ExitCode::kBadConfig,
              fmt::format("method.{} has {} ratios, but the model has {} {}", key, given.size(),
                          count, what),
              fmt::format("give {} ratios, or one for all", count));
}

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

bool is_positive(double x) { return x > 0 && std::isfinite(x); }

}  // namespace

void VcasOptions::validate(ConfigErrors& errors) const {
  if (!std::is_sorted(act_ratio.begin(), act_ratio.end()))
    errors.add({"act_ratio"}, "must not decrease from input to output: dropped items stay dropped");
  if (update_every.unit() == Duration::Unit::kSteps && probes_too_often(update_every.steps()))
    errors.add(
        {"update_every", "repeats"},
        fmt::format("must be above method.repeats ({}), the exact steps of a probe in place, "
                    "or no step is sampled; got {}",
                    repeats, update_every.steps()));
}

double top_mass(double s, std::vector<double> norms) {
  const double whole = std::accumulate(norms.begin(), norms.end(), 0.0);
  if (s >= 1 || !(whole > 0)) return 1;
  std::sort(norms.begin(), norms.end(), std::greater<>());
  std::size_t count = 1;
  double sum = norms.front();
  while (count < norms.size() && !(sum >= s * whole)) sum += norms[count++];
  return static_cast<double>(count) / static_cast<double>(norms.size());
}

VcasController::VcasController(const VcasOptions& options, int gates, int linears,
                               std::int64_t total_steps)
    : options_(options),
      adapts_(!options.pinned()),
      update_every_(options.update_every.steps()),
      act_ratio_(fixed_ratios("act_ratio", options.act_ratio, gates, "sampling gates")),
      weight_ratio_(
          fixed_ratios("weight_ratio", options.weight_ratio, linears, "sampled linears")) {
  if (update_every_ == 0) {
    // The `repeats` steps that a probe in place measures are exact: they must stay the exception.
    const std::int64_t shortest = options.probe == "in_place" ? 5 * options.repeats : 1;
    update_every_ = std::max(shortest, std::min<std::int64_t>(500, total_steps / 50));
  }
}

std::string VcasController::update(const ProbeResult& probe) {
  VCAS_CHECK(adapts_, "a probe of a controller that does not adapt");
  VCAS_CHECK(probe.v_w.size() == weight_ratio_.size() &&
                 probe.v_s_weight.size() == weight_ratio_.size() && !probe.item_norm.empty(),
             "a probe of another model");
  ++probes_;
  if (!is_positive(probe.v_s) || !std::isfinite(probe.v_act))
    return fmt::format("all keep ratios stay: the probe measured V_s = {}, V_act = {}", probe.v_s,
                       probe.v_act);
  s_ =
      std::clamp(s_ + options_.s_step * sign(probe.v_act - options_.tau_act * probe.v_s), 0.0, 1.0);
  update_act_ratio(probe.item_norm);
  return update_weight_ratio(probe);
}

void VcasController::update_act_ratio(
    const std::vector<std::vector<std::vector<double>>>& item_norm) {
  double largest = 0;
  for (std::size_t gate = 0; gate < act_ratio_.size(); ++gate) {
    double mean = 0;
    for (const auto& batch : item_norm)
      mean += top_mass(s_, batch.at(gate)) / static_cast<double>(item_norm.size());
    largest = std::max(largest, std::min(mean, 1.0));
    act_ratio_[gate] =
        options_.ratio_smoothing * act_ratio_[gate] + (1 - options_.ratio_smoothing) * largest;
  }
}

std::string VcasController::update_weight_ratio(const ProbeResult& probe) {
  const double beta = options_.weight_multiplier;
  std::size_t kept = 0;
  for (std::size_t k = 0; k < weight_ratio_.size(); ++k) {
    if (!is_positive(probe.v_s_weight[k]) || !std::isfinite(probe.v_w[k])) {
      ++kept;
      continue;
    }
    const bool spare = probe.v_w[k] < options_.tau_w * probe.v_s_weight[k];
    const double nu = spare ? weight_ratio_[k] * beta : weight_ratio_[k] / beta;
    weight_ratio_[k] = std::clamp(nu, options_.weight_ratio_min, 1.0);
  }
  if (kept == 0) return {};
  return fmt::format("{} of {} weight ratios stay: their V_s is zero or a variance is not finite",
                     kept, weight_ratio_.size());
}

nlohmann::json VcasController::to_json() const {
  if (!adapts_) return nullptr;
  return {
      {"s", s_}, {"act_ratio", act_ratio_}, {"weight_ratio", weight_ratio_}, {"probes", probes_}};
}

void VcasController::from_json(const nlohmann::json& state) {
  if (!adapts_ || state.is_null()) return;
  std::vector<double> act_ratio, weight_ratio;
  double s = 0;
  std::int64_t probes = 0;
  try {
    state.at("s").get_to(s);
    state.at("act_ratio").get_to(act_ratio);
    state.at("weight_ratio").get_to(weight_ratio);
    state.at("probes").get_to(probes);
  } catch (const nlohmann::json::exception& e) {
    throw Error(ExitCode::kBadData, fmt::format("the state of the VCAS controller: {}", e.what()));
  }
  if (act_ratio.size() != act_ratio_.size() || weight_ratio.size() != weight_ratio_.size())
    throw Error(
        ExitCode::kBadData,
        fmt::format("the state of the VCAS controller has {} item and {} weight ratios, the model "
                    "{} and {}",
                    act_ratio.size(), weight_ratio.size(), act_ratio_.size(),
                    weight_ratio_.size()));
  s_ = s;
  act_ratio_ = std::move(act_ratio);
  weight_ratio_ = std::move(weight_ratio);
  probes_ = probes;
}

}  // namespace vcas
