// What options that take numbers refuse.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "core/parse_number.h"

namespace vcas {

// Whole numbers, of which CLI11 takes -1 for the largest.
inline CLI::Validator whole(std::uint64_t low, std::uint64_t high) {
  const auto fault = [=](const std::string& text) {
    const auto value = parse_number<std::uint64_t>(text);
    const bool fits = value >= low && value <= high;
    return fits ? "" : fmt::format("\"{}\" is no whole number from {} to {}", text, low, high);
  };
  return {fault, fmt::format("in [{} - {}]", low, high)};
}
inline const CLI::Validator kPositive = whole(1, 1'000'000'000);

// Unlike CLI::Range it lets no NaN pass.
inline CLI::Validator within(double low, double high) {
  const auto fault = [=](const std::string& text) {
    double value = 0;
    const bool fits = CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
    return fits ? "" : fmt::format("Value {} not in range {} to {}", text, low, high);
  };
  return {fault, fmt::format("FLOAT in [{} - {}]", low, high)};
}
inline const CLI::Validator kKeepRatio = within(1e-6, 1);

}  // namespace vcas
