#include "data/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>

#include "data/synthetic.h"
#include "tests/data/data_files.h"

using namespace vcas;

namespace {

const Dataset& images() {
  static const std::unique_ptr<Dataset> data =
      make_synthetic({.items = 103, .classes = 5, .shape = {2, 6, 5}, .seed = 9});
  return *data;
}

const LoaderOptions kTraining{
    .batch = 8,
    .seed = 5,
    .augment = {.crop_padding = 2, .resized_crop = ResizedCropOptions{}, .flip = true}};
const LoaderOptions kEvaluation{.batch = 8, .shuffle = false, .drop_last = false};

std::vector<Batch> take(Loader& loader, std::int64_t count) {
  std::vector<Batch> batches;
  for (std::int64_t i = 0; i < count; ++i) batches.push_back(loader.next());
  return batches;
}

std::vector<Batch> take(const LoaderOptions& options, std::int64_t count,
                        std::int64_t first_step = 0) {
  Loader loader(images(), options, first_step);
  return take(loader, count);
}

bool equal(const Batch& a, const Batch& b) {
  return a.items == b.items && a.offsets == b.offsets && a.values == b.values &&
         a.tokens == b.tokens && a.labels == b.labels && a.ids == b.ids;
}

double chi_square(const std::vector<std::int64_t>& counts, double want) {
  double sum = 0;
  for (const std::int64_t count : counts) {
    const double difference = static_cast<double>(count) - want;
    sum += difference * difference / want;
  }
  return sum;
}

// Five standard deviations of a chi-square around its mean.
void check_uniform(const std::vector<std::int64_t>& counts, double want) {
  const double freedom = static_cast<double>(counts.size()) - 1;
  CHECK(std::abs(chi_square(counts, want) - freedom) < 5 * std::sqrt(2 * freedom));
}

// One feature, the item's number; may fail at an item, or wait there until told to go on.
class ProbeDataset final : public Dataset {
 public:
  explicit ProbeDataset(std::int64_t bad_item = -1) : bad_item_(bad_item) {}

  std::int64_t size() const override { return 1000; }
  std::vector<std::int64_t> item_shape() const override { return {1}; }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::int32_t label(std::int64_t) const override { return -1; }
  std::int64_t rows(std::int64_t index) const override { return 1 + index % 3; }
  void append(std::int64_t index, const ItemDraw&, Batch& out) const override {
    ++appended;
    if (index == bad_item_) throw Error(ExitCode::kBadData, "item 12 is rotten", "throw it away");
    out.values.insert(out.values.end(), index == odd_item ? odd_values : 1,
                      static_cast<float>(index));
    std::this_thread::sleep_for(delay);
  }

  mutable std::atomic<std::int64_t> appended{0};
  std::chrono::milliseconds delay{0};
  std::int64_t odd_item = -1;
  std::size_t odd_values = 2;

 private:
  std::int64_t bad_item_;
  std::vector<std::string> names_ = {"only"};
};

}  // namespace

TEST_CASE("a permutation is a bijection of every size", "[loader]") {
  for (const std::int64_t size : {1, 2, 3, 5, 8, 64, 100, 1000, 65536, 60000}) {
    const Permutation order(1, 0, size);
    std::vector<bool> seen(size);
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t item = order(i);
      REQUIRE((item >= 0 && item < size));
      count += !seen[item];
      seen[item] = true;
    }
    CHECK(count == size);
  }
}

