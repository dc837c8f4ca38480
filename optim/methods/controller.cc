#include "optim/methods/controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "optim/methods/budget_controller.h"
#include "optim/methods/paper_controller.h"

namespace vcas {
namespace {

std::vector<double> fixed_ratios(const char* key, const std::vector<double>& given,
                                 std::size_t size, const char* what) {
  if (given.empty()) return std::vector<double>(size, 1.0);
  if (given.size() == 1) return std::vector<double>(size, given.front());
  if (given.size() == size) return given;
  throw Error(ExitCode::kBadConfig,
              fmt::format("method.{} has {} ratios, but the model has {} {}", key, given.size(),
                          size, what),
              fmt::format("give {} ratios, or one for all", size));
}

void check_gates(const VcasOptions& options, const ControlledModel& model) {
  if (model.gates > 0 || (options.samples_rows() && options.act_ratio.empty())) return;
  throw Error(ExitCode::kBadConfig,
              fmt::format("method.{} asks to sample items, and this model has no gate: its layers "
                          "mix the items of a batch",
                          options.samples_rows() ? "act_ratio" : "sample"),
              "set method.sample=rows, or a model.norm that keeps items apart: group or frozen");
}

}  // namespace

void VcasOptions::validate(ConfigErrors& errors) const {
  if (!std::is_sorted(act_ratio.begin(), act_ratio.end()))
    errors.add({"act_ratio"}, "must not decrease from input to output: dropped items stay dropped");
  if (update_every.unit() == Duration::Unit::kSteps && probes_too_often(update_every.steps()))
    errors.add(
        {"update_every", "repeats"},
        fmt::format("must be above {}, the exact steps of a probe in place, or no step is sampled; "
                    "got {}",
                    probe_batches(), update_every.steps()));
  if (follows_paper() && kept_items == "by_norm")
    errors.add({"kept_items", "controller"},
               "must not be \"by_norm\" with the paper's controller, which keeps a fixed number");
  if (times_probes() && probe == "separate")
    errors.add({"probe", auto_exact ? "auto_exact" : "cost"},
               "must be in_place where seconds are measured: separate probes compute no dW");
  if (!samples_items() && !act_ratio.empty())
    errors.add({"sample", "act_ratio"}, "must not be \"rows\" where ratios of items are given");
  if (!samples_rows() && !weight_ratio.empty())
    errors.add({"sample", "weight_ratio"}, "must not be \"items\" where ratios of rows are given");
  if (follows_paper() || pinned() || tau() > 0) return;
  constexpr const char* kWhy = "be 0: without a budget of variance nothing can be sampled";
  if (samples_items() && samples_rows())
    errors.add({"tau_act", "tau_w"}, std::string("and tau_w must not both ") + kWhy);
  else
    errors.add({samples_items() ? "tau_act" : "tau_w"}, std::string("must not ") + kWhy);
}

std::int64_t VcasOptions::probe_interval(std::int64_t total_steps) const {
  if (update_every.steps() > 0) return update_every.steps();
  if (!follows_paper()) return std::clamp<std::int64_t>(total_steps / 20, 10, 200);
  // The steps that a probe in place measures are exact: they must stay the exception.
  // A separate probe costs more.
  return std::max<std::int64_t>(5 * repeats, std::min<std::int64_t>(500, total_steps / 50));
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

nlohmann::ordered_json gate_norms(const std::vector<MeasuredBatch>& probe, bool per_token) {
  constexpr double kHeld = 0.95;
  std::vector<double> norm(probe.at(0).item_score.size(), 0.0), share = norm;
  for (const MeasuredBatch& batch : probe)
    for (std::size_t gate = 0; gate < norm.size(); ++gate) {
      std::vector<double> norms = batch.item_score[gate];
      for (std::size_t i = 0; per_token && i < norms.size(); ++i)
        norms[i] *= std::sqrt(batch.tokens[i]);
      norm[gate] += std::inner_product(norms.begin(), norms.end(), norms.begin(), 0.0);
      share[gate] += top_mass(kHeld, norms) / static_cast<double>(probe.size());
    }
  for (double& square : norm) square = std::sqrt(square / static_cast<double>(probe.size()));
  return {{"gate_norm", norm}, {"gate_share", share}};
}

double variance_of_sum(const std::vector<double>& gram, std::int64_t items) {
  const auto n = static_cast<std::size_t>(std::llround(std::sqrt(gram.size())));
  if (n < 2) return 0;
  double trace = 0, all = 0;
  for (std::size_t i = 0; i < n; ++i) trace += gram[i * n + i];
  for (const double product : gram) all += product;
  return static_cast<double>(items) / static_cast<double>(n - 1) *
         std::max(trace - all / static_cast<double>(n), 0.0);
}

Controller::Controller(const VcasOptions& options, const ControlledModel& model)
    : options_(options),
      model_(model),
      act_ratio_(fixed_ratios("act_ratio", options.act_ratio, model.gates, "sampling gates")),
      weight_ratio_(fixed_ratios("weight_ratio", options.weight_ratio, model.linears.size(),
                                 "sampled linears")) {
  check_gates(options, model);
  model_.exact_gates.resize(act_ratio_.size(), !options.samples_items());
  for (ControlledModel::Linear& linear : model_.linears) linear.exact = !options.samples_rows();
}

void Controller::make_exact(const std::vector<int>& gates, const std::vector<int>& linears) {
  for (const int gate : gates) model_.exact_gates[gate] = true;
  for (const int linear : linears) model_.linears[linear].exact = true;
  made_exact_gates_.insert(made_exact_gates_.end(), gates.begin(), gates.end());
  made_exact_linears_.insert(made_exact_linears_.end(), linears.begin(), linears.end());
  raise_exact_ratios();
}

void Controller::raise_exact_ratios() {
  for (std::size_t l = act_ratio_.size(); l-- > 0;)
    if (model_.exact_gates[l]) act_ratio_[l] = l + 1 < act_ratio_.size() ? act_ratio_[l + 1] : 1;
  for (std::size_t k = 0; k < weight_ratio_.size(); ++k)
    if (model_.linears[k].exact) weight_ratio_[k] = 1;
}

nlohmann::ordered_json Controller::report() const {
  return {{"act_ratio", act_ratio_}, {"weight_ratio", weight_ratio_}};
}

nlohmann::json Controller::ratios_to_json() const {
  return {{"act_ratio", act_ratio_},
          {"weight_ratio", weight_ratio_},
          {"probes", probes_},
          {"exact_gates", made_exact_gates_},
          {"exact_linears", made_exact_linears_}};
}

void Controller::ratios_from_json(const nlohmann::json& state) {
  const auto act_ratio = state.at("act_ratio").get<std::vector<double>>();
  const auto weight_ratio = state.at("weight_ratio").get<std::vector<double>>();
  if (act_ratio.size() != act_ratio_.size() || weight_ratio.size() != weight_ratio_.size())
    throw Error(
        ExitCode::kBadData,
        fmt::format("the state of the VCAS controller has {} item and {} weight ratios, the model "
                    "{} and {}",
                    act_ratio.size(), weight_ratio.size(), act_ratio_.size(),
                    weight_ratio_.size()));
  state.at("probes").get_to(probes_);
  act_ratio_ = act_ratio;
  weight_ratio_ = weight_ratio;
  const auto known = [&](const char* key, std::size_t size) {
    const auto list = state.value(key, std::vector<int>());  // absent from older states
    for (const int number : list)
      if (number < 0 || number >= static_cast<std::int64_t>(size))
        throw Error(ExitCode::kBadData,
                    fmt::format("the state of the VCAS controller has number {} in {}, the model "
                                "has {}",
                                number, key, size));
    return list;
  };
  made_exact_gates_.clear();
  made_exact_linears_.clear();
  if (options_.auto_exact)
    make_exact(known("exact_gates", act_ratio_.size()),
               known("exact_linears", weight_ratio_.size()));
  else
    raise_exact_ratios();
}

std::unique_ptr<Controller> make_controller(const VcasOptions& options,
                                            const ControlledModel& model, std::uint64_t seed,
                                            std::int64_t total_steps) {
  if (options.pinned()) return std::make_unique<Controller>(options, model);
  if (options.follows_paper())
    return std::make_unique<PaperController>(options, model, total_steps);
  return std::make_unique<BudgetController>(options, model, seed, total_steps);
}

}  // namespace vcas
