#include "optim/flops.h"

#include <fmt/format.h>

#include "core/error.h"

namespace vcas {
namespace {

double act_ratio_of(const FormulaFlops::Linear& linear, const std::vector<double>& act_ratio) {
  return linear.gate < 0 ? 1 : act_ratio.at(linear.gate);
}

}  // namespace

FormulaFlops::FormulaFlops(std::vector<Linear> linears) : linears_(std::move(linears)) {
  double whole = 0;
  for (const Linear& linear : linears_) whole += linear.size;
  for (Linear& linear : linears_) linear.size /= whole;
}

double FormulaFlops::mean_act(const std::vector<double>& act_ratio) const {
  double mean = linears_.empty() ? 1 : 0;
  for (const Linear& linear : linears_) mean += linear.size * act_ratio_of(linear, act_ratio);
  return mean;
}

void FormulaFlops::add_exact_step(double kept) {
  ++steps_;
  cost_.forward += kept;
  cost_.backward += 2 * kept;
}

void FormulaFlops::add_sampled_step(const std::vector<double>& act_ratio,
                                    const std::vector<double>& weight_ratio, double kept) {
  VCAS_CHECK(weight_ratio.size() == linears_.size(), "one weight ratio for each linear");
  if (linears_.empty()) return add_exact_step(kept);  // nothing tells what sampling saves
  ++steps_;
  cost_.forward += kept;
  cost_.backward += kept * mean_act(act_ratio);
  for (std::size_t k = 0; k < linears_.size(); ++k)
    cost_.backward +=
        kept * linears_[k].size * act_ratio_of(linears_[k], act_ratio) * weight_ratio[k];
}

void FormulaFlops::add_step(const Cost& cost) {
  ++steps_;
  cost_.forward += cost.forward;
  cost_.backward += cost.backward;
}

void FormulaFlops::clear() {
  steps_ = 0;
  cost_ = {};
}

void FormulaFlops::add_separate_probe(int batches, int passes, double batch_share,
                                      const std::vector<double>& act_ratio) {
  cost_.forward += batch_share * batches * (1 + passes);
  cost_.backward += batch_share * batches * (2 + 2 * passes * mean_act(act_ratio));
}

void FormulaFlops::add_in_place_probe(int batches, int passes, double batch_share,
                                      const std::vector<double>& sketch_share,
                                      const std::vector<double>& act_ratio) {
  VCAS_CHECK(sketch_share.size() == linears_.size(), "one share for each linear");
  for (std::size_t k = 0; k < linears_.size(); ++k)
    cost_.backward +=
        batch_share * batches * linears_[k].size *
        (sketch_share[k] + passes * (1 + sketch_share[k]) * act_ratio_of(linears_[k], act_ratio));
}

double FormulaFlops::saved() const {
  return steps_ == 0 ? 0 : 1 - (cost_.forward + cost_.backward) / (3 * static_cast<double>(steps_));
}

double FormulaFlops::backward_saved() const {
  return steps_ == 0 ? 0 : 1 - cost_.backward / (2 * static_cast<double>(steps_));
}

nlohmann::json FormulaFlops::to_json() const {
  return {{"steps", steps_}, {"forward", cost_.forward}, {"backward", cost_.backward}};
}

void FormulaFlops::from_json(const nlohmann::json& state) {
  try {
    state.at("steps").get_to(steps_);
    state.at("forward").get_to(cost_.forward);
    state.at("backward").get_to(cost_.backward);
  } catch (const nlohmann::json::exception& e) {
    throw Error(ExitCode::kBadData, fmt::format("the state of the FLOPs count: {}", e.what()));
  }
}

}  // namespace vcas
