#include "optim/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "tests/optim/trainer_fixture.h"
#include "tests/support/check_error.h"
#include "tests/support/fewer_cases.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

TEST_CASE("training lowers the loss, exactly and with VCAS", "[trainer]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).tau_act = vcas_of(options).tau_w = 0.1;
  options.method.type = GENERATE("vcas", "exact");
  options.total_steps = 200;
  TrainerFixture f(options);
  const auto reports = f.run(200);
  const auto mean_loss = [&](std::size_t first) {
    double sum = 0;
    for (std::size_t i = first; i < first + 20; ++i) sum += reports[i].loss / 20;
    return sum;
  };
  CHECK(mean_loss(180) < 0.8 * mean_loss(0));
  if (options.method.type == "vcas") CHECK(f.vcas().controller().probes() == 67);
}

TEST_CASE("probes leave no trace when the ratios stay at one", "[trainer][law]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.method.type = "exact";
  TrainerFixture exact(options, 0.1);
  options.method.type = "vcas";
  vcas_of(options).tau_act = vcas_of(options).tau_w = 0;  // no variance may be added
  vcas_of(options).probe = GENERATE("in_place", "separate");
  TrainerFixture probed(options, 0.1);
  exact.run(12);
  probed.run(12);
  CHECK(probed.vcas().controller().probes() == 4);
  CHECK(probed.weights() == exact.weights());
}

TEST_CASE("the probe's work in an exact step that it measures is timed apart", "[trainer]") {
  static constexpr double kLook = 0.15;  // of each of three kinds
  const auto look = [](double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  };
  TrainerFixture f(
      TrainerFixture::defaults(), 0,
      watched_ops([&](const ItemSketch&, const std::string&) { look(kLook / 8); },  // linears
                  [&](const ItemNorm&, const std::string&) { look(kLook / 2); },    // gates
                  [&](const Fill&, const std::string& place) {
                    if (place == "gradients/probe") look(kLook);
                  }));
  double backward = 0;
  for (const StepReport& report : f.run(2)) {
    REQUIRE(report.measured);
    backward += report.seconds.backward;
  }
  const double looks = f.ops->look_seconds();
  CHECK(looks >= 2 * 3 * kLook);
  CHECK(backward - looks < 2 * kLook);
}

// Both run every operation of exact and sampled steps and of probes; the first that differs throws.
TEST_CASE("device kernels train as the CPU does", "[trainer][device]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).tau_act = vcas_of(options).tau_w = 0.3;
  vcas_of(options).probe =
      GENERATE(from_range(cases_to_run<std::string>({"separate", "in_place"})));
  vcas_of(options).controller = GENERATE("paper", "budget");
  vcas_of(options).kept_items = "fixed";  // "auto" depends on the device
  TrainerFixture checked(options, 0.1, make_ops("check:emu,cpu"));
  CHECK_NOTHROW(checked.run(8));
  CHECK(checked.vcas().controller().probes() == 3);

  TrainerFixture on_emu(options, 0.1, make_ops("emu")), on_cpu(options, 0.1);
  const auto a = on_emu.run(8), b = on_cpu.run(8);
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i].loss - b[i].loss) <= 1e-4);
}

TEST_CASE("four micro-batches of eight train like one batch of 32", "[trainer]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.batch = 32;
  options.method.type = "exact";
  options.optimizer.kind.type = "sgd";
  TrainerFixture whole(options);
  options.micro_batch = 8;
  TrainerFixture parts(options);
  const auto a = whole.run(5), b = parts.run(5);
  const auto x = whole.weights(), y = parts.weights();
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(double(x[i]) - y[i]));
  CHECK(worst <= 1e-5);
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(std::abs(a[i].loss - b[i].loss) <= 1e-5);
    CHECK(a[i].accuracy == b[i].accuracy);
    CHECK(a[i].learning_rate == Schedule(options.schedule, options.total_steps)
                                    .learning_rate(static_cast<std::int64_t>(i)));
  }
}

