#include "optim/methods/item_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/read_numbers.h"
#include "optim/methods/item_choice.h"

namespace vcas {

// Whether it is one that a draw from so many items can make.
static bool fits(const ItemChoice& choice, std::int64_t items) {
  const auto& [kept, weights] = choice;
  return !kept.empty() && kept.front() >= 0 && kept.back() < items &&
         std::ranges::adjacent_find(kept, std::ranges::greater_equal()) == kept.end() &&
         (weights.empty() || weights.size() == kept.size()) &&
         std::ranges::all_of(weights, [](float w) { return w > 0 && std::isfinite(w); });
}

ItemMemory::ItemMemory(const Training& training, std::string name, NeedsAll needs_all)
    : ops_(training.ops),
      host_(make_ops("cpu")),
      ranks_(training.ranks),
      name_(std::move(name)),
      seed_(training.seed),
      batch_(training.batch),
      total_steps_(training.total_steps),
      needs_all_(std::move(needs_all)) {
  if (training.items <= 0)
    throw Error(ExitCode::kBadConfig,
                name_ + ": the number of items in the training data is not known",
                "set TrainerOptions::items");
  memory_.assign(training.items, kNeverSeen);
  const DType wide = statistics_dtype(training.model.graph.dtype());
  numbers_ = {nullptr, wide, {kSlots * batch_}};
  buffer_ = Buffer(ops_, {&numbers_});
  for (auto& mailbox : mailboxes_) mailbox = ops_.make_mailbox(batch_ * dtype_bytes(wide));
}

bool ItemMemory::is_one_epoch() const {
  return total_steps_ * batch_ * ranks_->size() <= std::ssize(memory_);
}

void ItemMemory::check_items(std::span<const std::int64_t> items) const {
  for (const std::int64_t item : items)
    if (item < 0 || item >= std::ssize(memory_))
      throw Error(ExitCode::kBadData, fmt::format("item {} of the training data, and {} knows {} "
                                                  "items",
                                                  item, name_, memory_.size()));
}

ItemChoice ItemMemory::choose_items(std::int64_t step, std::span<const std::int64_t> items,
                                    std::span<const std::int64_t> rows) {
  check_items(items);
  remember(begun_ - 2);
  const bool needs_all = needs_all_(step);
  const auto known = pending_.find(step);
  // A run that starts from another's checkpoint may have other steps.
  if (known != pending_.end() && std::ranges::equal(known->second.items, items) &&
      (known->second.choice.weights.empty() || !needs_all))
    return known->second.choice;
  Pending& made = pending_[step];
  made = {{items.begin(), items.end()},
          needs_all ? all_items(std::ssize(items)) : draw(step, items, rows)};
  return made.choice;
}

void ItemMemory::begin_step(std::int64_t step) {
  remember(step - 2);
  pending_.erase(pending_.begin(), pending_.upper_bound(step));
  begun_ = step + 1;
  if (!seen_.empty() && seen_.back().step == step) seen_.pop_back();
  seen_.emplace_back().step = step;
}

void ItemMemory::end_pass(const Batch& batch, std::int64_t first, const Tensor& number) {
  if (std::ssize(batch.ids) != batch.items)
    throw Error(ExitCode::kBadData,
                fmt::format("a batch of {} items with {} ids, and {} remembers items by them",
                            batch.items, batch.ids.size(), name_),
                "fill Batch::ids, as Loader does");
  check_items(batch.ids);
  Seen& now = seen_.back();
  const std::int64_t items = number.elements();
  ops_.enter("items/norms");
  ops_.run(Copy{.y = slot(now.step, std::ssize(now.items), items), .x = number.reshaped({items})});
  const auto add = [&](auto& to, const auto& from) {
    if (!from.empty()) to.insert(to.end(), from.begin() + first, from.begin() + first + items);
  };
  add(now.items, batch.ids);
  add(now.weights, batch.weights);
}

void ItemMemory::end_step() {
  const Seen& now = seen_.back();
  const Tensor sent = slot(now.step, 0, std::ssize(now.items));
  mailboxes_[now.step % kSlots]->send(sent.data, sent.bytes());
}

// The numbers of a step, [items].
Tensor ItemMemory::slot(std::int64_t step, std::int64_t first, std::int64_t items) const {
  const std::int64_t begin = step % kSlots * batch_ + first;
  return numbers_.range(begin, begin + items);
}

// Without the items' own weights.
std::vector<float> ItemMemory::numbers_of(const Seen& seen) const {
  if (seen.shared) return seen.numbers;
  std::vector<float> numbers(seen.items.size());
  const std::byte* host = mailboxes_[seen.step % kSlots]->receive();
  read_numbers(host, numbers_.dtype, std::span(numbers));
  for (std::size_t i = 0; i < seen.weights.size(); ++i)
    numbers[i] = seen.weights[i] > 0 ? numbers[i] / seen.weights[i] : kNeverSeen;
  return numbers;
}

// Items and numbers of all ranks, in their order, take the place of this one's.
void ItemMemory::share(Seen& seen) const {
  if (seen.shared || ranks_->size() == 1) return;
  const std::vector<float> numbers = numbers_of(seen);
  constexpr double kNone = -1;  // in place of an item
  std::vector<double> mine(3 * static_cast<std::size_t>(batch_), kNone);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    mine[3 * i] = static_cast<double>(seen.items[i]);
    mine[3 * i + 1] = static_cast<double>(numbers[i]);
    mine[3 * i + 2] = static_cast<double>(weight_of(seen, i));
  }
  const std::vector<double> all = ranks_->gather_all(mine);
  seen.items.clear();
  seen.weights.clear();
  for (std::size_t i = 0; i < all.size(); i += 3) {
    if (all[i] == kNone) continue;
    seen.items.push_back(static_cast<std::int64_t>(all[i]));
    seen.numbers.push_back(static_cast<float>(all[i + 1]));
    seen.weights.push_back(static_cast<float>(all[i + 2]));
  }
  seen.shared = true;
}