TEST_CASE("permutations look uniform over epochs", "[loader]") {
  SECTION("every item comes to every position equally often") {
    constexpr std::int64_t kSize = 37;
    constexpr std::int64_t kEpochs = 4096;
    std::vector<std::int64_t> counts(kSize * kSize);
    for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const Permutation order(3, epoch, kSize);
      for (std::int64_t i = 0; i < kSize; ++i) ++counts[i * kSize + order(i)];
    }
    // Rows and columns have fixed sums, so the freedom is (n - 1)^2.
    constexpr double kFreedom = (kSize - 1) * (kSize - 1);
    const double got = chi_square(counts, static_cast<double>(kEpochs) / kSize);
    CHECK(std::abs(got - kFreedom) < 5 * std::sqrt(2 * kFreedom));
  }
  SECTION("all orders of four items are equally frequent") {
    constexpr std::int64_t kEpochs = 24 * 512;
    std::vector<std::int64_t> counts(256);
    for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const Permutation order(4, epoch, 4);
      ++counts[order(0) + 4 * order(1) + 16 * order(2) + 64 * order(3)];
    }
    std::erase(counts, 0);
    REQUIRE(counts.size() == 24);
    check_uniform(counts, 512);
  }
  SECTION("in a large order neighbours are as far apart as chance has it") {
    constexpr std::int64_t kSize = 60000;
    constexpr std::int64_t kCells = 50;
    const Permutation order(5, 0, kSize);
    std::vector<std::int64_t> steps(kCells);
    std::vector<std::int64_t> places(kCells * kCells);
    for (std::int64_t i = 0; i < kSize; ++i) {
      const std::int64_t step = (order((i + 1) % kSize) - order(i) + kSize) % kSize;
      ++steps[step * kCells / kSize];
      ++places[i * kCells / kSize * kCells + order(i) * kCells / kSize];
    }
    check_uniform(steps, static_cast<double>(kSize) / kCells);
    const double freedom = (kCells - 1) * (kCells - 1);
    CHECK(std::abs(chi_square(places, static_cast<double>(kSize) / (kCells * kCells)) - freedom) <
          5 * std::sqrt(2 * freedom));
  }
  SECTION("two epochs, and two seeds, agree on about one position") {
    for (const Permutation& other : {Permutation(6, 1, 1000), Permutation(7, 0, 1000)}) {
      const Permutation order(6, 0, 1000);
      std::int64_t same = 0;
      for (std::int64_t i = 0; i < 1000; ++i) same += order(i) == other(i);
      CHECK(same <= 6);
    }
  }
}

TEST_CASE("an epoch of training gives distinct items, and drops the last part", "[loader]") {
  Loader loader(images(), kTraining);
  CHECK(loader.steps_per_epoch() == 12);
  std::vector<std::int64_t> first_epoch;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> ids;
    for (const Batch& batch : take(loader, 12)) {
      CHECK(batch.items == 8);
      CHECK(batch.labels.size() == 8);
      CHECK(batch.values.size() == 8 * 2 * 6 * 5);
      CHECK(batch.offsets.empty());
      for (int i = 0; i < 8; ++i) CHECK(batch.labels[i] == images().label(batch.ids[i]));
      ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
    }
    CHECK(std::set(ids.begin(), ids.end()).size() == 96);
    CHECK(ids != first_epoch);
    if (epoch == 0) first_epoch = ids;
  }
  CHECK(loader.step() == 36);
}

TEST_CASE("evaluation gives every item once, in order, unchanged", "[loader]") {
  Loader loader(images(), kEvaluation);
  CHECK(loader.steps_per_epoch() == 13);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::int64_t next_id = 0;
    Batch want;
    std::vector<float> got;
    for (const Batch& batch : take(loader, 13)) {
      CHECK(batch.items == (next_id == 96 ? 7 : 8));
      for (const std::int64_t id : batch.ids) {
        CHECK(id == next_id);
        images().append(next_id++, {}, want);
      }
      got.insert(got.end(), batch.values.begin(), batch.values.end());
    }
    CHECK(next_id == 103);
    CHECK(got == want.values);
  }
}

TEST_CASE("a resumed run gets the batches of the uninterrupted one", "[loader]") {
  for (LoaderOptions options : {kTraining, kEvaluation}) {
    const std::vector<Batch> whole = take(options, 40);
    for (const std::int64_t step : {1, 11, 12, 13, 27, 39}) {
      options.prefetch = 1 + step % 5;
      const std::vector<Batch> rest = take(options, 40 - step, step);
      for (std::size_t i = 0; i < rest.size(); ++i) CHECK(equal(rest[i], whole[step + i]));
    }
  }
}

TEST_CASE("a far step costs no more than the first", "[loader]") {
  const ProbeDataset data;
  Loader loader(data, {.batch = 10, .prefetch = 1}, 1'000'000'000'000);
  loader.next();
  CHECK(loader.step() == 1'000'000'000'001);
  CHECK(data.appended <= 20);
}

