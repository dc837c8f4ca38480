#include "optim/optimizer.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/clipping.h"
#include "tests/support/check_error.h"

using namespace vcas;

namespace {

// Sizes that are no multiple of the slab's alignment, and decay on and off by turns.
template <class T>
Parameters make_parameters(Ops& ops) {
  return Parameters(ops, DTypeOf<T>::value,
                    {{.name = "a.weight", .shape = {7, 3}, .decay = true},
                     {.name = "a.bias", .shape = {7}, .decay = false},
                     {.name = "b.weight", .shape = {5, 7}, .decay = true},
                     {.name = "b.gain", .shape = {1}, .decay = false}});
}

// Fills one tensor of every parameter with nonzero random numbers.
template <class T>
void randomize(Ops& ops, const Parameters& parameters, Tensor Parameter::*which,
               std::mt19937& random) {
  for (const Parameter& parameter : parameters.list()) {
    const Tensor& tensor = parameter.*which;
    std::vector<T> host(static_cast<std::size_t>(tensor.elements()));
    std::uniform_real_distribution<T> size(T(0.1), T(2));
    for (T& x : host) x = random() % 2 ? size(random) : -size(random);
    ops.copy_to_device(tensor.data, host.data(), tensor.bytes());
  }
}

using Settings = std::vector<std::string>;

OptimizerOptions options_of(const Settings& settings) {
  OptimizerOptions options;
  read_config(options, {.overrides = settings});
  return options;
}

// The published update rules, one number at a time.
struct NaiveState {
  double value, first = 0, second = 0;
};

struct NaiveRule {
  std::string name;
  double weight_decay = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, momentum = 0.9;
  bool nesterov = false;

  Settings settings() const {
    Settings all{"name=" + name, fmt::format("weight_decay={}", weight_decay)};
    if (name == "sgd")
      all.insert(all.end(),
                 {fmt::format("momentum={}", momentum), fmt::format("nesterov={}", nesterov)});
    else
      all.insert(all.end(), {fmt::format("beta1={}", beta1), fmt::format("beta2={}", beta2),
                             fmt::format("eps={}", eps)});
    return all;
  }

  void step(NaiveState& p, double g, bool decays, double lr, int t) const {
    const double decay = decays ? weight_decay : 0;
    if (name != "adamw") g += decay * p.value;
    if (name == "sgd") {
      p.first = momentum * p.first + g;
      p.value -= lr * (nesterov ? g + momentum * p.first : p.first);
      return;
    }
    p.first = beta1 * p.first + (1 - beta1) * g;
    p.second = beta2 * p.second + (1 - beta2) * g * g;
    const double first = p.first / (1 - std::pow(beta1, t));
    const double second = p.second / (1 - std::pow(beta2, t));
    double change = first / (std::sqrt(second) + eps);
    if (name == "adamw") change += decay * p.value;
    p.value -= lr * change;
  }
};

// Names both of its slabs alike.
struct Twice final : UpdateRule {
  std::string summary() const override { return "has two states of one name"; }
  std::vector<std::string> state() const override { return {"m", "m"}; }
  void step(Ops&, const Update&) const override {}
};

VCAS_REGISTER_PART(UpdateRule, "twice", Twice);

struct NeverUpdates final : UpdateRule {
  std::string summary() const override { return "throws"; }
  std::vector<std::string> state() const override { return {}; }
  void step(Ops&, const Update&) const override { throw Error(ExitCode::kIoError, "no update"); }
};

VCAS_REGISTER_PART(UpdateRule, "never_updates", NeverUpdates);

}  // namespace

TEST_CASE("a step that threw does not count", "[optimizer][error]") {
  const auto ops = make_ops("cpu");
  const Parameters parameters = make_parameters<float>(*ops);
  Optimizer optimizer(*ops, parameters, options_of({"name=never_updates"}));
  CHECK_THROWS_WITH(optimizer.step(*ops, 0.1, {}), "no update");
  CHECK(optimizer.steps() == 0);
}

TEST_CASE("the states of an optimizer have names of their own", "[optimizer][error]") {
  const std::unique_ptr<Ops> ops = make_ops("cpu");
  const Parameters parameters = make_parameters<float>(*ops);
  check_error([&] { Optimizer(*ops, parameters, options_of({"name=twice"})); },
              ExitCode::kBadConfig, "optimizer.name=twice has two states of one name: m, m");
}

