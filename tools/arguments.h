// The commands of the program: the options of each, and what it does with them.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

#include "core/ranks.h"

namespace vcas {

class Arguments {
 public:
  explicit Arguments(CLI::App* added) : command(*added) {}
  virtual ~Arguments() = default;
  virtual void run() = 0;  // once they are parsed

  CLI::App& command;
  std::shared_ptr<Ranks> ranks = one_rank();

 protected:
  bool has(const char* option) const { return command.count(option) > 0; }
};

// All commands, in the order of `vcas --help`.
std::vector<std::unique_ptr<Arguments>> add_commands(CLI::App& program);

[[noreturn]] void fail_usage(const std::string& message, const std::string& hint = {});

}  // namespace vcas
