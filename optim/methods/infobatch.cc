// InfoBatch: Qin et al., "InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning",
// ICLR 2024, arXiv 2303.04947. Items of small loss are left out before the forward. Unbiased.
#include <fmt/format.h>

#include <limits>

#include "optim/methods/item_memory.h"
#include "optim/methods/item_selection.h"

namespace vcas {

namespace {

struct InfoBatchOptions {
  double prune_ratio = 0.5;    // r
  double prune_until = 0.875;  // delta
};

// The memory has the last loss of each item. An item whose loss is below the mean of all is kept
// with probability 1 - r. The mean is that of the epoch's first choice.
class LossMemory final : public ItemMemory {
 public:
  LossMemory(const Training& training, const InfoBatchOptions& options)
      : ItemMemory(training, "InfoBatch",
                   [this](std::int64_t step) { return static_cast<double>(step) >= end_; }),
        steps_per_epoch_(
            std::max<std::int64_t>(training.items / (training.batch * training.ranks->size()), 1)),
        end_(options.prune_until * static_cast<double>(training.total_steps)),
        keep_(1 - options.prune_ratio) {}

  bool ends_in_first_epoch() const { return end_ <= static_cast<double>(steps_per_epoch_); }

  nlohmann::json state() const override {
    nlohmann::json state = ItemMemory::state();
    state.update({{"epoch", epoch_}, {"mean_loss", mean_loss_}});
    return state;
  }
  void restore(const nlohmann::json& state) override {
    ItemMemory::restore(state);
    state.at("epoch").get_to(epoch_);
    state.at("mean_loss").get_to(mean_loss_);
  }

 private:
  ItemChoice draw(std::int64_t step, std::span<const std::int64_t> items,
                  std::span<const std::int64_t>) override {
    if (step / steps_per_epoch_ != epoch_) {
      epoch_ = step / steps_per_epoch_;
      set_mean_loss();
    }
    std::vector<double> score;
    for (const std::int64_t item : items) {
      const float loss = memory()[item];
      const bool open = loss != kNeverSeen && static_cast<double>(loss) < mean_loss_;
      score.push_back(open ? 1 : std::numeric_limits<double>::infinity());
    }
    return draw_items(host(), std::move(score), keep_, Selection::kSystematic, key(step));
  }

  void set_mean_loss() {
    double sum = 0, seen = 0;
    for (const float loss : memory()) {
      if (loss == kNeverSeen) continue;
      ++seen;
      sum += static_cast<double>(loss);
    }
    mean_loss_ = seen > 0 ? sum / seen : 0;
  }

  std::int64_t steps_per_epoch_;
  double end_, keep_;
  std::int64_t epoch_ = -1;
  double mean_loss_ = 0;
};

class InfoBatch final : public ForwardSelection {
 public:
  InfoBatch(const Training& training, const InfoBatchOptions& options)
      : model_(training.model), options_(options), memory_(training, options) {
    check_forward_choice(training, "method.type=infobatch", "choose another method.type");
  }

  ItemChooser* chooser() override { return &memory_; }
  void begin_step(std::int64_t step) override {
    ForwardSelection::begin_step(step);
    memory_.begin_step(step);
    begun_ = true;
  }
  void end_pass(const Batch& batch, std::int64_t first, std::int64_t items) override {
    ForwardSelection::end_pass(batch, first, items);
    memory_.end_pass(batch, first, model_.graph.tensor(model_.loss));
  }
  bool end_step() override {
    memory_.end_step();
    return false;
  }
  void gather() override { memory_.gather(); }
  std::string summary() const override {
    return fmt::format("drops {} of the items with losses below the mean, up to {} of the run",
                       options_.prune_ratio, options_.prune_until);
  }
  Complaint complaint() const override {
    if (begun_ || !memory_.ends_in_first_epoch()) return {};
    return {
        "method.type=infobatch drops nothing in one epoch, where the run or method.prune_until "
        "ends: it knows no item before it is seen",
        "train for more epochs, or set method.type=exact"};
  }
  std::size_t bytes() const override { return memory_.bytes(); }
  nlohmann::json state() const override { return memory_.state(); }
  void restore(const nlohmann::json& state) override { memory_.restore(state); }
  std::span<float> item_memory() override { return memory_.item_memory(); }

 private:
  Model& model_;
  InfoBatchOptions options_;
  LossMemory memory_;
  bool begun_ = false;
};

struct InfoBatchKind final : MethodKind, InfoBatchOptions {
  std::string summary() const override {
    return "InfoBatch: some items whose last loss is below the mean are left out before the "
           "forward";
  }
  void fields(Setting& v) {
    v.field("prune_ratio", prune_ratio,
            "Share of the items with losses below the mean to leave out.", at_least(0.0),
            below(1.0));
    v.field("prune_until", prune_until, "Share of the run's steps after which all items are kept.",
            at_least(0.0), at_most(1.0));
  }
  std::unique_ptr<Method> make(const Training& training) const override {
    return std::make_unique<InfoBatch>(training, *this);
  }
};

VCAS_REGISTER_PART(MethodKind, "infobatch", InfoBatchKind);

}  // namespace

}  // namespace vcas