TEST_CASE("augmentation belongs to seed, epoch and item, not to the batch", "[loader]") {
  LoaderOptions options = kTraining;
  std::vector<std::vector<float>> by_item(103);
  for (const Batch& batch : take(options, 12)) {
    for (int i = 0; i < 8; ++i) {
      by_item[batch.ids[i]].assign(batch.values.begin() + 60 * i,
                                   batch.values.begin() + 60 * (i + 1));
    }
  }
  LoaderOptions later = options;
  later.shuffle = false;
  std::int64_t same_as_before = 0;
  for (const Batch& batch : take(later, 24))
    for (int i = 0; i < 8; ++i) {
      const auto values = batch.values.begin() + 60 * i;
      same_as_before += std::equal(values, values + 60, by_item[batch.ids[i]].begin(),
                                   by_item[batch.ids[i]].end());
    }
  CHECK(same_as_before < 96 + 12);  // the first epoch, and one in 50 of the second
  options.batch = 5;
  options.shuffle = false;
  std::int64_t same_as_plain = 0;
  std::int64_t seen = 0;
  for (const Batch& batch : take(options, 20)) {
    for (int i = 0; i < 5; ++i) {
      if (by_item[batch.ids[i]].empty()) continue;
      const std::vector<float> got(batch.values.begin() + 60 * i,
                                   batch.values.begin() + 60 * (i + 1));
      CHECK(got == by_item[batch.ids[i]]);
      Batch plain;
      images().append(batch.ids[i], {}, plain);
      same_as_plain += got == plain.values;
      ++seen;
    }
  }
  CHECK(seen >= 93);
  CHECK(same_as_plain < 12);  // one in 50 is neither moved nor flipped
  options.seed += 1;
  CHECK(take(options, 1)[0].values !=
        take({.batch = 5, .shuffle = false, .seed = 5, .augment = options.augment}, 1)[0].values);
}

