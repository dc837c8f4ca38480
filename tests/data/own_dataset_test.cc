// What a loader refuses of a data set of one's own.
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
