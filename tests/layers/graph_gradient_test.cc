// Gradients of graphs of other shapes than those of our models.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "layers/graph.h"
#include "optim/methods/sampled_backward.h"
#include "tests/support/check_layer.h"

using namespace vcas;

namespace {

constexpr std::int64_t kNetItems = 6, kNetRows = 4, kNetWidth = 6;

using Gradients = std::map<std::string, std::vector<double>>;

// Images of four pixels; `build` makes the values that are classified of them.
struct Net {
  std::unique_ptr<Ops> ops = make_ops("cpu");
  Graph graph{DType::kF64};
  std::vector<Tensor> gradients;

  explicit Net(const std::function<Value(Net&, Value x)>& build) {
    const Value x = graph.input("x", {kNetWidth, Layout::items(kNetRows), DType::kF64});
    const Value out = add("pool", make_layer("pool", {{"pooling", "mean"}}), {build(*this, x)});
    const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
    add("loss", make_layer("softmax_cross_entropy"), {out, labels});
    graph.finish(*ops, {.max_items = kNetItems});
    for (const Parameter& parameter : graph.parameters().list()) {
      const std::size_t seed = std::hash<std::string>()(parameter.name) % 1000;
      for (std::int64_t e = 0; e < parameter.shape.elements(); ++e)
        parameter.value.ptr<double>()[e] =
            philox_normal(philox_address({.seed = seed}), static_cast<std::uint64_t>(e)) / 2;
    }
    for (const Parameter& state : graph.parameters().state())
      ops->run(Fill{.y = state.value, .value = 1});
    graph.set_batch(kNetItems, {});
    const Tensor values = graph.tensor(x), classes = graph.tensor(labels);
    for (std::int64_t i = 0; i < values.elements(); ++i)
      values.ptr<double>()[i] = philox_normal(philox_address({}), i);
    for (std::int64_t i = 0; i < kNetItems; ++i)
      classes.ptr<std::int32_t>()[i] = static_cast<std::int32_t>(i % kNetWidth);
    gradients = graph.parameters().gradient_list();
  }

  Value add(const std::string& name, std::unique_ptr<Layer> layer,
            const std::vector<Value>& inputs) {
    return graph.add(name, std::move(layer), inputs);
  }
  Value linear(const std::string& name, Value x) {
    return add(name, make_layer("linear", {{"width", kNetWidth}}), {x});
  }

  // By name, in place of sevens.
  Gradients gradient(BackwardContext context = {}) {
    for (const Tensor& tensor : gradients) ops->run(Fill{.y = tensor, .value = 7});
    Exec exec = graph.make_exec(1, 0, true);
    graph.forward(exec);
    if (context.gradients.size() == 0) context.gradients = {gradients, false};
    graph.backward(exec, context);
    Gradients all;
    for (const Parameter& parameter : graph.parameters().list()) {
      const auto* first = parameter.gradient.ptr<double>();
      all[parameter.name].assign(first, first + parameter.shape.elements());
    }
    return all;
  }
  // Draws half the items.
  Gradients drawn() {
    SampledBackward sampled(*ops, graph.plan());
    sampled.pass.ratios = equal_ratios(graph.plan(), 0.5, 1);
    return gradient({.gradients = {}, .hooks = &sampled});
  }
};

// The largest of all that `few` has.
double distance(const Gradients& few, const Gradients& many) {
  double most = 0;
  for (const auto& [name, values] : few)
    for (std::size_t i = 0; i < values.size(); ++i)
      most = std::max(most, std::abs(values[i] - many.at(name)[i]));
  return most;
}

// y = x + bias, whose gradient of x is dy.
class Shift final : public Layer {
 public:
  explicit Shift(const LayerConfig&) {}
  NodePlan plan(const PlanInput& in) const override {
    return {.output = in.inputs[0],
            .parameters = {{"bias", {in.inputs[0].width}, {}, false}},
            .coupling = RowCoupling::kRows,
            .passes_gradient = {0},
            .computes_on_host = true};
  }
  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.dtype == DType::kF64 ? shift<double>(io) : shift<float>(io);
  }
  void backward(Exec& exec, const BackwardIo& io) const override {
    if (io.gradients[0])
      exec.ops.run(ColumnSum{.sum = io.gradients[0], .x = io.dy, .accumulate = true});
  }

 private:
  template <class T>
  void shift(const ForwardIo& io) const {
    for (std::int64_t i = 0; i < io.output.elements(); ++i)
      io.output.ptr<T>()[i] =
          io.inputs[0].ptr<T>()[i] + io.parameters[0].ptr<T>()[i % io.output.width()];
  }
};
VCAS_REGISTER_LAYER("shift", Shift);

}  // namespace

TEST_CASE("a batch norm that the loss does not depend on changes no drawn gradient", "[graph]") {
  const auto drawn = [](bool aside) {
    return Net([aside](Net& net, Value x) {
             const Value hidden = net.add("tanh", make_layer("tanh"), {net.linear("hidden", x)});
             if (aside) net.add("aside", make_layer("batch_norm"), {hidden});
             const Value out = net.linear("out", hidden);
             net.graph.gate(out);
             return out;
           })
        .drawn();
  };
  CHECK(distance(drawn(false), drawn(true)) == 0);
}

