// What is said of the settings of a controller.
#pragma once

#include <string>

#include "core/error.h"
#include "optim/methods/controller.h"

namespace vcas {

// Empty: nothing.
inline std::string config_error(const std::string& json) {
  VcasOptions options;
  try {
    read_config(options, {.documents = {{.name = "run.json", .text = json}}});
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

}  // namespace vcas