TEST_CASE("the shares of ranks are together the batch of one process", "[loader][ranks]") {
  const int size = GENERATE(2, 4, 8);
  LoaderOptions options = kTraining;
  const std::vector<Batch> whole = take(options, 30);
  std::vector<Batch> joined(whole.size());
  for (int rank = 0; rank < size; ++rank) {
    options.place = {.rank = rank, .size = size};
    const std::vector<Batch> share = take(options, 30);
    for (std::size_t step = 0; step < share.size(); ++step) {
      CHECK(share[step].items == 8 / size);
      joined[step].items += share[step].items;
      const auto append = [](auto& to, const auto& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(joined[step].values, share[step].values);
      append(joined[step].labels, share[step].labels);
      append(joined[step].ids, share[step].ids);
    }
  }
  for (std::size_t step = 0; step < whole.size(); ++step) CHECK(equal(joined[step], whole[step]));
  options.place = {.rank = 0, .size = 3};
  CHECK_THROWS_WITH(Loader(images(), options), "3 ranks cannot share batches of 8 items");
}

TEST_CASE("batches keep their memory, also through a small one", "[loader]") {
  LoaderOptions options = kEvaluation;
  options.batch = 17;  // the last batch of an epoch has one item
  Loader loader(images(), options);
  std::set<const float*> addresses;
  for (int i = 0; i < 40; ++i) {
    const Batch& batch = loader.next();
    if (i < 3) continue;
    addresses.insert(batch.values.data());
    CHECK(batch.values.capacity() >= 17 * 60);
  }
  CHECK(addresses.size() == 3);
}

TEST_CASE("a batch stays as it is until the next one is asked for", "[loader]") {
  const ProbeDataset data;
  Loader loader(data, {.batch = 10, .prefetch = 1});
  for (std::int64_t i = 1; i < 20; ++i) {
    const Batch& batch = loader.next();
    const Batch copy = batch;
    while (data.appended < 10 * (i + 1)) std::this_thread::yield();  // the next one is made
    CHECK(equal(batch, copy));
    CHECK(data.appended == 10 * (i + 1));  // and none after it
  }
}

TEST_CASE("what the dataset throws in the thread reaches next(), in its turn", "[loader]") {
  const ProbeDataset data(12);
  Loader loader(data, {.batch = 5, .shuffle = false, .prefetch = 3});
  while (data.appended < 13) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the failure is there already
  CHECK(loader.next().ids[0] == 0);
  CHECK(loader.next().ids[0] == 5);
  for (int again = 0; again < 2; ++again) {
    const Error error = error_of([&] { loader.next(); });
    CHECK(error.code() == ExitCode::kBadData);
    CHECK(std::string(error.what()) == "item 12 is rotten");
    CHECK(error.hint() == "throw it away");
  }
  CHECK(loader.step() == 2);
}

TEST_CASE("an item with other values than its shape has is refused", "[loader][error]") {
  ProbeDataset data;
  data.odd_item = 12;
  for (const std::size_t values : {0, 2}) {
    data.odd_values = values;
    Loader loader(data, {.batch = 5, .shuffle = false});
    loader.next();
    loader.next();
    check_error([&] { loader.next(); }, ExitCode::kBadData,
                "item 12 has " + std::to_string(values) + " values, and its shape 1");
  }
}

TEST_CASE("vectors have the labels of their classes, or none", "[loader][error]") {
  const auto vectors = [](std::int32_t label) {
    return VectorDataset(
        {.width = 1, .values = {0, 1}, .labels = {0, label}, .class_names = numbered_classes(2)});
  };
  CHECK(vectors(1).label(1) == 1);
  CHECK(vectors(-1).label(1) == -1);
  check_error([&] { vectors(2); }, ExitCode::kBadData,
              "label 2 of item 1, and there are 2 classes");
  check_error([&] { vectors(-2); }, ExitCode::kBadData,
              "label -2 of item 1, and there are 2 classes");
  check_error(
      [] {
        VectorDataset({.width = 2, .values = {0, 1, 2}, .labels = {0, 0}});
      },
      ExitCode::kBadData, "3 values, and 2 items of width 2 need 4");
}

TEST_CASE("a chooser is asked at fixed calls, and what it drops is not read", "[loader]") {
  // Keeps the odd positions of odd steps, with the step as their weight.
  struct OddOnes final : ItemChooser {
    std::vector<std::int64_t> asked;
    std::thread::id thread = std::this_thread::get_id();
    ItemChoice choose_items(std::int64_t step, std::span<const std::int64_t> items,
                            std::span<const std::int64_t> rows) override {
      for (std::size_t i = 0; i < 8; ++i) CHECK(rows[i] == 1 + items[i] % 3);
      CHECK(std::this_thread::get_id() == thread);
      CHECK(items.size() == 8);
      asked.push_back(step);
      if (step % 2 == 0) return {{0, 1, 2, 3, 4, 5, 6, 7}, {}};
      return {{1, 3, 5, 7}, std::vector<float>(4, static_cast<float>(step))};
    }
  };
  LoaderOptions options{.batch = 8, .seed = 5};
  options.prefetch = GENERATE(1, 2, 4);
  const ProbeDataset plain_data, data;
  Loader plain(plain_data, options, 3);
  OddOnes chooser;
  std::int64_t kept = 0;
  {
    Loader loader(data, options, 3, &chooser);
    CHECK(std::ssize(chooser.asked) == options.prefetch);
    for (std::int64_t step = 3; step < 140; ++step) {
      const Batch all = plain.next(), got = loader.next();
      CHECK(std::ssize(chooser.asked) == step - 3 + 1 + options.prefetch);
      CHECK(chooser.asked.back() == step + options.prefetch);
      kept += got.items;
      if (step % 2 == 0) {
        CHECK(equal(got, all));
        CHECK(got.dropped == 0);
        CHECK(got.weights.empty());
        continue;
      }
      CHECK(got.items == 4);
      CHECK(got.dropped == 4);
      CHECK(got.weights == std::vector<float>(4, static_cast<float>(step)));
      for (std::size_t i = 0; i < 4; ++i) {
        CHECK(got.ids[i] == all.ids[2 * i + 1]);
        CHECK(got.values[i] == all.values[2 * i + 1]);
      }
    }
  }
  CHECK(data.appended <= kept + 8 * options.prefetch);
}

TEST_CASE("runs of each micro-batch are in the order of labels", "[loader]") {
  struct Everything final : ItemChooser {
    ItemChoice choose_items(std::int64_t, std::span<const std::int64_t> items,
                            std::span<const std::int64_t>) override {
      ItemChoice all{.kept = std::vector<std::int64_t>(items.size()), .weights = {}};
      std::iota(all.kept.begin(), all.kept.end(), 0);
      return all;
    }
  };
  const bool chosen = GENERATE(false, true);
  LoaderOptions options{.batch = 32, .seed = 5};
  options.place.size = 2;
  const std::int64_t part = GENERATE(0, 8);  // 0: a share of 16 items is one
  for (const int rank : {0, 1}) {
    options.place.rank = rank;
    options.label_run = 0;
    Loader plain(images(), options);
    options.label_run = 6;
    options.label_part = part;
    Everything everything;
    Loader loader(images(), options, 0, chosen ? &everything : nullptr);
    const std::vector<std::int64_t> ends =
        part == 0 ? std::vector<std::int64_t>{6, 12, 16} : std::vector<std::int64_t>{6, 8, 14, 16};
    for (int step = 0; step < 5; ++step) {
      std::vector<std::int64_t> want = plain.next().ids;
      auto begin = want.begin();
      for (const std::int64_t end : ends) {
        std::stable_sort(begin, want.begin() + end,
                         [](auto a, auto b) { return images().label(a) < images().label(b); });
        begin = want.begin() + end;
      }
      const Batch& batch = loader.next();
      CHECK(batch.ids == want);
      CHECK(batch.dropped == 0);
      for (std::size_t i = 0; i < 16; ++i) CHECK(batch.labels[i] == images().label(want[i]));
    }
  }
}

TEST_CASE("a choice is one among the items of its step", "[loader][error]") {
  struct Fixed final : ItemChooser {
    ItemChoice choice;
    ItemChoice choose_items(std::int64_t, std::span<const std::int64_t>,
                            std::span<const std::int64_t>) override {
      return choice;
    }
  };
  const ProbeDataset data;
  const auto refused = [&](const ItemChoice& choice, const std::string& text) {
    Fixed chooser;
    chooser.choice = choice;
    check_error([&] { Loader(data, {.batch = 8}, 0, &chooser); }, ExitCode::kBadConfig, text);
  };
  refused({{}, {}}, "a choice of no items before the forward");
  refused({{0, 8}, {}}, "a choice of items with kept[1] 8 of 8 items");
  refused({{-1, 3}, {}}, "kept[0] -1 of 8 items");
  refused({{2, 2}, {}}, "kept[1] 2 after 2");
  refused({{2, 5, 3}, {}}, "kept[2] 3 after 5");
  refused({{2, 5}, {1}}, "1 weights of 2 items");
  refused({{2, 5}, {1, 1, 1}}, "3 weights of 2 items");
  refused({{2, 5}, {1, NAN}}, "weights[1] nan");
}

TEST_CASE("what a chooser throws reaches who takes the batch", "[loader]") {
  struct Failing final : ItemChooser {
    std::int64_t bad_step;
    explicit Failing(std::int64_t step) : bad_step(step) {}
    ItemChoice choose_items(std::int64_t step, std::span<const std::int64_t>,
                            std::span<const std::int64_t>) override {
      if (step == bad_step) throw Error(ExitCode::kBadData, "no choice");
      return {{0}, {}};
    }
  };
  const ProbeDataset data;
  Failing first(1), later(4);
  check_error([&] { Loader(data, {.batch = 10}, 0, &first); }, ExitCode::kBadData, "no choice");
  Loader loader(data, {.batch = 10}, 0, &later);
  for (int step = 0; step < 2; ++step) loader.next();
  check_error([&] { loader.next(); }, ExitCode::kBadData, "no choice");
}

TEST_CASE("a loader goes away at once, whatever its thread is doing", "[loader]") {
  ProbeDataset data;
  for (int i = 0; i < 200; ++i) {
    Loader loader(data, {.batch = 10});
    for (int taken = 0; taken < i % 4; ++taken) loader.next();
  }
  data.delay = std::chrono::milliseconds(20);
  const auto begin = std::chrono::steady_clock::now();
  { const Loader loader(data, {.batch = 1000, .drop_last = true}); }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));  // not 20 s
}