void ItemMemory::gather() {
  for (Seen& seen : seen_) share(seen);
}

// Takes the numbers of the steps up to this one. A number that is not finite tells nothing.
void ItemMemory::remember(std::int64_t last_step) {
  for (; !seen_.empty() && seen_.front().step <= last_step; seen_.pop_front()) {
    share(seen_.front());
    const std::vector<float> numbers = numbers_of(seen_.front());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] == kNeverSeen) continue;
      float& known = memory_[seen_.front().items[i]];
      if (!std::isfinite(numbers[i]))
        known = kNeverSeen;
      else
        known = known == kNeverSeen ? numbers[i]
                                    : renewed(known, numbers[i], weight_of(seen_.front(), i));
    }
  }
}

void ItemMemory::scale_numbers(float factor) {
  const auto scale = [factor](std::vector<float>& numbers) {
    for (float& number : numbers)
      if (number != kNeverSeen) number *= factor;
  };
  scale(memory_);
  for (Seen& seen : seen_) scale(seen.numbers);
}

// SampleF, the first to remember items, named its numbers "norms". Its checkpoints stay readable.
nlohmann::json ItemMemory::state() const {
  nlohmann::json pending = nlohmann::json::array(), seen = nlohmann::json::array();
  for (const auto& [step, made] : pending_)
    pending.push_back({{"step", step},
                       {"items", made.items},
                       {"kept", made.choice.kept},
                       {"weights", made.choice.weights}});
  for (const Seen& step : seen_)
    seen.push_back({{"step", step.step},
                    {"items", step.items},
                    {"weights", step.weights},
                    {"norms", numbers_of(step)}});
  return {{"steps", begun_}, {"pending", pending}, {"seen", seen}};
}

void ItemMemory::restore(const nlohmann::json& state) try {
  state.at("steps").get_to(begun_);
  pending_.clear();
  for (const nlohmann::json& step : state.at("pending")) {
    Pending& made = pending_[step.at("step").get<std::int64_t>()];
    step.at("items").get_to(made.items);
    step.at("kept").get_to(made.choice.kept);
    step.at("weights").get_to(made.choice.weights);
    check_items(made.items);
    if (!fits(made.choice, std::ssize(made.items)))
      throw Error(ExitCode::kBadData,
                  fmt::format("the state of {} has no choice among the {} items of step {}: kept "
                              "ones must increase, each with a weight above 0 or all with none",
                              name_, made.items.size(), step.at("step").dump()),
                  "resume from an earlier checkpoint");
  }
  seen_.clear();
  for (const nlohmann::json& step : state.at("seen")) {
    Seen& seen = seen_.emplace_back();
    step.at("step").get_to(seen.step);
    step.at("items").get_to(seen.items);
    step.at("norms").get_to(seen.numbers);
    seen.weights = step.value("weights", seen.weights);  // absent from older states
    seen.shared = true;
    check_items(seen.items);
    if (seen.numbers.size() != seen.items.size() ||
        (!seen.weights.empty() && seen.weights.size() != seen.items.size()))
      throw Error(ExitCode::kBadData,
                  fmt::format("the state of {} has not one norm and weight for each item", name_));
  }
} catch (const nlohmann::json::exception& error) {
  throw Error(ExitCode::kBadData, fmt::format("the state of {}: {}", name_, error.what()));
}

}  // namespace vcas
