#include "optim/gradient_check.h"

#include <map>

#include "models/blocks.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/text_batch.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

namespace {

constexpr std::int64_t kItems = 16, kClasses = 4;

// y = x, and its backward too but for a fault:
//   "kept"   a gradient of fewer items than the batch has is too long
//   "slope"  every gradient is too long, by a thousandth
//   "gain"   y = x * gain, which starts at 1, and dx lacks the gain; in f64
class FaultyCopy final : public Layer {
 public:
  explicit FaultyCopy(const LayerConfig& config) : fault_(config.get<std::string>("fault")) {}

  NodePlan plan(const PlanInput& in) const override {
    NodePlan plan;
    plan.output = in.inputs[0];
    plan.computes_on_host = true;
    if (fault_ != "gain") return plan;
    plan.parameters = {{"gain", {plan.output.width}, {Initializer::Kind::kConstant, 1}, false}};
    plan.saved_inputs = {0};
    return plan;
  }
  void forward(Exec& exec, const ForwardIo& io) const override {
    copy(exec, io.output, io.inputs[0], 1);
    for (std::int64_t i = 0; fault_ == "gain" && i < io.output.elements(); ++i)
      io.output.ptr<double>()[i] *= io.parameters[0].ptr<double>()[i % io.output.width()];
  }
  void backward(Exec& exec, const BackwardIo& io) const override {
    const bool fewer = io.rows.items() < io.rows_full.items();
    copy(exec, io.dx[0], io.dy, fault_ == "slope" ? 1.001 : fault_ == "kept" && fewer ? 1.5 : 1);
    for (std::int64_t i = 0; fault_ == "gain" && i < io.dy.elements(); ++i)
      io.gradients[0].ptr<double>()[i % io.dy.width()] +=
          io.dy.ptr<double>()[i] * io.inputs_full[0].ptr<double>()[i];
  }

 private:
  static void copy(Exec& exec, const Tensor& to, const Tensor& from, double factor) {
    exec.dtype == DType::kF64 ? copy_as<double>(to, from, factor)
                              : copy_as<float>(to, from, factor);
  }
  template <class T>
  static void copy_as(const Tensor& to, const Tensor& from, double factor) {
    for (std::int64_t i = 0; i < to.elements(); ++i)
      to.ptr<T>()[i] = static_cast<T>(factor * from.ptr<T>()[i]);
  }

  std::string fault_;
};

VCAS_REGISTER_LAYER("faulty_copy", FaultyCopy);

struct FaultyModel final : ModelKind {
  std::string fault = "none";

  void fields(Setting& v) { v.field("fault", fault, "Fault of the layer in the middle."); }
  void build(Model& model, const std::vector<std::int64_t>& item_shape, std::int64_t classes,
             double label_smoothing) const override {
    Graph& graph = model.graph;
    Value x = add_values(model, item_shape, graph.dtype());
    x = add_linear(graph, "lower", 8, x);
    x = graph.add("copy", make_layer("faulty_copy", {{"fault", fault}}), {x});
    x = graph.add("gelu", make_layer("gelu"), {x});
    graph.gate(x);
    x = add_linear(graph, "upper", 8, x);
    x = graph.add("upper_gelu", make_layer("gelu"), {x});
    graph.gate(x);
    add_classifier(model, x, classes, label_smoothing);
  }
};

VCAS_REGISTER_PART(ModelKind, "faulty", FaultyModel);

// A perceptron of one weight, which two linear maps use.
struct TiedModel final : ModelKind {
  void fields(Setting&) {}
  void build(Model& model, const std::vector<std::int64_t>& item_shape, std::int64_t classes,
             double label_smoothing) const override {
    Graph& graph = model.graph;
    Value x = add_linear(graph, "first", 8, add_values(model, item_shape, graph.dtype()));
    x = graph.add("gelu", make_layer("gelu"), {x});
    graph.gate(x);
    const Value owner = add_linear(graph, "owner", 8, x);
    const Value user = add_linear(graph, "user", 8, owner, 0, /*sampled=*/false);
    graph.tie(user, owner);
    x = graph.add("user_gelu", make_layer("gelu"), {user});
    graph.gate(x);
    add_classifier(model, x, classes, label_smoothing);
  }
};

VCAS_REGISTER_PART(ModelKind, "tied", TiedModel);

const std::map<std::string, std::vector<std::string>> kModels = {
    {"vit", {"type=vit", "width=16", "depth=2", "heads=2", "patch=4", "dropout=0.1"}},
    {"bert",
     {"type=bert", "width=16", "depth=2", "heads=2", "vocabulary=32", "max_positions=8",
      "dropout=0.1", "attention_dropout=0.1"}},
    {"bert of much dropout",
     {"type=bert", "width=16", "depth=2", "heads=2", "vocabulary=32", "max_positions=8",
      "dropout=0.5", "attention_dropout=0.5"}},
    {"mlp", {"type=mlp", "width=16", "depth=3"}},
    {"resnet", {"type=resnet", "stem=cifar", "stages=[1,1]", "widths=[8,16]"}},
    {"resnet of groups",
     {"type=resnet", "stem=imagenet", "stages=[1,1]", "widths=[8,16]", "norm=group",
      "group_width=4"}},
    {"tied", {"type=tied"}},
    {"faulty", {"type=faulty"}},
    {"faulty if kept", {"type=faulty", "fault=kept"}},
    {"faulty slope", {"type=faulty", "fault=slope"}},
    {"faulty gain", {"type=faulty", "fault=gain"}}};

// A model with random weights and a batch for it.
struct Subject {
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
  Batch batch;

