#include "optim/methods/norm_forecast.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace vcas {
namespace {

constexpr int kOctaves = 64, kLowest = -48;  // the lowest octave: below 2^-47
constexpr double kPriorItems = 5;            // of each octave, whose norms stay

std::size_t octave(double norm) {
  return static_cast<std::size_t>(
      std::clamp(norm > 0 ? std::ilogb(norm) - kLowest : 0, 0, kOctaves - 1));
}

double middle_square(std::size_t octave) {
  return std::exp2(2 * (static_cast<double>(octave) + kLowest) + 1);
}

}  // namespace

NormForecast::NormForecast(double half_life)
    : half_life_(half_life), items_(kOctaves, 0.0), squares_(kOctaves, 0.0) {}

void NormForecast::learn(double before, double now, double weight) {
  const double keep = std::exp2(-weight / half_life_);
  for (double& sum : items_) sum *= keep;
  for (double& sum : squares_) sum *= keep;
  items_[octave(before)] += weight;
  squares_[octave(before)] += weight * now * now;
}

// Isotonic regression by pooling adjacent violators.
std::vector<double> NormForecast::of(const std::vector<double>& norms) const {
  struct Pool {
    double items, squares;
    std::size_t end;  // octave
    double mean() const { return squares / items; }
  };
  std::vector<Pool> pools;
  for (std::size_t o = 0; o < items_.size(); ++o) {
    pools.push_back({items_[o] + kPriorItems, squares_[o] + kPriorItems * middle_square(o), o + 1});
    while (pools.size() > 1 && pools[pools.size() - 2].mean() >= pools.back().mean()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back().items += last.items;
      pools.back().squares += last.squares;
      pools.back().end = last.end;
    }
  }
  std::vector<double> out;
  for (const double norm : norms)
    out.push_back(std::sqrt(std::ranges::upper_bound(pools, octave(norm), {}, &Pool::end)->mean()));
  return out;
}

nlohmann::json NormForecast::state() const { return {{"items", items_}, {"squares", squares_}}; }

void NormForecast::restore(const nlohmann::json& state) try {
  const auto read = [&](const char* key) {
    auto sums = state.at(key).get<std::vector<double>>();
    if (sums.size() != kOctaves)
      throw Error(ExitCode::kBadData, "the state of SampleF has not 64 octaves of norms");
    return sums;
  };
  std::vector<double> items = read("items"), squares = read("squares");
  items_ = std::move(items);
  squares_ = std::move(squares);
} catch (const nlohmann::json::exception& error) {
  throw Error(ExitCode::kBadData, std::string("the state of SampleF: ") + error.what());
}

}  // namespace vcas
