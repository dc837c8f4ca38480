// Gradients of a layer that shares memory as its plan says.
#include "layers/graph.h"
#include "tests/support/check_layer.h"

using namespace vcas;

namespace {

// y = 3 a + b.
class Weighted final : public Layer {
 public:
  explicit Weighted(const LayerConfig& config)
      : in_place_(config.get("in_place", false)),
        accumulates_(config.get("accumulates", false)),
        passes_(config.get("passes", false)) {}
  NodePlan plan(const PlanInput& in) const override {
    NodePlan plan{.output = in.inputs[0],
                  .accumulates = accumulates_,
                  .in_place = in_place_,
                  .computes_on_host = true};
    if (passes_) plan.passes_gradient = {1};
    return plan;
  }
  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.dtype == DType::kF64 ? add<double>(io) : add<float>(io);
  }
  void backward(Exec& exec, const BackwardIo& io) const override {
    exec.dtype == DType::kF64 ? share<double>(io) : share<float>(io);
  }

 private:
  template <class T>
  void add(const ForwardIo& io) const {
    const auto *a = io.inputs[0].ptr<T>(), *b = io.inputs[1].ptr<T>();
    for (std::int64_t i = 0; i < io.output.elements(); ++i) io.output.ptr<T>()[i] = 3 * a[i] + b[i];
  }
  // Input 1 comes first: its sum must not be the memory of dx[0].
  template <class T>
  void share(const BackwardIo& io) const {
    for (std::int64_t i = 0; i < io.dy.elements(); ++i) {
      const T dy = io.dy.ptr<T>()[i];
      for (const std::size_t j : {1u, 0u}) {
        if (!io.dx[j] || (j == 1 && passes_)) continue;
        const T added = io.added[j] ? io.added[j].ptr<T>()[i] : 0;
        io.dx[j].ptr<T>()[i] = added + (j == 0 ? 3 : 1) * dy;
      }
    }
  }

  bool in_place_, accumulates_, passes_;
};
VCAS_REGISTER_LAYER("weighted", Weighted);

// The layer reads two values, or one twice. `again`: others read them too.
std::vector<double> gradients(const nlohmann::json& sharing, bool twice, bool again) {
  const auto ops = make_ops("cpu");
  Graph graph(DType::kF64);
  const Value x = graph.input("x", {4, Layout::items(1), DType::kF64});
  const Value labels = graph.input("labels", {1, Layout::items(1), DType::kI32});
  const auto linear = [&](const char* name) {
    return graph.add(name, make_layer("linear", {{"width", 4}}), {x});
  };
  const auto sum = [&](const char* name, Value a, Value b) {
    return graph.add(name, make_layer("add"), {a, b});
  };
  const Value a = linear("a"), b = twice ? a : linear("b");
  Value y = graph.add("mine", make_layer("weighted", sharing), {a, b});
  if (again) y = sum("sum", sum("ab", a, b), y);
  graph.add("loss", make_layer("softmax_cross_entropy"), {y, labels});
  graph.finish(*ops, {.max_items = 3});
  graph.parameters().initialize(*ops, 1);
  graph.set_batch(3, {});
  for (int i = 0; i < 12; ++i) graph.tensor(x).ptr<double>()[i] = i % 5 - 1.5;
  Exec exec = graph.make_exec(1, 0, true);
  graph.forward(exec);
  graph.backward(exec, {.gradients = {graph.parameters().gradient_list()}});
  const Tensor& all = graph.parameters().gradients();
  return {all.ptr<double>(), all.ptr<double>() + all.elements()};
}

}  // namespace

TEST_CASE("gradients are the same whatever memory a plan lets a layer share", "[graph][layer]") {
  const bool in_place = GENERATE(false, true), accumulates = GENERATE(false, true),
             passes = GENERATE(false, true);
  const nlohmann::json sharing = {
      {"in_place", in_place}, {"accumulates", accumulates}, {"passes", passes}};
  CAPTURE(sharing);
  check_layer({.kind = "weighted",
               .config = sharing,
               .inputs = {{.width = 3}, {.width = 3}},
               .bf16 = false});
  for (const bool twice : {false, true})
    for (const bool again : {false, true}) {
      CAPTURE(twice, again);
      const std::vector<double> want = gradients(nlohmann::json::object(), twice, again),
                                got = gradients(sharing, twice, again);
      CHECK(std::ranges::any_of(want, [](double g) { return std::abs(g) > 1e-3; }));
      for (std::size_t i = 0; i < want.size(); ++i) CHECK(std::abs(got[i] - want[i]) < 1e-13);
    }
}
