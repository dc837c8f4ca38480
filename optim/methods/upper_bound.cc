// Importance sampling by an upper bound of the items' gradient norms: Katharopoulos and Fleuret,
// "Not All Samples Are Created Equal", ICML 2018, arXiv 1803.00942. Unbiased.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "optim/methods/item_selection.h"

namespace vcas {

namespace {

struct UpperBoundOptions {
  double keep = 1.0 / 3;
  double tau_threshold = 0;
};

class UpperBound final : public BackwardSelection {
 public:
  UpperBound(const Training& training, const UpperBoundOptions& options)
      : BackwardSelection(training, "upper_bound"),
        ranks_(training.ranks),
        options_(options),
        passes_((training.batch + training.micro_batch - 1) / training.micro_batch) {}

  void begin_step(std::int64_t step) override {
    BackwardSelection::begin_step(step);
    if (step == step_) tau_ = before_;  // it threw, and is made again
    step_ = step;
    before_ = tau_;
    own_.clear();
    samples_now_ = tau_ >= options_.tau_threshold;
  }
  bool end_step() override {
    constexpr double kOld = 0.9;
    own_.resize(passes_, std::numeric_limits<double>::quiet_NaN());  // ranks gather equally many
    for (const double of_pass : ranks_->gather_all(own_))
      if (std::isfinite(of_pass)) tau_ = kOld * tau_ + (1 - kOld) * of_pass;
    return false;
  }
  PassKind next(std::int64_t) const override {
    return samples_now_ ? PassKind::kSampled : PassKind::kExact;
  }
  std::string summary() const override {
    const std::string exact = options_.tau_threshold > 0
                                  ? fmt::format(" · exact below tau {}", options_.tau_threshold)
                                  : "";
    return fmt::format("{:.3g} draws an item, by gradients at the logits{}", options_.keep, exact);
  }
  std::string progress() const override {
    return fmt::format("{}  tau {:.2f}", BackwardSelection::progress(), tau_);
  }
  nlohmann::ordered_json report() const override {
    nlohmann::ordered_json json = BackwardSelection::report();
    json["tau"] = tau_;
    return json;
  }
  nlohmann::json state() const override { return {{"tau", tau_}}; }
  void restore(const nlohmann::json& state) override {
    state.at("tau").get_to(tau_);
    step_ = -1;
  }

 private:
  // Draws b items with replacement, by p_i = g_i / sum of g. An item has the weight
  // 1 / (p_i b) for each time that it is drawn.
  ItemChoice choose(Exec& exec, const GateSite& site, const Gradient& gradient,
                    const RowSets& rows) override {
    const std::vector<float> norms = gradient_norms(exec, site, gradient, rows);
    const std::vector<double> g(norms.begin(), norms.end());
    std::vector<double> sums(g.size());
    std::partial_sum(g.begin(), g.end(), sums.begin());
    const double sum = sums.back(), n = static_cast<double>(g.size());
    const double squares = std::inner_product(g.begin(), g.end(), g.begin(), 0.0);
    own_.push_back(std::sqrt(n * squares) / sum);
    if (!(sum > 0) || !std::isfinite(sum) || !samples_now_) return all_items(std::ssize(g));

    const PhiloxAddress address = philox_address(key(exec, site));
    const double draws = whole_budget(options_.keep * n);
    std::vector<int> drawn(g.size());
    for (std::uint64_t j = 0; static_cast<double>(j) < draws; ++j) {
      const double u = static_cast<double>(philox_uniform(address, j)) * sum;
      ++drawn[std::ranges::upper_bound(sums, u) - sums.begin()];
    }
    ItemChoice choice;
    for (std::size_t i = 0; i < g.size(); ++i) {
      if (drawn[i] == 0) continue;
      choice.kept.push_back(static_cast<std::int64_t>(i));
      choice.weights.push_back(static_cast<float>(drawn[i] * sum / (draws * g[i])));
    }
    return choice;
  }

  std::shared_ptr<Ranks> ranks_;
  UpperBoundOptions options_;
  std::size_t passes_;       // of a step on each rank, at most
  double tau_ = 0;           // sqrt(N sum of g^2) / sum of g, smoothed
  double before_ = 0;        // the same when the step began
  std::vector<double> own_;  // of the passes of the step on this rank
  std::int64_t step_ = -1;   // that has begun
  bool samples_now_ = true;
};

struct UpperBoundKind final : MethodKind, UpperBoundOptions {
  std::string summary() const override {
    return "items are drawn with replacement by the norm of the loss's gradient at the logits";
  }
  void fields(Setting& v) {
    v.field("keep", keep, "Draws of a step, as a share of its items.", above(0.0), at_most(1.0));
    v.field("tau_threshold", tau_threshold,
            "Steps are exact until tau is so large: the root of how much more uniform draws would "
            "vary; 0: from the first step on. The paper has (1 + 2 keep) / (3 keep).",
            at_least(0.0));
  }
  void prepare(Model& model) const override { BackwardSelection::add_gate(model); }
  std::unique_ptr<Method> make(const Training& training) const override {
    return std::make_unique<UpperBound>(training, *this);
  }
};

VCAS_REGISTER_PART(MethodKind, "upper_bound", UpperBoundKind);

}  // namespace

}  // namespace vcas
