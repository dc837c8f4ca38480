// Settings that are durations.
#include "core/config.h"
#include "tests/support/check_error.h"

using namespace vcas;

namespace {

ConfigSources document(const std::string& text) { return {.documents = {{"run.json", text}}}; }

struct DurationConfig {
  Duration epochs = Duration::epochs(3);
  Duration every = 0;

  void fields(Setting& v) {
    v.field("epochs", epochs, "Passes.", above(0));
    v.field("every", every, "Steps between.", at_least(0));
  }
};

std::string duration_error(const std::string& text) {
  DurationConfig config;
  return error_text([&] { read_config(config, document(text)); }, ExitCode::kBadConfig);
}

}  // namespace

TEST_CASE("durations are numbers or texts with a unit", "[config]") {
  DurationConfig config;
  read_config(config, document(R"({"epochs": "500st", "every": "0.5ep"})"));
  CHECK(config.epochs.steps(10) == 500);
  CHECK(config.every.steps(10) == 5);
  const std::string printed = print_config(config, {}, PrintMode::kPlain);
  CHECK(printed == "{\n  \"epochs\": \"500st\",\n  \"every\": \"0.5ep\"\n}\n");
  DurationConfig again;
  read_config(again, document(printed));
  CHECK(config_changes(config, again).empty());
  read_config(config, {.overrides = {"every=0.00001ep"}});
  const std::string small = print_config(config, {}, PrintMode::kPlain);
  CHECK_THAT(small, ContainsSubstring("\"every\": \"0.00001ep\""));
  read_config(again, document(small));
  CHECK(config_changes(config, again).empty());
  read_config(config, document(R"({"epochs": 2.5, "every": 7})"));
  CHECK(print_config(config, {}, PrintMode::kPlain) ==
        "{\n  \"epochs\": 2.5,\n  \"every\": 7\n}\n");
  read_config(config, {.overrides = {"epochs=4", "every=3st"}});
  CHECK(print_config(config, {}, PrintMode::kPlain) ==
        "{\n  \"epochs\": 4.0,\n  \"every\": 3\n}\n");
  const std::string help = config_help(DurationConfig{});
  CHECK_THAT(help,
             ContainsSubstring("a number of epochs, \"3ep\" or \"500st\", above 0; default 3"));
  CHECK_THAT(help, ContainsSubstring("a whole number of steps, \"500st\" or \"3ep\", at least 0"));

  CHECK_THAT(
      duration_error(R"({"every": 1.5})"),
      ContainsSubstring("every must be a whole number of steps, \"500st\" or \"3ep\", got 1.5"));
  CHECK_THAT(duration_error(R"({"every": 2.0})"), ContainsSubstring("  did you mean \"2\"?"));
  CHECK_THAT(duration_error(R"({"every": -1})"), ContainsSubstring("must be at least 0, got -1"));
  CHECK_THAT(duration_error(R"({"every": 10000000000000000})"),
             ContainsSubstring("must be at most 1000000000000000, got 10000000000000000"));
  CHECK_THAT(duration_error(R"({"epochs": "0ep"})"),
             ContainsSubstring("must be above 0, got \"0ep\""));
  CHECK_THAT(
      duration_error(R"({"epochs": true})"),
      ContainsSubstring("epochs must be a number of epochs, \"3ep\" or \"500st\", got true"));
}
