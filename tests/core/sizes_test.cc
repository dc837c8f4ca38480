#include "core/sizes.h"

#include "tests/support/check_error.h"

using namespace vcas;

namespace {

std::string fault(const std::function<void()>& act) {
  return error_text(act, ExitCode::kOutOfMemory);
}

}  // namespace

TEST_CASE("products of sizes do not wrap round", "[sizes]") {
  CHECK(checked_product({}, "x") == 1);
  CHECK(checked_product({3, 0, kMostBytes}, "x") == 0);
  CHECK(checked_product({1 << 22, 1 << 22}, "x") == kMostBytes);
  CHECK(fault([] {
          checked_product({kMostBytes, 2}, "x");
        }) == "x: 17592186044416 x 2 bytes are more than any memory");
  const std::int64_t root = std::int64_t{1} << 32;
  CHECK_FALSE(fault([&] { checked_product({root, root}, "x"); }).empty());  // 0, if it wrapped
  CHECK_FALSE(fault([&] { checked_product({root, root, root}, "x"); }).empty());
}

TEST_CASE("memory that the machine lacks is refused by name", "[sizes]") {
  check_room(1, "x");
  CHECK_THAT(fault([] { check_room(kMostBytes, "data"); }),
             Catch::Matchers::Matches("data needs 16384\\.0 GiB, and [0-9.]+ GiB are free"));
}
