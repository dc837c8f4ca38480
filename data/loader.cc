#include "data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

#include "core/error.h"
#include "core/sizes.h"

namespace vcas {
namespace {

void require(bool holds, const std::string& message, const std::string& hint = {}) {
  if (!holds) throw Error(ExitCode::kBadConfig, message, hint);
}

void check_options(const Dataset& dataset, const LoaderOptions& options, std::int64_t first_step) {
  const std::int64_t size = dataset.size();
  require(options.batch > 0, fmt::format("batch must be above 0, got {}", options.batch));
  require(options.prefetch > 0, fmt::format("prefetch must be above 0, got {}", options.prefetch));
  require(options.threads > 0, fmt::format("threads must be above 0, got {}", options.threads));
  require(size > 0, "the data have no items", "data.folder names where they are");
  require(!options.drop_last || size >= options.batch,
          fmt::format("a batch of {} cannot be filled from {} items", options.batch, size),
          "train.batch_size must be smaller, or the data larger");
  require(options.batch <= std::numeric_limits<std::int64_t>::max() - size,
          fmt::format("a batch of {} items is too large to count", options.batch),
          "the data have fewer: give LoaderOptions::batch their number");
  const int rank = options.place.rank, ranks = options.place.size;
  require(rank >= 0 && rank < ranks,
          fmt::format("LoaderOptions::place is rank {} of {}", rank, ranks),
          "take Ranks::place: ranks count from 0, and there is at least one");
  require(options.batch % ranks == 0 && (options.drop_last || ranks == 1),
          fmt::format("{} ranks cannot share batches of {} items", ranks, options.batch),
          "train.batch_size must be a multiple of the ranks");
  require(options.balanced_part == 0 ||
              (options.drop_last && options.batch % options.balanced_part == 0),
          fmt::format("batches of {} items have no equal parts of {}", options.batch,
                      options.balanced_part));
  require(first_step >= 0, fmt::format("first step must not be negative, got {}", first_step));

  const AugmentOptions& augment = options.augment;
  if (!augment.any()) return;
  const std::vector<std::int64_t> shape = dataset.item_shape();
  require(shape.size() == 3, "crop, flip and cutout need images, and the dataset has none");
  const std::int64_t most = std::min(shape[1], shape[2]) - 1;
  require(augment.crop_padding >= 0 && augment.crop_padding <= most,
          fmt::format("crop_padding must be from 0 to {} for images of {} x {}, got {}", most,
                      shape[1], shape[2], augment.crop_padding));
}

}  // namespace

Permutation::Permutation(std::uint64_t seed, std::uint64_t epoch, std::int64_t size)
    : address_(data_address(seed, DataSite::kShuffle, epoch)), size_(size) {
  VCAS_CHECK(size > 0 && size < (std::int64_t{1} << 56), "the round fills the index's top byte");
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    std::uint32_t words[4];
    philox_draw(address_, (kRounds + round) << 56, words);
    const std::uint64_t bits = std::uint64_t{words[0]} << 32 | words[1];
    offsets_[round] = static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(size));
  }
}

std::int64_t Permutation::operator()(std::int64_t position) const {
  std::int64_t x = position;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    std::int64_t partner = offsets_[round] - x;
    if (partner < 0) partner += size_;
    std::uint32_t words[4];
    philox_draw(address_, round << 56 | static_cast<std::uint64_t>(std::max(x, partner)), words);
    if (words[0] >> 31) x = partner;
  }
  return x;
}

