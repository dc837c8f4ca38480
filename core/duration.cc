#include "core/duration.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/parse_number.h"

namespace vcas {
namespace {

const char* suffix(Duration::Unit unit) { return unit == Duration::Unit::kSteps ? "st" : "ep"; }

}  // namespace

Duration::Duration(std::int64_t steps) : amount_(static_cast<double>(steps)) {}

Duration Duration::epochs(double epochs) {
  Duration duration(0);
  duration.unit_ = duration.plain_ = Unit::kEpochs;
  duration.amount_ = epochs;
  return duration;
}

void Duration::set_plain(double amount) {
  amount_ = amount;
  unit_ = plain_;
}

bool Duration::set_text(std::string_view text) {
  for (const Unit unit : {Unit::kSteps, Unit::kEpochs}) {
    if (!text.ends_with(suffix(unit))) continue;
    text.remove_suffix(2);
    const auto amount = parse_number<double>(text, std::chars_format::fixed);
    if (!amount || text.front() < '0' || text.front() > '9') return false;
    if (unit == Unit::kSteps && text.find('.') != std::string_view::npos) return false;
    amount_ = *amount;
    unit_ = unit;
    return true;
  }
  return false;
}

std::string Duration::text() const {
  char digits[400];  // the least number has 324 zeros before its digits, the greatest 309 digits
  char* const end = std::to_chars(digits, std::end(digits), amount_, std::chars_format::fixed).ptr;
  return std::string(digits, end) + suffix(unit_);
}

std::int64_t Duration::steps(std::int64_t steps_per_epoch) const {
  if (amount_ == 0) return 0;
  const double steps =
      unit_ == Unit::kSteps ? amount_ : amount_ * static_cast<double>(steps_per_epoch);
  return std::llround(std::clamp(steps, 1.0, kMost));
}

std::int64_t Duration::steps() const {
  if (unit_ != Unit::kSteps)
    throw Error(ExitCode::kBadConfig,
                fmt::format("\"{}\": the steps of an epoch are not known here", text()),
                "MethodKind::settle turns those of a method into steps, "
                "Duration::steps(steps_per_epoch) any other");
  return steps(0);
}

}  // namespace vcas