TEST_CASE("loader options that do not fit are configuration errors", "[loader]") {
  const auto check = [](const LoaderOptions& options, const std::string& text) {
    check_error([&] { Loader(images(), options); }, ExitCode::kBadConfig, text);
  };
  check({.batch = 0}, "batch must be above 0, got 0");
  check({.prefetch = 0}, "prefetch must be above 0, got 0");
  check({.batch = 104}, "a batch of 104 cannot be filled from 103 items");
  check({.augment = {.crop_padding = 5}},
        "crop_padding must be from 0 to 4 for images of 6 x 5, got 5");
  check({.augment = {.crop_padding = -1}}, "got -1");
  check({.batch = 8, .drop_last = false, .place = {.rank = 0, .size = 2}},
        "2 ranks cannot share batches of 8 items");
  for (const Place& place : {Place{.rank = 2, .size = 2}, {.rank = -1}, {.size = 0}})
    check({.place = place}, "LoaderOptions::place is rank " + std::to_string(place.rank) + " of ");
  check({.batch = std::numeric_limits<std::int64_t>::max(), .drop_last = false},
        "items is too large to count");
  check_error([] { Loader(VectorDataset({.width = 1}), {}); }, ExitCode::kBadConfig,
              "the data have no items");
  check_error([] { Loader(images(), {}, -1); }, ExitCode::kBadConfig,
              "first step must not be negative, got -1");
  check_error([] { Loader(ProbeDataset(), {.augment = {.flip = true}}); }, ExitCode::kBadConfig,
              "crop, flip and cutout need images, and the dataset has none");
}