TEST_CASE("a second moment that forgets at once is refused", "[optimizer][error]") {
  CHECK_NOTHROW(options_of({"name=adamw", "beta2=0.5"}));
  check_error(
      [] {
        options_of({"name=adamw", "beta2=0"});
      },
      ExitCode::kBadConfig, "beta2 must be at least 0.5");
}

TEMPLATE_TEST_CASE("optimizers follow their published rules", "[optimizer]", float, double) {
  using T = TestType;
  const std::unique_ptr<Ops> ops = make_ops("cpu");
  const NaiveRule rule = GENERATE(
      NaiveRule{.name = "adamw"}, NaiveRule{.name = "adamw", .weight_decay = 0.3},
      NaiveRule{.name = "adam", .weight_decay = 0.2, .beta1 = 0.8, .beta2 = 0.95, .eps = 0.1},
      NaiveRule{.name = "sgd", .weight_decay = 0.2},
      NaiveRule{.name = "sgd", .weight_decay = 0.2, .nesterov = true},
      NaiveRule{.name = "sgd", .momentum = 0});
  const OptimizerOptions options = options_of(rule.settings());
  CAPTURE(rule.name, rule.weight_decay);

  std::mt19937 random(5);
  const Parameters parameters = make_parameters<T>(*ops);
  randomize<T>(*ops, parameters, &Parameter::value, random);
  Optimizer optimizer(*ops, parameters, options);
  std::vector<std::vector<NaiveState>> want;
  for (const Parameter& parameter : parameters.list()) {
    want.emplace_back();
    for (const T x : to_host<T>(*ops, parameter.value)) want.back().push_back({.value = x});
  }

  constexpr int kSteps = 6;
  for (int t = 1; t <= kSteps; ++t) {
    randomize<T>(*ops, parameters, &Parameter::gradient, random);
    const double lr = 0.1 / t;
    double clip_factor = t % 2 ? 1 : 0.25;
    optimizer.step(*ops, lr, {&clip_factor, DType::kF64, {1}});
    CHECK(optimizer.steps() == t);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::vector<T> gradient = to_host<T>(*ops, parameters[i].gradient);
      const std::vector<T> got = to_host<T>(*ops, parameters[i].value);
      for (std::size_t j = 0; j < got.size(); ++j) {
        rule.step(want[i][j], clip_factor * gradient[j], parameters[i].decay, lr, t);
        const double tolerance = 16.0 * t * std::numeric_limits<T>::epsilon() *
                                 std::max(1.0, std::abs(want[i][j].value));
        CAPTURE(parameters[i].name, j, t, got[j], want[i][j].value);
        if (!(std::abs(got[j] - want[i][j].value) <= tolerance)) FAIL("differs");
      }
    }
  }
  // Nothing was written between the parameters.
  std::int64_t nonzero = 0;
  for (const T x : to_host<T>(*ops, parameters.values())) nonzero += x != 0;
  CHECK(nonzero == parameters.count());
}

TEMPLATE_TEST_CASE("gradients are clipped by their common norm", "[optimizer]", float, double) {
  using T = TestType;
  const std::unique_ptr<Ops> ops = make_ops("cpu");
  std::mt19937 random(5);
  const Parameters parameters = make_parameters<T>(*ops);
  Optimizer optimizer(*ops, parameters, {.max_gradient_norm = 2});
  const Buffer numbers(*ops, 2 * sizeof(double));
  const Tensor squared = numbers.at(0, DType::kF64, {1}), factor = numbers.at(8, DType::kF64, {1});
  const auto gradient_norm = [&] {
    optimizer.squared_norm(*ops, squared);
    optimizer.clip(*ops, factor, squared);
    return std::sqrt(*squared.ptr<double>());
  };
  CHECK(gradient_norm() == 0);
  CHECK(*factor.ptr<double>() == 1);
  randomize<T>(*ops, parameters, &Parameter::gradient, random);
  double sum = 0;
  for (const Parameter& parameter : parameters.list())
    for (const double g : to_host<T>(*ops, parameter.gradient)) sum += g * g;
  const double norm = gradient_norm();
  CHECK_THAT(norm, WithinRel(std::sqrt(sum), 1e-12));
  REQUIRE(norm > 2);
  CHECK_THAT(*factor.ptr<double>() * norm, WithinRel(2.0, 1e-12));
  CHECK(clip_scale(4, 2) == 1);
  CHECK(clip_scale(2.25, 2) == 1);
  CHECK(clip_scale(0, 2) == 1);
  CHECK(clip_scale(1e60, 0) == 1);
}

