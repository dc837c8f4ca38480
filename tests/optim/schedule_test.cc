#include "optim/schedule.h"

#include <cmath>

#include "tests/support/check_error.h"

using namespace vcas;

namespace {

ScheduleOptions options_of(const std::vector<std::string>& settings) {
  ScheduleOptions options;
  read_config(options, {.overrides = settings});
  return options;
}

double rate(const ScheduleOptions& options, std::int64_t step, std::int64_t total = 100) {
  return Schedule(options, total).learning_rate(step);
}

// Falls below 0, or is no number.
struct Broken final : Decay {
  double value = -0.5;
  void fields(Setting& v) { v.field("value", value, "All shares."); }
  std::string summary() const override { return "to nowhere"; }
  double share(double) const override { return value > 9 ? std::log(-value) : value; }
};
VCAS_REGISTER_PART(Decay, "broken", Broken);

}  // namespace

TEST_CASE("schedules at known points", "[schedule]") {
  ScheduleOptions options = options_of({"kind=constant", "learning_rate=2"});
  SECTION("constant") {
    for (const std::int64_t step : {0, 1, 99, 100, 1000}) CHECK(rate(options, step) == 2);
  }
  SECTION("linear") {
    options.kind.type = "linear";
    CHECK(rate(options, 0) == 2);
    CHECK(rate(options, 25) == 1.5);
    CHECK_THAT(rate(options, 99), WithinAbs(0.02, 1e-15));
    CHECK(rate(options, 100) == 0);
    CHECK(rate(options, 200) == 0);
  }
  SECTION("cosine") {
    options.kind.type = "cosine";
    CHECK(rate(options, 0) == 2);
    CHECK_THAT(rate(options, 25), WithinAbs(1 + std::sqrt(0.5), 1e-12));
    CHECK_THAT(rate(options, 50), WithinAbs(1, 1e-12));
    CHECK_THAT(rate(options, 75), WithinAbs(1 - std::sqrt(0.5), 1e-12));
    CHECK(rate(options, 100) == 0);
  }
  SECTION("step") {
    options =
        options_of({"kind=step", "learning_rate=2", "milestones=[0.3, 0.6, 0.8]", "factor=0.2"});
    for (const auto& [step, want] : {std::pair{0, 2.0},
                                     {59, 2.0},
                                     {60, 0.4},
                                     {119, 0.4},
                                     {120, 0.08},
                                     {159, 0.08},
                                     {160, 0.016},
                                     {199, 0.016}})
      CHECK_THAT(rate(options, step, 200), WithinAbs(want, 1e-12));
    options.warmup_steps = 100;  // milestones are of what is left
    CHECK_THAT(rate(options, 129, 200), WithinAbs(2, 1e-12));
    CHECK_THAT(rate(options, 130, 200), WithinAbs(0.4, 1e-12));
    // Every whole step of many runs: no milestone is missed by rounding.
    for (std::int64_t total = 10; total < 1000; total += 10) {
      const ScheduleOptions tenths = options_of({"kind=step", "milestones=[0.1, 0.7]"});
      CHECK(rate(tenths, total / 10, total) < rate(tenths, total / 10 - 1, total));
      CHECK(rate(tenths, total * 7 / 10, total) < rate(tenths, total * 7 / 10 - 1, total));
    }
  }
}

TEST_CASE("milestones and their factor lie between 0 and 1", "[schedule]") {
  for (const char* setting : {"milestones=[0.5, 1]", "milestones=[0]", "factor=1", "factor=0"})
    CHECK_THROWS(options_of({"kind=step", setting}));
}

TEST_CASE("warm-up rises from 0 to the peak", "[schedule]") {
  for (const char* kind : {"constant", "linear", "cosine"}) {
    const ScheduleOptions options =
        options_of({std::string("kind=") + kind, "learning_rate=2", "warmup_steps=20"});
    CHECK(rate(options, 0) == 0);
    CHECK(rate(options, 5) == 0.5);
    CHECK_THAT(rate(options, 19), WithinAbs(1.9, 1e-12));
    CHECK(rate(options, 20) == 2);
    // Half of what is left, not half of all.
    const double want = kind == std::string("constant") ? 2 : 1;
    CHECK_THAT(rate(options, 60), WithinAbs(want, 1e-12));
  }
  SECTION("as a share of the run, rounded up") {
    const ScheduleOptions options{.learning_rate = 1, .warmup_ratio = 0.1};
    CHECK(rate(options, 9) == 0.9);
    CHECK(rate(options, 10) == 1);
    CHECK(rate(options, 10, 101) < 1);
    CHECK(rate(options, 11, 101) == 1);
    CHECK(rate({.learning_rate = 1, .warmup_ratio = 0.07}, 7) == 1);  // 0.07 * 100 is above 7
  }
  SECTION("longer than the run") {
    const ScheduleOptions options{.learning_rate = 1, .warmup_steps = 200};
    CHECK(rate(options, 99) == 99.0 / 200);
    CHECK(rate(options, 200) == 0);
  }
}

TEST_CASE("warm-up is given once", "[schedule]") {
  ScheduleOptions options;
  CHECK_THROWS_WITH(read_config(options, {.overrides = {"warmup_steps=5", "warmup_ratio=0.1"}}),
                    ContainsSubstring("warmup_ratio and warmup_steps say the same"));
}

TEST_CASE("a share of the peak is a number from 0", "[schedule][error]") {
  for (const auto& [value, share] : {std::pair("-0.5", "-0.5"), std::pair("10", "nan")}) {
    const std::string said = error_of([&, text = std::string("value=") + value] {
                               rate(options_of({"kind=broken", text}), 7);
                             }).what();
    CHECK_THAT(said, ContainsSubstring("schedule.kind \"broken\" has the share ") &&
                         ContainsSubstring(std::string(share) + " at step 7"));
  }
}
