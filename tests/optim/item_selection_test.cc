// Methods that choose items: their laws, against naive computations, and what they refuse.
#include "optim/methods/item_selection.h"

#include <fmt/format.h>

#include <map>
#include <random>

#include "optim/checkpoint.h"
#include "tests/core/temporary_folder.h"
#include "tests/optim/forward_fixture.h"
#include "tests/optim/linear_model.h"
#include "tests/support/catch.h"
#include "tests/support/fewer_cases.h"

using namespace vcas;

namespace {

const std::string kUniform = R"("type": "uniform", "keep": 0.3)";
const std::string kBernoulli = R"("type": "uniform", "keep": 0.3, "selection": "bernoulli")";
const std::string kUniformForward = R"("type": "uniform", "keep": 0.3, "forward": true)";
const std::string kHistory = R"("type": "selective_backprop", "history": 40)";
const std::string kRank = R"("type": "selective_backprop", "keep": 0.35, "selection": "rank")";
const std::string kUpperBound = R"("type": "upper_bound", "keep": 0.4)";
const std::string kSwitched = R"("type": "upper_bound", "tau_threshold": 0.5)";
const std::string kInfoBatch = R"("type": "infobatch")";

// Tells which items other hooks keep at the gate below the loss, and by what they scale them.
class Spy final : public BackwardHooks {
 public:
  explicit Spy(BackwardHooks* inner) : inner_(inner) {}

  std::map<std::int32_t, double> kept;  // item -> scale; empty: all, by 1

  void begin(Exec& exec) override { inner_->begin(exec); }
  std::span<const RowSets> at_gate(Exec& exec, const GateSite& site, Gradient& gradient,
                                   const RowSets& rows) override {
    const std::span<const RowSets> left = inner_->at_gate(exec, site, gradient, rows);
    const RowSet& own = left.front().of(site.layout);
    const auto item = to_host<std::int32_t>(exec.ops, own.item);
    const auto scale = to_host<float>(exec.ops, own.scale);
    kept.clear();
    for (std::size_t i = 0; i < item.size(); ++i) kept[item[i]] = static_cast<double>(scale[i]);
    return left;
  }
  void weight_gradient(Exec& exec, const WeightUse& use) override {
    inner_->weight_gradient(exec, use);
  }
  void flush(Exec& exec) override { inner_->flush(exec); }
  bool waits() const override { return inner_->waits(); }

 private:
  BackwardHooks* inner_;
};

// One pass over a batch, and what a method kept of it.
struct Look {
  std::vector<float> loss, logits;
  std::vector<std::int32_t> labels;
  std::map<std::int32_t, double> kept;
  double share;  // that the method tells, to two digits
  RandomKey key;
};

class Passes {
 public:
  explicit Passes(const ForwardFixture::Settings& settings)
      : fixture_(settings),
        method_(fixture_.trainer_options().method->make({.model = *fixture_.model,
                                                         .ops = fixture_.ops,
                                                         .seed = settings.seed,
                                                         .total_steps = settings.total_steps,
                                                         .batch = settings.batch,
                                                         .micro_batch = settings.batch,
                                                         .items = settings.items})) {}

  const Method& method() const { return *method_; }
  Look next() {
    Model& model = *fixture_.model;
    Graph& graph = model.graph;
    const Batch& batch = fixture_.next();
    const std::int64_t step = steps_++;
    method_->begin_step(step);
    model.load(fixture_.ops, batch, 0, batch.items);
    Exec exec = graph.make_exec(fixture_.settings.seed, static_cast<std::uint64_t>(step), true);
    graph.forward(exec);
    Look look{.loss = fixture_.host(graph.tensor(model.loss)),
              .logits = fixture_.host(graph.tensor(model.logits)),
              .labels = batch.labels,
              .kept = {},
              .share = 0,
              .key = {.seed = fixture_.settings.seed,
                      .stream = Stream::kGate,
                      .step = static_cast<std::uint64_t>(step),
                      .site = static_cast<std::uint32_t>(graph.gates() - 1)}};
    Spy spy(method_->hooks(method_->next(0)));
    const std::vector<Tensor> gradients = graph.parameters().gradient_list();
    graph.backward(exec, {.gradients = {.tensors = gradients, .adds = false},
                          .loss_scale = per_term(static_cast<double>(batch.items)),
                          .hooks = &spy});
    method_->end_pass(batch, 0, batch.items);
    method_->end_step();
    look.kept = spy.kept;
    look.share = std::stod(method_->progress().substr(5));  // "keep 0.33"
    return look;
  }