TEST_CASE("a restored trainer goes on with the same bits", "[trainer]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).tau_act = vcas_of(options).tau_w = 0.2;
  vcas_of(options).probe = GENERATE("in_place", "separate");
  vcas_of(options).controller = GENERATE("paper", "budget");
  options.optimizer.max_gradient_norm = 0.2;
  options.optimizer.clip = "predicted";
  TrainerFixture whole(options, 0.1), first(options, 0.1), second(options, 0.1);
  whole.run(20);
  first.run(11);
  REQUIRE(first.trainer->at_rest());
  const auto copy = [](const Tensor& to, const Tensor& from) {
    std::copy_n(from.ptr<float>(), from.elements(), to.ptr<float>());
  };
  copy(second.model->graph.parameters().values(), first.model->graph.parameters().values());
  for (std::size_t i = 0; i < first.trainer->optimizer().state().size(); ++i)
    copy(second.trainer->optimizer().state()[i].tensor,
         first.trainer->optimizer().state()[i].tensor);
  second.trainer->restore(nlohmann::json::parse(first.trainer->state().dump()));
  second.run(20);
  CHECK(second.weights() == whole.weights());
  CHECK(second.vcas().controller().to_json() == whole.vcas().controller().to_json());
}

TEST_CASE("thresholds of another model, or of no sense, are not restored", "[trainer][error]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).controller = "budget";
  TrainerFixture f(options);
  f.run(3);
  nlohmann::json state = nlohmann::json::parse(f.trainer->state().dump());
  nlohmann::json& thresholds = state["method"]["state"]["thresholds"];
  REQUIRE(std::ssize(thresholds) == f.model->graph.gates());
  CHECK_NOTHROW(f.trainer->restore(state));
  for (const nlohmann::json& bad :
       {nlohmann::json(-1), {1.0, 0.0}, {-1.0, 0.0, 0.0}, {1.0, "high", 0.0}, {1.0, 0.0, -1.0}}) {
    thresholds[0] = bad;
    CHECK_THROWS_WITH(f.trainer->restore(state),
                      "a threshold in the state of VCAS is " + bad.dump());
  }
  thresholds.push_back({1.0, 0.0, 0.0});
  CHECK_THROWS_WITH(f.trainer->restore(state),
                    ContainsSubstring("thresholds of items, the model " +
                                      std::to_string(f.model->graph.gates()) + " gates"));
  // Thresholds of another batch are left out.
  state["method"]["state"]["batch"] = options.batch + 1;
  CHECK_NOTHROW(f.trainer->restore(state));
  const nlohmann::json restored = f.trainer->state();
  for (const nlohmann::json& threshold : restored["method"]["state"]["thresholds"])
    CHECK(threshold == nlohmann::json{0.0, 0.0, 0.0});

  // Fixed ratios have no state.
  vcas_of(options).act_ratio = vcas_of(options).weight_ratio = {0.5};
  const TrainerFixture fixed(options);
  const nlohmann::json without = fixed.trainer->state();
  REQUIRE(without["method"]["state"].is_null());
  CHECK_NOTHROW(f.trainer->restore(without));
}

TEST_CASE("a loss that is not finite stops before the weights change", "[trainer][error]") {
  TrainerFixture f(TrainerFixture::defaults());
  f.run(2);
  const auto before = f.weights();
  RandomBatches source(16);
  Batch bad = source.next();
  // The sum of a NaN may carry either sign; the text does not.
  bad.values[5] = std::copysign(std::numeric_limits<float>::quiet_NaN(), GENERATE(1.0f, -1.0f));
  CHECK_THAT(error_text([&] { f.trainer->step(bad); }, ExitCode::kDiverged),
             ContainsSubstring("step 3") && ContainsSubstring("loss is nan") &&
                 ContainsSubstring("weights unchanged"));
  CHECK(f.weights() == before);
}

