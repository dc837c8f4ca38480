// Uniform sampling: the yardstick of every method that chooses items. Unbiased.
#include <fmt/format.h>

#include "optim/methods/item_selection.h"

namespace vcas {

namespace {

struct UniformOptions {
  double keep = 1.0 / 3;
  std::string selection = "systematic";
  bool forward = false;

  ItemChoice draw(Ops& host, std::int64_t items, const RandomKey& key) const {
    return draw_items(host, std::vector<double>(items, 1.0), keep, selection_of(selection), key);
  }
  std::string summary() const {
    return fmt::format("keeps {:.3g} of all items {} the forward · {}", keep,
                       forward ? "before" : "after", selection);
  }
};

class Uniform final : public BackwardSelection {
 public:
  Uniform(const Training& training, const UniformOptions& options)
      : BackwardSelection(training, "uniform"), host_(make_ops("cpu")), options_(options) {}

  std::string summary() const override { return options_.summary(); }

 private:
  ItemChoice choose(Exec& exec, const GateSite& site, const Gradient&,
                    const RowSets& rows) override {
    return options_.draw(*host_, rows.items(), key(exec, site));
  }

  std::unique_ptr<Ops> host_;
  UniformOptions options_;
};

class UniformForward final : public ForwardSelection, private ItemChooser {
 public:
  UniformForward(const Training& training, const UniformOptions& options)
      : host_(make_ops("cpu")), seed_(training.seed), options_(options) {
    check_forward_choice(training, "method.forward", "set method.forward=false");
  }

  ItemChooser* chooser() override { return this; }
  std::string summary() const override { return options_.summary(); }

 private:
  ItemChoice choose_items(std::int64_t step, std::span<const std::int64_t> items,
                          std::span<const std::int64_t>) override {
    return options_.draw(
        *host_, std::ssize(items),
        {.seed = seed_, .stream = Stream::kForward, .step = static_cast<std::uint64_t>(step)});
  }

  std::unique_ptr<Ops> host_;
  std::uint64_t seed_;
  UniformOptions options_;
};

struct UniformKind final : MethodKind, UniformOptions {
  std::string summary() const override { return "items are drawn, all with one probability"; }
  void fields(Setting& v) {
    v.field("keep", keep, "Share of the items that are kept, with weight 1 / keep.", above(0.0),
            at_most(1.0));
    v.field("selection", selection,
            "systematic: a fixed number of items, one random number for all; bernoulli: "
            "independent.",
            one_of({"systematic", "bernoulli"}));
    v.field("forward", forward, "Drop items before the forward, which is then cheaper too.");
  }
  void validate(ConfigErrors& errors) const {
    if (forward && selection == "bernoulli")
      errors.add({"selection", "forward"},
                 "must be \"systematic\" with method.forward: an independent draw may be empty, "
                 "and a forward needs an item");
  }
  void prepare(Model& model) const override {
    if (!forward) BackwardSelection::add_gate(model);
  }
  std::unique_ptr<Method> make(const Training& training) const override {
    if (forward) return std::make_unique<UniformForward>(training, *this);
    return std::make_unique<Uniform>(training, *this);
  }
};

VCAS_REGISTER_PART(MethodKind, "uniform", UniformKind);

}  // namespace

}  // namespace vcas