 private:
  ForwardFixture fixture_;
  std::unique_ptr<Method> method_;
  std::int64_t steps_ = 0;
};

// || softmax(logits) - onehot || of each item.
std::vector<double> gradient_norms(const Look& look) {
  constexpr auto kClasses = static_cast<std::size_t>(CountingDataset::kClasses);
  std::vector<double> norms;
  for (std::size_t i = 0; i < look.labels.size(); ++i) {
    double sum = 0, squares = 0;
    const auto power = [&](std::size_t c) {
      return std::exp(static_cast<double>(look.logits[i * kClasses + c]));
    };
    for (std::size_t c = 0; c < kClasses; ++c) sum += power(c);
    for (std::size_t c = 0; c < kClasses; ++c)
      squares += std::pow(power(c) / sum - (static_cast<int>(c) == look.labels[i] ? 1 : 0), 2);
    norms.push_back(std::sqrt(squares));
  }
  return norms;
}

double standard_error(double p, double count) { return std::sqrt(p * (1 - p) / count) + 1e-9; }

// How often each of N items is drawn, if `keep` N follow each other by these weights.
std::vector<double> drawn_without_replacement(std::vector<double> weights, int draws) {
  constexpr int kTrials = 40000;
  std::mt19937 random(3);
  std::vector<double> often(weights.size());
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> left = weights;
    for (int draw = 0; draw < draws; ++draw) {
      std::discrete_distribution<std::size_t> next(left.begin(), left.end());
      const std::size_t item = next(random);
      often[item] += 1.0 / kTrials;
      left[item] = 0;
    }
  }
  return often;
}

}  // namespace

TEST_CASE("choices of items: the mean of gradients is the exact one", "[selection]") {
  const auto [method, content, micro_batch, device, steps] =
      GENERATE(table<std::string, Content, std::int64_t, std::string, int>(
          {{kUniform, Content::kImages, 0, "cpu", 400},
           {kUniform, Content::kTexts, 5, "cpu", 400},
           {kBernoulli, Content::kTexts, 0, "cpu", 400},
           {kUniformForward, Content::kTexts, 0, "cpu", 400},
           {kUniform, Content::kImages, 0, "emu", 30},
           {kUpperBound, Content::kImages, 0, "cpu", 400},
           {kUpperBound, Content::kTexts, 5, "cpu", 400},
           {kUpperBound, Content::kNumbers, 0, "cpu", 400},
           {kUpperBound, Content::kImages, 0, "emu", 30},
           {kInfoBatch, Content::kImages, 0, "cpu", 400},
           {kInfoBatch, Content::kTexts, 5, "cpu", 400}}));
  CAPTURE(method, content, micro_batch, device);
  ForwardFixture exact(fixed_gradient(content, micro_batch, device, R"("type": "exact")"));
  ForwardFixture f(fixed_gradient(content, micro_batch, device, method));
  exact.run(1);
  f.run(4);  // InfoBatch then knows all losses
  std::vector<std::vector<double>> gradients, unweighted;
  while (std::ssize(gradients) < steps) {
    Batch batch = f.next();
    CHECK_FALSE(f.trainer->step(batch).exact);
    gradients.push_back(wide(f.gradient()));
    if (batch.weights.empty()) continue;
    batch.weights.clear();  // on purpose
    f.trainer->step(batch);
    unweighted.push_back(wide(f.gradient()));
  }
  CHECK(error_of_mean(gradients, wide(exact.gradient())) < 4);
  if (method == kInfoBatch) CHECK(error_of_mean(unweighted, wide(exact.gradient())) > 8);
}

