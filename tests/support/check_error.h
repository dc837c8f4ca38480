// What an act throws.
#pragma once

#include <functional>
#include <string>

#include "core/error.h"
#include "tests/support/catch.h"

inline vcas::Error error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const vcas::Error& error) {
    return error;
  }
  return vcas::Error(vcas::ExitCode::kDone, "nothing was thrown");
}

// What the error says, which must have this code. Empty: nothing was thrown.
inline std::string error_text(const std::function<void()>& act, vcas::ExitCode code) {
  const vcas::Error error = error_of(act);
  if (error.code() == vcas::ExitCode::kDone) return "";
  CHECK(error.code() == code);
  return error.what();
}

inline void check_error(const std::function<void()>& act, vcas::ExitCode code,
                        const std::string& text, const std::string& hint = "") {
  const vcas::Error error = error_of(act);
  CHECK(error.code() == code);
  CHECK_THAT(std::string(error.what()), ContainsSubstring(text));
  CHECK_THAT(error.hint(), ContainsSubstring(hint));
}

// The error says this alone.
inline void check_whole_error(const std::function<void()>& act, vcas::ExitCode code,
                              const std::string& text, const std::string& hint) {
  const vcas::Error error = error_of(act);
  CHECK(error.code() == code);
  CHECK(error.what() == text);
  CHECK(error.hint() == hint);
}
