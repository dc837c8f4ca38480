#include "optim/methods/budget_controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "optim/methods/item_choice.h"
#include "optim/methods/sampled_backward.h"

namespace vcas {
namespace {

// In probes. Variances of a gradient vary more from batch to batch than ratios do.
constexpr std::int64_t kPooledSpreads = 8, kPooledSquares = 2, kPooledRatios = 2,
                       kPooledSpending = 4, kPooledCosts = 16, kPooledEchoes = 8, kPooledDraws = 8;
// What a probe spent over what was aimed at, at most, that the aim follows: by curves, which few
// batches drive far off, and by passes.
constexpr double kMostByCurves = 5, kMostByPasses = 25;
constexpr std::int64_t kVerifiedEvery = 10;
constexpr std::int64_t kVerificationsToComplain = 3;

// The mean over the first `most` values, then one that forgets as fast.
double pool(double pooled, double value, std::int64_t values, std::int64_t most) {
  return pooled + (value - pooled) / static_cast<double>(std::min(values, most));
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Adds share * values to `sums`, which are empty at first.
void add(std::vector<double>& sums, const std::vector<double>& values, double share) {
  sums.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) sums[i] += share * values[i];
}

}  // namespace

BudgetController::BudgetController(const VcasOptions& options, const ControlledModel& model,
                                   std::uint64_t seed, std::int64_t total_steps)
    : Controller(options, model),
      seed_(seed),
      update_every_(options.probe_interval(total_steps)),
      squares_(model.linears.size(), 0.0),
      spread_(model.linears.size(), 0.0),
      row_factor_(model.linears.size(), 1.0),
      forward_ratio_(model.forward_ratio > 0 ? model.forward_ratio : 1),
      excess_(act_ratio_.size(), 0.0),
      dropped_(act_ratio_.size(), 0.0) {}

bool BudgetController::probe_due(std::int64_t step) const {
  std::int64_t last = 0, gap = 2;
  while (last < step && gap < update_every_) {
    last += gap;
    gap *= 2;
  }
  return last >= step ? last == step : (step - last) % update_every_ == 0;
}

int BudgetController::probe_passes() const {
  if (model_.mixes_items && drops_some(act_ratio_)) return 1;
  return probes_ % kVerifiedEvery == kVerifiedEvery - 1 ? options_.repeats : 0;
}

std::vector<double> BudgetController::pooled_variance() const {
  std::vector<double> v_s(spread_);
  for (std::size_t k = 0; k < v_s.size(); ++k) v_s[k] *= squares_[k];
  return v_s;
}

// w_k; 0 where V_s is not known.
std::vector<double> BudgetController::importance() const {
  std::vector<double> out;
  const std::vector<double> pooled = pooled_variance();
  const double all = sum_of(pooled);
  const auto known =
      static_cast<double>(std::ranges::count_if(pooled, [](double v) { return v > 0; }));
  for (const double v_s : pooled)
    out.push_back(!(v_s > 0) ? 0 : options_.budget == "absolute" ? 1 / all : 1 / (known * v_s));
  return out;
}

void BudgetController::pool_variance(const std::vector<MeasuredBatch>& probe) {
  last_ = {};
  last_.v_w_linear.assign(spread_.size(), 0.0);
  const auto add_to = [&](double& pooled, double value, std::int64_t most) {
    pooled = pooled > 0 ? pool(pooled, value, probes_, most) : value;
  };
  for (std::size_t k = 0; k < spread_.size(); ++k) {
    double v_s = 0, squares = 0;
    for (const MeasuredBatch& batch : probe) {
      v_s += variance_of_sum(batch.gram[k], batch.items) / static_cast<double>(probe.size());
      squares += dot(batch.row_score[k], batch.row_score[k]) / static_cast<double>(probe.size());
    }
    last_.v_s_linear.push_back(v_s);
    last_.v_s += v_s;
    if (!(v_s > 0) || !std::isfinite(v_s) || !(squares > 0) || !std::isfinite(squares)) continue;
    add_to(spread_[k], v_s / squares, kPooledSpreads);
    add_to(squares_[k], squares, kPooledSquares);
  }
}

// Seconds of a row in dW. All other seconds below a gate go to the rows of its linears by their
// share in FLOPs.
void BudgetController::pool_cost(const MeasuredBatch& batch) {
  if (!options_.times_cost() || batch.weight_seconds.empty()) return;
  ++timed_probes_;
  std::vector<double> inputs(act_ratio_.size(), 0.0);
  for (std::size_t k = 0; k < model_.linears.size(); ++k)
    if (const int gate = model_.linears[k].gate; gate >= 0)
      inputs[gate] += model_.linears[k].input_cost * batch.rows(k);
  for (std::size_t k = 0; k < model_.linears.size(); ++k) {
    ControlledModel::Linear& linear = model_.linears[k];
    linear.weight_cost = pool(linear.weight_cost, batch.weight_seconds[k] / batch.rows(k),
                              timed_probes_, kPooledCosts);
    if (linear.gate < 0) continue;
    const auto gate = static_cast<std::size_t>(linear.gate);
    linear.input_cost =
        pool(linear.input_cost, linear.input_cost / inputs[gate] * batch.item_seconds[gate],
             timed_probes_, kPooledCosts);
  }
}

// Squared errors of draws of rows over Eq. 3, or 1 where nothing was drawn, or next to nothing: the
// error is one of rounding then.
// A linear that a large eta has made exact draws nothing. So it must come back by itself.
void BudgetController::pool_row_factors(const std::vector<MeasuredBatch>& probe) {
  constexpr double kLeastOfVariance = 1e-6, kMost = 16;
  for (std::size_t k = 0; k < row_factor_.size(); ++k) {
    double sum = 0, draws = 0;
    for (const MeasuredBatch& batch : probe) {
      const double factor = batch.drawn_error[k] / batch.drawn_variance[k];
      if (!(batch.drawn_variance[k] > kLeastOfVariance * last_.v_s_linear[k]) ||
          !std::isfinite(factor))
        continue;
      sum += std::min(factor, kMost);
      ++draws;
    }
    row_factor_[k] = pool(row_factor_[k], draws > 0 ? sum / draws : 1, probes_, kPooledDraws);
  }
}

std::vector<double> BudgetController::planned_row_factor() const {
  std::vector<double> planned(row_factor_);
  for (double& eta : planned) eta = std::max(1.0, eta);
  return planned;
}

void BudgetController::find(const MeasuredBatch& batch, const VarianceCurves& curves,
                            const std::vector<double>& importance, double share) {
  const VarianceCurves::Ratios ratios{act_ratio_, weight_ratio_, forward_ratio_};
  const VarianceCurves::Variances now = curves.at(ratios);
  const bool measured = model_.mixes_items && batch.passes > 0;
  last_.v_f += share * now.forward;
  last_.v_act += share * (measured ? sum_of(batch.v_act) : now.act);
  last_.v_w += share * sum_of(now.weight);
  add(last_.v_w_linear, now.weight, share);
  last_.forward += share * now.weighted_forward;
  last_.expected_forward += share * now.expected_forward;
  last_.act += share * (measured ? dot(importance, batch.v_act) : now.weighted_act);
  last_.weight += share * dot(importance, now.weight);
  last_.measured = measured;
  if (measured) {
    const std::vector<double> kept = curves.by_thresholds(ratios).act;
    std::vector<double> excess(kept.size(), 0.0), dropped(kept.size(), 0.0);
    for (std::size_t k = 0; k < importance.size(); ++k)
      if (const int gate = model_.linears[k].gate; gate >= 0)
        excess[gate] += importance[k] * batch.v_act[k];
    for (std::size_t l = 0; l < excess.size(); ++l) {
      if (!(excess[l] > 0)) continue;  // gates stayed open for their echoes
      excess[l] -= now.gate_act[l];
      dropped[l] = 1 - kept[l];
    }
    add(last_.excess, excess, share);
    add(last_.dropped, dropped, share);
  }
  if (batch.passes == 0) return;
  // All items are there on a probe.
  const VarianceCurves::Variances whole = curves.at({act_ratio_, weight_ratio_, 1});
  const std::vector<double> eta = planned_row_factor();
  double verified = dot(importance, batch.v_act);
  for (std::size_t k = 0; k < importance.size(); ++k)
    verified += importance[k] * eta[k] * batch.v_w[k];
  const double predicted = whole.weighted_act + whole.echo + dot(importance, whole.weight);
  if (!std::isfinite(verified) || !std::isfinite(predicted)) return;
  verified_ += verified;
  predicted_ += predicted;
  ++verifications_;
}

std::vector<double> BudgetController::echo_variance() const {
  std::vector<double> phi;
  for (std::size_t l = 0; l < excess_.size(); ++l)
    phi.push_back(excess_[l] > 0 && dropped_[l] > 0 ? excess_[l] / dropped_[l] : 0);
  return phi;
}

// Evidence weighs as the dropped share does. A gate that drops nothing tells nothing: its phi is
// halved, as a large one keeps all items, and weighs half.
void BudgetController::pool_echoes() {
  if (!model_.mixes_items || !std::isfinite(last_.act)) return;
  if (last_.measured) ++echo_probes_;
  for (std::size_t l = 0; l < excess_.size(); ++l) {
    if (last_.measured && last_.dropped[l] > 0) {
      excess_[l] =
          pool(excess_[l], last_.excess[l] / last_.dropped[l], echo_probes_, kPooledEchoes);
      dropped_[l] = pool(dropped_[l], last_.dropped[l], echo_probes_, kPooledEchoes);
    } else {
      excess_[l] /= 4;
      dropped_[l] /= 2;
    }
  }
}

// Batches differ from the one that set the ratios, and a few spend very much. What is spent on the
// average, over the aim, lowers it. A gradient that changes at once would lower it for long.
// So one probe counts a few times its aim at most. SampleF's part is what was expected: single
// norms that have grown unseen would drown all else.
void BudgetController::correct_aim(double budget) {
  if (!drops_some(act_ratio_) && !drops_some(weight_ratio_) && forward_ratio_ >= 1) return;
  const double spent = (last_.expected_forward + last_.act + last_.weight) / budget;
  if (!std::isfinite(spent)) return;
  const double most = last_.measured ? kMostByPasses : kMostByCurves;
  spent_ = pool(spent_, std::min(spent / aim_, most), ++spent_probes_, kPooledSpending);
  if (spent_probes_ >= kPooledSpending) aim_ = 1 / std::max(spent_, 1.0);
}

void BudgetController::move_ratios(const VarianceCurves::Ratios& ratios) {
  for (std::size_t l = 0; l < act_ratio_.size(); ++l)
    act_ratio_[l] = pool(act_ratio_[l], ratios.act[l], probes_, kPooledRatios);
  for (std::size_t k = 0; k < weight_ratio_.size(); ++k)
    if (last_.v_s_linear[k] > 0)
      weight_ratio_[k] =
          std::clamp(pool(weight_ratio_[k], ratios.weight[k], probes_, kPooledRatios),
                     options_.weight_ratio_min, 1.0);
  forward_ratio_ = pool(forward_ratio_, ratios.forward, probes_, kPooledRatios);
  raise_exact_ratios();
}

// Where the number of items follows norms, ratios are its means over batches: they move by what the
// optimum keeps of the probe's batch over what its thresholds keep of it.
VarianceCurves::Optimum BudgetController::optimum(const std::vector<VarianceCurves>& curves,
                                                  double budget) const {
  VarianceCurves::Optimum mean{.ratios = {.act = {}, .weight = {}, .forward = 0}, .lambda = 0};
  for (const VarianceCurves& of_batch : curves) {
    VarianceCurves::Optimum best = of_batch.within(budget, lambda_);
    const VarianceCurves::Ratios now =
        of_batch.by_thresholds({act_ratio_, weight_ratio_, forward_ratio_});
    double above = 1;
    for (std::size_t l = act_ratio_.size(); l-- > 0; above = best.ratios.act[l])
      best.ratios.act[l] = std::min(above, best.ratios.act[l] * (act_ratio_[l] / now.act[l]));
    add(mean.ratios.act, best.ratios.act, 1);
    add(mean.ratios.weight, best.ratios.weight, 1);
    mean.ratios.forward += best.ratios.forward;
    mean.lambda += best.lambda;
  }
  // Divided at the end, so that the mean of ratios of 1 is 1.
  const auto batches = static_cast<double>(curves.size());
  for (double& ratio : mean.ratios.act) ratio /= batches;
  for (double& ratio : mean.ratios.weight) ratio /= batches;
  mean.ratios.forward /= batches;
  mean.lambda /= batches;
  return mean;
}

std::string BudgetController::update(const std::vector<MeasuredBatch>& probe) {
  for (const MeasuredBatch& batch : probe)
    VCAS_CHECK(batch.row_score.size() == weight_ratio_.size(), "a probe of another model");
  ++probes_;
  pool_variance(probe);
  if (!(last_.v_s > 0) || !std::isfinite(last_.v_s))
    return fmt::format("all keep ratios stay: the probe measured V_s = {}", last_.v_s);
  for (const MeasuredBatch& batch : probe) pool_cost(batch);
  pool_row_factors(probe);
  const std::vector<double> importance = this->importance();
  std::vector<VarianceCurves> curves;
  for (const MeasuredBatch& batch : probe) {
    curves.emplace_back(model_, batch, importance, selection_of(options_.selection),
                        RandomKey{.seed = seed_,
                                  .stream = Stream::kProbe,
                                  .step = static_cast<std::uint64_t>(probes_),
                                  .repeat = 1});
    curves.back().set_echo_variance(echo_variance());
    curves.back().set_row_factor(planned_row_factor());
    find(batch, curves.back(), importance, 1 / static_cast<double>(probe.size()));
  }
  pool_echoes();
  for (VarianceCurves& of_batch : curves) of_batch.set_echo_variance(echo_variance());
  const bool may_forward =
      std::ranges::any_of(probe.back().forward_score, [](double score) { return score >= 0; });
  const double budget = options_.tau() + (may_forward ? options_.tau_f : 0.0);
  correct_aim(budget);
  const VarianceCurves::Optimum best = optimum(curves, aim_ * budget);
  lambda_ = best.lambda;
  move_ratios(best.ratios);
  const auto unknown = std::ranges::count_if(last_.v_s_linear, [](double v) { return !(v > 0); });
  if (unknown > 0)
    return fmt::format("{} of {} weight ratios stay: their V_s is zero", unknown, spread_.size());
  if (model_.forward_ratio > 0 && last_.expected_forward > budget)
    return fmt::format(
        "backwards keep all: dropping items before the forward adds {:.2g} V_s, more than the "
        "budget of {:.2g} V_s; a larger method.forward_ratio adds less",
        last_.expected_forward, budget);
  const double kappa = this->kappa();
  if (probes_ % kVerifiedEvery != 0 || verifications_ < kVerificationsToComplain ||
      (kappa >= 0.5 && kappa <= 2))
    return {};
  return fmt::format(
      "sampling adds {:.2f} times the variance that the curves predict, by Monte Carlo on {} "
      "probes",
      kappa, verifications_);
}

nlohmann::ordered_json BudgetController::report() const {
  nlohmann::ordered_json json = {{"lambda", lambda_}, {"aim", aim_}};
  if (model_.mixes_items) json["echo_variance"] = echo_variance();
  json.update(Controller::report());
  return json;
}

nlohmann::ordered_json BudgetController::measured() const {
  nlohmann::ordered_json json = {{"v_s", last_.v_s},
                                 {"v_act", last_.v_act},
                                 {"v_w", last_.v_w},
                                 {"v_w_linear", last_.v_w_linear},
                                 {"v_s_linear", last_.v_s_linear},
                                 {"row_factor", row_factor_},
                                 {"v_f", last_.v_f},
                                 {"spent_f", last_.forward},
                                 {"expected_f", last_.expected_forward},
                                 {"spent_act", last_.act},
                                 {"spent_w", last_.weight}};
  json["kappa"] = verifications_ > 0 ? nlohmann::ordered_json(kappa()) : nullptr;
  return json;
}

std::string BudgetController::progress() const { return fmt::format("level {:.2g}", lambda_); }

nlohmann::json BudgetController::to_json() const {
  nlohmann::json state = ratios_to_json();
  state.update({{"squares", squares_},
                {"spread", spread_},
                {"row_factor", row_factor_},
                {"lambda", lambda_},
                {"forward_ratio", forward_ratio_},
                {"spent", spent_},
                {"spent_probes", spent_probes_},
                {"aim", aim_},
                {"verified", verified_},
                {"predicted", predicted_},
                {"verifications", verifications_},
                {"echo_excess", excess_},
                {"echo_dropped", dropped_},
                {"echo_probes", echo_probes_},
                {"timed_probes", timed_probes_}});
  for (const ControlledModel::Linear& linear : model_.linears)
    if (timed_probes_ > 0) state["seconds"].push_back({linear.weight_cost, linear.input_cost});
  return state;
}

void BudgetController::check_ranges() const {
  const auto check = [](const char* key, double value, const Range& range) {
    if (const std::string violation = range.violation(value); !violation.empty())
      throw Error(
          ExitCode::kBadData,
          fmt::format("the state of the VCAS controller: {} {}, got {}", key, violation, value),
          "resume from an earlier checkpoint");
  };
  for (const double ratio : act_ratio_) check("act_ratio", ratio, between(0, 1));
  for (const double ratio : weight_ratio_) check("weight_ratio", ratio, between(0, 1));
  const Range share = {.low = 0, .high = 1, .low_open = true};
  check("forward_ratio", forward_ratio_, share);
  check("aim", aim_, share);
  check("lambda", lambda_, between(1e-31, 1e31));  // ten times what VarianceCurves::within leaves
  for (const auto& [key, count] : {std::pair{"probes", probes_},
                                   {"spent_probes", spent_probes_},
                                   {"verifications", verifications_},
                                   {"echo_probes", echo_probes_},
                                   {"timed_probes", timed_probes_}})
    check(key, static_cast<double>(count), between(0, 1e15));
}

void BudgetController::from_json(const nlohmann::json& state) {
  if (state.is_null()) return;
  try {
    BudgetController read = *this;
    state.at("squares").get_to(read.squares_);
    state.at("spread").get_to(read.spread_);
    state.at("lambda").get_to(read.lambda_);
    state.at("forward_ratio").get_to(read.forward_ratio_);
    state.at("spent").get_to(read.spent_);
    state.at("spent_probes").get_to(read.spent_probes_);
    state.at("aim").get_to(read.aim_);
    state.at("verified").get_to(read.verified_);
    state.at("predicted").get_to(read.predicted_);
    state.at("verifications").get_to(read.verifications_);
    // Absent from the states of earlier programs.
    // A fork may go over to independent draws, which have the variance of Eq. 3.
    if (options_.selection == "systematic")
      read.row_factor_ = state.value("row_factor", row_factor_);
    read.excess_ = state.value("echo_excess", excess_);
    read.dropped_ = state.value("echo_dropped", dropped_);
    read.echo_probes_ = state.value("echo_probes", std::int64_t{0});
    // Absent from the states of programs that knew FLOPs only.
    // A fork may go over to FLOPs.
    if (options_.times_cost()) read.timed_probes_ = state.value("timed_probes", std::int64_t{0});
    for (std::size_t k = 0; read.timed_probes_ > 0 && k < read.model_.linears.size(); ++k) {
      state.at("seconds").at(k).at(0).get_to(read.model_.linears[k].weight_cost);
      state.at("seconds").at(k).at(1).get_to(read.model_.linears[k].input_cost);
    }
    read.ratios_from_json(state);
    const auto check = [](const char* key, const std::vector<double>& list, std::size_t size) {
      if (list.size() != size)
        throw Error(
            ExitCode::kBadData,
            fmt::format("the state of the VCAS controller has {} numbers in its {}, the model {}",
                        list.size(), key, size));
    };
    check("squares", read.squares_, squares_.size());
    check("spread", read.spread_, spread_.size());
    check("row_factor", read.row_factor_, row_factor_.size());
    check("echo_excess", read.excess_, excess_.size());
    check("echo_dropped", read.dropped_, dropped_.size());
    read.check_ranges();
    *this = read;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ExitCode::kBadData, fmt::format("the state of the VCAS controller: {}", e.what()));
  }
}

}  // namespace vcas
