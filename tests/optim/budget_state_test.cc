// The state of a budget controller, in checkpoints.
#include <fmt/format.h>

#include "tests/optim/budget_fixture.h"
#include "tests/support/check_error.h"

using namespace vcas;

TEST_CASE("the state of a controller goes to its like only", "[controller]") {
  VcasOptions options = budget_options();
  options.cost = "time";
  BudgetController controller(options, two_linears(), 1, 1000);
  for (int i = 0; i < 12; ++i) {
    MeasuredBatch batch = batch_of(1 + 0.1 * i);
    batch.weight_seconds = {1e-3 / (i + 1), 1e-3};
    batch.item_seconds = {2e-3};
    batch.passes = controller.probe_passes();
    batch.v_act = batch.v_w = {0.01, 0.02};
    CHECK(controller.update({batch}).empty());
  }
  const nlohmann::json state = nlohmann::json::parse(controller.to_json().dump());
  BudgetController copy(options, two_linears(), 1, 1000);
  copy.from_json(state);
  CHECK(copy.to_json() == controller.to_json());
  CHECK(copy.update({batch_of()}) == controller.update({batch_of()}));
  CHECK(copy.to_json() == controller.to_json());

  ControlledModel other = two_linears();
  other.gates = 2;
  BudgetController of_other(options, other, 1, 1000);
  CHECK_THROWS_WITH(of_other.from_json(state),
                    "the state of the VCAS controller has 1 item and 2 weight ratios, the model "
                    "2 and 2");
  CHECK_THROWS_WITH(copy.from_json(nlohmann::json::object()),
                    "the state of the VCAS controller: [json.exception.out_of_range.403] key "
                    "'squares' not found");
  CHECK(copy.to_json() == controller.to_json());
}

TEST_CASE("a state of a controller with a number out of range is refused", "[controller]") {
  BudgetController controller(budget_options(), two_linears(), 1, 1000);
  CHECK(controller.update({batch_of()}).empty());
  const nlohmann::json good = controller.to_json();
  const auto check = [&](const char* key, const nlohmann::json& value, const std::string& text) {
    CAPTURE(key, value);
    nlohmann::json state = good;
    state[key] = value;
    CHECK(error_text([&] { controller.from_json(state); }, ExitCode::kBadData) ==
          fmt::format("the state of the VCAS controller: {} {}", key, text));
    CHECK(controller.to_json() == good);
  };
  check("lambda", -1, "must be at least 1e-31, got -1");
  check("lambda", 1e300, "must be at most 1e+31, got 1e+300");
  check("act_ratio", nlohmann::json::array({-0.5}), "must be at least 0, got -0.5");
  check("weight_ratio", nlohmann::json::array({0.5, 2.0}), "must be at most 1, got 2");
  for (const char* key : {"forward_ratio", "aim"}) {
    check(key, 0, "must be above 0, got 0");
    check(key, -1, "must be above 0, got -1");
    check(key, 2, "must be at most 1, got 2");
  }
  for (const char* key : {"probes", "spent_probes", "verifications", "echo_probes"})
    check(key, -1, "must be at least 0, got -1");
}
