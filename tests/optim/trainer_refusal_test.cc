// What a trainer refuses, and how it goes on after a step that failed.
#include <limits>

#include "data/loader.h"
#include "optim/checkpoint.h"
#include "optim/gradient_check.h"
#include "optim/methods/item_choice.h"
#include "tests/core/temporary_folder.h"
#include "tests/optim/forward_fixture.h"
#include "tests/optim/linear_model.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

namespace {

TrainerOptions exact_options() {
  TrainerOptions options = TrainerFixture::defaults();
  options.method.type = "exact";
  return options;
}

Batch random_batch(std::int64_t items) { return RandomBatches(items).next(); }

}  // namespace

TEST_CASE("a batch larger than a step is refused", "[trainer][error]") {
  TrainerOptions options = exact_options();
  options.micro_batch = 8;
  TrainerFixture f(options);
  CHECK(config_error_of([&] { f.trainer->step(random_batch(24)); }) ==
        "a batch of 24 items, and steps have 16 | give Loader and Trainer the same batch");
  CHECK(config_error_of([&] { f.trainer->step({}); }) ==
        "a batch without items | give Trainer what Loader gives");
  CHECK(f.trainer->step(random_batch(16)).items == 16);
  CHECK(f.trainer->step(random_batch(3)).items == 3);
}

TEST_CASE("a model in f64 is neither trained nor evaluated", "[trainer][error]") {
  CHECK(config_error_of([] { TrainerFixture(exact_options(), 0, make_ops("cpu"), DType::kF64); }) ==
        "training and evaluation are in f32 or bf16, and the model is in f64 | f64 is for checks "
        "of gradients: build the model with another DType");
}

TEST_CASE("a step that failed between its micro-batches is forgotten", "[trainer][error]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.method = read_method(GENERATE(
      R"("type": "exact")", R"("type": "vcas", "controller": "paper", "update_every": 5)",
      R"("type": "vcas", "update_every": 5)",
      R"("type": "vcas", "act_ratio": [0.6], "kept_items": "by_norm")",
      R"("type": "selective_backprop")", R"("type": "upper_bound")", R"("type": "infobatch")"));
  options.micro_batch = 8;
  options.items = 16;
  int backwards = 0, bad = -1;
  TrainerFixture f(options, 0, watched_ops([&](const CrossEntropyBackward&, const std::string&) {
                     if (++backwards == bad) throw Error(ExitCode::kIoError, "unplugged");
                   }));
  TrainerFixture other(options);
  Batch batch = random_batch(16);
  batch.ids = numbers_to(16);
  for (const TrainerFixture* one : {&f, &other})
    if (ItemChooser* chooser = one->trainer->chooser())
      chooser->choose(0, batch.ids, std::vector<std::int64_t>(16, 1));
  for (int step = 0; step < 12; ++step) {
    for (int i = 0; i < 3; ++i) {
      bad = backwards + 2;
      CHECK_THROWS_WITH(f.trainer->step(batch), "unplugged");
    }
    CHECK(f.trainer->step(batch).loss == other.trainer->step(batch).loss);
    REQUIRE(f.weights() == other.weights());
  }
  REQUIRE(f.trainer->at_rest());
  CHECK(f.trainer->state() == other.trainer->state());
}

TEST_CASE("a batch has the numbers that the model reads", "[trainer][error]") {
  TrainerFixture f(exact_options());
  Batch batch = random_batch(16);
  batch.values.resize(batch.values.size() + 16);  // items of another width
  const auto numbers = std::to_string(batch.values.size());
  for (const auto& pass : std::vector<std::function<void()>>{[&] { f.trainer->step(batch); },
                                                             [&] { f.trainer->evaluate(batch); }})
    CHECK_THROWS_WITH(pass(), ContainsSubstring("a batch with " + numbers + " "));
}

