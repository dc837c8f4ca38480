#include "core/nearest_name.h"

#include "tests/support/catch.h"

using namespace vcas;

TEST_CASE("the nearest name", "[config]") {
  const std::vector<std::string> names = {"adam", "adamw", "sgd", "learning_rate"};
  CHECK(nearest_name("Adam", names) == "adam");
  CHECK(nearest_name("sdg", names) == "sgd");
  CHECK(nearest_name("adamv", names) == "adam");
  CHECK(nearest_name("lerning-rate", names) == "learning_rate");
  CHECK(nearest_name("momentum", names).empty());
  CHECK(nearest_name("", names).empty());
  CHECK(nearest_name("x", {}).empty());
  const std::string text(100, 'x');
  CHECK(nearest_name(text, {"xy", text + "y"}) == text + "y");
  CHECK(nearest_name(text + "x", {text + "y"}).empty());
  // A swap reads the row before the last, which may hold fewer edits.
  CHECK(nearest_name("abcdef", {"badc", "bacdfe"}) == "bacdfe");
}