  explicit Subject(const std::string& name, DType dtype = DType::kF32,
                   std::unique_ptr<Ops> device = make_ops("cpu"))
      : ops(std::move(device)) {
    const ModelOptions options = read_model_options(kModels.at(name));
    const std::vector<std::int64_t> shape = {1, 8, 8};
    model = build_model(options, shape, kClasses, 0, dtype);
    const std::int64_t tokens = kItems * options.kind->max_positions();
    model->graph.finish(*ops, {.max_items = kItems, .max_tokens = tokens, .max_masked = tokens});
    model->graph.parameters().initialize(*ops, 3);
    if (options.kind->reads_text()) {
      batch = random_text(kItems, 32, kClasses);
      return;
    }
    batch.items = kItems;
    const PhiloxAddress address = philox_address({.seed = 4, .stream = Stream::kData});
    for (std::uint64_t i = 0; i < kItems * 64; ++i)
      batch.values.push_back(static_cast<float>(philox_normal(address, i)));
    for (std::int64_t i = 0; i < kItems; ++i) {
      batch.labels.push_back(static_cast<std::int32_t>(i % kClasses));
      batch.ids.push_back(i);
    }
  }

  // The batch without what `chooser` leaves out; `weighted`: with the weights it gives.
  Batch reload(ItemChooser& chooser, bool weighted) const {
    const ItemChoice choice = chooser.choose(0, batch.ids, {});
    Batch kept;
    if (!batch.offsets.empty()) kept.offsets = {0};
    const auto add = [](auto& to, const auto& from, std::int64_t begin, std::int64_t end) {
      to.insert(to.end(), from.begin() + begin, from.begin() + end);
    };
    for (const std::int64_t item : choice.kept) {
      const auto i = static_cast<std::size_t>(item);
      if (batch.offsets.empty()) {
        add(kept.values, batch.values, item * 64, (item + 1) * 64);
      } else {
        add(kept.tokens, batch.tokens, batch.offsets[i], batch.offsets[i + 1]);
        add(kept.token_types, batch.token_types, batch.offsets[i], batch.offsets[i + 1]);
        kept.offsets.push_back(std::ssize(kept.tokens));
      }
      kept.labels.push_back(batch.labels[i]);
      ++kept.items;
    }
    if (weighted) kept.weights = choice.weights;
    return kept;
  }
  SamplingCheck check(const SamplingCheckOptions& options = {}) {
    return check_sampling(*model, *ops, batch, kItems, options);
  }
  double slope_error() {
    double error = 0;
    for (const Slope& slope : check_slopes(*model, *ops, batch, kItems, 3, 0))
      error = std::max(error, slope.error());
    return error;
  }
};

bool fails(const SamplingCheck& check, const std::string& part) {
  return check.fails(part + ", systematic") || check.fails(part + ", bernoulli");
}

// The variances of a kind of sampling, as shares of their formula.
std::vector<double> variances(const SamplingCheck& check, const std::string& sampling) {
  std::vector<double> shares;
  for (const SampledTensor& tensor : check.tensors)
    if (tensor.sampling == sampling && tensor.closed_form > 0)
      shares.push_back(tensor.variance / tensor.closed_form);
  return shares;
}

}  // namespace

TEST_CASE("gradient check: right models pass, whatever the seed") {
  for (const char* name : {"vit", "bert", "mlp", "faulty"})
    for (std::uint64_t seed = 0; seed < 16; ++seed) {
      const SamplingCheck check = Subject(name).check({.seed = seed});
      CAPTURE(name, seed, check.tensors.front().tensor, check.tensors.front().z, check.bound);
      CHECK(check.failed() == 0);
      CHECK(std::abs(check.tensors.front().z) > 1);  // of so many tests
    }
}

TEST_CASE("gradient check: right models pass on every device") {
  for (const std::string& device : test_devices())
    CHECK(Subject("mlp", DType::kF32, make_ops(device)).check({.draws = 16}).failed() == 0);
}

TEST_CASE("gradient check: what is kept without its weight fails") {
  const auto forget_weight = [](const Draw& draw, const std::string&) {
    std::fill_n(draw.scale.ptr<float>(), draw.scale.elements(), 1.0f);
  };
  const auto of_rows = [](const NarrowRows& rows, const std::string&) {
    std::fill_n(rows.row_scale.ptr<float>(), rows.row_scale.elements(), 1.0f);
  };
  for (const char* name : {"vit", "bert", "mlp"}) {
    const SamplingCheck check =
        Subject(name, DType::kF32, watched_ops(forget_weight, of_rows)).check();
    CAPTURE(name, check.tensors.front().tensor, check.tensors.front().z, check.bound);
    for (const char* sampling :
         {"items, systematic", "items, bernoulli", "rows, systematic", "rows, bernoulli",
          "both, systematic", "both, bernoulli", "both, by norm"})
      CHECK(check.fails(sampling));
  }
}