TEST_CASE("a model is one that can be trained", "[trainer][error]") {
  struct Two final : Layer {
    explicit Two(NodePlan wanted) : plan_(std::move(wanted)) {}
    NodePlan plan(const PlanInput&) const override { return plan_; }
    void forward(Exec&, const ForwardIo&) const override {}
    void backward(Exec&, const BackwardIo&) const override {}
    NodePlan plan_;
  };
  const auto refusal = [](const ValueSpec& loss, const std::vector<SavedSpec>& saved,
                          bool has_other) {
    const auto ops = make_ops("cpu");
    Model model(DType::kF32);
    const Value x = model.graph.input("x", {4, Layout::items(1), DType::kF32});
    model.logits = model.graph.add("out", make_layer("linear", {{"width", 3}}), {x});
    model.loss = model.graph.add(
        "loss", std::make_unique<Two>(NodePlan{.output = loss, .saved = saved}), {model.logits});
    if (has_other)
      model.graph.add("other", std::make_unique<Two>(NodePlan{.output = loss}), {model.logits});
    model.graph.finish(*ops, {.max_items = 4});
    const std::string trainer = config_error_of([&] {
      Trainer(model, *ops,
              {.total_steps = 1, .batch = 4, .method = read_method(R"("type": "exact")")}, nullptr);
    });
    CHECK(config_error_of([&] { Evaluator(model, *ops); }) == trainer);
    return trainer;
  };
  const ValueSpec right = {1, Layout::items(1), DType::kF32};
  const SavedSpec hits = {1, Layout::items(1), DType::kI32};
  CHECK(refusal(right, {hits}, false) == "no error");
  CHECK(refusal(right, {hits}, true).starts_with("Model::loss is not the last node of the graph"));
  CHECK(refusal({1, Layout::items(1), DType::kF64}, {hits}, false) ==
        "loss is no f32 [terms, 1], as losses are | the layer's plan says so in `output` "
        "(docs/layer_api.md)");
  const std::string no_hits =
      "loss saves no i32 [terms, 1] of hits, which the accuracy is made of | set "
      "Model::has_accuracy to false, or save them as tensor 0";
  CHECK(refusal(right, {}, false) == no_hits);
  CHECK(refusal(right, {{1, Layout::items(1), DType::kF32}}, false) == no_hits);
  CHECK(refusal(right, {{1, Layout::items(2), DType::kI32}}, false) == no_hits);

  const auto ops = make_ops("cpu");
  const auto model = linear_model({});
  const auto trains = [&] {
    return config_error_of([&] {
      Trainer(*model, *ops,
              {.total_steps = 1, .batch = 4, .method = read_method(R"("type": "exact")")}, nullptr);
    });
  };
  CHECK(trains() ==
        "training or evaluation before Graph::finish | call finish once the graph is built");
  model->graph.finish(*ops, {.max_items = 4});
  CHECK(trains() == "no error");
  model->logits = {};
  CHECK_THAT(trains(), ContainsSubstring("Model::logits is not set | "));
}

TEST_CASE("a loss may have several terms an item", "[trainer]") {
  const auto ops = make_ops("cpu");
  Model model(DType::kF32);
  const auto zeros = [](std::int64_t width) {
    return [width, all = std::vector<float>()](const BatchPart& part) mutable {
      all.resize(static_cast<std::size_t>(3 * width * part.items));
      return std::as_bytes(std::span<const float>(all));
    };
  };
  const Value x = model.input("x", {4, Layout::items(3), DType::kF32}, zeros(4));
  const Value classes = model.input("classes", {1, Layout::items(3), DType::kI32}, zeros(1));
  model.logits = model.graph.add("out", make_layer("linear", {{"width", 5}}), {x});
  model.loss =
      model.graph.add("loss", make_layer("softmax_cross_entropy"), {model.logits, classes});
  model.graph.finish(*ops, {.max_items = 4});
  Trainer trainer(model, *ops,
                  {.total_steps = 1, .batch = 4, .method = read_method(R"("type": "exact")")},
                  nullptr);
  const Batch batch{.items = 4};
  CHECK(config_error_of([&] { trainer.step(batch); }) ==
        "the weights of the model are not set, and all are 0 | call Parameters::initialize after "
        "Graph::finish, or load weights");
  model.graph.parameters().initialize(*ops, 1);
  CHECK_THAT(trainer.step(batch).loss, WithinRel(std::log(5.0), 1e-6));
  CHECK_THAT(config_error_of([&] {
               check_forward_choice({.model = model, .ops = *ops, .batch = 4}, "mine", "do not");
             }),
             ContainsSubstring("mine: the loss has a term for each predicted word or part of an "
                               "item"));
}

