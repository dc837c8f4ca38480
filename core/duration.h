// How long something lasts: "500st" steps, "3ep" passes over the training data, or a plain number.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vcas {

class Duration {
 public:
  enum class Unit { kSteps, kEpochs };
  static constexpr double kMost = 1e15;  // of either: a double holds it exactly
  // What set_text takes, as a regular expression of JSON schemas.
  static constexpr const char* kPattern = "^[0-9]+\\.?[0-9]*ep$|^[0-9]+st$";

  Duration(std::int64_t steps);  // not explicit: most settings are plain numbers of steps
  static Duration epochs(double epochs);

  double amount() const { return amount_; }
  Unit unit() const { return unit_; }
  Unit plain() const { return plain_; }  // what a plain number means where this one is kept

  // Sets the amount, in units of a plain number.
  void set_plain(double amount);
  // Sets the duration from "500st", "3ep" or "0.5ep"; false, and nothing changes, for other texts.
  bool set_text(std::string_view text);
  // "3ep": what set_text takes, without an exponent.
  std::string text() const;

  // 0 stays 0; else at least 1 and at most kMost.
  std::int64_t steps(std::int64_t steps_per_epoch) const;
  // The same where no epoch is known. Throws Error(kBadConfig) for a duration in epochs.
  std::int64_t steps() const;

 private:
  double amount_ = 0;
  Unit unit_ = Unit::kSteps, plain_ = Unit::kSteps;
};

}  // namespace vcas
