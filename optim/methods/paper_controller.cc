#include "optim/methods/paper_controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/error.h"

namespace vcas {
namespace {

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

bool is_positive(double x) { return x > 0 && std::isfinite(x); }

}  // namespace

PaperController::PaperController(const VcasOptions& options, const ControlledModel& model,
                                 std::int64_t total_steps)
    : Controller(options, model), update_every_(options.probe_interval(total_steps)) {}

std::string PaperController::update(const std::vector<MeasuredBatch>& probe) {
  const std::size_t linears = weight_ratio_.size();
  const auto batches = static_cast<double>(probe.size());
  ProbeResult mean;
  mean.v_w.assign(linears, 0.0);
  mean.v_s_weight.assign(linears, 0.0);
  for (const MeasuredBatch& batch : probe) {
    VCAS_CHECK(batch.gram.size() == linears, "a probe of another model");
    for (std::size_t k = 0; k < linears; ++k) {
      mean.v_s_weight[k] += variance_of_sum(batch.gram[k], batch.items) / batches;
      mean.v_act += batch.v_act[k] / batches;
      mean.v_w[k] += batch.v_w[k] / batches;
    }
    mean.item_norm.push_back(batch.item_score);
  }
  mean.v_s = std::accumulate(mean.v_s_weight.begin(), mean.v_s_weight.end(), 0.0);
  return update(mean);
}

std::string PaperController::update(const ProbeResult& probe) {
  ++probes_;
  last_ = probe;
  if (!is_positive(probe.v_s) || !std::isfinite(probe.v_act))
    return fmt::format("all keep ratios stay: the probe measured V_s = {}, V_act = {}", probe.v_s,
                       probe.v_act);
  if (options_.samples_items()) update_act_ratio();
  return options_.samples_rows() ? update_weight_ratio() : "";
}

void PaperController::update_act_ratio() {
  s_ =
      std::clamp(s_ + options_.s_step * sign(last_.v_act - options_.tau_act * last_.v_s), 0.0, 1.0);
  double largest = 0;
  for (std::size_t gate = 0; gate < act_ratio_.size(); ++gate) {
    double mean = 0;
    for (const auto& batch : last_.item_norm)
      mean += top_mass(s_, batch.at(gate)) / static_cast<double>(last_.item_norm.size());
    largest = std::max(largest, std::min(mean, 1.0));
    act_ratio_[gate] =
        options_.ratio_smoothing * act_ratio_[gate] + (1 - options_.ratio_smoothing) * largest;
  }
  raise_exact_ratios();
}

std::string PaperController::update_weight_ratio() {
  const double beta = options_.weight_multiplier;
  std::size_t kept = 0;
  for (std::size_t k = 0; k < weight_ratio_.size(); ++k) {
    if (!is_positive(last_.v_s_weight[k]) || !std::isfinite(last_.v_w[k])) {
      ++kept;
      continue;
    }
    const bool spare = last_.v_w[k] < options_.tau_w * last_.v_s_weight[k];
    const double nu = spare ? weight_ratio_[k] * beta : weight_ratio_[k] / beta;
    weight_ratio_[k] = std::clamp(nu, options_.weight_ratio_min, 1.0);
  }
  raise_exact_ratios();
  if (kept == 0) return {};
  return fmt::format("{} of {} weight ratios stay: their V_s is zero or a variance is not finite",
                     kept, weight_ratio_.size());
}

nlohmann::ordered_json PaperController::report() const {
  nlohmann::ordered_json json = {{"s", s_}};
  json.update(Controller::report());
  return json;
}

nlohmann::ordered_json PaperController::measured() const {
  return {{"v_s", last_.v_s},
          {"v_act", last_.v_act},
          {"v_w", std::accumulate(last_.v_w.begin(), last_.v_w.end(), 0.0)},
          {"v_w_linear", last_.v_w},
          {"v_s_linear", last_.v_s_weight}};
}

std::string PaperController::progress() const { return fmt::format("s {:.2f}", s_); }

nlohmann::json PaperController::to_json() const {
  nlohmann::json state = ratios_to_json();
  state["s"] = s_;
  return state;
}

void PaperController::from_json(const nlohmann::json& state) {
  if (state.is_null()) return;
  try {
    const auto s = state.at("s").get<double>();
    ratios_from_json(state);
    s_ = s;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ExitCode::kBadData, fmt::format("the state of the VCAS controller: {}", e.what()));
  }
}

}  // namespace vcas
