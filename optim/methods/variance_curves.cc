#include "optim/methods/variance_curves.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "optim/methods/gradient_sketch.h"
#include "optim/methods/item_threshold.h"
#include "optim/methods/sample_gate.h"

namespace vcas {
namespace {

constexpr double kNoLevel = std::numeric_limits<double>::infinity();
constexpr std::size_t kMostRows = 512;  // of a linear, whose scores are looked at

double quadratic(const std::vector<double>& matrix, const std::vector<double>& x) {
  double sum = 0;
  const double* entry = matrix.data();
  for (const double left : x) {
    double row = 0;
    for (const double right : x) row += *entry++ * right;
    sum += left * row;
  }
  return sum;
}

}  // namespace

double capped_level(const std::vector<double>& values, const std::vector<double>& weights,
                    double budget) {
  double level = 0;
  for (double capped = -1;;) {
    double now_capped = 0, sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!(values[i] > 0)) continue;
      const double weight = weights.empty() ? 1 : weights[i];
      if (level * values[i] >= 1)
        now_capped += weight;
      else
        sum += weight * values[i];
    }
    if (!(sum > 0)) return kNoLevel;
    if (now_capped == capped) return level;
    capped = now_capped;
    level = std::max(level, (budget - capped) / sum);
  }
}

VarianceCurves::VarianceCurves(const ControlledModel& model, const MeasuredBatch& batch,
                               const std::vector<double>& importance, Selection selection,
                               const RandomKey& draws)
    : model_(model),
      batch_(batch),
      importance_(importance),
      echo_variance_(batch.item_score.size(), 0.0),
      row_factor_(importance.size(), 1.0),
      selection_(selection),
      draws_(draws),
      items_(static_cast<std::size_t>(std::min(batch.items, kMostItemsCompared))),
      scale_(static_cast<double>(batch.items) / static_cast<double>(items_)) {
  for (std::size_t i = 0; i < items_; ++i) tokens_ += batch.tokens[i];
  for (const std::vector<double>& given : batch.item_score) {
    std::vector<double> score(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(items_));
    double squares = 0;
    for (const double x : score) squares += x * x / static_cast<double>(items_);
    double tokens = 0;
    for (std::size_t i = 0; i < items_; ++i) {
      if (squares > 0) score[i] /= std::sqrt(squares);
      tokens += batch.tokens[i] * score[i] * score[i];
    }
    score_.push_back(score);
    token_square_.push_back(tokens);
  }
  expected_.assign(items_, 0.0);
  double squares = 0;  // of the norms at the top gate
  for (std::size_t i = 0; i < items_ && !score_.empty(); ++i)
    squares += batch.tokens[i] * batch.item_score.back()[i] * batch.item_score.back()[i];
  for (std::size_t i = 0; i < batch.forward_norm.size() && squares > 0; ++i)
    if (batch.forward_norm[i] >= 0)
      expected_[i] = batch.forward_norm[i] * batch.forward_norm[i] / squares;
  gram_.assign(score_.size() + 1, std::vector<double>(items_ * items_, 0.0));
  weighted_gram_ = gram_;
  for (std::size_t k = 0; k < model.linears.size(); ++k) {
    const std::vector<std::int64_t>& offsets = batch.offsets[k];
    whole_cost_ += (model.linears[k].weight_cost + model.linears[k].input_cost) *
                   static_cast<double>(offsets.back());
    const auto rows = static_cast<std::size_t>(offsets.back());
    const std::size_t distance = (rows + kMostRows - 1) / kMostRows;
    Rows& of = rows_.emplace_back();
    of.each = static_cast<double>(distance);
    // One row at random of each stretch: equal distances could meet the same tokens of all items.
    const PhiloxAddress address = address_of(score_.size() + 1 + k);
    for (std::size_t first = 0, item = 0; first < rows; first += distance) {
      const std::size_t r =
          first + static_cast<std::size_t>(philox_uniform(address, first) *
                                           static_cast<float>(std::min(distance, rows - first)));
      while (static_cast<std::int64_t>(r) >= offsets[item + 1]) ++item;
      of.score.push_back(batch.row_score[k][r]);
      of.item.push_back(static_cast<std::uint32_t>(item));
    }
    const int below = model.linears[k].gate;
    const std::size_t gate = below < 0 ? score_.size() : static_cast<std::size_t>(below);
    for (std::size_t e = 0; e < batch.gram[k].size(); ++e) {
      gram_[gate][e] += batch.gram[k][e];
      weighted_gram_[gate][e] += importance[k] * batch.gram[k][e];
      if (e % (items_ + 1) == 0) weighted_trace_ += importance[k] * batch.gram[k][e];
    }
  }
}