Loader::Loader(const Dataset& dataset, const LoaderOptions& options, std::int64_t first_step,
               ItemChooser* chooser)
    : dataset_(dataset), options_(options), chooser_(chooser), first_step_(first_step) {
  check_options(dataset, options, first_step);
  items_ = dataset.size();
  steps_per_epoch_ = (options.drop_last ? items_ : items_ + options.batch - 1) / options.batch;
  ring_.resize(options.prefetch + 1);
  const std::vector<std::int64_t> shape = dataset.item_shape();
  item_values_ = product_of(shape);
  const bool images = shape.size() == 3;
  parts_.resize(images ? static_cast<std::size_t>(options.threads - 1) : 0);
  for (std::int64_t ahead = 0; chooser_ && ahead < options.prefetch; ++ahead)
    choose(first_step + ahead);
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

const Batch& Loader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return made_ > taken_ || failure_; });
  if (made_ == taken_) std::rethrow_exception(failure_);
  if (chooser_) {
    lock.unlock();
    choose(step() + options_.prefetch);
    lock.lock();
  }
  const Batch& batch = ring_[taken_ % std::ssize(ring_)];
  ++taken_;
  changed_.notify_all();
  return batch;
}

// The longest items go to the parts in turn, the next ones in the opposite turn, and so on.
// Within a part they keep their order, which is random: probes take the first items for all.
void Loader::balance(std::vector<std::int64_t>& items) const {
  std::vector<std::int64_t> places(items.size());
  std::iota(places.begin(), places.end(), 0);
  std::ranges::stable_sort(places, std::greater{},
                           [&](std::int64_t place) { return dataset_.rows(items[place]); });
  const std::int64_t count = std::ssize(items), each = options_.balanced_part;
  const std::int64_t parts = count / each;
  std::vector<std::int64_t> dealt(items.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t round = i / parts, turn = i % parts;
    dealt[(round % 2 == 0 ? turn : parts - 1 - turn) * each + round] = places[i];
  }
  for (auto part = dealt.begin(); part != dealt.end(); part += each) std::sort(part, part + each);
  std::ranges::transform(dealt, dealt.begin(), [&](std::int64_t place) { return items[place]; });
  items = std::move(dealt);
}

// `items` are whole shares of ranks, and those are whole parts.
void Loader::order_by_label(std::vector<std::int64_t>& items) const {
  const std::int64_t count = std::ssize(items), share = options_.batch / options_.place.size;
  const std::int64_t part = options_.label_part > 0 ? options_.label_part : share;
  for (std::int64_t begin = 0, end = 0; begin < count; begin = end) {
    end = std::min({begin + options_.label_run, (begin / part + 1) * part, count});
    std::ranges::stable_sort(items.begin() + begin, items.begin() + end, {},
                             [&](std::int64_t item) { return dataset_.label(item); });
  }
}

std::vector<std::int64_t> Loader::items_of(std::int64_t step, std::int64_t first,
                                           std::int64_t count) const {
  const bool deals = options_.balanced_part > 0;
  const std::int64_t begin = step % steps_per_epoch_ * options_.batch + (deals ? 0 : first);
  const std::int64_t end = std::min(begin + (deals ? options_.batch : count), items_);
  const Permutation order(options_.seed, step / steps_per_epoch_, items_);
  std::vector<std::int64_t> items;
  for (std::int64_t position = begin; position < end; ++position)
    items.push_back(options_.shuffle ? order(position) : position);
  if (deals) {
    balance(items);
    items = {items.begin() + first, items.begin() + first + count};
  }
  if (options_.label_run > 0) order_by_label(items);
  return items;
}

Loader::Contents Loader::contents_of(std::int64_t step) const {
  const std::int64_t share = options_.batch / options_.place.size;
  return {.items = items_of(step, options_.place.rank * share, share), .weights = {}};
}

// All ranks choose the same, and share what is kept.
void Loader::choose(std::int64_t step) {
  const std::vector<std::int64_t> items = items_of(step, 0, options_.batch);
  std::vector<std::int64_t> rows;
  for (const std::int64_t item : items) rows.push_back(dataset_.rows(item));
  const ItemChoice choice = chooser_->choose(step, items, rows);
  const auto [rank, ranks, local_rank, local_ranks] = options_.place;
  const std::int64_t count = std::ssize(choice.kept);
  const std::int64_t begin = rank * count / ranks, end = (rank + 1) * count / ranks;
  Contents chosen{.dropped = std::ssize(items) / ranks - (end - begin)};
  for (std::int64_t i = begin; i < end; ++i) {
    chosen.items.push_back(items[choice.kept[i]]);
    if (!choice.weights.empty()) chosen.weights.push_back(choice.weights[i]);
  }
  const std::lock_guard lock(mutex_);
  chosen_.push_back(std::move(chosen));
}

