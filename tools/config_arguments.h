// The options of the commands that read a configuration.
#pragma once

#include <string>
#include <vector>

#include "tools/arguments.h"
#include "tools/run_config.h"

namespace vcas {

// Says of an unknown device where it was set.
LoadedConfig load_for_device(const SourceText& text, const std::vector<std::string>& overrides,
                             const std::vector<std::string>& variant = {});

// A configuration right after --resume is not the folder to resume from.
void move_config(std::string& resume, std::vector<std::string>& files);

struct SettingArguments : Arguments {
  using Arguments::Arguments;
  std::vector<std::string> set;

 protected:
  void add_set();
};

struct ConfigArguments : SettingArguments {
  std::string config;
  std::vector<std::string> files;

  explicit ConfigArguments(CLI::App* added);

 protected:
  // A configuration may be given without --config.
  void take_config();
  LoadedConfig load() const;
  // The given configuration, with the sizes of model.pretrained.
  LoadedConfig load_whole();
};

}  // namespace vcas
