// What is said of the settings of a controller.
#pragma once

#include <string>

#include "optim/methods/controller.h"
#include "tests/support/check_error.h"

namespace vcas {

// Empty: nothing.
inline std::string config_error(const std::string& json) {
  VcasOptions options;
  return error_text(
      [&] { read_config(options, {.documents = {{.name = "run.json", .text = json}}}); },
      ExitCode::kBadConfig);
}

}  // namespace vcas
