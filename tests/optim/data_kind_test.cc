// A kind of data that stands in this file alone is read, checked and trained on.
#include "data/data_kind.h"

#include "core/error.h"
#include "data/loader.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

// Vectors [width] whose class is the place of their largest value.
class Peaks final : public DataKind {
 public:
  void fields(Setting& v) {
    v.field("width", width_, "Values of an item.", at_least(2));
    v.section("peaks", "Their form.").field("height", height_, "How high a peak is.", above(0.0));
  }
  std::string summary() const override { return "vectors with a peak"; }
  DataFacts facts() const override { return {}; }
  void check(const DataOptions& data, ConfigErrors& errors) const override {
    data.check_folder("peaks.txt", errors);
    if (width_ % 2 > 0) errors.add({"width", "type"}, "must be even");
  }
  OpenedData open(const DataRequest& request) const override {
    const std::int64_t items = request.split == Split::kTrain ? 256 : 64;
    VectorContent content{.width = width_, .class_names = numbered_classes(width_)};
    for (std::int64_t i = 0; i < items; ++i) {
      content.labels.push_back(static_cast<std::int32_t>(i % width_));
      for (std::int64_t c = 0; c < width_; ++c)
        content.values.push_back(c == i % width_ ? static_cast<float>(height_) : 0.0f);
    }
    return {.items = std::make_unique<VectorDataset>(std::move(content))};
  }

 private:
  std::int64_t width_ = 4;
  double height_ = 1;
};
VCAS_REGISTER_PART(DataKind, "peaks", Peaks);

struct Config {
  DataOptions data;
  void fields(Setting& v) { v.section("data", data, "What to train on."); }
};

Config read(const std::string& text) {
  Config config;
  read_config(config, {.documents = {{"peaks.json", text}}});
  return config;
}

}  // namespace

TEST_CASE("a kind of data in one file is read, checked and trained on", "[trainer][config]") {
  const std::string peaks = R"({"data": {"type": "peaks", "folder": "x", )";
  CHECK_THROWS_WITH(read(R"({"data": {"type": "peaks"}})"),
                    ContainsSubstring("data.folder is missing: data.type \"peaks\" reads a folder "
                                      "with peaks.txt"));
  CHECK_THROWS_WITH(read(peaks + R"("width": 5}})"), ContainsSubstring("data.width must be even"));
  CHECK_THROWS_WITH(read(peaks + R"("peaks": {"height": 0}}})"),
                    ContainsSubstring("data.peaks.height must be above 0"));
  CHECK_THROWS_WITH(read(peaks + R"("text": {"task": "RTE"}}})"),
                    ContainsSubstring("\"task\" in \"data.text\" is a setting of"));
  CHECK(config_help(Config{}).find("; peaks: vectors with a peak; ") != std::string::npos);
  CHECK(config_help(Config{}).find("data.peaks.height  (peaks)") != std::string::npos);

  const Config config = read(peaks + R"("width": 6, "peaks": {"height": 2}}})");
  const OpenedData train = config.data.kind->open({.folder = config.data.folder});
  const OpenedData test = config.data.kind->open({.split = Split::kTest});
  REQUIRE(train.items->item_shape() == std::vector<std::int64_t>{6});
  constexpr std::int64_t kBatch = 16;
  const auto ops = make_ops("cpu");
  const auto model = build_model(read_model_options({"type=mlp", "width=16", "depth=2"}),
                                 train.items->item_shape(), train.items->classes(), 0.0);
  model->graph.finish(*ops, {.max_items = kBatch});
  model->graph.parameters().initialize(*ops, 1);
  TrainerOptions options{.total_steps = 60, .batch = kBatch};
  options.schedule.learning_rate = 1e-2;
  Trainer trainer(*model, *ops, options, nullptr);
  Loader batches(*train.items, {.batch = kBatch});
  while (!trainer.done()) trainer.step(batches.next());
  Loader tests(*test.items, {.batch = kBatch, .shuffle = false});
  CHECK(trainer.evaluate(tests.next()).accuracy == 1.0);
}
