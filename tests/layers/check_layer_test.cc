// A layer written in the test, right and with one fault at a time: check_layer must notice each.
#include "tests/support/check_layer.h"

#include <stdexcept>

using namespace vcas;

namespace {

// y = x * gain, one gain a column. With the fault "bends at 1" max(x, 1) is in place of x, with
// "is infinite at 0" it is 1 / x.
class FaultyGain final : public Layer {
 public:
  explicit FaultyGain(const LayerConfig& config) : fault_(config.get<std::string>("fault", "")) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("faulty_gain", in, {in.dtype});
    NodePlan plan;
    plan.output = in.inputs[0];
    plan.parameters = {{"gain", {in.inputs[0].width}, {Initializer::Kind::kConstant, 1}, false}};
    if (fault_ != "input is not kept") plan.saved_inputs = {0};
    plan.in_place = true;
    plan.computes_on_host = fault_ != "says nothing of its loops";
    plan.accumulates = fault_ == "says it accumulates" || fault_ == "adds in place alone" ||
                       fault_ == "changes what it adds";
    if (fault_ == "fills padding") plan.coupling = RowCoupling::kRows;
    if (fault_.ends_with("its state")) plan.state = {{.name = "seen", .shape = {1}}};
    plan.writes_norms = fault_ == "says it writes norms";
    if (fault_ == "saves no width") plan.saved = {{.width = 0}};
    if (fault_ == "names two parameters alike") plan.parameters.push_back(plan.parameters[0]);
    plan.writes_gradients = fault_ == "says it writes gradients" || fault_ == "adds to no rows";
    return plan;
  }

  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.dtype == DType::kF64 ? forward_as<double>(exec, io) : forward_as<float>(exec, io);
  }
  void backward(Exec& exec, const BackwardIo& io) const override {
    exec.dtype == DType::kF64 ? backward_as<double>(exec, io) : backward_as<float>(exec, io);
  }

 private:
  template <class T>
  void forward_as(Exec& exec, const ForwardIo& io) const {
    const std::int64_t width = io.output.width();
    T *x = io.inputs[0].ptr<T>(), *gain = io.parameters[0].ptr<T>(), *y = io.output.ptr<T>();
    if (fault_ == "leaves an evaluation out" && !exec.training) return;
    for (std::int64_t i = 0; i < io.output.elements(); ++i) y[i] = bent(x[i]) * gain[i % width];
    if (fault_ == "writes past the end") y[io.output.elements()] = 0;
    if (fault_ == "writes before the begin") y[-1] = 0;
    if (fault_ == "changes its state") *io.state[0].ptr<T>() += 1;
    if (fault_ == "gives another f32" && exec.dtype == DType::kF32) y[0] += 1;
    if (fault_ == "changes x in its forward") x[0] = 0;
    if (fault_ == "changes gain in its forward") gain[0] = 0;
    if (fault_ == "writes past its state" && exec.updates_state) io.state[0].ptr<T>()[1] = 7;
    if (fault_ == "reads its state" && exec.updates_state) y[0] += 1;
    if (fault_ == "spoils its state" && exec.updates_state) io.state[0].ptr<T>()[0] = T(0) / T(0);
    if (fault_ == "throws") throw std::out_of_range("no such entry");
    calls_ += fault_ == "keeps what forward saw" ? 1 : 0;
    if (fault_ == "takes scratch unplanned") exec.scratch.take(exec.dtype, {1});
  }

  template <class T>
  T bent(T x) const {
    if (fault_ == "is infinite at 0") return 1 / x;
    return fault_ == "bends at 1" ? std::max(x, T(1)) : x;
  }

  template <class T>
  void backward_as(Exec& exec, const BackwardIo& io) const {
    const RowSet& rows = io.rows.of(io.input_specs[0].layout);
    const auto* row = rows.row.ptr<std::int32_t>();
    const std::int64_t width = io.dy.width();
    const T *x_full = io.inputs_full[0].ptr<T>(), *gain = io.parameters[0].ptr<T>();
    T *dy = io.dy.ptr<T>(), *dx = io.dx[0].ptr<T>(), *dgain = io.gradients[0].ptr<T>();
    if (fault_ == "overwrites gradients" && dgain) std::fill(dgain, dgain + width, T(0));
    if (fault_ == "adds to no rows" && dgain && !io.gradients.adds && rows.rows)
      std::fill(dgain, dgain + width, T(0));
    const bool adds_in_place = fault_ == "adds in place alone" && dx && io.added[0];
    const bool adds = fault_ == "changes what it adds" && dx && io.added[0];
    T* added = adds ? io.added[0].ptr<T>() : nullptr;
    if (added && added != dx) std::copy_n(added, rows.rows * width, dx);
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      const std::int64_t compact = std::min(r, io.inputs_full[0].rows() - 1);
      const std::int64_t full = row && fault_ != "reads compact rows" ? row[r] : compact;
      for (std::int64_t c = 0; c < width; ++c) {
        // dy is read before dx is written: then dx may be the memory of dy.
        const T d = dy[r * width + c];
        const T x = x_full[full * width + c];
        const T slope = fault_ == "bends at 1" && x <= 1 ? T(0) : T(1);
        const std::int64_t to = fault_ == "writes dx at full rows" ? full : r;
        const T before = adds_in_place || added ? dx[to * width + c] : T(0);
        const T slope_of_x = fault_ == "forgets the gain" ? T(1) : slope * gain[c];
        if (dx) dx[to * width + c] = before + d * slope_of_x;
        if (dgain) dgain[c] += (fault_ == "reads dy late" ? dy[r * width + c] : d) * bent(x);
      }
    }
    if (fault_ == "keeps what forward saw" && calls_ == 0 && dx && rows.rows) dx[0] = 0;
    if (fault_ == "depends on the call" && dx && rows.rows) dx[0] += static_cast<T>(++calls_);
    if (fault_ == "mixes items" && dx && rows.rows) dx[0] += dy[rows.rows * width - 1];
    if (fault_ == "changes dy" && rows.rows) dy[0] = 0;
    if (fault_ == "changes its input") io.inputs_full[0].ptr<T>()[0] = 0;
    if (fault_ == "needs dx" && !dx && dgain) dgain[0] = 0;
    if (fault_ == "needs gradients" && !dgain && dx && rows.rows) dx[0] = 0;
    if (fault_ == "takes items for unequal" && io.input_specs[0].layout.fixed() && dx && rows.rows)
      dx[0] = 0;
    if (fault_ == "is wrong in f32" && exec.dtype == DType::kF32 && dx && rows.rows) dx[0] += 1;
    if (fault_ == "output is not kept" && dx && rows.rows)
      dx[0] += 0 * io.output_full.ptr<T>()[0];  // NaN
    if (added && added != dx && rows.rows) added[0] = 0;
    if (fault_ == "fills padding" && dx && rows.rows > rows.offsets.ptr<std::int64_t>()[rows.items])
      dx[rows.rows * width - 1] = 1;
    if (fault_ == "counts padding" && dgain)
      dgain[0] += static_cast<T>(rows.rows - rows.offsets.ptr<std::int64_t>()[rows.items]);
    if (fault_ == "reads dy of kept rows again" && row && dx)
      for (std::int64_t i = 0; i < rows.rows * width; ++i) dx[i] = dy[i] * gain[i % width];
  }

  std::string fault_;
  mutable int calls_ = 0;
};

