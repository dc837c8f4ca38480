#include "core/row_bound.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "tests/support/catch.h"

using namespace vcas;

TEST_CASE("no choice of items has more rows than their bound", "[row_bound]") {
  std::mt19937 random(1);
  for (const std::int64_t items : {1, 2, 3, 5, 32, 33})
    for (int batch = 0; batch < 50; ++batch) {
      std::lognormal_distribution<double> length(2, 0.1 * batch);
      std::vector<std::int64_t> lengths;
      for (std::int64_t n = 0; n < items; ++n)
        lengths.push_back(static_cast<std::int64_t>(length(random)));
      const RowBound bound(lengths, 1 << 30);
      std::ranges::sort(lengths, std::greater());
      std::int64_t longest = 0;
      CHECK(bound.of(0) == 0);
      for (std::int64_t kept = 1; kept <= items; ++kept) {
        longest += lengths[static_cast<std::size_t>(kept - 1)];
        CHECK(bound.of(kept) >= longest);
        CHECK(bound.of(kept) <= bound.rows);
      }
      CHECK(8 * (bound.rows - longest) <= std::max<std::int64_t>(longest, 8 * 7));
    }
}

TEST_CASE("batches of texts share bounds", "[row_bound]") {
  const RowBound bound({10, 70, 12, 60}, 1000);  // 152, 130 and 70 rows
  CHECK(bound.rows == 160);
  CHECK(bound.half == 160);
  CHECK(bound.quarter == 80);
  CHECK(bound == RowBound({72, 62, 12, 10}, 1000));
  CHECK(bound.of(1) == 80);
  CHECK(bound.of(2) == 160);
  CHECK(RowBound({10, 70, 12, 60}, 155).rows == 155);  // all that a batch can have
  CHECK(RowBound({0, 0}, 9) == RowBound({0, 0}, 1000));
  CHECK(RowBound({0, 0}, 9).rows == 0);
}