TEST_CASE("a gradient that is not finite names its tensor", "[trainer][error]") {
  // Spoils every bias gradient.
  TrainerFixture f(TrainerFixture::defaults(), 0,
                   watched_ops([](const ColumnSum& args, const std::string&) {
                     args.sum.ptr<float>()[2] = std::numeric_limits<float>::infinity();
                   }));
  const auto before = f.weights();
  CHECK_THAT(error_text([&] { f.run(1); }, ExitCode::kDiverged),
             ContainsSubstring("step 1: gradient of vit.") &&
                 ContainsSubstring(".bias is inf at element 2") &&
                 ContainsSubstring("weights unchanged"));
  CHECK(f.weights() == before);
}

namespace {

struct Waits {
  std::int64_t ahead, at_the_end;  // of three steps that another follows, and of the last one
  bool operator==(const Waits&) const = default;
};

Waits waits_of_steps(const TrainerOptions& options, const std::string& device) {
  TrainerFixture f(options, 0.1, make_ops(device));
  RandomBatches source(options.batch);
  f.trainer->queue(source.next());
  f.ops->reset();
  for (int i = 0; i < 3; ++i) {
    f.trainer->queue(source.next());
    CHECK(f.trainer->full());
    CHECK(f.trainer->finish().step == i + 1);
  }
  const std::int64_t ahead = f.ops->waits();
  f.trainer->finish();
  return {ahead, f.ops->waits() - ahead};
}

}  // namespace

TEST_CASE("the host waits for no step that another follows", "[trainer]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.micro_batch = GENERATE(0, 8);
  for (const std::string device : {"cpu", "emu"}) {
    INFO(device << ", micro-batch " << options.micro_batch);
    options.method.type = "exact";
    CHECK(waits_of_steps(options, device) == Waits{0, 1});
    options.method.type = "vcas";
    vcas_of(options).act_ratio = {0.3, 0.6};
    vcas_of(options).weight_ratio = {0.5};
    vcas_of(options).selection = "systematic";
    CHECK(waits_of_steps(options, device) == Waits{0, 1});
    // Two gates and the linears of each of two blocks, in each micro-batch.
    vcas_of(options).selection = "bernoulli";
    CHECK(waits_of_steps(options, device) == Waits{3 * 2 * (options.micro_batch ? 2 : 1), 1});
  }
}

// docs/kernels.md, "Where the host waits".
TEST_CASE("what makes the host wait within a step", "[trainer]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.micro_batch = GENERATE(0, 8);
  const std::int64_t passes = 3 * (options.micro_batch ? 2 : 1);
  vcas_of(options).act_ratio = {0.3, 0.6};
  vcas_of(options).controller = "budget";
  for (const std::string device : {"cpu", "emu"}) {
    INFO(device << ", micro-batch " << options.micro_batch);
    TrainerOptions by_norm = options;
    vcas_of(by_norm).kept_items = "by_norm";
    for (const auto& [selection, each] : {std::pair{"systematic", 1}, {"bernoulli", 2}}) {
      vcas_of(by_norm).selection = selection;
      CHECK(waits_of_steps(by_norm, device).ahead == 2 * each * passes);
    }
    for (const auto& [type, each] :
         {std::pair{"uniform", 1}, {"selective_backprop", 2}, {"upper_bound", 2}}) {
      TrainerOptions at_logits = options;
      at_logits.method.type = type;
      INFO(type);
      CHECK(waits_of_steps(at_logits, device).ahead == each * passes);
    }
    TrainerOptions looks = options;
    looks.optimizer.skip_deviations = 6;
    CHECK(waits_of_steps(looks, device).ahead == 3);
  }
}