TEST_CASE("gradient check: items are drawn before the forward with their weights") {
  for (const char* name : {"vit", "mlp"})
    for (std::uint64_t seed = 0; seed < 8; ++seed)
      for (const bool weighted : {true, false}) {
        Subject subject(name);
        const SamplingCheck check =
            subject.check({.seed = seed, .reload = [&](ItemChooser& chooser) {
                             return subject.reload(chooser, weighted);
                           }});
        CAPTURE(name, seed, weighted, check.tensors.front().tensor, check.tensors.front().z);
        CHECK(check.fails("before the forward, systematic") != weighted);
        CHECK_FALSE(fails(check, "items"));
      }
}

// Masks and statistics of a batch belong to training: a backward that has them is wrong here.
TEST_CASE("gradient check: passes of items drawn before the forward are those of evaluations") {
  for (const char* name : {"bert of much dropout", "resnet"}) {
    Subject subject(name);
    const SamplingCheck check =
        subject.check({.draws = 256, .ratio = 0.25, .reload = [&](ItemChooser& chooser) {
                         return subject.reload(chooser, true);
                       }});
    CAPTURE(name, check.tensors.front().tensor, check.tensors.front().z, check.bound);
    CHECK_FALSE(check.fails("before the forward, systematic"));
  }
}

TEST_CASE("gradient check: a layer that is wrong on kept items alone fails with items alone") {
  const SamplingCheck check = Subject("faulty if kept").check();
  CHECK(fails(check, "items"));
  CHECK(fails(check, "both"));
  CHECK_FALSE(fails(check, "rows"));
  const auto worst = check.tensors.front();
  CHECK(worst.tensor.starts_with("lower"));
  CHECK(worst.shift > 0.2);
  CHECK(Subject("faulty if kept", DType::kF64).slope_error() < kMostSlopeError);
}

TEST_CASE("gradient check: variances of independent draws are those of their formulas") {
  for (const char* name : {"vit", "mlp", "tied"}) {
    const SamplingCheck check = Subject(name).check({.draws = 1024});
    for (const char* sampling : {"items, bernoulli", "rows, bernoulli"}) {
      const std::vector<double> shares = variances(check, sampling);
      CHECK_FALSE(shares.empty());
      for (const double share : shares) {
        CAPTURE(name, sampling);
        CHECK_THAT(share, WithinAbs(1, 0.2));
      }
    }
    CHECK(variances(check, "items, systematic").empty());
    CHECK(variances(check, "both, bernoulli").empty());
  }
}

TEST_CASE("gradient check: more tests make a wider bound") {
  const SamplingCheck check = Subject("mlp").check({.draws = 2});
  CHECK(check.tests == 7 * 8 * 4);  // kinds, parameters, directions
  CHECK_THAT(std::erfc(check.bound / std::sqrt(2.0)) * 224, WithinRel(1e-3, 0.02));
  CHECK(Subject("mlp").check({.draws = 2, .level = 1e-6}).bound > check.bound);
}

TEST_CASE("gradient check: slopes agree with differences of the loss, and wrong ones do not") {
  // ResNets have kinks, and gains of 0 before them.
  for (const char* name : {"vit", "bert", "mlp", "resnet", "resnet of groups", "faulty"}) {
    CAPTURE(name);
    CHECK(Subject(name, DType::kF64).slope_error() < kMostSlopeError);
  }
  for (const char* name : {"faulty slope", "faulty gain"})
    CHECK(Subject(name, DType::kF64).slope_error() > 100 * kMostSlopeError);
}

TEST_CASE("gradient check: slopes agree where single weights are 0, as after few steps") {
  Subject subject("resnet", DType::kF64);
  const Parameters& parameters = subject.model->graph.parameters();
  for (const Parameter& parameter : parameters.list()) {
    const std::span<double> values(parameter.value.ptr<double>(),
                                   static_cast<std::size_t>(parameter.value.elements()));
    if (std::ranges::all_of(values, [](double value) { return value == 0; })) values.front() = 0.01;
  }
  CHECK(subject.slope_error() < kMostSlopeError);
}

TEST_CASE("gradient check: weights are as before") {
  Subject subject("vit", DType::kF64);
  const Tensor& weights = subject.model->graph.parameters().values();
  const std::vector<double> before(weights.ptr<double>(),
                                   weights.ptr<double>() + weights.elements());
  subject.slope_error();
  subject.check({.draws = 2});
  CHECK(std::equal(before.begin(), before.end(), weights.ptr<double>()));
  subject.batch.values.pop_back();
  CHECK_THROWS_AS(subject.slope_error(), Error);
  CHECK(std::equal(before.begin(), before.end(), weights.ptr<double>()));
}
