#include "optim/methods/auto_exact.h"

#include <limits>

namespace vcas {

AutoExact::AutoExact(const ControlledModel& model)
    : model_(model),
      weight_seconds_(model.linears.size()),
      weight_rows_(model.linears.size()),
      below_seconds_(static_cast<std::size_t>(model.gates)),
      gates_(static_cast<std::size_t>(model.gates)),
      linears_(model.linears.size()) {}

void AutoExact::Balance::add(double seconds, double saved) {
  taken += seconds;
  spared += saved;
  ++backwards;
}

bool AutoExact::Balance::is_loss() const {
  constexpr int kFewest = 8;
  return backwards >= kFewest && taken > spared;
}

void AutoExact::add_exact(const MeasuredBatch& batch) {
  ++exact_;
  for (std::size_t l = 0; l < gates_.size(); ++l) below_seconds_[l] += batch.item_seconds[l];
  for (std::size_t k = 0; k < linears_.size(); ++k) {
    weight_seconds_[k] += batch.weight_seconds[k];
    weight_rows_[k] += batch.rows(k);
    if (const int gate = model_.linears[k].gate; gate >= 0)
      below_seconds_[gate] += batch.weight_seconds[k];
  }
}

// A gate that draws spares items that it drops and that the last such gate above has kept.
// It spares them down to the next gate that draws.
// A linear spares its dense product of the same rows.
void AutoExact::add_sampled(const SampleTimes& times, const KeepRatios& ratios,
                            double forward_share) {
  if (exact_ == 0) return;
  double above = 1;
  for (std::size_t end = gates_.size(); end-- > 0;) {
    const std::size_t gate = end;
    if (!(ratios.act[gate] < above)) continue;
    double below = below_seconds_[gate];
    while (end > 0 && !(ratios.act[end - 1] < ratios.act[gate])) below += below_seconds_[--end];
    gates_[gate].add(times.gate[gate], forward_share * (above - ratios.act[gate]) * below / exact_);
    above = ratios.act[gate];
  }
  for (std::size_t k = 0; k < linears_.size(); ++k)
    if (ratios.weight[k] < 1 && times.linear_rows[k] > 0)
      linears_[k].add(times.linear[k], times.linear_rows[k] * weight_seconds_[k] / weight_rows_[k]);
}

AutoExact::Found AutoExact::take() {
  Found found;
  const auto collect = [](std::vector<Balance>& balances, std::vector<int>& out) {
    for (std::size_t i = 0; i < balances.size(); ++i) {
      if (!balances[i].is_loss()) continue;
      balances[i].backwards = std::numeric_limits<int>::min();
      out.push_back(static_cast<int>(i));
    }
  };
  collect(gates_, found.gates);
  collect(linears_, found.linears);
  return found;
}

}  // namespace vcas
