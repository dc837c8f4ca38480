// Batches that are dealt to parts by length (LoaderOptions::balanced_part).
#include <algorithm>
#include <fstream>

#include "data/loader.h"
#include "data/wordpiece.h"
#include "tests/data/data_files.h"
#include "tests/support/shared_data.h"

using namespace vcas;
namespace fs = std::filesystem;

namespace {

// Texts of given lengths.
class Lengths final : public Dataset {
 public:
  explicit Lengths(std::vector<std::int64_t> lengths) : lengths_(std::move(lengths)) {}
  std::int64_t size() const override { return std::ssize(lengths_); }
  std::vector<std::int64_t> item_shape() const override { return {std::ranges::max(lengths_)}; }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::int32_t label(std::int64_t) const override { return 0; }
  std::int64_t rows(std::int64_t item) const override { return lengths_[item]; }
  void append(std::int64_t item, const ItemDraw&, Batch& out) const override {
    if (out.offsets.empty()) out.offsets.push_back(0);
    out.offsets.push_back(out.offsets.back() + lengths_[item]);
  }

 private:
  std::vector<std::int64_t> lengths_;
  std::vector<std::string> names_ = numbered_classes(2);
};

std::vector<std::int64_t> some_lengths() {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 200; ++i) lengths.push_back(3 + i * i % 37);
  return lengths;
}

using Ids = std::vector<std::int64_t>;

std::vector<Ids> ids_of(const Dataset& data, const LoaderOptions& options, std::int64_t steps) {
  Loader loader(data, options);
  std::vector<Ids> ids;
  for (std::int64_t step = 0; step < steps; ++step) ids.push_back(loader.next().ids);
  return ids;
}

std::int64_t rows_of(const Dataset& data, const Ids& ids, std::int64_t first, std::int64_t count) {
  std::int64_t rows = 0;
  for (std::int64_t i = first; i < first + count; ++i) rows += data.rows(ids[i]);
  return rows;
}

// Rows of the part with most rows over the mean, in the mean over the steps.
double imbalance(const Dataset& data, const LoaderOptions& options, std::int64_t part,
                 std::int64_t steps) {
  double sum = 0;
  for (const Ids& ids : ids_of(data, options, steps)) {
    std::int64_t most = 0;
    for (std::int64_t first = 0; first < options.batch; first += part)
      most = std::max(most, rows_of(data, ids, first, part));
    const std::int64_t all = rows_of(data, ids, 0, options.batch);
    sum += static_cast<double>(most * (options.batch / part)) / static_cast<double>(all);
  }
  return sum / static_cast<double>(steps);
}

// Lengths of the training sentences of SST-2, with [CLS] and [SEP].
std::vector<std::int64_t> sst2_lengths(const fs::path& table, const fs::path& vocabulary) {
  const WordPiece tokenizer(vocabulary);
  std::ifstream file(table);
  std::vector<std::int64_t> lengths;
  std::vector<std::int32_t> ids;
  std::string line;
  for (std::getline(file, line); std::getline(file, line);) {
    ids.clear();
    tokenizer.encode(line.substr(0, line.rfind('\t')), ids);
    lengths.push_back(std::min<std::int64_t>(std::ssize(ids) + 2, 64));
  }
  return lengths;
}

}  // namespace

TEST_CASE("a batch is dealt to its parts by length, and each keeps its order", "[loader][ranks]") {
  const Lengths data(some_lengths());
  const LoaderOptions plain{.batch = 40, .seed = 5};
  LoaderOptions dealt = plain;
  for (const std::int64_t part : {40, 20, 10, 8, 4, 1}) {
    CAPTURE(part);
    dealt.balanced_part = part;
    const std::vector<Ids> before = ids_of(data, plain, 12), after = ids_of(data, dealt, 12);
    for (std::size_t step = 0; step < before.size(); ++step) {
      // Each part takes the longest item that is left, in turn, then in the opposite turn.
      std::vector<Ids> want(static_cast<std::size_t>(40 / part));
      Ids left = before[step];
      for (std::int64_t round = 0; round < part; ++round) {
        for (std::size_t turn = 0; turn < want.size(); ++turn) {
          Ids& taker = want[round % 2 == 0 ? turn : want.size() - 1 - turn];
          const auto longest = std::ranges::max_element(
              left, {}, [&](std::int64_t item) { return data.rows(item); });
          taker.push_back(*longest);
          left.erase(longest);
        }
      }
      Ids joined;
      for (Ids& ids : want) {
        std::ranges::sort(ids, {}, [&](std::int64_t item) {
          return std::ranges::find(before[step], item) - before[step].begin();
        });
        joined.insert(joined.end(), ids.begin(), ids.end());
      }
      CHECK(after[step] == joined);
    }
  }
}

TEST_CASE("how a batch is dealt does not depend on the ranks", "[loader][ranks]") {
  const Lengths data(some_lengths());
  LoaderOptions options{.batch = 40, .seed = 5, .balanced_part = 5};
  const std::vector<Ids> whole = ids_of(data, options, 12);
  for (const int size : {2, 4, 8}) {
    std::vector<Ids> joined(whole.size());
    for (int rank = 0; rank < size; ++rank) {
      options.place = {.rank = rank, .size = size};
      const std::vector<Ids> share = ids_of(data, options, 12);
      for (std::size_t step = 0; step < whole.size(); ++step)
        joined[step].insert(joined[step].end(), share[step].begin(), share[step].end());
    }
    CHECK(joined == whole);
  }
}

TEST_CASE("parts that are not equal are refused", "[loader][ranks]") {
  const Lengths data(some_lengths());
  check_error([&] { Loader(data, {.batch = 40, .balanced_part = 7}); }, ExitCode::kBadConfig,
              "batches of 40 items have no equal parts of 7");
  check_error([&] { Loader(data, {.batch = 40, .drop_last = false, .balanced_part = 8}); },
              ExitCode::kBadConfig, "batches of 40 items have no equal parts of 8");
}

// With -s it prints the figures of docs/results/clusters.md.
TEST_CASE("dealt sentences of SST-2 take all ranks equally long", "[loader][ranks]") {
  const fs::path table = shared_data("sst2/train.tsv"), vocabulary = shared_data("bert_vocab");
  if (table.empty() || vocabulary.empty()) return;
  const Lengths data(sst2_lengths(table, vocabulary / "vocab.txt"));
  struct Case {
    std::int64_t ranks;
    double least_before, most_after;
  };
  for (const auto& [ranks, least_before, most_after] : {Case{8, 1.1, 1.03}, {128, 1.2, 1.06}}) {
    CAPTURE(ranks);
    LoaderOptions options{.batch = 32 * ranks, .seed = 1};
    CHECK(imbalance(data, options, 32, 14) > least_before);
    options.balanced_part = 32;
    CHECK(imbalance(data, options, 32, 14) < most_after);
  }
}