TEST_CASE("a step ahead of its report trains with the same bits", "[trainer]") {
  const TrainerOptions options = TrainerFixture::defaults();  // with probes
  TrainerFixture one(options, 0.1), ahead(options, 0.1);
  const std::vector<StepReport> want = one.run(10);
  RandomBatches source(options.batch);
  std::vector<StepReport> got;
  while (ahead.trainer->steps() < 10) {
    ahead.trainer->queue(source.next());
    CHECK(ahead.trainer->finished() == std::ssize(got));
    while (ahead.trainer->full()) got.push_back(ahead.trainer->finish());
  }
  CHECK_THROWS_WITH(ahead.trainer->state(),
                    "Trainer::state in the middle of a measurement or step");
  while (ahead.trainer->queued() > 0) got.push_back(ahead.trainer->finish());
  CHECK(ahead.weights() == one.weights());
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    CHECK(got[i].step == want[i].step);
    CHECK(got[i].loss == want[i].loss);
    CHECK(got[i].gradient_norm == want[i].gradient_norm);
    CHECK(got[i].probed == want[i].probed);
  }
}

TEST_CASE("steps after one that diverged leave the weights alone", "[trainer][error]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.method.type = "exact";
  TrainerFixture f(options);
  f.run(2);
  const auto before = f.weights();
  const nlohmann::json state = f.trainer->state();
  RandomBatches source(16);
  Batch bad = source.next();
  bad.values[5] = std::numeric_limits<float>::quiet_NaN();
  f.trainer->queue(bad);
  f.trainer->queue(source.next());
  CHECK_THROWS_WITH(f.trainer->finish(),
                    ContainsSubstring("step 3: loss is nan; weights unchanged"));
  CHECK(f.weights() == before);
  check_error([&] { f.trainer->finish(); }, ExitCode::kDiverged,
              "step 4: the gradient of an earlier step was not finite, and all later steps are "
              "left out",
              "give Trainer::restore the present Trainer::state, or an earlier one");
  CHECK(f.weights() == before);
  f.trainer->restore(GENERATE(false, true) ? state : f.trainer->state());
  f.trainer->step(source.next());
  CHECK(f.weights() != before);
}

TEST_CASE("evaluation changes nothing", "[trainer]") {
  TrainerOptions options = TrainerFixture::defaults();
  TrainerFixture plain(options, 0.1), looked(options, 0.1);
  plain.run(8);
  looked.run(4);
  RandomBatches source(16, 5000);
  for (int i = 0; i < 3; ++i) CHECK(looked.trainer->evaluate(source.next()).items == 16);
  looked.run(8);
  CHECK(looked.weights() == plain.weights());
}

TEST_CASE("evaluation drops nothing out, and refuses a loss that is not finite", "[trainer]") {
  const TrainerOptions options = TrainerFixture::defaults();
  TrainerFixture plain(options), dropping(options, 0.5);
  Batch batch = RandomBatches(16).next();
  CHECK(dropping.trainer->evaluate(batch).loss == plain.trainer->evaluate(batch).loss);
  batch.values[5] = NAN;
  check_error([&] { plain.trainer->evaluate(batch); }, ExitCode::kDiverged,
              "evaluation at step 0: loss is nan");
}

namespace {

// V_s and V_act of the sampled weights at the trainer's present weights and ratios.
// They come from batches of their own, and from all entries of the gradients.
// Neither the probe nor the controller has a part in them.
struct Variances {
  double v_s = 0, v_act = 0;
};

Variances measure_variances(TrainerFixture& f, std::int64_t first_batch) {
  constexpr int kBatches = 8, kDraws = 4;
  Graph& graph = f.model->graph;
  const Parameters& parameters = graph.parameters();
  const std::vector<Tensor> gradients = parameters.gradient_list();
  SampledBackward sampled(*f.ops, graph.plan());
  sampled.pass = f.vcas().sampling();
  sampled.pass.samples_rows = false;
  const auto gradient = [&](Exec& exec, BackwardHooks* hooks) {
    f.ops->run(Fill{.y = parameters.gradients(), .value = 0});
    graph.backward(exec, {.gradients = {gradients},
                          .loss_scale = 1.0 / static_cast<double>(f.options.batch),
                          .hooks = hooks});
    std::vector<double> out;
    for (const int weight : graph.sampled_weights()) {
      const Tensor& g = parameters[static_cast<std::size_t>(weight)].gradient;
      out.insert(out.end(), g.ptr<float>(), g.ptr<float>() + g.elements());
    }
    return out;
  };
  const auto squared_distance = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
  };