const VarianceCurves::Probabilities* VarianceCurves::above(const std::vector<Probabilities>& pi,
                                                           std::size_t linear) const {
  const int gate = model_.linears[linear].gate;
  return gate < 0 ? nullptr : &pi[gate];
}

// The items that a group keeps at a level.
double VarianceCurves::kept(const Shared& group, double level) const {
  double sum = 0;
  for (const double score : score_[group.first]) sum += std::min(1.0, level * score);
  return sum;
}

// Echoes take 2 lambda phi d off the price f of a group of which a share d is dropped.
double VarianceCurves::level_of(const Shared& group, double lambda) const {
  constexpr double kStep = 2;
  constexpr int kMostSteps = 40, kHalvings = 12;
  double high = std::sqrt(lambda * group.value / group.cost);
  if (!(group.echo > 0)) return high;
  const auto suffices = [&](double level) {
    const double dropped = 1 - kept(group, level) / static_cast<double>(items_);
    return level * level * (group.cost - 2 * lambda * group.echo * dropped) >= lambda * group.value;
  };
  if (suffices(high)) return high;
  double low = high;
  for (int i = 0; !suffices(high *= kStep); ++i, low = high)
    if (i == kMostSteps) return kNoLevel;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = std::sqrt(low * high);
    (suffices(middle) ? high : low) = middle;
  }
  return high;
}

// pi_i(l) = min(1, s_i(l) sqrt(lambda b_l / f_l)), not above that of the gate before.
// A gate that saves nothing, or below which nothing varies, follows the one before.
// Gates that want more than the one before them share its level: their b, f and phi add up.
//
// A row with q < 1 costs and varies by pi q alone, which is z sqrt(lambda w eta / f) at any pi.
// So f counts dX and the rows with q = 1, and b leaves out the eta z^2 of the others.
std::vector<VarianceCurves::Shared> VarianceCurves::shared_levels(const Point& point,
                                                                  double lambda) const {
  constexpr double kLeastShare = 0.02;  // of the variance of items: rows do not explain all
  const std::size_t gates = score_.size();
  std::vector<Shared> each(gates);
  for (std::size_t l = 0; l < gates; ++l)
    for (std::size_t i = 0; i < items_; ++i)
      each[l].value += scale_ * weighted_gram_[l][i * (items_ + 1)];
  std::vector<double> least;
  for (const Shared& gate : each) least.push_back(kLeastShare * gate.value);
  for (std::size_t k = 0; k < model_.linears.size(); ++k) {
    if (model_.linears[k].gate < 0) continue;
    Shared& gate = each[model_.linears[k].gate];
    gate.value -= row_importance(k) * scale_ * point.free_square[k];
    const ControlledModel::Linear& linear = model_.linears[k];
    gate.cost += (linear.input_cost * static_cast<double>(batch_.offsets[k].back()) +
                  linear.weight_cost * point.full_rows[k]) /
                 whole_cost_;
  }
  const auto exact = [&](std::size_t gate) {
    return !model_.exact_gates.empty() && model_.exact_gates[gate];
  };
  const auto set_level = [&](Shared& group) {
    const bool samples = !exact(group.first) && group.cost > 0 && group.value > 0;
    group.level = samples ? level_of(group, lambda) : kNoLevel;
  };
  std::vector<Shared> groups;
  for (std::size_t l = gates; l-- > 0;) {
    Shared next = each[l];
    next.first = l;
    next.value = std::max(next.value, least[l]);
    next.echo = echo_variance_[l];
    if (token_square_[l] > 0) next.value *= tokens_ / token_square_[l];
    set_level(next);
    groups.push_back(next);
    while (groups.size() > 1 &&
           (exact(groups.back().first) ||
            kept(groups.back(), groups.back().level) >=
                kept(groups[groups.size() - 2], groups[groups.size() - 2].level))) {
      const Shared last = groups.back();
      groups.pop_back();
      groups.back().value += last.value;
      groups.back().cost += last.cost;
      groups.back().echo += last.echo;
      set_level(groups.back());
    }
  }
  return groups;
}