void Loader::run(const std::stop_token& stop) {
  for (std::int64_t made = 0;; ++made) {
    Contents contents;
    {
      // The slot to fill next was handed out `prefetch + 1` batches ago: a later one has been
      // taken.
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return made - taken_ < options_.prefetch; })) return;
      if (chooser_) {
        contents = std::move(chosen_.front());
        chosen_.pop_front();
      }
    }
    std::exception_ptr failure;
    try {
      const std::int64_t step = first_step_ + made;
      if (!chooser_) contents = contents_of(step);
      fill(step, contents, stop, ring_[made % std::ssize(ring_)]);
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      failure_ = failure;
      if (!failure) made_ = made + 1;
    }
    changed_.notify_all();
    if (failure) return;
  }
}

// A text has offsets in place of values.
void Loader::append(std::int64_t item, const ItemDraw& draw, Batch& batch) const {
  const std::int64_t before = std::ssize(batch.values);
  const std::size_t weights = batch.weights.size();
  dataset_.append(item, draw, batch);
  if (batch.weights.size() != weights)
    throw Error(ExitCode::kBadData, fmt::format("item {} adds to Batch::weights", item),
                "Dataset::append must not: an ItemChooser gives weights");
  const std::int64_t values = std::ssize(batch.values) - before;
  if (values == item_values_ || (values == 0 && !batch.offsets.empty())) return;
  throw Error(ExitCode::kBadData,
              fmt::format("item {} has {} values, and its shape {}", item, values, item_values_),
              "Dataset::append must add as many as Dataset::item_shape says");
}

// Each thread has the same number of items, side by side. There are no more threads than items.
// The first that failed is told of.
void Loader::append(const Contents& contents, const ItemDraw& draw, const std::stop_token& stop,
                    Batch& batch) {
  const std::int64_t items = std::ssize(contents.items);
  const std::int64_t parts = std::clamp<std::int64_t>(items, 1, std::ssize(parts_) + 1);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(parts));
  const auto append_part = [&](std::int64_t part) {
    Batch& to = part == 0 ? batch : parts_[part - 1];
    if (part > 0) to.clear();
    try {
      // Half a batch is fine once nobody waits for it: the destructor should not wait for the rest.
      for (std::int64_t i = items * part / parts; i < items * (part + 1) / parts; ++i)
        if (!stop.stop_requested()) append(contents.items[i], draw, to);
    } catch (...) {
      failures[part] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::int64_t part = 1; part < parts; ++part) others.emplace_back(append_part, part);
    append_part(0);
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  for (const Batch& part : std::span(parts_).first(parts - 1)) {
    batch.values.insert(batch.values.end(), part.values.begin(), part.values.end());
    batch.targets.insert(batch.targets.end(), part.targets.begin(), part.targets.end());
  }
}

void Loader::fill(std::int64_t step, const Contents& contents, const std::stop_token& stop,
                  Batch& batch) {
  const auto epoch = static_cast<std::uint64_t>(step / steps_per_epoch_);
  const ItemDraw draw{options_.seed, epoch, options_.augment};
  batch.clear();
  batch.weights = contents.weights;
  batch.dropped = contents.dropped;
  append(contents, draw, stop, batch);
  if (stop.stop_requested()) return;
  for (const std::int64_t item : contents.items) {
    batch.labels.push_back(dataset_.label(item));
    batch.ids.push_back(item);
    ++batch.items;
  }
}

}  // namespace vcas
