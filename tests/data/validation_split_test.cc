#include "data/validation_split.h"

#include <algorithm>
#include <set>

#include "tests/data/data_files.h"

using namespace vcas;

namespace {

// Item i has the value i; 60 items of class 0, 30 of class 1, 10 of class 2, in turns.
std::unique_ptr<Dataset> numbered_items() {
  VectorContent content{.width = 1, .class_names = numbered_classes(3)};
  for (std::int32_t i = 0; i < 100; ++i) {
    content.values.push_back(static_cast<float>(i));
    content.labels.push_back(i % 10 < 6 ? 0 : i % 10 < 9 ? 1 : 2);
  }
  return std::make_unique<VectorDataset>(std::move(content));
}

std::vector<float> values_of(const Dataset& data) {
  Batch batch;
  for (std::int64_t item = 0; item < data.size(); ++item) data.append(item, {}, batch);
  return batch.values;
}

}  // namespace

TEST_CASE("held-out items are a share of each class, and train has the rest", "[split]") {
  const ValidationSplit split = split_off(numbered_items(), 0.2, 5);
  const std::vector<float> train = values_of(*split.train), held = values_of(*split.validation);
  CHECK(train.size() == 80);
  CHECK(std::ranges::is_sorted(train));
  CHECK(std::ranges::is_sorted(held));
  std::set<float> all(train.begin(), train.end());
  all.insert(held.begin(), held.end());
  CHECK(all.size() == 100);
  std::vector<int> counts(3);
  const auto whole = numbered_items();
  for (std::int64_t item = 0; item < split.validation->size(); ++item) {
    const std::int32_t label = split.validation->label(item);
    CHECK(label == whole->label(std::lround(held[static_cast<std::size_t>(item)])));
    ++counts[static_cast<std::size_t>(label)];
  }
  CHECK(counts == std::vector<int>{12, 6, 2});
  CHECK(split.train->class_names() == whole->class_names());

  CHECK(values_of(*split_off(numbered_items(), 0.2, 5).validation) == held);
  CHECK(values_of(*split_off(numbered_items(), 0.2, 6).validation) != held);
  CHECK(values_of(*split_off(numbered_items(), 0.2, 0).validation) !=
        values_of(*subset_of(numbered_items(), 20)));
}

TEST_CASE("a share that leaves one side empty is refused", "[split]") {
  check_error([] { split_off(numbered_items(), 0.004, 0); }, ExitCode::kBadConfig,
              "data.validation_share is 0.004: of 100 items 0 are held out");
  check_error([] { split_off(numbered_items(), 0.996, 0); }, ExitCode::kBadConfig,
              "data.validation_share is 0.996: of 100 items 100 are held out");
}

TEST_CASE("a subset has its share of each class, in order, and is always the same", "[split]") {
  const auto subset = subset_of(numbered_items(), 20);
  const std::vector<float> values = values_of(*subset);
  CHECK(std::ranges::is_sorted(values));
  CHECK(values.back() > 50);
  std::vector<int> counts(3);
  for (std::int64_t item = 0; item < subset->size(); ++item)
    ++counts[static_cast<std::size_t>(subset->label(item))];
  CHECK(counts == std::vector<int>{12, 6, 2});
  CHECK(values_of(*subset_of(numbered_items(), 20)) == values);
  for (std::int64_t count = 1; count < 100; ++count)
    CHECK(subset_of(numbered_items(), count)->size() == count);
  for (const std::int64_t all : {0, 100, 101})
    CHECK(values_of(*subset_of(numbered_items(), all)) == values_of(*numbered_items()));
}

TEST_CASE("items of a split, and with other class numbers, have as many rows as before",
          "[split]") {
  class Lengths final : public Dataset {
   public:
    std::int64_t size() const override { return 100; }
    std::vector<std::int64_t> item_shape() const override { return {1}; }
    const std::vector<std::string>& class_names() const override { return names_; }
    std::int32_t label(std::int64_t) const override { return 0; }
    std::int64_t rows(std::int64_t index) const override { return 1 + index; }
    void append(std::int64_t index, const ItemDraw&, Batch& out) const override {
      out.values.push_back(static_cast<float>(index));
    }

   private:
    std::vector<std::string> names_ = {"only"};
  };
  const ValidationSplit split = split_off(
      std::make_unique<RelabelledDataset>(std::make_unique<Lengths>(), std::vector{0}), 0.2, 5);
  const std::vector<float> train = values_of(*split.train);
  for (std::size_t i = 0; i < train.size(); ++i)
    CHECK(split.train->rows(static_cast<std::int64_t>(i)) == 1 + std::lround(train[i]));
}
