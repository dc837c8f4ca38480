#include "layers/layer.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/support/check_error.h"

using namespace vcas;

namespace plug {

class Doubled final : public Layer {
 public:
  explicit Doubled(const LayerConfig&) {}
  NodePlan plan(const PlanInput& in) const override { return {.output = in.inputs[0]}; }
  void forward(Exec&, const ForwardIo&) const override {}
  void backward(Exec&, const BackwardIo&) const override {}
};

}  // namespace plug

VCAS_REGISTER_LAYER("test_doubled", plug::Doubled);
VCAS_REGISTER_LAYER("test_twice", plug::Doubled);

namespace {

Error layer_error(const std::string& kind, const nlohmann::json& config) {
  return error_of([&] { make_layer(kind, config); });
}

std::string plan_error(const std::string& kind, const nlohmann::json& config,
                       const std::vector<ValueSpec>& inputs) {
  const PlanInput in{inputs, DType::kF32, 4, 16};
  return error_text([&] { make_layer(kind, config)->plan(in); }, ExitCode::kBadConfig);
}

}  // namespace

TEST_CASE("all layers are registered", "[layer]") {
  const std::vector<std::string> kinds = layer_kinds();
  for (const char* kind : {"linear", "layer_norm", "gelu", "dropout", "add", "attention",
                           "embedding", "patch_embed", "pool", "softmax_cross_entropy"})
    CHECK(std::count(kinds.begin(), kinds.end(), kind) == 1);
}

TEST_CASE("an unknown layer or setting is an error that names the nearest", "[layer]") {
  const Error kind = layer_error("layernorm", nlohmann::json::object());
  CHECK(kind.code() == ExitCode::kBadConfig);
  CHECK(std::string(kind.what()) == "no layer is called \"layernorm\"");
  CHECK(kind.hint() == "did you mean \"layer_norm\"?");

  CHECK(layer_error("snake", nlohmann::json::object()).hint() ==
        "is its object file linked? Put plugs in the program or in an OBJECT library");

  const Error key = layer_error("linear", {{"width", 3}, {"sampeld", false}});
  CHECK(key.code() == ExitCode::kBadConfig);
  CHECK(std::string(key.what()) == "layer \"linear\" has no setting \"sampeld\"");
  CHECK(key.hint() == "did you mean \"sampled\"?");
}

TEST_CASE("settings are read strictly", "[layer]") {
  const auto what = [](const std::string& kind, const nlohmann::json& config) {
    return error_text([&] { make_layer(kind, config); }, ExitCode::kBadConfig);
  };
  CHECK(what("linear", nlohmann::json::object()) == "linear.width is missing");
  CHECK(what("linear", {{"width", 0}}) == "linear.width must be at least 1, got 0");
  CHECK(what("linear", {{"width", 1.5}}) == "linear.width has the wrong type: 1.5");
  CHECK(what("linear", {{"width", true}}) == "linear.width has the wrong type: true");
  CHECK(what("linear", {{"width", 3}, {"bias", 1}}) == "linear.bias has the wrong type: 1");
  CHECK_THAT(what("dropout", {{"p", 1}}), ContainsSubstring("dropout.p must be in [0, 1), got 1"));
  CHECK_THAT(what("dropout", {{"p", -0.1}}),
             ContainsSubstring("dropout.p must be in [0, 1), got -"));
  CHECK_THAT(what("layer_norm", {{"eps", 0}}),
             ContainsSubstring("layer_norm.eps must be positive"));
  CHECK_THAT(what("gelu", 3), ContainsSubstring("settings of layer \"gelu\" are not an object: 3"));
}

TEST_CASE("an integer setting fits its type", "[layer]") {
  const LayerConfig config("kind", {{"w", 5000000000}, {"n", -1}, {"mode", "mean"}});
  CHECK(config.get<std::int64_t>("w") == 5000000000);
  CHECK_THROWS_WITH(config.get<int>("w"),
                    "kind.w must be from -2147483648 to 2147483647, got 5000000000");
  CHECK_THROWS_WITH(config.get<std::uint64_t>("n"),
                    "kind.n must be from 0 to 18446744073709551615, got -1");
  CHECK_THROWS_WITH(config.get<double>("mode"), "kind.mode has the wrong type: \"mean\"");
  const LayerConfig lists("kind", {{"sizes", {1, 5000000000}}, {"names", {{"a", 1}}}});
  CHECK(lists.get<std::vector<std::int64_t>>("sizes") == std::vector<std::int64_t>{1, 5000000000});
  CHECK_THROWS_WITH(lists.get<std::vector<int>>("sizes"),
                    "kind.sizes has the wrong type: [1,5000000000]");
  CHECK_THROWS_WITH((lists.get<std::map<std::string, bool>>("names")),
                    "kind.names has the wrong type: {\"a\":1}");
  CHECK(config.get<std::string>("mode", "sum") == "mean");
  CHECK(config.get<std::string>("other", "sum") == "sum");
}

TEST_CASE("a layer is registered by its full name, under two names", "[layer]") {
  CHECK(make_layer("test_doubled"));
  CHECK(make_layer("test_twice"));
}

TEST_CASE("a tensor is read by a pointer to const", "[layer]") {
  float value = 3;
  const Tensor tensor{&value, DType::kF32, {1}};
  CHECK(*tensor.ptr<const float>() == 3);
  CHECK_THROWS_WITH(tensor.ptr<const double>(), ContainsSubstring("holds f32, not f64"));
}