TEST_CASE("an optimizer goes on from its saved state, bit by bit", "[optimizer]") {
  const std::unique_ptr<Ops> ops = make_ops("cpu");
  const std::string name = GENERATE("adamw", "sgd");
  const OptimizerOptions options = options_of({"name=" + name, "weight_decay=0.1"});
  std::mt19937 random(5);
  const Parameters parameters = make_parameters<float>(*ops);
  randomize<float>(*ops, parameters, &Parameter::value, random);
  randomize<float>(*ops, parameters, &Parameter::gradient, random);
  Optimizer optimizer(*ops, parameters, options);
  double factor = 1;
  const Tensor clip_factor{&factor, DType::kF64, {1}};
  for (int t = 0; t < 3; ++t) optimizer.step(*ops, 0.1, clip_factor);

  std::vector<std::vector<float>> state;
  for (const NamedTensor& tensor : optimizer.state())
    state.push_back(to_host<float>(*ops, tensor.tensor));
  const std::vector<float> values = to_host<float>(*ops, parameters.values());
  const std::int64_t steps = optimizer.steps();
  for (int t = 0; t < 2; ++t) optimizer.step(*ops, 0.1, clip_factor);
  const std::vector<float> want = to_host<float>(*ops, parameters.values());

  Optimizer resumed(*ops, parameters, options);
  REQUIRE(resumed.state().size() == state.size());
  for (std::size_t i = 0; i < state.size(); ++i) {
    CHECK(resumed.state()[i].name == optimizer.state()[i].name);
    const Tensor& tensor = resumed.state()[i].tensor;
    ops->copy_to_device(tensor.data, state[i].data(), tensor.bytes());
  }
  resumed.set_steps(steps);
  ops->copy_to_device(parameters.values().data, values.data(), parameters.values().bytes());
  for (int t = 0; t < 2; ++t) resumed.step(*ops, 0.1, clip_factor);
  CHECK(to_host<float>(*ops, parameters.values()) == want);
}

TEST_CASE("a configuration names its optimizer, and has its settings alone", "[optimizer]") {
  const OptimizerOptions sgd = options_of({"name=sgd", "momentum=0.5"});
  CHECK(to_json(sgd).dump() ==
        R"({"name":"sgd","momentum":0.5,"nesterov":false,"weight_decay":0.0,)"
        R"("max_gradient_norm":0.0,"clip":"norm","skip_deviations":0.0})");
  CHECK_THROWS_WITH(options_of({"name=sgd", "eps=1"}),
                    ContainsSubstring(R"("eps" is a setting of "adam" and "adamw")"));
  CHECK_THROWS_WITH(options_of({"clip=mean"}),
                    ContainsSubstring(R"(clip "mean" is not one of: norm, predicted)"));
  // A document of an older program has the settings of all.
  OptimizerOptions old;
  read_config(old, {.saved = true, .documents = {{"config.json", R"({"name": "sgd", "beta1": 0.8,
      "beta2": 0.999, "eps": 1e-8, "momentum": 0.7, "weight_decay": 0.1})"}}});
  CHECK(to_json(old)["momentum"] == 0.7);
  CHECK(old.weight_decay == 0.1);
}

TEST_CASE("Nesterov's momentum is idle only without momentum", "[optimizer]") {
  const auto idle = [](const Settings& settings) {
    return options_of(settings).kind->idle_settings();
  };
  CHECK(idle({"name=sgd", "nesterov=true", "momentum=0"}) ==
        std::vector<std::string>{"optimizer.nesterov has no effect: optimizer.momentum is 0"});
  CHECK(idle({"name=sgd", "nesterov=true", "momentum=0.5"}).empty());
  CHECK(idle({"name=sgd", "momentum=0"}).empty());
}