// pi of SampleF at a ratio of the items that are known.
VarianceCurves::Probabilities VarianceCurves::forward_inclusion(double ratio) const {
  Probabilities pi(items_, 1.0);
  if (batch_.forward_score.empty() || ratio >= 1) return pi;
  std::vector<double> known;
  for (const double score : batch_.forward_score)
    if (score >= 0) known.push_back(score);
  const double level =
      capped_level(known, {}, whole_budget(ratio * static_cast<double>(known.size())));
  for (std::size_t i = 0; i < items_; ++i)
    if (const double score = batch_.forward_score[i]; score >= 0)
      pi[i] = std::min(1.0, level * score);
  return pi;
}

// As if items were drawn alone. A norm that has grown unseen tells much of its batch and little of
// the next: what is expected of the items' norms holds for both.
double VarianceCurves::expected_forward(const Probabilities& forward) const {
  double sum = 0;
  for (std::size_t i = 0; i < items_; ++i) sum += (1 / forward[i] - 1) * expected_[i];
  return scale_ * weighted_trace_ * sum;
}

// The ratio with the least cost + lambda variance. A forward costs half a backward.
void VarianceCurves::set_forward(Point& point, const std::vector<Shared>& groups,
                                 double lambda) const {
  constexpr int kCandidates = 20;
  const bool known = std::ranges::any_of(batch_.forward_score, [](double m) { return m >= 0; });
  const double fixed = known ? model_.forward_ratio : 1;
  if (fixed > 0) {
    point.forward = forward_inclusion(fixed);
    point.ratios.forward = fixed;
    return;
  }
  double least = std::numeric_limits<double>::infinity();
  for (int candidate = kCandidates; candidate > 0; --candidate) {
    const double ratio = static_cast<double>(candidate) / kCandidates;
    const Probabilities forward = forward_inclusion(ratio);
    double loss = 0;
    for (std::size_t i = 0; i < items_; ++i) {
      const double share = batch_.tokens[i] / tokens_;
      loss += 0.5 * share * forward[i];
      for (const Shared& group : groups) {
        const double score = score_[group.first][i];
        const double expected = token_square_[group.first] * expected_[i];  // of T_i s_i^2
        loss += lambda * group.value / tokens_ * (1 / forward[i] - 1) * expected;
        const double pi = std::min(forward[i], group.level * score);
        if (!(pi > 0)) continue;
        loss += share * (group.cost * pi +
                         lambda * group.value * score * score * (1 / pi - 1 / forward[i]));
      }
    }
    if (!(loss < least)) continue;
    least = loss;
    point.forward = forward;
    point.ratios.forward = ratio;
  }
}

void VarianceCurves::set_items(Point& point, double lambda) const {
  const std::vector<Shared> groups = shared_levels(point, lambda);
  set_forward(point, groups, lambda);
  const std::size_t gates = score_.size();
  const double whole = std::accumulate(point.forward.begin(), point.forward.end(), 0.0);
  point.pi.assign(gates, Probabilities(items_, 1.0));
  point.ratios.act.assign(gates, 1.0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::size_t first = groups[g].first;
    const std::size_t end = g + 1 < groups.size() ? groups[g + 1].first + 1 : 0;
    const Probabilities& most = first + 1 < gates ? point.pi[first + 1] : point.forward;
    Probabilities pi(items_);
    for (std::size_t i = 0; i < items_; ++i)
      pi[i] = std::min(most[i], groups[g].level * score_[first][i]);
    const double kept = std::accumulate(pi.begin(), pi.end(), 0.0);
    for (std::size_t l = first + 1; l-- > end;) {
      point.pi[l] = pi;
      point.ratios.act[l] = std::clamp(kept / whole, 1 / static_cast<double>(items_), 1.0);
    }
  }
}