VCAS_REGISTER_LAYER("faulty_gain", FaultyGain);

// Leaves out what echoes stand for.
class ForgetsEchoes final : public Layer {
 public:
  explicit ForgetsEchoes(const LayerConfig&) : inner_(make_layer("batch_norm")) {}
  NodePlan plan(const PlanInput& in) const override {
    NodePlan plan = inner_->plan(in);
    plan.writes_norms = false;
    return plan;
  }
  void forward(Exec& exec, const ForwardIo& io) const override { inner_->forward(exec, io); }
  void backward(Exec& exec, const BackwardIo& io) const override {
    inner_->backward(exec, io);
    const std::int64_t kept = io.dy.rows();
    if (io.dx[0] && io.dx[0].rows() > kept)
      exec.ops.run(Fill{.y = rows_from(io.dx[0], kept), .value = 0});
  }

 private:
  std::unique_ptr<Layer> inner_;
};

VCAS_REGISTER_LAYER("forgets_echoes", ForgetsEchoes);

std::string faults_of(const std::string& fault, const std::vector<double>& kinks = {},
                      const std::string& device = "cpu") {
  std::string all;
  for (const std::string& text : layer_faults({.kind = "faulty_gain",
                                 .config = {{"fault", fault}},
                                 .inputs = {{.width = 24, .kinks = kinks}},
                                 .device = device,
                                 .bf16 = false}))
    all += text + "\n";
  return all;
}

}  // namespace

TEST_CASE("faulty_gain", "[layer]") {
  check_layer({.kind = "faulty_gain", .inputs = {{.width = 24}}, .bf16 = false}, host_devices());
}

TEST_CASE("no input lies on a kink that is named", "[check_layer]") {
  CHECK(faults_of("bends at 1").find("finite differences, dx of input 0") != std::string::npos);
  CHECK(faults_of("bends at 1", {1}).empty());
}

TEST_CASE("loops that a device would not repeat are a fault", "[check_layer]") {
  CHECK(faults_of("", {}, "emu").empty());
  CHECK_THAT(faults_of("says nothing of its loops", {}, "emu"),
             ContainsSubstring("a pass that the device repeats gives other bits"));
}

TEST_CASE("a case without numbers is a fault", "[check_layer]") {
  const std::string fault =
      "the case has no items or numbers: it needs tokens, and inputs of a width";
  for (const LayerCase& test : {LayerCase{.kind = "gelu", .inputs = {{.width = 0}}},
                                LayerCase{.kind = "gelu", .inputs = {}},
                                LayerCase{.kind = "gelu", .inputs = {{}}, .tokens = {}}})
    CHECK(layer_faults(test) == std::vector<std::string>{fault});
  for (const auto& [tokens, masked] :
       std::vector<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>>{
           {{0, 0}, {1, 1}}, {{4, -1, 2}, {1, 1, 1}}, {{4, 2}, {1}}, {{4, 2}, {0, 0}}})
    CHECK(layer_faults({.kind = "gelu", .inputs = {{}}, .tokens = tokens, .masked = masked}) ==
          std::vector<std::string>{"tokens and masked have a number of rows for each item: none is "
                                   "below 0, and not all are 0"});
}

