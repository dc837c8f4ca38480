#include "core/row_bound.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

namespace vcas {

namespace {

// Between a power of two and the next there are so many numbers of rows. A step is eight or more.
constexpr std::int64_t kStepsOfAll = 8, kStepsOfLongest = 4;

std::int64_t part(std::int64_t items, std::int64_t share) { return (items + share - 1) / share; }

std::int64_t rounded_up(std::int64_t rows, std::int64_t steps) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rows)));
  const std::int64_t step = std::max<std::int64_t>(power / steps, 8);
  return (rows + step - 1) / step * step;
}

}  // namespace

RowBound::RowBound(std::vector<std::int64_t> lengths, std::int64_t most)
    : items(std::ssize(lengths)) {
  std::ranges::sort(lengths, std::greater());
  const auto longest = [&](std::int64_t count, std::int64_t steps) {
    const std::int64_t sum =
        std::accumulate(lengths.begin(), lengths.begin() + count, std::int64_t{0});
    return std::min(rounded_up(sum, steps), most);
  };
  rows = longest(items, kStepsOfAll);
  half = longest(part(items, 2), kStepsOfLongest);
  quarter = longest(part(items, 4), kStepsOfLongest);
}

// The more of the longest items there are, the smaller is their mean.
std::int64_t RowBound::of(std::int64_t kept) const {
  const auto from = [&](std::int64_t count, std::int64_t longest) {
    return kept <= count ? longest : (longest * kept + count - 1) / count;
  };
  return kept == 0 ? 0
                   : std::min({rows, from(part(items, 2), half), from(part(items, 4), quarter)});
}

}  // namespace vcas
