// The state of a layer (NodePlan::state) in training, evaluation, checkpoints and exports.
#include "models/blocks.h"
#include "models/hf_format.h"
#include "models/weights_io.h"
#include "optim/checkpoint.h"
#include "tests/core/temporary_folder.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/check_layer.h"
#include "tests/support/model_fixture.h"
#include "tests/support/thread_ranks.h"

namespace fs = std::filesystem;
using namespace vcas;

namespace {

constexpr std::int64_t kWidth = 8, kClasses = 4, kItems = 16;
constexpr double kStart = 0.25;

// y = x - m. Then m moves half of the way to the mean row of x.
class Center final : public Layer {
 public:
  explicit Center(const LayerConfig&) {}

  NodePlan plan(const PlanInput& in) const override {
    check_inputs("center", in, {in.dtype});
    NodePlan plan;
    plan.output = in.inputs[0];
    plan.state = {{"mean", {in.inputs[0].width}, {Initializer::Kind::kConstant, kStart}}};
    plan.passes_gradient = {0};
    plan.computes_on_host = true;
    return plan;
  }
  void forward(Exec& exec, const ForwardIo& io) const override {
    exec.dtype == DType::kF64 ? forward_as<double>(exec, io) : forward_as<float>(exec, io);
  }
  void backward(Exec&, const BackwardIo&) const override {}

 private:
  template <class T>
  void forward_as(Exec& exec, const ForwardIo& io) const {
    const std::int64_t rows = io.output.rows(), width = io.output.width();
    const T* x = io.inputs[0].ptr<T>();
    T *y = io.output.ptr<T>(), *mean = io.state[0].ptr<T>();
    for (std::int64_t c = 0; c < width; ++c) {
      double sum = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        y[r * width + c] = x[r * width + c] - mean[c];
        sum += x[r * width + c];
      }
      if (exec.updates_state) mean[c] = static_cast<T>((mean[c] + sum / double(rows)) / 2);
    }
  }
};

VCAS_REGISTER_LAYER("center", Center);

class Centered final : public ModelKind, public HfFormat {
 public:
  void fields(Setting&) {}
  void build(Model& model, const std::vector<std::int64_t>& item_shape, std::int64_t classes,
             double label_smoothing) const override {
    Graph& graph = model.graph;
    Value x =
        graph.add("center", make_layer("center"), {add_values(model, item_shape, graph.dtype())});
    x = add_linear(graph, "dense", kWidth, x);
    graph.gate(x);
    add_classifier(model, x, classes, label_smoothing);
  }

  HfFormat* hugging_face() override { return this; }
  std::vector<std::string> model_types() const override { return {"centered"}; }
  void read(const HfConfig&, HfModel&) override {}
  nlohmann::ordered_json write(const HfModel&) const override { return {{"model_type", "x"}}; }
  std::string architecture() const override { return "Centered"; }
  std::vector<std::string> architectures_without_classifier() const override { return {}; }
  std::string current_name(std::string name) const override { return name; }
};

VCAS_REGISTER_PART(ModelKind, "centered", Centered);

struct CenteredRun {
  ModelOptions model_options = read_model_options({"type=centered"});
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
  std::unique_ptr<Trainer> trainer;

  explicit CenteredRun(TrainerOptions options = {.total_steps = 40, .batch = kItems},
                       const std::string& device = "cpu")
      : ops(make_ops(device)) {
    model = build_model(model_options, {kWidth}, kClasses, 0.0);
    model->graph.finish(*ops, {.max_items = kItems, .ranks = options.ranks->size()});
    model->graph.parameters().initialize(*ops, 1);
    trainer = std::make_unique<Trainer>(*model, *ops, options, [](std::int64_t first) {
      return std::make_unique<RandomBatches>(kItems, 1000 + first, Place{}, kWidth);
    });
  }

  void run(std::int64_t until) {
    RandomBatches batches(kItems, trainer->steps(), {}, kWidth);
    while (trainer->steps() < until) trainer->step(batches.next());
  }
  std::vector<float> stored() const { return stored_numbers(*model); }
  std::vector<float> state() const {
    const std::vector<float> all = stored();
    return {all.end() - kWidth, all.end()};
  }
};

}  // namespace