TEST_CASE("choices of items: Selective-Backprop is biased", "[selection]") {
  const std::string method = GENERATE_COPY(kHistory, kRank);
  ForwardFixture exact(fixed_gradient(Content::kImages, 0, "cpu", R"("type": "exact")"));
  ForwardFixture f(fixed_gradient(Content::kImages, 0, "cpu", method));
  exact.run(1);
  std::vector<std::vector<double>> gradients;
  for (std::int64_t step = 1; step <= 400; ++step) {
    f.run(step);
    gradients.push_back(wide(f.gradient()));
  }
  CHECK(error_of_mean(gradients, wide(exact.gradient())) > 8);
}

TEST_CASE("choices of items: uniform draws keep their share", "[selection]") {
  const auto [method, device] = GENERATE(
      table<std::string, std::string>({{kUniform, "cpu"}, {kBernoulli, "cpu"}, {kUniform, "emu"}}));
  constexpr double kKeep = 0.3;
  const int passes = device == "emu" ? 40 : 600;
  Passes run(fixed_gradient(Content::kTexts, 0, device, method));
  std::vector<double> often(16);
  double share = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const Look look = run.next();
    const double kept = method == kBernoulli ? kKeep : 5.0 / 16;
    for (const auto& [item, scale] : look.kept) {
      ++often[static_cast<std::size_t>(item)];
      CHECK_THAT(scale, WithinRel(1 / kept, 1e-6));
    }
    if (method != kBernoulli) CHECK(look.kept.size() == 5);
    CHECK(std::abs(look.share - static_cast<double>(look.kept.size()) / 16) < 0.006);
    share += look.share / passes;
  }
  const double p = method == kBernoulli ? kKeep : 5.0 / 16;
  for (const double times : often)
    CHECK(std::abs(times / passes - p) < 5 * standard_error(p, passes));
  CHECK(std::abs(share - p) < 5 * standard_error(p, 16.0 * passes));
}

TEST_CASE("choices of items: Selective-Backprop keeps items by the losses of its history",
          "[selection]") {
  const std::string device = GENERATE("cpu", "emu");
  ForwardFixture::Settings settings{
      .learning_rate = 1e-30, .dropout = 0, .device = device, .method = kHistory};
  Passes run(settings);
  std::vector<float> history;
  double share = 0;
  for (int pass = 0; pass < 30; ++pass) {
    const Look look = run.next();
    history.insert(history.end(), look.loss.begin(), look.loss.end());
    if (history.size() > 40) history.erase(history.begin(), history.end() - 40);
    std::vector<std::int32_t> kept;
    for (std::size_t i = 0; i < look.loss.size(); ++i) {
      double not_above = 0;
      for (const float loss : history) not_above += loss <= look.loss[i];
      const double cdf = not_above / static_cast<double>(history.size());
      if (philox_uniform(philox_address(look.key), i) < cdf * cdf)
        kept.push_back(static_cast<std::int32_t>(i));
    }
    REQUIRE(look.kept.size() == kept.size());
    for (const std::int32_t item : kept) {
      REQUIRE(look.kept.contains(item));
      CHECK_THAT(look.kept.at(item), WithinRel(8.0 / static_cast<double>(kept.size()), 1e-6));
    }
    share += look.share / 30;
  }
  CHECK(std::abs(share - 0.36) < 0.12);
}

TEST_CASE("choices of items: Selective-Backprop draws by ranks without replacement",
          "[selection]") {
  constexpr int kPasses = 600, kKept = 6;  // 0.35 of 16, rounded up
  Passes run(fixed_gradient(Content::kImages, 0, "cpu", kRank));
  std::vector<double> often(16), weights;
  for (int rank = 0; rank < 16; ++rank)
    weights.push_back(std::pow((rank + 0.5) / 16, 1 / 0.35 - 1));
  for (int pass = 0; pass < kPasses; ++pass) {
    const Look look = run.next();
    REQUIRE(look.kept.size() == kKept);
    for (const auto& [item, scale] : look.kept) {
      const float loss = look.loss[static_cast<std::size_t>(item)];
      const auto rank = std::ranges::count_if(look.loss, [&](float other) { return other < loss; });
      ++often[static_cast<std::size_t>(rank)];
      CHECK_THAT(scale, WithinRel(16.0 / kKept, 1e-6));
    }
  }
  const std::vector<double> want = drawn_without_replacement(weights, kKept);
  for (std::size_t rank = 0; rank < 16; ++rank)
    CHECK(std::abs(often[rank] / kPasses - want[rank]) < 5 * standard_error(want[rank], kPasses));
}