  RandomBatches source(f.options.batch, first_batch);
  Variances out;
  std::vector<std::vector<double>> exact;
  for (int i = 0; i < kBatches; ++i) {
    const Batch& batch = source.next();
    f.model->load(*f.ops, batch, 0, batch.items);
    Exec exec = graph.make_exec(99, static_cast<std::uint64_t>(first_batch + i), true);
    graph.forward(exec);
    exact.push_back(gradient(exec, nullptr));
    for (int draw = 0; draw < kDraws; ++draw) {
      sampled.pass.repeat = static_cast<std::uint32_t>(draw);
      out.v_act += squared_distance(gradient(exec, &sampled), exact.back()) / (kBatches * kDraws);
    }
    for (int j = 0; j < i; ++j)  // 1/(n-1) sum ||G_i - mean||^2, by pairs
      out.v_s +=
          squared_distance(exact[static_cast<std::size_t>(i)], exact[static_cast<std::size_t>(j)]) /
          (kBatches * (kBatches - 1));
  }
  return out;
}

}  // namespace

TEST_CASE("added variance settles near its budget", "[trainer][law]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.total_steps = 900;
  options.batch = 32;
  options.schedule.kind.type = "constant";
  options.schedule.learning_rate = 1e-3;
  vcas_of(options).tau_act = vcas_of(options).tau_w = 0.25;
  vcas_of(options).s_step = 0.02;
  TrainerFixture f(options);
  RandomBatches source(options.batch);
  double act = 0, variance = 0;
  while (!f.trainer->done()) {
    const StepReport report = f.trainer->step(source.next());
    if (report.step <= 450 || report.step % 25 != 0) continue;
    const Variances measured = measure_variances(f, 500000 + 100 * report.step);
    act += measured.v_act;
    variance += measured.v_s;
  }
  INFO("V_act / V_s " << act / variance << ", rho " << f.vcas().controller().act_ratio()[0]);
  CHECK(act / variance > 0.25 / 3);
  CHECK(act / variance < 0.25 * 3);
}

