// What options that take numbers refuse.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>

namespace vcas {

// Whole numbers, of which CLI11 takes -1 for the largest.
inline CLI::Validator whole(std::uint64_t low, std::uint64_t high) {
  const auto fault = [=](const std::string& text) {
    std::uint64_t value = 0;
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, value);
    const bool fits = error == std::errc() && end == last && value >= low && value <= high;
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