TEST_CASE("a loss whose case does not say so is told to", "[check_layer]") {
  LayerCase test{.kind = "softmax_cross_entropy",
                 .inputs = {{.width = 3, .layout = Layout::items(1)},
                            {.layout = Layout::items(1), .integers = 3}}};
  const std::vector<std::string> faults = layer_faults(test);
  REQUIRE(faults.size() > 1);
  CHECK(faults.back() == "a loss needs .loss = true");
  test.loss = true;
  CHECK(layer_faults(test).empty());
}

TEST_CASE("whatever a layer throws is a fault", "[check_layer]") {
  CHECK(faults_of("throws") == "no such entry\n");
}

TEST_CASE("a layer that mixes items has a dx of echoes", "[check_layer]") {
  const std::vector<std::string> faults =
      layer_faults({.kind = "forgets_echoes", .inputs = {{.width = 3}}});
  REQUIRE_FALSE(faults.empty());
  for (const std::string& fault : faults)
    CHECK_THAT(fault, ContainsSubstring(" echoes, dx of input 0"));
}

TEST_CASE("an output that is not its formula's is a fault", "[check_layer]") {
  const auto twice = [](const LayerValues& values) {
    std::vector<double> y = values.inputs[0];
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= 2 * values.parameters[0][i % 24];
    return y;
  };
  const std::vector<std::string> faults = layer_faults(
      {.kind = "faulty_gain", .inputs = {{.width = 24}}, .bf16 = false, .formula = twice});
  REQUIRE_FALSE(faults.empty());
  CHECK_THAT(faults[0], ContainsSubstring("output against its formula"));
}

TEST_CASE("check_layer notices every fault", "[check_layer]") {
  const auto [fault, message] = GENERATE(table<std::string, std::string>({
      {"input is not kept", "finite differences, gradient of gain"},
      {"reads dy late", "in place of dy gives other bits"},
      {"says it accumulates", "gradients added to what was there"},
      {"writes past the end", "memory beside a tensor was written"},
      {"writes before the begin", "memory beside a tensor was written"},
      {"writes dx at full rows", "memory beside a tensor was written"},
      {"changes its state", "forward changes a state that it may not update"},
      {"changes what it adds", "backward changes what it adds to dx"},
      {"output is not kept", "finite differences, dx of input 0"},
      {"fills padding", "dx of padding is not 0, but the plan says that rows are independent"},
      {"gives another f32", "output against f64"},
      {"saves no width", "FaultyGain): saved.width is 0, and must be at least 1"},
      {"names two parameters alike", "two parameters are called \"gain\""},
      {"keeps what forward saw", "finite differences, dx of input 0"},
      {"takes scratch unplanned", "scratch of 0 bytes is too small"},
      {"overwrites gradients", "gradients added to what was there, gradient of gain"},
      {"reads compact rows", "backward on 1 kept items, gradient of gain"},
      {"forgets the gain", "finite differences, dx of input 0"},
      {"depends on the call", "backward twice gives different bits"},
      {"mixes items", "dx of an item depends on dy of another"},
      {"changes dy", "backward changes dy"},
      {"changes x in its forward", "forward changes inputs or parameters"},
      {"changes gain in its forward", "forward changes inputs or parameters"},
      {"leaves an evaluation out", "forward leaves numbers of the output out where !exec.training"},
      {"writes past its state", "memory beside a tensor was written"},
      {"reads its state", "forward has another output where it updates a state"},
      {"spoils its state", "forward leaves a state that is not finite"},
      {"is infinite at 0", "with rows of zeros behind the last item, gradient of gain"},
      {"changes its input", "backward changes inputs"},
      {"needs dx", "gradients change where dx of input 0 is not wanted"},
      {"needs gradients", "dx changes where parameter gradients are not wanted"},
      {"takes items for unequal", "finite differences, dx of input 0"},
      {"is wrong in f32", "against f64, dx of input 0"},
      {"counts padding", "kept items, with padding, gradient of gain"},
      {"reads dy of kept rows again", "kept items in place gives other bits"},
      {"adds in place alone", "gradients added to others, dx of input 0"},
      {"says it writes gradients", "parameter gradients that are replaced get other bits"},
      {"adds to no rows", "backward on 0 kept items, replacing, gradient of gain"},
      {"says nothing of its loops", "numbers come from loops of the layer's own"},
      {"says it writes norms", "output_norm: entry 0"},
      {"says it writes norms", "dx_norm: entry 0"},
  }));
  INFO(fault);
  CHECK_THAT(faults_of(fault), ContainsSubstring(message));
}