TEST_CASE("choices of items: few items by rank are those of the largest losses", "[selection]") {
  Passes run(fixed_gradient(Content::kImages, 0, "cpu",
                            R"("type": "selective_backprop", "keep": 1e-6, "selection": "rank")"));
  for (int pass = 0; pass < 4; ++pass) {
    const Look look = run.next();
    REQUIRE(look.kept.size() == 1);
    CHECK(look.loss[static_cast<std::size_t>(look.kept.begin()->first)] ==
          std::ranges::max(look.loss));
  }
}

TEST_CASE("choices of items: the gradient of Selective-Backprop is the mean of kept items",
          "[selection]") {
  const auto [method, content] = GENERATE(
      table<std::string, Content>({{kHistory, Content::kImages}, {kRank, Content::kTexts}}));
  const auto settings = [content = content](const std::string& type) {
    return ForwardFixture::Settings{
        .content = content, .learning_rate = 1e-30, .dropout = 0, .method = type};
  };
  Passes chosen(settings(method));
  ForwardFixture f(settings(method)), exact(settings(R"("type": "exact")"));
  for (std::int64_t step = 1; step <= 6; ++step) {
    const Look look = chosen.next();
    f.run(step);
    Batch batch = exact.next();
    batch.weights.assign(static_cast<std::size_t>(batch.items), 0.0f);
    for (const auto& [item, scale] : look.kept)
      batch.weights[static_cast<std::size_t>(item)] =
          static_cast<float>(batch.items) / static_cast<float>(look.kept.size());
    exact.trainer->step(batch);
    const std::vector<float> got = f.gradient(), want = exact.gradient();
    float largest = 0, difference = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      largest = std::max(largest, std::abs(want[i]));
      difference = std::max(difference, std::abs(got[i] - want[i]));
    }
    CHECK(difference <= 2e-6f * largest);
  }
}

TEST_CASE("choices of items: the upper bound draws with replacement by gradients at the logits",
          "[selection]") {
  const std::string device = GENERATE("cpu", "emu");
  constexpr int kDraws = 7;  // 0.4 of 16, rounded up
  const int passes = device == "emu" ? 30 : 500;
  ForwardFixture::Settings settings = fixed_gradient(Content::kImages, 0, device, kUpperBound);
  Passes run(settings);
  std::map<double, double> often;  // by norm: the order of items changes from pass to pass
  double tau = 0, sum = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const Look look = run.next();
    const std::vector<double> g = gradient_norms(look);
    double squares = 0, draws = 0;
    sum = 0;
    for (const double norm : g) sum += norm, squares += norm * norm;
    tau = 0.9 * tau + 0.1 * std::sqrt(16 * squares) / sum;
    for (const auto& [item, scale] : look.kept) {
      const double norm = g[static_cast<std::size_t>(item)];
      const double times = scale * kDraws * norm / sum;
      CHECK_THAT(times, WithinRel(std::max(std::round(times), 1.0), 1e-4));
      draws += times;
      often[std::round(norm * 1e5)] += times;
    }
    CHECK_THAT(draws, WithinRel(kDraws, 1e-4));
    CHECK_THAT(run.method().report().at("tau").get<double>(), WithinRel(tau, 1e-5));
  }
  CHECK(often.size() > 12);
  for (const auto& [norm, times] : often) {
    const double p = norm * 1e-5 / sum, count = kDraws * passes;
    CHECK(std::abs(times / count - p) < 5 * standard_error(p, count));
  }
}

TEST_CASE("choices of items: tau follows each batch by a tenth", "[selection]") {
  Passes run({.learning_rate = 1e-30, .dropout = 0, .method = kUpperBound});
  double tau = 0;
  for (int pass = 0; pass < 6; ++pass) {
    double squares = 0, sum = 0;
    for (const double norm : gradient_norms(run.next())) sum += norm, squares += norm * norm;
    tau = 0.9 * tau + 0.1 * std::sqrt(8 * squares) / sum;
    CHECK_THAT(run.method().report().at("tau").get<double>(), WithinRel(tau, 1e-6));
  }
}