// q_r = min(1, z_r / pi_i sqrt(lambda w_k eta_k / f_k)), and the variances.
void VarianceCurves::set_rows(Point& point, double lambda) const {
  point.act = point.weight = 0;
  point.expected_forward = expected_forward(point.forward);
  point.echo = echo(point.ratios);
  for (std::size_t l = 0; l < point.pi.size(); ++l)
    for (std::size_t i = 0; i < items_; ++i)
      if (point.pi[l][i] > 0)
        point.act += scale_ * (1 / point.pi[l][i] - 1 / point.forward[i]) *
                     weighted_gram_[l][i * (items_ + 1)];
  for (std::size_t k = 0; k < model_.linears.size(); ++k) {
    const Probabilities* pi = above(point.pi, k);
    const Rows& of = rows_[k];
    const double cost = model_.linears[k].weight_cost / whole_cost_;
    const double level =
        model_.linears[k].exact ? kNoLevel : std::sqrt(lambda * row_importance(k) * scale_ / cost);
    double weight = 0, rows = 0, kept = 0, full = 0, free = 0;
    for (std::size_t r = 0; r < of.score.size(); ++r) {
      const double p = pi ? (*pi)[of.item[r]] : 1, z = of.score[r];
      if (!(p > 0)) continue;
      const double q = std::min(1.0, z / p * level);
      rows += p;
      kept += p * q;
      if (q >= 1) {
        ++full;
      } else if (q > 0) {
        free += z * z;
        weight += (1 / q - 1) * z * z / p;
      }
    }
    // Half way, or rounds may swing.
    point.full_rows[k] += (of.each * full - point.full_rows[k]) / 2;
    point.free_square[k] += (of.each * free - point.free_square[k]) / 2;
    point.ratios.weight[k] = rows > 0 && importance_[k] > 0 ? kept / rows : 1;
    point.weight += row_importance(k) * scale_ * of.each * weight;
  }
}

// sum over l of phi_l (1 - rho_l)^2
double VarianceCurves::echo(const Ratios& ratios) const {
  double sum = 0;
  for (std::size_t l = 0; l < echo_variance_.size(); ++l)
    sum += echo_variance_[l] * (1 - ratios.act[l]) * (1 - ratios.act[l]);
  return sum;
}

// Rows decide on items, and these on rows.
VarianceCurves::Point VarianceCurves::at_level(double lambda) const {
  constexpr int kRounds = 4;
  const std::size_t linears = model_.linears.size();
  Point point;
  point.free_square.assign(linears, 0.0);
  point.ratios.weight.assign(linears, 1.0);
  for (const std::vector<std::int64_t>& offsets : batch_.offsets)
    point.full_rows.push_back(static_cast<double>(offsets.back()));
  for (int round = 0; round < kRounds; ++round) {
    set_items(point, lambda);
    set_rows(point, lambda);
  }
  return point;
}

// lambda with V_f + correction V_act + V_echo + V_w = budget.
double VarianceCurves::lambda_of(double budget, double correction, double start) const {
  constexpr double kStep = 4;
  constexpr int kMostSteps = 100, kHalvings = 8;
  const auto exceeds = [&](double lambda) {
    const Point point = at_level(lambda);
    return point.expected_forward + correction * point.act + point.echo + point.weight > budget;
  };
  double low = start, high = start;
  if (exceeds(start))
    for (int i = 0; i < kMostSteps && exceeds(high *= kStep); ++i) low = high;
  else
    for (int i = 0; i < kMostSteps && !exceeds(low /= kStep); ++i) high = low;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = std::sqrt(low * high);
    (exceeds(middle) ? low : high) = middle;
  }
  return high;
}

VarianceCurves::Optimum VarianceCurves::within(double budget, double start) const {
  constexpr int kRounds = 3;  // the draws at a gate depend on each other: their variance is less
  // Where no ratios meet the budget, or all do, the level must not run away from probe to probe.
  constexpr double kLeast = 1e-30, kMost = 1e30;
  constexpr double kTolerance = 1.05;  // of what simulated draws spend
  double correction = 1, lambda = start, least = kNoLevel;
  Optimum best;
  for (int round = 0; round < kRounds; ++round) {
    lambda = std::clamp(lambda_of(budget, correction, lambda), kLeast, kMost);
    const Point point = at_level(lambda);
    const double act = point.act > 0 ? simulated_act(point.ratios, false).weighted_act : 0;
    const double spent = point.expected_forward + act + point.echo + point.weight;
    // The last round within the budget, else the one that exceeds it least: whole numbers of few
    // items may leave no way between far too little and far too much.
    if (const double over = std::max(spent, kTolerance * budget); round == 0 || over <= least) {
      best = {point.ratios, lambda};
      least = over;
    }
    if (!(point.act > 0)) break;
    // Where whole numbers round to all items, the variance is 0. Others would not follow from it.
    if (act > 0) correction = act / point.act;
  }
  return best;
}

