// What a loader takes of a data set of one's own, and what it refuses.
#include "data/loader.h"
#include "tests/support/check_error.h"

using namespace vcas;

namespace {

// Item 3 weighs itself.
class Weighing final : public Dataset {
 public:
  std::int64_t size() const override { return 8; }
  std::vector<std::int64_t> item_shape() const override { return {1}; }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::int32_t label(std::int64_t) const override { return 0; }
  void append(std::int64_t item, const ItemDraw&, Batch& out) const override {
    out.values.push_back(1);
    if (item == 3) out.weights.push_back(2);
  }

 private:
  std::vector<std::string> names_ = {"only"};
};

}  // namespace

TEST_CASE("an item that weighs itself is refused", "[loader][error]") {
  const Weighing data;
  Loader loader(data, {.batch = 4, .shuffle = false});
  check_error([&] { loader.next(); }, ExitCode::kBadData, "item 3 adds to Batch::weights",
              "Dataset::append must not: an ItemChooser gives weights");
}

// A text with soft labels, or other numbers that a model of one's own reads.
TEST_CASE("a text may have values, as many as its shape says", "[loader]") {
  struct Texts final : ForwardingDataset {
    using ForwardingDataset::ForwardingDataset;
    void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override {
      if (out.offsets.empty()) out.offsets.push_back(0);
      out.tokens.insert(out.tokens.end(), index + 1, 7);
      out.offsets.push_back(std::ssize(out.tokens));
      ForwardingDataset::append(index, draw, out);
    }
  };
  const Texts texts(std::make_shared<VectorDataset>(VectorContent{
      .width = 2, .values = {1, 2, 3, 4}, .labels = {0, 1}, .class_names = {"a", "b"}}));
  Loader loader(texts, {.batch = 2, .shuffle = false});
  const Batch& batch = loader.next();
  CHECK(batch.offsets == std::vector<std::int64_t>{0, 1, 3});
  CHECK(batch.values == std::vector<float>{1, 2, 3, 4});
}