TEST_CASE("choices of items: the upper bound is exact until tau passes its threshold",
          "[selection]") {
  ForwardFixture::Settings settings = fixed_gradient(Content::kImages, 0, "cpu", kSwitched);
  ForwardFixture f(settings);
  settings.method = R"("type": "exact")";
  ForwardFixture reference(settings);
  int samples_from = 0;
  for (std::int64_t step = 1; step <= 12; ++step) {
    const double tau = f.trainer->method().report().at("tau");
    f.run(step);
    reference.run(step);
    const bool is_exact = f.reports.back().exact;
    CHECK(is_exact == (tau < 0.5));
    CHECK((f.gradient() == reference.gradient()) == is_exact);
    if (!is_exact && samples_from == 0) samples_from = static_cast<int>(step);
  }
  CHECK(samples_from > 5);
}

TEST_CASE("choices of items: a share of 1 has the bits of exact training", "[selection]") {
  ForwardFixture::Settings settings{.method = R"("type": "exact")"};
  ForwardFixture exact(settings);
  settings.method = GENERATE(
      R"("type": "uniform", "keep": 1)", R"("type": "uniform", "keep": 1, "forward": true)",
      R"("type": "selective_backprop", "keep": 1)", R"("type": "infobatch", "prune_ratio": 0)");
  ForwardFixture whole(settings);
  CHECK(whole.run(14) == exact.run(14));
  CHECK(whole.weights() == exact.weights());
}

TEST_CASE("choices of items: an empty draw gives a zero gradient", "[selection]") {
  ForwardFixture::Settings settings{
      .learning_rate = 1e-30,
      .method = R"("type": "uniform", "keep": 0.01, "selection": "bernoulli")"};
  ForwardFixture f(settings);
  f.run(1);
  CHECK(f.trainer->method().progress() == "keep 0.00");
  CHECK(std::ranges::all_of(f.gradient(), [](float g) { return g == 0; }));
}

TEST_CASE("choices of items: a resumed run has the bits of the whole run", "[selection]") {
  const std::string method = GENERATE_COPY(
      from_range(cases_to_run<std::string>({kUniform, kBernoulli, kUniformForward, kHistory, kRank,
                                            kUpperBound, kSwitched, kInfoBatch})));
  const auto [device, micro_batch] =
      GENERATE(table<std::string, std::int64_t>({{"cpu", 3}, {"emu", 0}}));
  const ForwardFixture::Settings settings{.content = Content::kTexts,
                                          .micro_batch = micro_batch,
                                          .total_steps = 24,
                                          .device = device,
                                          .method = method};
  ForwardFixture whole(settings), queued(settings);
  const auto ids = whole.run(24);
  CHECK(queued.run(24, true) == ids);
  CHECK(queued.weights() == whole.weights());
  for (const std::int64_t step : cases_to_run<std::int64_t>({1, 9, 13})) {
    CAPTURE(method, device, step);
    const TemporaryFolder folder;
    ForwardFixture first(settings), second(settings);
    first.run(step);
    save_checkpoint(folder.path() / "saved", *first.trainer, first.trainer->state(), {});
    second.trainer->restore(load_checkpoint(folder.path() / "saved", *second.trainer));
    CHECK(second.run(24) == std::vector(ids.begin() + step, ids.end()));
    CHECK(second.weights() == whole.weights());
    CHECK(second.trainer->state() == whole.trainer->state());
  }
}

