// Selective-Backprop: Jiang et al., "Accelerating Deep Learning by Focusing on the Biggest Losers",
// 2019, arXiv 1910.00762. Items of large loss are kept more often. Biased: kept items are averaged.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "optim/methods/item_selection.h"

namespace vcas {

namespace {

struct SelectiveOptions {
  double keep = 1.0 / 3;
  std::string selection = "history";
  std::int64_t history = 1024;

  double power() const { return 1 / keep - 1; }  // beta
};

class SelectiveBackprop final : public BackwardSelection {
 public:
  SelectiveBackprop(const Training& training, const SelectiveOptions& options)
      : BackwardSelection(training, "selective_backprop"),
        ranks_(training.ranks),
        options_(options) {}

  std::string summary() const override {
    return fmt::format("keeps about {:.3g} of the items, the larger losses · {}", options_.keep,
                       options_.selection);
  }
  void begin_step(std::int64_t step) override {
    BackwardSelection::begin_step(step);
    if (step == step_) history_ = before_;
    step_ = step;
    before_ = history_;
    own_.clear();
  }
  // Within a step a rank knows its own losses only. Then all have those of all, in their order.
  bool end_step() override {
    if (ranks_->size() == 1) return false;
    const std::vector<double> all = ranks_->gather_all(own_);
    history_ = before_;
    add_losses(all);
    return false;
  }
  nlohmann::json state() const override { return {{"history", history_}}; }
  void restore(const nlohmann::json& state) override {
    state.at("history").get_to(history_);
    step_ = -1;
  }

 private:
  ItemChoice choose(Exec& exec, const GateSite& site, const Gradient&, const RowSets&) override {
    const std::vector<float> loss = losses(exec);
    const PhiloxAddress address = philox_address(key(exec, site));
    ItemChoice choice;
    choice.kept = options_.selection == "rank" ? by_rank(loss, address) : by_history(loss, address);
    choice.weights.assign(choice.kept.size(),
                          static_cast<float>(loss.size()) / static_cast<float>(choice.kept.size()));
    return choice;
  }

  void add_losses(const auto& losses) {
    history_.insert(history_.end(), losses.begin(), losses.end());
    while (std::ssize(history_) > options_.history) history_.pop_front();
  }

  // P(item) = (share of the last losses that are not above its own)^beta, independently.
  std::vector<std::int64_t> by_history(const std::vector<float>& loss,
                                       const PhiloxAddress& address) {
    add_losses(loss);
    own_.insert(own_.end(), loss.begin(), loss.end());
    std::vector<std::int64_t> kept;
    for (std::size_t i = 0; i < loss.size(); ++i) {
      const auto below = std::ranges::count_if(history_, [&](float x) { return x <= loss[i]; });
      const double cdf = static_cast<double>(below) / static_cast<double>(history_.size());
      if (philox_uniform(address, i) < std::pow(cdf, options_.power()))
        kept.push_back(static_cast<std::int64_t>(i));
    }
    return kept;
  }

  // Draws one item after the other without replacement, by w = ((rank + 1/2) / N)^beta.
  // The items with the largest log(u) / w are such a draw (Efraimidis and Spirakis 2006).
  // They have the smallest log(-log(u)) - log(w). A large beta makes 0 of w, but not of its
  // logarithm. u is never 0 or 1.
  std::vector<std::int64_t> by_rank(const std::vector<float>& loss,
                                    const PhiloxAddress& address) const {
    const auto items = std::ssize(loss);
    const auto n = static_cast<double>(items);
    std::vector<std::int64_t> order = all_items(items).kept;
    std::ranges::stable_sort(order, {}, [&](std::int64_t i) { return loss[i]; });
    std::vector<double> race(loss.size());
    for (std::size_t rank = 0; rank < order.size(); ++rank) {
      const auto item = static_cast<std::size_t>(order[rank]);
      const double log_weight = options_.power() * std::log((static_cast<double>(rank) + 0.5) / n);
      const double wait = -std::log(philox_uniform(address, item));
      race[item] = std::log(wait) - log_weight;
    }
    std::ranges::stable_sort(order, {}, [&](std::int64_t i) { return race[i]; });
    order.resize(static_cast<std::size_t>(whole_budget(options_.keep * n)));
    std::ranges::sort(order);
    return order;
  }

  std::shared_ptr<Ranks> ranks_;
  SelectiveOptions options_;
  std::deque<float> history_;  // of losses, the last ones
  std::deque<float> before_;   // the same when the step began
  std::int64_t step_ = -1;     // that has begun
  std::vector<double> own_;    // losses of the step on this rank
};

struct SelectiveKind final : MethodKind, SelectiveOptions {
  std::string summary() const override {
    return "Selective-Backprop: items of large loss are kept, a biased choice";
  }
  void fields(Setting& v) {
    v.field("keep", keep,
            "Share of the items that are kept, near 1 / (beta + 1) with \"history\": 1/3 is beta "
            "2.",
            above(0.0), at_most(1.0));
    v.field("selection", selection,
            "history: by the share of the last losses that are not larger; rank: a fixed number of "
            "items, by their rank in the batch.",
            one_of({"history", "rank"}));
    v.field("history", history, "Number of losses that \"history\" looks at.", at_least(1));
  }
  std::vector<std::string> idle_settings(const Model&) const override {
    if (selection == "history" || history == SelectiveOptions().history) return {};
    return {fmt::format("method.history has no effect: method.selection is \"{}\"", selection)};
  }
  void prepare(Model& model) const override { BackwardSelection::add_gate(model); }
  std::unique_ptr<Method> make(const Training& training) const override {
    return std::make_unique<SelectiveBackprop>(training, *this);
  }
};

VCAS_REGISTER_PART(MethodKind, "selective_backprop", SelectiveKind);

}  // namespace

}  // namespace vcas
