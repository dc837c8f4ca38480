// A model says of each input how a batch fills it.
#include "models/model.h"

#include "models/blocks.h"
#include "tests/support/check_error.h"
#include "tests/support/text_batch.h"

using namespace vcas;

namespace {

// Classifies items by half their number in the data, which no model of the library reads.
struct ByNumber {
  std::unique_ptr<Ops> ops = make_ops("cpu");
  Model model{DType::kF32};
  Value number;

  ByNumber() {
    const auto fill = [halves = std::vector<float>()](const BatchPart& part) mutable {
      halves.clear();
      for (const std::int64_t id : part.of(part.batch.ids, Layout::items(1), "numbers"))
        halves.push_back(static_cast<float>(id) / 2);
      return std::as_bytes(std::span<const float>(halves));
    };
    number = model.input("number", {1, Layout::items(1), DType::kF32}, fill);
    add_classifier(model, number, 3, 0);
    model.graph.finish(*ops, {.max_items = 4});
  }
};

// Adds an input to the graph alone.
struct Unfilled final : ModelKind {
  void build(Model& model, const std::vector<std::int64_t>&, std::int64_t classes,
             double smoothing) const override {
    add_classifier(model, model.graph.input("mine", {4, Layout::items(1), DType::kF32}), classes,
                   smoothing);
  }
};

VCAS_REGISTER_PART(ModelKind, "unfilled", Unfilled);

}  // namespace

TEST_CASE("settings that another one leaves without effect", "[model]") {
  const auto idle = [](const std::vector<std::string>& settings) {
    return read_model_options(settings).kind->idle_settings();
  };
  CHECK(idle({"type=bert", "tied_decoder=false", "head=mlm"}).empty());
  CHECK(idle({"type=bert", "tied_decoder=false"}) ==
        std::vector<std::string>{
            "model.tied_decoder has no effect: model.head is \"classification\""});
  CHECK(idle({"type=resnet", "group_width=8", "norm=group"}).empty());
}

TEST_CASE("each input of a model is filled, with all numbers", "[model][error]") {
  check_error([] { build_model(read_model_options({"type=unfilled"}), {4}, 3, 0); },
              ExitCode::kBadConfig, "input \"mine\" is filled by nothing",
              "Model::input adds one with its fill");
  const auto ops = make_ops("cpu");
  Model model(DType::kF32);
  const auto fill = [three = std::vector<float>(3)](const BatchPart&) {
    return std::as_bytes(std::span<const float>(three));
  };
  const Value extra = model.input("extra", {2, Layout::items(1), DType::kF32}, fill);
  model.labels = model.input("labels", {1, Layout::items(1), DType::kI32}, fill);
  model.logits = model.graph.add("head", make_layer("linear", {{"width", 3}}), {extra});
  model.loss =
      model.graph.add("loss", make_layer("softmax_cross_entropy"), {model.logits, model.labels});
  model.graph.finish(*ops, {.max_items = 4});
  check_error([&] { model.load(*ops, random_text(3, 5, 3), 0, 3); }, ExitCode::kBadConfig,
              "input \"extra\" was filled with 12 bytes, and has 24 as f32 [3, 2]");
  Batch weighted = random_text(1, 5, 3);
  weighted.weights = {1};
  ByNumber by;
  by.model.weights = {};
  check_error([&] { by.model.load(*by.ops, weighted, 0, 1); }, ExitCode::kBadConfig,
              "a batch has weights of items, and the loss takes none");
}

TEST_CASE("a model has inputs of its own, and loads the items asked for", "[model]") {
  ByNumber by;
  const Batch batch = random_text(7, 5, 3);  // its text and masks are not this model's
  by.model.load(*by.ops, batch, 2, 3);
  const Tensor loaded = by.model.graph.tensor(by.number);
  REQUIRE(loaded.shape == Shape{3, 1});
  for (int n = 0; n < 3; ++n) CHECK(loaded.ptr<float>()[n] == static_cast<float>(2 + n) / 2);
  CHECK(by.model.loss_terms(batch, 2, 3) == 3);
  CHECK_THROWS_WITH(by.model.load(*by.ops, batch, 5, 3),
                    ContainsSubstring("item 8 of a batch of 7"));
  Batch short_of_one = batch;
  short_of_one.ids.pop_back();
  CHECK_THROWS_WITH(by.model.load(*by.ops, short_of_one, 4, 3),
                    ContainsSubstring("a batch with 6 numbers, and the model reads 7 of 7 items"));
}

TEST_CASE("a label may be unknown, and else is a class", "[model][error]") {
  ByNumber by;
  Batch batch = random_text(4, 5, 3);
  batch.labels[2] = -1;
  CHECK_NOTHROW(by.model.load(*by.ops, batch, 0, 4));
  CHECK(by.model.graph.tensor(by.model.labels).ptr<std::int32_t>()[2] == 0);
  for (const int label : {-2, 3}) {
    batch.labels[2] = label;
    CHECK_THROWS_WITH(by.model.load(*by.ops, batch, 0, 4),
                      "label " + std::to_string(label) + ", and the model knows 3");
  }
}

TEST_CASE("an eps of 0 is the standard one", "[model]") {
  TransformerSettings settings;
  CHECK(settings.eps(1e-5) == 1e-5);
  settings.norm_eps = 1e-3;
  CHECK(settings.eps(1e-5) == 1e-3);
}

TEST_CASE("offsets of a batch begin with 0", "[model][error]") {
  Batch batch = random_text(4, 9, 3);
  batch.offsets.erase(batch.offsets.begin());
  const BatchPart part{batch, 0, 4};
  check_error([&] { part.rows(Layout::tokens()); }, ExitCode::kBadData,
              "4 offsets in a batch of 4 items",
              "there is one more than items: the first item that is appended adds a 0 before");
}

TEST_CASE("a part of a batch has the rows of its items in each layout", "[model]") {
  const Batch batch = random_text(4, 9, 3);  // 5, 1, 7, 3 tokens; 1, 0, 2, 1 masked
  const BatchPart part{batch, 1, 2};
  CHECK(part.rows(Layout::tokens()) == 8);
  CHECK(part.rows(Layout::masked()) == 2);
  CHECK(part.rows(Layout::items(3)) == 6);
  CHECK(part.rows_before(1, Layout::tokens()) == 5);
  const auto tokens = part.of(batch.tokens, Layout::tokens(), "tokens");
  CHECK(std::vector(tokens.begin(), tokens.end()) ==
        std::vector(batch.tokens.begin() + 5, batch.tokens.begin() + 13));
}