TEST_CASE("choices of items: what they drop is not computed", "[selection]") {
  const ForwardFixture::Settings settings{.learning_rate = 1e-30, .method = R"("type": "exact")"};
  const auto flops = [&](const std::string& method) {
    ForwardFixture::Settings chosen = settings;
    chosen.method = method;
    ForwardFixture f(chosen);
    f.run(1);
    return std::pair(f.ops.flops(Phase::kForward), f.ops.flops(Phase::kBackward));
  };
  const auto [forward, backward] = flops(R"("type": "exact")");
  const auto [whole, quarter] = flops(R"("type": "uniform", "keep": 0.25)");
  CHECK(whole == forward);
  CHECK_THAT(quarter, WithinRel(backward / 4, 0.01));
  const auto [half_forward, half_backward] =
      flops(R"("type": "uniform", "keep": 0.5, "forward": true)");
  CHECK_THAT(half_forward, WithinRel(forward / 2, 1e-9));
  CHECK_THAT(half_backward, WithinRel(backward / 2, 1e-9));
}

TEST_CASE("choices of items: the formula counts shares", "[selection]") {
  const auto saved = [](const std::string& method) {
    ForwardFixture f({.batch = 12, .method = method});
    f.run(1);
    FormulaFlops formula(std::vector<FormulaFlops::Linear>(f.model->graph.sampled_weights().size(),
                                                           {.gate = 0, .size = 1}));
    f.trainer->method().add_cost(formula);
    return formula.saved();
  };
  CHECK_THAT(saved(R"("type": "uniform")"), WithinRel(4.0 / 9, 1e-9));  // 1/3: the paper's 44.44 %
  CHECK_THAT(saved(R"("type": "uniform", "forward": true)"), WithinRel(2.0 / 3, 1e-9));
  CHECK(saved(R"("type": "upper_bound", "tau_threshold": 5)") == 0);
}

TEST_CASE("choices of items: runs say what is kept", "[selection]") {
  const auto texts = [](const std::string& method) {
    ForwardFixture f({.batch = 12, .method = method});
    f.run(1);
    return f.trainer->method().summary() + " | " + f.trainer->method().progress();
  };
  CHECK(ForwardFixture({.method = kUniform}).trainer->method().report().empty());
  CHECK(texts(R"("type": "uniform")") ==
        "keeps 0.333 of all items after the forward · systematic | keep 0.33");
  CHECK_THAT(texts(R"("type": "selective_backprop", "selection": "rank")"),
             ContainsSubstring("keeps about 0.333 of the items, the larger losses · rank | keep "
                               "0.33"));
  CHECK_THAT(texts(R"("type": "upper_bound", "tau_threshold": 5)"),
             ContainsSubstring("by gradients at the logits · exact below tau 5 | keep 1.00  tau "));
  CHECK(texts(kInfoBatch) ==
        "drops 0.5 of the items with losses below the mean, up to 0.875 of the run | keep 1.00");
}

TEST_CASE("choices of items: what they refuse", "[selection][config]") {
  const std::string method =
      GENERATE_COPY(kUniform, kHistory, kUpperBound, kInfoBatch, kUniformForward);
  const Part<MethodKind> part = read_method(method);
  const bool forward = method == kInfoBatch || method == kUniformForward;
  const std::string setting =
      method == kUniformForward ? "method.forward" : "method.type=" + part.type;
  SECTION("steps or passes of one item") {
    CHECK_THAT(
        config_error_of([&] { ForwardFixture({.batch = 1, .method = method}); }),
        ContainsSubstring(fmt::format("{}: a {} of one item has nothing to drop | raise train.",
                                      setting, forward ? "step" : "pass")));
    if (!forward)
      CHECK_THAT(config_error_of([&] { ForwardFixture({.micro_batch = 1, .method = method}); }),
                 ContainsSubstring("a pass of one item"));
  }
  SECTION("masked words") {
    const std::unique_ptr<Ops> ops = make_ops("cpu");
    const auto model =
        build_model(read_model_options({"type=bert", "width=8", "depth=1", "heads=2",
                                        "vocabulary=11", "max_positions=8", "head=mlm"}),
                    {}, 0, 0.0);
    part->prepare(*model);
    model->graph.finish(*ops, {.max_items = 4, .max_tokens = 32, .max_masked = 32});
    const Training training{
        .model = *model, .ops = *ops, .batch = 4, .micro_batch = 4, .items = 48};
    CHECK_THAT(config_error_of([&] { part->make(training); }),
               ContainsSubstring(setting + ": the loss has a term for each predicted word"));
  }
  SECTION("layers that mix the items of a batch") {
    CHECK_THAT(
        config_error_of([&] {
          const std::unique_ptr<Ops> ops = make_ops("cpu");
          const auto model = linear_model({.mixes = true});
          part->prepare(*model);
          model->graph.finish(*ops, {.max_items = 4});
          part->make({.model = *model, .ops = *ops, .batch = 4, .micro_batch = 4, .items = 48});
        }),
        ContainsSubstring("mixes the items of a batch, so dropping items would bias"));
  }
}