TEST_CASE("a layer with a state passes the test of layers", "[layer][state]") {
  check_layer({.kind = "center", .inputs = {{.width = 5}}, .bf16 = false}, host_devices());
}

TEST_CASE("forwards of training alone bring a state up to date", "[trainer][state]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.micro_batch = GENERATE(0, 8);
  vcas_of(options).probe = GENERATE("in_place", "separate");
  CenteredRun run(options, GENERATE(from_range(host_devices())));
  CHECK(run.state() == std::vector<float>(kWidth, float(kStart)));
  constexpr std::int64_t kSteps = 8;
  run.run(kSteps);
  REQUIRE(vcas_of(*run.trainer).controller().probes() >= 2);
  RandomBatches batches(kItems, 0, {}, kWidth);
  run.trainer->evaluate(batches.next());

  std::vector<double> want(kWidth, kStart);
  RandomBatches again(kItems, 0, {}, kWidth);
  const std::int64_t rows = options.micro_batch ? options.micro_batch : kItems;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Batch& batch = again.next();
    for (std::int64_t first = 0; first < kItems; first += rows)
      for (std::int64_t c = 0; c < kWidth; ++c) {
        double mean = 0;
        for (std::int64_t r = first; r < first + rows; ++r)
          mean += batch.values[r * kWidth + c] / static_cast<double>(rows);
        want[c] = (want[c] + mean) / 2;
      }
  }
  const std::vector<float> got = run.state();
  for (std::int64_t c = 0; c < kWidth; ++c) CHECK_THAT(got[c], WithinAbs(want[c], 1e-6));
}

TEST_CASE("ranks have the mean of their states", "[trainer][state][ranks]") {
  std::vector<std::vector<float>> states(2);
  on_thread_ranks(2, [&](std::shared_ptr<Ranks> own) {
    TrainerOptions options{.total_steps = 40, .batch = kItems};
    options.method.type = "exact";
    options.ranks = own;
    CenteredRun run(options);
    RandomBatches share(kItems, 0, own->place(), kWidth);
    run.trainer->step(share.next());
    states[static_cast<std::size_t>(own->place().rank)] = run.state();
  });
  RandomBatches whole(kItems, 0, {}, kWidth);
  const Batch& batch = whole.next();
  for (std::int64_t c = 0; c < kWidth; ++c) {
    double mean = 0;
    for (std::int64_t n = 0; n < kItems; ++n) mean += batch.values[n * kWidth + c] / double(kItems);
    for (const std::vector<float>& state : states)
      CHECK_THAT(state[c], WithinAbs((kStart + mean) / 2, 1e-6));
  }
}

TEST_CASE("a checkpoint restores a state to the bit", "[trainer][state]") {
  const TemporaryFolder folder;
  CenteredRun whole, first, second;
  whole.run(9);
  first.run(7);
  save_checkpoint(folder.path() / "checkpoint", *first.trainer, first.trainer->state(), {});
  second.trainer->restore(load_checkpoint(folder.path() / "checkpoint", *second.trainer));
  CHECK(second.state() == first.state());
  second.run(9);
  CHECK(second.stored() == whole.stored());
}

TEST_CASE("an export has the state beside the parameters", "[trainer][state]") {
  const TemporaryFolder folder;
  CenteredRun run, other;
  run.run(3);
  save_hf_model(folder.path(), {.options = run.model_options}, *run.model, *run.ops);
  const fs::path file = folder.path() / "model.safetensors";
  CHECK(load_hf_weights(file, other.model_options, *other.model, *other.ops).loaded == 5);
  CHECK(other.stored() == run.stored());
}

TEST_CASE("a state is no parameter, and f32 in bf16 too", "[trainer][state]") {
  const auto ops = make_ops("emu");
  const auto model =
      build_model(read_model_options({"type=centered"}), {kWidth}, kClasses, 0.0, DType::kBF16);
  model->graph.finish(*ops, {.max_items = kItems});
  const Parameters& parameters = model->graph.parameters();
  REQUIRE(parameters.state().size() == 1);
  CHECK(parameters.state()[0].name == "center.mean");
  CHECK(parameters.state()[0].value.dtype == DType::kF32);
  CHECK(parameters.count() == kWidth * kWidth + kWidth + kClasses * kWidth + kClasses);
  CHECK(parameters.gradient_list().size() == 4);
}