TEST_CASE("sampling from each micro-batch keeps the mean and the budgets", "[trainer][law]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.batch = 32;
  options.optimizer.kind.type = "sgd";
  options.schedule.learning_rate = 1e-30;  // the same weights at every step
  vcas_of(options).selection = GENERATE("systematic", "bernoulli");
  options.method.type = "exact";
  options.micro_batch = 8;
  RandomBatches source(options.batch);
  const Batch& batch = source.next();
  TrainerFixture unsampled(options);
  const auto gradient = [&](TrainerFixture& f) {
    f.trainer->step(batch);
    const Tensor& slab = f.model->graph.parameters().gradients();
    return std::vector<float>(slab.ptr<float>(), slab.ptr<float>() + slab.elements());
  };
  const auto exact = gradient(unsampled);

  options.method.type = "vcas";
  vcas_of(options).act_ratio = {0.25, 0.5};
  vcas_of(options).weight_ratio = {0.5};
  std::vector<std::int64_t> kept_items;  // of a step's four parts
  TrainerFixture sampling(options, 0, watched_ops([&](const Draw& args, const std::string&) {
                            if (args.key.stream == Stream::kGate)
                              kept_items.push_back(args.kept.elements());
                          }));
  constexpr int kSteps = repetitions(4096);
  const auto& list = sampling.model->graph.parameters().list();
  const float* slab = sampling.model->graph.parameters().gradients().ptr<float>();
  std::vector<double> sum(list.size()), squares(list.size());
  for (int step = 0; step < kSteps; ++step) {
    kept_items.clear();
    const auto sampled = gradient(sampling);
    for (std::size_t p = 0; p < list.size(); ++p) {
      double along = 0;  // the exact gradient, where a wrong scale shows
      const auto begin = static_cast<std::size_t>(list[p].gradient.ptr<float>() - slab);
      for (std::size_t i = begin; i < begin + static_cast<std::size_t>(list[p].shape.elements());
           ++i)
        along += (double{sampled[i]} - exact[i]) * exact[i];
      sum[p] += along;
      squares[p] += along * along;
    }
    // Backward draws at the upper gate first.
    if (vcas_of(options).selection == "systematic")
      CHECK(kept_items == std::vector<std::int64_t>{4, 2, 4, 2, 4, 2, 4, 2});
  }
  for (std::size_t p = 0; p < list.size(); ++p) {
    const double mean = sum[p] / kSteps;
    const double error = std::sqrt((squares[p] / kSteps - mean * mean) / kSteps);
    INFO(list[p].name << ": " << mean << " of standard error " << error);
    CHECK(std::abs(mean) <= 5 * error + 1e-9);
    if (list[p].name.starts_with("vit.encoder.layer.0.")) CHECK(error > 0);
  }
}

TEST_CASE("no random number is drawn twice in a run", "[trainer][law]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.micro_batch = 8;
  vcas_of(options).tau_act = vcas_of(options).tau_w = 1;
  vcas_of(options).s_step = 0.3;
  vcas_of(options).weight_multiplier = 0.7;
  vcas_of(options).probe = GENERATE("in_place", "separate");
  vcas_of(options).selection = GENERATE("systematic", "bernoulli");
  using Address = std::array<std::uint32_t, 4>;
  const auto address_of = [](const auto& args) {
    RandomKey key = args.key;
    key.step = static_cast<std::uint64_t>(*args.step.template ptr<std::int64_t>());
    // philox_address is one-to-one within these bounds only.
    REQUIRE(key.step < std::uint64_t{1} << 40);
    REQUIRE(key.site < 1u << 16);
    REQUIRE(key.repeat < 1u << 5);
    const PhiloxAddress a = philox_address(key);
    return Address{a.key0, a.key1, a.high0, a.high1};
  };
  std::set<Address> draws, dropout;
  std::map<std::pair<Stream, bool>, int> count;  // by stream, and whether in a probe's repeat
  bool repeated = false, foreign = false;
  // Forward draws; backward draws the same again.
  const auto drop = [&](const auto& args, const std::string& place) {
    if (args.p == 0) return;
    const bool is_new = dropout.insert(address_of(args)).second;
    repeated |= place.ends_with("/forward") && !is_new;
    foreign |= place.ends_with("/backward") && is_new;
  };
  TrainerFixture f(options, 0.1,
                   watched_ops(
                       [&](const Draw& args, const std::string&) {
                         repeated |= !draws.insert(address_of(args)).second;
                         ++count[{args.key.stream, args.key.repeat > 0}];
                       },
                       [&](const Dropout& args, const std::string& place) { drop(args, place); },
                       [&](const LayerNormForward& args, const std::string& place) {
                         drop(args.dropout, place);
                       },
                       [&](const LayerNormBackward& args, const std::string& place) {
                         drop(args.dropout, place);
                       }));
  f.run(24);
  CHECK_FALSE(repeated);
  CHECK_FALSE(foreign);
  CHECK(dropout.size() > 100);
  CHECK(count[{Stream::kGate, false}] > 10);
  CHECK(count[{Stream::kGate, true}] > 10);
  CHECK(count[{Stream::kWeight, false}] > 10);
  for (const Address& address : draws) CHECK_FALSE(dropout.contains(address));
}
