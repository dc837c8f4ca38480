// Batches from a dataset. A thread makes them ahead of time, with others where these are images.
// A batch depends on (dataset, options, step) alone, and on what a chooser leaves out of it.
// A run that resumes at step k gets the same batches, without reading up to it.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "core/ranks.h"
#include "data/augment.h"
#include "data/batch.h"
#include "data/dataset.h"

namespace vcas {

// A permutation of [0, size). Each value is computed alone, in a fixed number of rounds.
// It is swap-or-not (Hoang, Morris, Rogaway, "An enciphering scheme based on a card shuffle",
// 2012).
// In each round x has the partner offset - x. They change places if a random bit of the pair says
// so.
class Permutation {
 public:
  Permutation(std::uint64_t seed, std::uint64_t epoch, std::int64_t size);
  std::int64_t operator()(std::int64_t position) const;

 private:
  // Two items keep their distance in a round with probability 1/2.
  static constexpr int kRounds = 64;

  PhiloxAddress address_;
  std::int64_t size_;
  std::array<std::int64_t, kRounds> offsets_;
};

// The defaults are for training. Evaluation sets shuffle and drop_last to false.
// It takes steps_per_epoch() batches: every item once, in order.
struct LoaderOptions {
  std::int64_t batch = 32;  // of all ranks together
  bool shuffle = true;      // a new order each epoch; false: the dataset's own order
  bool drop_last = true;    // false: the last batch of an epoch may be smaller
  std::uint64_t seed = 0;
  AugmentOptions augment = {};  // images only
  std::int64_t prefetch = 2;    // batches made ahead, 1 at least
  Place place = {};             // each rank gets its share of a batch, as many items as the others
  // 0, or a part of a batch: the items of each batch are dealt by their rows to such parts, which
  // then have about as many rows.
  std::int64_t balanced_part = 0;
  // 0, or a number: each run of so many items of a part is in the order of labels. Then draws in
  // the order of items are stratified by label (docs/decisions/0013-label-order.md).
  // A layer that looks at the order of items must not have it.
  std::int64_t label_run = 0;
  std::int64_t label_part = 0;  // a micro-batch: runs begin anew in each; 0: a rank's share
  int threads = 1;              // that prepare images; a batch is the same with any number
};

class Loader final : public BatchSource {
 public:
  // The next batch is that of `first_step`. `dataset` and `chooser` must outlive the loader.
  // Throws kBadConfig for options that do not fit the dataset.
  // The constructor asks the chooser for the first `prefetch` steps.
  // next() of step t asks for step t + prefetch. No other thread asks.
  // It is asked for the items of all ranks, and must say the same on all.
  Loader(const Dataset& dataset, const LoaderOptions& options, std::int64_t first_step = 0,
         ItemChooser* chooser = nullptr);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The batch of the next step. It is valid until the following call.
  // No batch straddles two epochs. Throws what the dataset threw in the thread.
  const Batch& next() override;

  // Batches in one pass over the data.
  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  // The step whose batch next() gives: all the state there is to save.
  std::int64_t step() const { return first_step_ + taken_; }

 private:
  // The items of a batch.
  struct Contents {
    std::vector<std::int64_t> items = {};  // numbers in the dataset
    std::vector<float> weights = {};       // as of Batch
    std::int64_t dropped = 0;
  };

  void run(const std::stop_token& stop);
  std::vector<std::int64_t> items_of(std::int64_t step, std::int64_t first,
                                     std::int64_t count) const;
  Contents contents_of(std::int64_t step) const;
  void balance(std::vector<std::int64_t>& items) const;
  void order_by_label(std::vector<std::int64_t>& items) const;
  void choose(std::int64_t step);
  void fill(std::int64_t step, const Contents& contents, const std::stop_token& stop, Batch& batch);
  void append(std::int64_t item, const ItemDraw& draw, Batch& batch) const;
  void append(const Contents& contents, const ItemDraw& draw, const std::stop_token& stop,
              Batch& batch);

  const Dataset& dataset_;
  const LoaderOptions options_;
  ItemChooser* chooser_;  // null: every item is in its batch
  std::int64_t items_;
  std::int64_t item_values_;  // of an item's shape
  std::int64_t steps_per_epoch_;
  std::int64_t first_step_;
  std::vector<Batch> ring_;   // prefetch + 1: one is in the caller's hands
  std::vector<Batch> parts_;  // of the batch in the making, but the first one

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Contents> chosen_;  // guarded by mutex_: of the batches to make next
  std::int64_t made_ = 0;        // guarded by mutex_
  std::int64_t taken_ = 0;       // written by the caller's thread under mutex_
  std::exception_ptr failure_;
  std::jthread thread_;  // last: it stops and joins before the rest goes
};

}  // namespace vcas
