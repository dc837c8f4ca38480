#include "core/duration.h"

#include "core/error.h"
#include "tests/support/catch.h"

using namespace vcas;

TEST_CASE("durations count steps or epochs", "[duration]") {
  Duration duration = 500;
  CHECK(duration.steps(100) == 500);
  CHECK(duration.steps() == 500);
  REQUIRE(duration.set_text("3ep"));
  CHECK(duration.steps(100) == 300);
  CHECK(duration.text() == "3ep");
  CHECK(duration.plain() == Duration::Unit::kSteps);
  CHECK_THROWS_WITH(duration.steps(), "\"3ep\": the steps of an epoch are not known here");
  duration.set_plain(7);
  CHECK(duration.steps() == 7);

  duration = Duration::epochs(0.5);
  CHECK(duration.steps(101) == 51);
  REQUIRE(duration.set_text("20st"));
  CHECK(duration.steps() == 20);
  duration.set_plain(2);
  CHECK(duration.steps(101) == 202);
}

TEST_CASE("durations round to a step at least, and to none for zero", "[duration]") {
  CHECK(Duration(0).steps(100) == 0);
  CHECK(Duration::epochs(0.001).steps(100) == 1);
  CHECK(Duration::epochs(1e300).steps(100) == 1'000'000'000'000'000);
}

TEST_CASE("other texts are no durations", "[duration]") {
  for (const char* text :
       {"", "3", "ep", "st", "-3ep", "+3ep", " 3ep", "3 ep", "3ep ", "1.5st", "1e3ep", "infep",
        "nanep", "0x3ep", ".5ep", "3EP", "3epochs", "10Mtok"}) {
    CAPTURE(text);
    Duration duration = 5;
    CHECK_FALSE(duration.set_text(text));
    CHECK(duration.steps() == 5);
  }
}
