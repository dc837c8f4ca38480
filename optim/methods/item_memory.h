// Leaves items out of steps by a number that each item had last: a gradient norm or a loss.
#pragma once

#include <deque>
#include <functional>
#include <map>

#include "kernels/buffer.h"
#include "optim/methods/method.h"

namespace vcas {

// When step t begins, or its batch is taken, the memory has the numbers of the steps up to t - 2.
// Numbers are kept without the item's own weight. The memories of all ranks are the same.
class ItemMemory : public ItemChooser {
 public:
  // Whether a step must keep all items.
  using NeedsAll = std::function<bool(std::int64_t step)>;

  // `name` is that of the method, for messages.
  // Throws Error(kBadConfig) if the number of items is not known.
  ItemMemory(const Training& training, std::string name, NeedsAll needs_all);

  // Whether the run ends before an item comes again.
  bool is_one_epoch() const;

  // These do their part of Method's functions of the same names.
  void begin_step(std::int64_t step);
  // `number`: S [items], the numbers of the pass, times the items' weights.
  void end_pass(const Batch& batch, std::int64_t first, const Tensor& number);
  void end_step();
  void gather();
  std::span<float> item_memory() { return memory_; }
  // Without the memory.
  virtual nlohmann::json state() const;
  virtual void restore(const nlohmann::json& state);
  virtual std::size_t bytes() const { return buffer_.bytes(); }

 protected:
  static constexpr float kNeverSeen = -1;

  // Chooses by the memory. Not asked for steps that must keep all items.
  virtual ItemChoice draw(std::int64_t step, std::span<const std::int64_t> items,
                          std::span<const std::int64_t> rows) = 0;

  // What takes the place of the number that an item had before.
  // `weight`: how many items it stood for in its step.
  virtual float renewed(float /*known*/, float number, float /*weight*/) { return number; }

  // The number of each item; kNeverSeen.
  std::span<const float> memory() const { return memory_; }
  // Makes all numbers so many times as large.
  void scale_numbers(float factor);
  RandomKey key(std::int64_t step) const {
    return {.seed = seed_, .stream = Stream::kForward, .step = static_cast<std::uint64_t>(step)};
  }
  Ops& host() { return *host_; }

 private:
  ItemChoice choose_items(std::int64_t step, std::span<const std::int64_t> items,
                          std::span<const std::int64_t> rows) final;

  // A choice whose step has not begun: a batch is made ahead of its step.
  struct Pending {
    std::vector<std::int64_t> items;
    ItemChoice choice;
  };
  // Items of a step whose numbers the memory does not have yet.
  struct Seen {
    std::int64_t step = 0;
    std::vector<std::int64_t> items;
    std::vector<float> weights;  // empty: all 1
    bool shared = false;         // items, weights and numbers are those of all ranks
    std::vector<float> numbers;  // of these; else they are on their way
  };

  static constexpr std::int64_t kSlots = 2;  // steps whose numbers are on their way

  void check_items(std::span<const std::int64_t> items) const;
  void remember(std::int64_t last_step);
  std::vector<float> numbers_of(const Seen& seen) const;
  static float weight_of(const Seen& seen, std::size_t i) {
    return seen.weights.empty() ? 1 : seen.weights[i];
  }
  void share(Seen& seen) const;
  Tensor slot(std::int64_t step, std::int64_t first, std::int64_t items) const;

  Ops& ops_;
  std::unique_ptr<Ops> host_;  // draws
  std::shared_ptr<Ranks> ranks_;
  std::string name_;
  std::uint64_t seed_;
  std::int64_t batch_, total_steps_;  // items of a step on this rank, steps
  NeedsAll needs_all_;
  std::vector<float> memory_;  // [items of the data]
  Buffer buffer_;
  Tensor numbers_;  // S [kSlots * items of a step]: of the steps on their way
  std::unique_ptr<Mailbox> mailboxes_[kSlots];
  std::map<std::int64_t, Pending> pending_;  // by step
  std::deque<Seen> seen_;                    // in the order of steps
  std::int64_t begun_ = 0;                   // steps
};

}  // namespace vcas