// As the operation Draw does. `kept` comes with the candidates, which have these scores.
void VarianceCurves::draw(const std::vector<double>& score, double budget, bool systematic,
                          const PhiloxAddress& address, std::uint64_t first,
                          std::vector<Kept>& kept) const {
  const double level = capped_level(score, {}, budget);
  double sum = philox_uniform(address, first);
  std::vector<Kept> left;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (!(score[i] > 0)) continue;
    const double p = std::min(1.0, level * score[i]);
    const double before = sum;
    sum += p;
    const bool keep = systematic ? std::floor(sum) > std::floor(before)
                                 : philox_uniform(address, first + kept[i].item) < p;
    if (keep) left.push_back({kept[i].item, kept[i].scale / p});
  }
  kept = left;
}

// Draw `number` of SampleF: of the items that are known, and the others with weight 1.
std::vector<VarianceCurves::Kept> VarianceCurves::draw_forward(double ratio,
                                                               std::uint64_t number) const {
  std::vector<Kept> kept, others;
  std::vector<double> score;
  for (std::size_t i = 0; i < items_; ++i) {
    const bool known = ratio < 1 && !batch_.forward_score.empty() && batch_.forward_score[i] >= 0;
    (known ? kept : others).push_back({i, 1.0});
    if (known) score.push_back(batch_.forward_score[i]);
  }
  if (!kept.empty())
    draw(score, whole_budget(ratio * static_cast<double>(kept.size())), true,
         address_of(score_.size()), number * items_, kept);
  kept.insert(kept.end(), others.begin(), others.end());
  std::ranges::sort(kept, {}, &Kept::item);
  return kept;
}

PhiloxAddress VarianceCurves::address_of(std::size_t site) const {
  RandomKey key = draws_;
  key.site = static_cast<std::uint32_t>(site);
  return philox_address(key);
}

// The sum of the probabilities of the items that came to a gate. A step's threshold follows their
// scores first.
double VarianceCurves::sum_at_gate(std::size_t gate, const std::vector<Kept>& items,
                                   double target) const {
  std::vector<double> score;
  for (const Kept& of : items) score.push_back(of.scale * batch_.item_score[gate][of.item]);
  ItemThreshold threshold = batch_.threshold[gate];
  threshold.follow(score, target);
  return threshold.kept(score, target);
}

// The means over draws of (w - 1)' K_k (w - 1), w_i = 1 / pi_i of kept items and 0 of others.
VarianceCurves::Variances VarianceCurves::simulated_act(const Ratios& ratios, bool of_batch) const {
  const auto work = static_cast<double>(items_ * items_ * score_.size());
  const auto draws = static_cast<std::uint64_t>(std::clamp(1e6 / work, 16.0, 256.0));
  const double share = scale_ / static_cast<double>(draws);
  const bool systematic = selection_ == Selection::kSystematic;
  const bool by_norm = !batch_.threshold.empty();
  Variances sum;
  sum.gate_act.assign(score_.size(), 0.0);
  const auto error_of = [&](const std::vector<Kept>& kept) {
    std::vector<double> error(items_, -1.0);
    for (const Kept& of : kept) error[of.item] += of.scale;
    return error;
  };
  const auto add_forward = [&](std::size_t gate, const std::vector<double>& error) {
    sum.forward += share * quadratic(gram_[gate], error);
    sum.weighted_forward += share * quadratic(weighted_gram_[gate], error);
  };
  const auto add_act = [&](std::size_t gate, const std::vector<double>& error) {
    const double weighted = share * quadratic(weighted_gram_[gate], error);
    sum.act += share * quadratic(gram_[gate], error);
    sum.weighted_act += weighted;
    if (gate < score_.size()) sum.gate_act[gate] += weighted;
  };
  for (std::uint64_t number = 0; number < draws; ++number) {
    std::vector<Kept> kept = draw_forward(ratios.forward, number);
    const auto whole = static_cast<double>(kept.size());
    const std::vector<double> forward_error = error_of(kept);
    const bool forward = ratios.forward < 1;
    if (forward) add_forward(score_.size(), forward_error);
    if (forward) add_act(score_.size(), forward_error);
    double ratio_above = 1;
    for (std::size_t gate = score_.size(); gate-- > 0;) {
      if (ratios.act[gate] < ratio_above) {
        ratio_above = ratios.act[gate];
        std::vector<double> score;
        for (const Kept& of : kept) score.push_back(of.scale * score_[gate][of.item]);
        double budget = ratio_above * whole;
        if (by_norm && of_batch) {
          budget = sum_at_gate(gate, kept, budget);
          if (systematic) budget = ItemThreshold::whole(budget);
        } else if (systematic && !by_norm) {
          budget = whole_budget(budget);
        }
        draw(score, budget, systematic, address_of(gate), number * items_, kept);
      }
      if (forward) add_forward(gate, forward_error);
      if (forward || ratio_above < 1) add_act(gate, error_of(kept));
    }
  }
  sum.act -= sum.forward;
  sum.weighted_act -= sum.weighted_forward;
  return sum;
}