TEST_CASE("choices of items: a method's own choice", "[selection][error]") {
  struct Chosen final : BackwardSelection {
    ItemChoice choice;
    Chosen(const Training& training, ItemChoice wanted)
        : BackwardSelection(training, "chosen"), choice(std::move(wanted)) {}
    std::string summary() const override { return "a test's"; }
    ItemChoice choose(Exec&, const GateSite&, const Gradient&, const RowSets&) override {
      return choice;
    }
  };
  ForwardFixture f({.batch = 4, .method = kUniform});
  Graph& graph = f.model->graph;
  const std::vector<Tensor> gradients = graph.parameters().gradient_list();
  f.model->load(f.ops, f.next(), 0, 4);
  const auto kept = [&](const ItemChoice& choice) {
    Chosen method({.model = *f.model, .ops = f.ops, .batch = 4, .micro_batch = 4, .items = 48},
                  choice);
    Exec exec = graph.make_exec(1, 0, true);
    graph.forward(exec);
    Spy spy(method.hooks(PassKind::kSampled));
    graph.backward(exec, {.gradients = {gradients}, .hooks = &spy});
    return spy.kept;
  };
  using Kept = std::map<std::int32_t, double>;
  CHECK(kept({{1, 3}, {2, 0.5F}}) == Kept{{1, 2}, {3, 0.5}});
  CHECK(kept({{1, 3}, {}}) == Kept{{1, 1}, {3, 1}});  // no weights: all 1
  CHECK(kept(all_items(4)).empty());                  // exact
  CHECK_NOTHROW(kept({}));
  CHECK_THAT(config_error_of([&] {
               kept({{0, 4}, {1, 1}});
             }),
             ContainsSubstring("a choice of items with kept[1] 4 of 4 items"));
  CHECK_THAT(config_error_of([&] {
               kept({{0, 1, 2, 3, 4, 5, 6, 7, 8}, {}});
             }),
             ContainsSubstring("kept[4] 4 of 4 items"));
  CHECK_THAT(config_error_of([&] {
               kept({{0, 2}, {1}});
             }),
             ContainsSubstring("1 weights of 2 items"));
  CHECK_THAT(config_error_of([&] {
               const auto model = linear_model({});
               model->graph.finish(f.ops, {.max_items = 4});
               Chosen({.model = *model, .ops = f.ops, .batch = 4, .micro_batch = 4}, {});
             }),
             ContainsSubstring("method.type=chosen: the graph has no gate at the logits | call "
                               "MethodKind::prepare before Graph::finish"));
}

TEST_CASE("choices of items: settings are in their ranges", "[selection][config]") {
  CHECK_THAT(config_error_of([] { read_method(R"("type": "uniform", "keep": 0)"); }),
             ContainsSubstring("method.keep must be above 0"));
  CHECK_THAT(config_error_of([] {
               read_method(R"("type": "uniform", "forward": true, "selection": "bernoulli")");
             }),
             ContainsSubstring("method.selection must be \"systematic\" with method.forward: an "
                               "independent draw may be empty"));
  CHECK_THAT(config_error_of(
                 [] { read_method(R"("type": "selective_backprop", "selection": "systematic")"); }),
             ContainsSubstring("history"));
  CHECK_THAT(config_error_of([] { read_method(R"("type": "upper_bound", "history": 7)"); }),
             ContainsSubstring("is a setting of \"selective_backprop\""));
  CHECK_THAT(config_error_of([] { read_method(R"("type": "infobatch", "prune_ratio": 1)"); }),
             ContainsSubstring("method.prune_ratio must be"));
}