TEST_CASE("batches of images are the same with any number of threads", "[loader]") {
  const auto data = make_synthetic({.items = 50, .classes = 4, .shape = {3, 6, 6}});
  LoaderOptions options{.batch = 13,
                        .drop_last = false,
                        .seed = 5,
                        .augment = {.crop_padding = 2, .flip = true, .cutout = 3}};
  Loader one(*data, options);
  std::vector<std::vector<float>> values;
  std::vector<std::vector<std::int64_t>> ids;
  for (int step = 0; step < 9; ++step) {
    const Batch& batch = one.next();
    values.push_back(batch.values);
    ids.push_back(batch.ids);
  }
  for (const int threads : {2, 3, 20}) {
    options.threads = threads;
    Loader several(*data, options);
    for (std::size_t step = 0; step < values.size(); ++step) {
      const Batch& batch = several.next();
      CHECK(batch.values == values[step]);
      CHECK(batch.ids == ids[step]);
      CHECK(batch.items == std::ssize(batch.ids));
    }
  }
}

namespace {

// Images with numbers to learn. Each waits for another one to be prepared at the same time.
// Some are bad.
class MeetingImages final : public Dataset {
 public:
  std::vector<std::int64_t> bad = {};
  mutable std::atomic<bool> met = true;

  std::int64_t size() const override { return 8; }
  std::vector<std::int64_t> item_shape() const override { return {1, 1, 1}; }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::int32_t label(std::int64_t) const override { return -1; }
  void append(std::int64_t index, const ItemDraw&, Batch& out) const override {
    if (std::ranges::count(bad, index) > 0)
      throw Error(ExitCode::kBadData, "item " + std::to_string(index) + " is rotten");
    std::unique_lock lock(mutex_);
    const int number = arrived_++;
    changed_.notify_all();
    const bool here =
        changed_.wait_for(lock, std::chrono::seconds(5), [&] { return arrived_ > (number | 1); });
    if (!here) met = false;
    out.values.push_back(static_cast<float>(index));
    out.targets.push_back(static_cast<float>(2 * index));
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int arrived_ = 0;
  std::vector<std::string> names_ = {"only"};
};

}  // namespace

TEST_CASE("two threads prepare images at the same time", "[loader]") {
  const MeetingImages data;
  Loader loader(data, {.batch = 4, .shuffle = false, .prefetch = 1, .threads = 2});
  const Batch& batch = loader.next();
  CHECK(batch.values == std::vector<float>{0, 1, 2, 3});
  CHECK(batch.targets == std::vector<float>{0, 2, 4, 6});
  CHECK(data.met);
}

TEST_CASE("of several images that fail the first one is told of", "[loader]") {
  MeetingImages data;
  data.bad = {1, 2, 4, 7};
  Loader loader(data, {.batch = 8, .shuffle = false, .prefetch = 1, .threads = 4});
  CHECK_THROWS_WITH(loader.next(), "item 1 is rotten");
  CHECK_THROWS_WITH(Loader(data, {.batch = 8, .threads = 0}), "threads must be above 0, got 0");
}