TEST_CASE("weights that are not set are neither evaluated, checked nor saved", "[trainer][error]") {
  const auto ops = make_ops("cpu");
  const auto made = [&](DType dtype) {
    auto model =
        build_model(read_model_options({"type=mlp", "width=4", "depth=1"}), {6}, 3, 0, dtype);
    model->graph.finish(*ops, {.max_items = 4});
    return model;
  };
  const auto model = made(DType::kF32), wide = made(DType::kF64);
  const Batch batch{.items = 4, .values = std::vector<float>(24), .labels = {0, 1, 2, 0}};
  Trainer trainer(*model, *ops,
                  {.total_steps = 1, .batch = 4, .method = read_method(R"("type": "exact")")},
                  nullptr);
  const TemporaryFolder folder;
  for (const auto& act : std::vector<std::function<void()>>{
           [&] { trainer.evaluate(batch); }, [&] { check_sampling(*model, *ops, batch, 4, {}); },
           [&] { check_slopes(*wide, *ops, batch, 4, 1, 0); },
           [&] { save_checkpoint(folder.path() / "a", trainer, {}, {}); }})
    check_error(act, ExitCode::kBadConfig, "the weights of the model are not set, and all are 0",
                "call Parameters::initialize after Graph::finish, or load weights");
}

TEST_CASE("a state that is refused moves no step", "[trainer][error]") {
  TrainerFixture f(exact_options());
  f.trainer->step(random_batch(16));
  const nlohmann::json before = f.trainer->state();
  nlohmann::json state = before;
  state["step"] = state["optimizer_steps"] = 9;
  state["method"].erase("state");
  check_error([&] { f.trainer->restore(state); }, ExitCode::kBadData, "the state of a trainer: ");
  CHECK(f.trainer->state() == before);
}

TEST_CASE("options are those that a configuration could have", "[trainer][error]") {
  TrainerFixture f(exact_options());
  const auto refusal = [&](const std::function<void(TrainerOptions&)>& change) {
    TrainerOptions options = exact_options();
    change(options);
    return config_error_of([&] { Trainer(*f.model, *f.ops, options, nullptr); });
  };
  const auto says = [&](const char* text, const std::function<void(TrainerOptions&)>& change) {
    CHECK_THAT(refusal(change), ContainsSubstring(text));
  };
  says("TrainerOptions::total_steps is 0 | ", [](auto& o) { o.total_steps = 0; });
  says("optimizer.clip \"typo\" is not one of", [](auto& o) { o.optimizer.clip = "typo"; });
  says("schedule.learning_rate must be above 0", [](auto& o) { o.schedule.learning_rate = -1; });
  says("schedule.learning_rate is nan", [](auto& o) { o.schedule.learning_rate = std::nan(""); });
  says("optimizer.weight_decay must be", [](auto& o) { o.optimizer.weight_decay = -1; });
  says("schedule.learning_rate must be at most 1e+37",
       [](auto& o) { o.schedule.learning_rate = 1e39; });
  says("optimizer.weight_decay must be at most 1e+37",
       [](auto& o) { o.optimizer.weight_decay = 1e39; });
  says("schedule.warmup_ratio must be", [](auto& o) { o.schedule.warmup_ratio = 5; });
  says("a forward of 64 items, and the graph has room for 16 | ", [](auto& o) { o.batch = 64; });
  CHECK(refusal([](auto&) {}) == "no error");
  CHECK(config_error_of([] { Parameters().initialize(*make_ops("cpu"), 1); }) ==
        "Parameters::initialize of no parameters | call it after Graph::finish, of a graph whose "
        "layers have parameters");
}

TEST_CASE("an item to learn has a label", "[trainer][error]") {
  TrainerFixture f(exact_options());
  Batch batch = random_batch(16);
  batch.labels[5] = -1;
  CHECK_THROWS_WITH(f.trainer->step(batch), "item 5 has no label; training needs one");
  for (std::int64_t i = 0; i < 16; ++i) batch.ids.push_back(7 + i);
  check_whole_error([&] { f.trainer->step(batch); }, ExitCode::kBadData,
                    "item 12 has no label; training needs one",
                    "leave it out of the training data");
  CHECK_NOTHROW(f.trainer->evaluate(batch));
}

TEST_CASE("a method that leaves items out is asked for them", "[trainer][error]") {
  ForwardFixture f({.method = R"("type": "infobatch")"});
  Loader all(f.data, {.batch = f.settings.batch});
  CHECK(config_error_of([&] { f.trainer->step(all.next()); }) ==
        "method.type=infobatch leaves items out of batches, and no loader has asked it which | "
        "make the Loader with trainer.chooser()");
  CHECK_NOTHROW(f.run(1));
}

TEST_CASE("a step has items", "[trainer][error]") {
  const auto refusal = [](std::int64_t batch, std::int64_t micro_batch) {
    return config_error_of([&] { check_shares(batch, micro_batch, 1); });
  };
  CHECK(refusal(0, 0) == "train.batch_size must be above 0, got 0 | ");
  CHECK(refusal(8, -1) == "train.micro_batch must not be negative, got -1 | ");
  TrainerFixture f(exact_options());
  f.options.batch = 0;
  CHECK(config_error_of([&] { Trainer(*f.model, *f.ops, f.options, nullptr); }) == refusal(0, 0));
}

