// A method as a configuration chooses it.
#pragma once

#include "optim/methods/method.h"
#include "tests/support/check_error.h"

namespace vcas {

// `settings`: the section "method" as JSON, `"type": "uniform", "keep": 0.5`.
inline Part<MethodKind> read_method(const std::string& settings) {
  struct Config {
    Part<MethodKind> method{"vcas", "What backward computes."};
    void fields(Setting& v) { v.section("method", method, "How gradients are computed."); }
  };
  Config config;
  read_config(config, {.documents = {{"run.json", R"({"method": {)" + settings + "}}"}}});
  return config.method;
}

// What is said of such settings. Empty: nothing.
inline std::string method_error(const std::string& settings) {
  return error_text([&] { read_method(settings); }, ExitCode::kBadConfig);
}

}  // namespace vcas