TEST_CASE("a plan refuses inputs that do not fit", "[layer]") {
  const ValueSpec values{8, Layout::tokens(), DType::kF32},
      integers{1, Layout::tokens(), DType::kI32};
  CHECK(plan_error("linear", {{"width", 3}}, {values, values}) ==
        "number of inputs of linear must be 1, got 2");
  CHECK(plan_error("linear", {{"width", 3}}, {integers}) ==
        "input 0 of linear must hold f32, got i32");
  CHECK(plan_error("add", nlohmann::json::object(), {values, {9, Layout::items(1), DType::kF32}}) ==
        "add: widths 8 and 9, rows per item tokens and 1 differ");
  CHECK(plan_error("add", nlohmann::json::object(), {values, {9, Layout::tokens()}}) ==
        "add: widths 8 and 9, rows per item tokens and tokens differ");
  CHECK(plan_error("add", nlohmann::json::object(), {values, {8, Layout::items(1)}}) ==
        "add: widths 8 and 8, rows per item tokens and 1 differ");
  CHECK(plan_error("embedding", {{"vocabulary", 5}, {"width", 3}},
                   {{2, Layout::items(1), DType::kI32}}) ==
        "embedding: tokens must have width 1, got 2");
  CHECK_THAT(plan_error("softmax_cross_entropy", nlohmann::json::object(),
                        {values, {1, Layout::items(1), DType::kI32}}),
             ContainsSubstring("got tokens and 1 rows an item, and width 1"));
  const nlohmann::json none = nlohmann::json::object();
  CHECK_THAT(plan_error("softmax_cross_entropy", none, {values, {2, values.layout, DType::kI32}}),
             ContainsSubstring("got tokens and tokens rows an item, and width 2"));
  const ValueSpec one{1, Layout::items(1)}, two{2, Layout::items(1)}, rows{1, Layout::items(2)};
  for (const auto& [wrong, text] :
       {std::pair(two, "got width 2 in 1 rows"), std::pair(rows, "got width 1 in 2 rows")}) {
    CHECK_THAT(plan_error("squared_error", none, {one, wrong}), ContainsSubstring(text));
    CHECK_THAT(plan_error("squared_error", none, {one, one, wrong}), ContainsSubstring(text));
  }
  CHECK(plan_error("select_rows", none, {values, {2, Layout::masked(), DType::kI32}}) ==
        "select_rows: the index must have width 1, got 2");
  const nlohmann::json square = {{"channels", 3}, {"height", 2}, {"width", 2}};
  CHECK(plan_error("image_rows", square, {{11, Layout::items(1)}}) ==
        "image_rows: an image has 12 values in 1 row, got 11 in 1");
  CHECK(plan_error("image_rows", square, {{12, Layout::items(2)}}) ==
        "image_rows: an image has 12 values in 1 row, got 12 in 2");
  CHECK_THAT(plan_error("attention", {{"heads", 1}}, {{4, Layout::items(1)}, {9, values.layout}}),
             ContainsSubstring("a query of width 4 in 1 rows an item, with key and value of 9"));
}

TEST_CASE("weights start with what keeps the variance, and alone of all decay", "[layer]") {
  const auto specs = [](const std::string& kind, const nlohmann::json& config,
                        const ValueSpec& input) {
    const std::vector<ValueSpec> inputs = {input};
    return make_layer(kind, config)->plan({inputs, DType::kF32, 4, 16, 0}).parameters;
  };
  const ValueSpec values{8, Layout::tokens()}, image{3 * 4 * 4, Layout::items(1)};
  CHECK(specs("linear", {{"width", 3}}, values)[0].init.value == 1 / std::sqrt(8.0));
  CHECK(specs("linear", {{"width", 3}, {"init_std", 0.5}}, values)[0].init.value == 0.5);
  CHECK(specs("group_norm", {{"groups", 2}, {"gain", 0.5}}, values)[0].init.value == 0.5);
  CHECK(specs("batch_norm", {{"gain", 0.5}}, values)[0].init.value == 0.5);
  const nlohmann::json picture = {{"height", 4}, {"width", 4}, {"kernel", 3}, {"features", 5}};
  CHECK(specs("conv2d", picture, {2, Layout::items(16)})[0].init.value == std::sqrt(2 / 18.0));
  const std::vector<ParameterSpec> patches =
      specs("patch_embed",
            {{"channels", 3}, {"height", 4}, {"width", 4}, {"patch", 2}, {"features", 5}}, image);
  CHECK(patches[0].init.value == 1 / std::sqrt(12.0));
  CHECK(patches[2].init.value == 0.02);
  CHECK(patches[3].init.value == 0.02);
  const auto check_decay = [](const std::vector<ParameterSpec>& parameters) {
    for (const ParameterSpec& spec : parameters) CHECK(spec.decay == (&spec == &parameters[0]));
  };
  check_decay(patches);
  check_decay(specs("linear", {{"width", 3}}, values));
  check_decay(
      specs("embedding", {{"vocabulary", 5}, {"width", 3}}, {1, values.layout, DType::kI32}));
  for (const char* norm : {"layer_norm", "batch_norm"})
    for (const ParameterSpec& spec : specs(norm, nlohmann::json::object(), values))
      CHECK_FALSE(spec.decay);
}

TEST_CASE("a layout says the rows of items", "[layer]") {
  CHECK(Layout::items(3).rows(4, 50, 6) == 12);
  CHECK(Layout::tokens().rows(4, 50, 6) == 50);
  CHECK(Layout::masked().rows(4, 50, 6) == 6);
  CHECK(Layout::items(1).rows(1.0, 2.5, 0.5) == 1.0);
  CHECK(Layout::items(3) == Layout::items(3));
  CHECK(Layout::items(3) != Layout::items(2));
  CHECK(Layout::tokens() != Layout::masked());
  CHECK(Layout::items(3).text() == "3");
  CHECK(Layout::masked().text() == "masked");
}