// A norm that follows a sum leaves its backward to that of the sum. Here the sum has more rows:
// those of echoes, by a batch norm that reads it too.
TEST_CASE("a norm and a batch norm read one sum", "[graph][echo]") {
  const auto drawn = [](bool follows) {
    return Net([follows](Net& net, Value x) {
             const Value a = net.linear("a", x), b = net.linear("b", x);
             const Value sum = net.add("sum", make_layer("dropout", {{"p", 0.2}}), {a, b});
             if (!follows) net.graph.input("between", {1, Layout::items(1), DType::kI32});
             const Value norm = net.add("norm", make_layer("layer_norm"), {sum});
             const Value other = net.add("batch_norm", make_layer("batch_norm"), {sum});
             const Value out = net.linear("out", net.add("add", make_layer("add"), {norm, other}));
             net.graph.gate(out);
             return out;
           })
        .drawn();
  };
  CHECK(distance(drawn(true), drawn(false)) < 1e-12);
}

TEST_CASE("a bucket waits for a norm that is left to a sum", "[graph][ranks]") {
  Net net([](Net& n, Value x) {
    const nlohmann::json settings = {{"width", kNetWidth}, {"bias", false}, {"sampled", false}};
    const auto linear = [&](const char* name, Value of) {
      return n.add(name, make_layer("linear", settings), {of});
    };
    const Value a = linear("a", x), b = linear("b", x);
    const Value sum = n.add("sum", make_layer("dropout", {{"p", 0.2}}), {a, b});
    return linear("out", n.add("norm", make_layer("layer_norm"), {sum}));
  });
  const auto buckets = net.graph.gradient_buckets(1);
  const Tensor& slab = net.graph.parameters().gradients();
  std::vector<double> told(static_cast<std::size_t>(slab.elements()));
  const auto note = [&](const GradientBucket& bucket) {
    std::copy(slab.ptr<double>() + bucket.begin, slab.ptr<double>() + bucket.end,
              told.begin() + bucket.begin);
  };
  net.gradient({.gradients = {}, .buckets = buckets, .on_bucket = note});
  CHECK(std::equal(told.begin(), told.end(), slab.ptr<double>()));
}

TEST_CASE("a saved tensor may have rows that no value has", "[graph]") {
  class Keeps final : public Layer {
   public:
    NodePlan plan(const PlanInput& in) const override {
      return {.output = in.inputs[0], .saved = {{.width = 2, .layout = Layout::items(3)}}};
    }
    void forward(Exec& exec, const ForwardIo& io) const override {
      exec.ops.run(Copy{.y = io.output, .x = io.inputs[0]});
      exec.ops.run(Fill{.y = io.saved[0], .value = 5});
    }
    void backward(Exec&, const BackwardIo&) const override {}
  };
  Value keeps;
  Net net([&](Net& n, Value x) { return keeps = n.add("keeps", std::make_unique<Keeps>(), {x}); });
  Exec exec = net.graph.make_exec(1, 0, true);
  net.graph.forward(exec);
  const Tensor saved = net.graph.saved(keeps, 0);
  CHECK(saved.rows() == 3 * kNetItems);
  CHECK(saved.ptr<float>()[saved.elements() - 1] == 5);
}

TEST_CASE("a norm computes the gradient of its gain or bias alone", "[graph]") {
  const std::string kind = GENERATE("layer_norm", "group_norm", "batch_norm");
  nlohmann::json settings = nlohmann::json::object();
  if (kind == "group_norm") settings["groups"] = 2;
  const bool above = GENERATE(false, true);  // a sum, to which a layer norm leaves its backward
  CAPTURE(kind, above);
  Net net([&](Net& n, Value x) {
    if (above) x = n.add("sum", make_layer("dropout", {{"p", 0.2}}), {n.linear("a", x), x});
    return n.add("norm", make_layer(kind, settings), {x});
  });
  const Gradients all = net.gradient();
  for (const char* left_out : {"norm.weight", "norm.bias"}) {
    const auto& list = net.graph.parameters().list();
    std::vector<Tensor> wanted = net.gradients;
    wanted[std::ranges::find(list, left_out, &Parameter::name) - list.begin()] = {};
    Gradients want = all;
    want[left_out].assign(kNetWidth, 7);
    CHECK(distance(want, net.gradient({.gradients = {wanted, false}})) == 0);
  }
}

TEST_CASE("a layer with parameters passes a gradient on and computes its own", "[graph][layer]") {
  check_layer({.kind = "shift", .inputs = {{.width = 5}}, .bf16 = false});
  Net net([](Net& n, Value x) {
    const Value y = n.linear("linear", x);
    return n.add("shift", make_layer("shift"), {y});
  });
  const Gradients got = net.gradient();
  CHECK(distance({{"shift.bias", got.at("linear.bias")}}, got) < 1e-15);
  CHECK(got.at("shift.bias")[0] != 0);
}