TEST_CASE("settings that only a program can spoil are refused at once", "[trainer][error]") {
  TrainerFixture f(exact_options());
  TrainerOptions options = TrainerFixture::defaults();
  const auto refusal = [&] {
    return config_error_of([&] { Trainer(*f.model, *f.ops, options, nullptr); });
  };
  SECTION("probes without batches") {
    vcas_of(options).probe = "separate";
    CHECK(refusal() ==
          "method.probe \"separate\" needs batches besides those of training | give the Trainer a "
          "probe_source, or set method.probe=in_place");
    vcas_of(options).act_ratio = {0.5, 0.5};  // nothing probes
    CHECK(refusal() == "no error");
  }
  SECTION("an unknown method") {
    options.method.type = "vacs";
    CHECK_THAT(refusal(), ContainsSubstring("method.type \"vacs\" is not one of: ") &&
                              ContainsSubstring("did you mean \"vcas\"?"));
  }
  SECTION("an unknown schedule") {
    options.schedule.kind.type = "cosin";
    CHECK_THAT(refusal(), ContainsSubstring("schedule.kind \"cosin\" is not one of: ") &&
                              ContainsSubstring("did you mean \"cosine\"?"));
  }
  const std::string kUnsettled =
      "\"2ep\": the steps of an epoch are not known here | MethodKind::settle turns those of a "
      "method into steps, Duration::steps(steps_per_epoch) any other";
  SECTION("a warm-up in epochs") {
    options.schedule.warmup_steps.set_text("2ep");
    CHECK(refusal() == kUnsettled);
  }
  SECTION("probes every few epochs") {
    vcas_of(options).update_every.set_text("2ep");
    CHECK(refusal() == kUnsettled);
    options.method->settle(10);
    CHECK(refusal() == "no error");
  }
}

TEST_CASE("a state has numbers of steps", "[trainer][error]") {
  TrainerFixture f(exact_options());
  f.run(2);
  const nlohmann::json good = f.trainer->state();
  for (const char* key : {"step", "optimizer_steps"})
    for (const nlohmann::json& value : std::vector<nlohmann::json>{
             -7, 2.5, 1e300, std::numeric_limits<std::int64_t>::max(), 1ull << 63, true, "2"}) {
      nlohmann::json bad = good;
      bad[key] = value;
      check_error([&] { f.trainer->restore(bad); }, ExitCode::kBadData,
                  std::string("the state of a trainer: \"") + key + "\" is " + value.dump() +
                      ", and no number of steps",
                  "take one that Trainer::state has made");
      CHECK(f.trainer->state() == good);
    }
  CHECK_THROWS_WITH(f.trainer->restore(nullptr), ContainsSubstring("the state of a trainer: "));
}

TEST_CASE("keep ratios are those of the graph", "[trainer][error]") {
  TrainerFixture f(exact_options());
  f.run(1);
  Graph& graph = f.model->graph;
  const std::vector<Tensor> gradients = graph.parameters().gradient_list();
  SampledBackward sampled(*f.ops, graph.plan());
  const auto refusal = [&](const KeepRatios& ratios) {
    sampled.pass.ratios = ratios;
    return config_error_of([&] {
      Exec exec = graph.make_exec(1, 0, true);
      graph.forward(exec);
      graph.backward(exec, {.gradients = {gradients}, .hooks = &sampled});
    });
  };
  const auto [act, weight] = equal_ratios(graph.plan(), 0.5, 0.5);
  CHECK(refusal(sampled.pass.ratios) == "no error");
  CHECK(refusal({act, weight}) == "no error");
  CHECK(refusal({{0.5}, weight}) ==
        "1 keep ratios, and the graph has 2 gates | set one for each in "
        "SampledBackward::pass.ratios");
  CHECK_THAT(refusal({act, {}}),
             ContainsSubstring("0 keep ratios, and the graph has " + std::to_string(weight.size()) +
                               " sampled linears"));
  CHECK(refusal({{0.5, 0}, weight}) ==
        "a keep ratio of 0 among those of the gates | it must be above 0 and at most 1");
  CHECK_THAT(refusal({act, std::vector<double>(weight.size(), 1.5)}),
             ContainsSubstring("a keep ratio of 1.5 among those of the sampled linears"));
}
