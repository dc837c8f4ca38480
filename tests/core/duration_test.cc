#include "core/duration.h"

#include <limits>

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

TEST_CASE("the text of a duration is read as the same duration", "[duration]") {
  CHECK(Duration::epochs(0.00001).text() == "0.00001ep");
  CHECK(Duration::epochs(1e20).text() == "100000000000000000000ep");
  CHECK(Duration(1'000'000'000'000'000).text() == "1000000000000000st");
  using Limits = std::numeric_limits<double>;
  for (const double epochs : {0.0, 0.1, 0.00001, 1.0 / 3, 2.5, 1e15, 1e300, Limits::max(),
                              Limits::min(), Limits::denorm_min()}) {
    CAPTURE(epochs);
    Duration duration = 5;
    REQUIRE(duration.set_text(Duration::epochs(epochs).text()));
    CHECK(duration.unit() == Duration::Unit::kEpochs);
    CHECK(duration.amount() == epochs);
  }
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