std::vector<VarianceCurves::Probabilities> VarianceCurves::inclusion(const Ratios& ratios) const {
  std::vector<Probabilities> pi(score_.size());
  Probabilities most = forward_inclusion(ratios.forward);
  const double whole = std::accumulate(most.begin(), most.end(), 0.0);
  double ratio_above = 1;
  for (std::size_t gate = score_.size(); gate-- > 0;) {
    if (ratios.act[gate] < ratio_above) {
      ratio_above = ratios.act[gate];
      std::vector<double> score(items_, 0.0);
      for (std::size_t i = 0; i < items_; ++i)
        if (most[i] > 0) score[i] = score_[gate][i] / most[i];
      const double level = capped_level(score, most, ratio_above * whole);
      for (std::size_t i = 0; i < items_; ++i)
        most[i] = score[i] > 0 ? most[i] * std::min(1.0, level * score[i]) : 0;
    }
    pi[gate] = most;
  }
  return pi;
}

// An item is drawn at a gate with P = min(1, s / (pi t)), pi that of the gates above. An item
// comes there in a share pi of the draws.
VarianceCurves::Ratios VarianceCurves::by_thresholds(Ratios ratios) const {
  if (batch_.threshold.empty()) return ratios;
  Probabilities pi = forward_inclusion(ratios.forward);
  const double whole = std::accumulate(pi.begin(), pi.end(), 0.0);
  double given_above = 1, above = 1;
  for (std::size_t gate = score_.size(); gate-- > 0;) {
    double& ratio = ratios.act[gate];
    const double given = ratio;
    if (!(given < given_above)) {
      ratio = above;
    } else {
      std::vector<double> score(items_, 0.0);
      for (std::size_t i = 0; i < items_; ++i)
        if (pi[i] > 0) score[i] = batch_.item_score[gate][i] / pi[i];
      ItemThreshold threshold = batch_.threshold[gate];
      threshold.follow(score, given * whole, pi);
      ratio = std::min(above, threshold.kept(score, given * whole, pi) / whole);
      for (std::size_t i = 0; threshold.value() > 0 && i < items_; ++i)
        pi[i] = std::min(pi[i], batch_.item_score[gate][i] / threshold.value());
    }
    given_above = std::min(given_above, given);
    above = std::min(above, ratio);
  }
  return ratios;
}

// eta times the sum over r of (1 / pi) (1 / q - 1) z^2.
// The sum of pi q is `ratio` times that of pi.
double VarianceCurves::weight_variance(std::size_t linear, const Probabilities* pi,
                                       double ratio) const {
  if (ratio >= 1) return 0;
  const Rows& of = rows_[linear];
  std::vector<double> weight, score;
  double rows = 0;
  for (std::size_t r = 0; r < of.score.size(); ++r) {
    const double p = pi ? (*pi)[of.item[r]] : 1;
    if (!(p > 0)) continue;
    weight.push_back(p);
    score.push_back(of.score[r] / p);
    rows += p;
  }
  const double level = capped_level(score, weight, ratio * rows);
  double sum = 0;
  for (std::size_t r = 0; r < score.size(); ++r)
    if (score[r] > 0) {
      const double q = std::min(1.0, level * score[r]);
      sum += weight[r] * (1 / q - 1) * score[r] * score[r];
    }
  return row_factor_[linear] * scale_ * of.each * sum;
}

VarianceCurves::Variances VarianceCurves::at(const Ratios& given) const {
  const Ratios ratios = by_thresholds(given);
  const std::vector<Probabilities> pi = inclusion(ratios);
  Variances out = simulated_act(given, true);
  for (std::size_t k = 0; k < model_.linears.size(); ++k)
    out.weight.push_back(weight_variance(k, above(pi, k), ratios.weight[k]));
  out.expected_forward = expected_forward(forward_inclusion(ratios.forward));
  out.echo = echo(ratios);
  return out;
}

}  // namespace vcas
