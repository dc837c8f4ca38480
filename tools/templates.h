// The configurations of configs/, built into the program.
#pragma once

#include <map>
#include <string>

namespace vcas {

const std::map<std::string, std::string>& config_templates();

}  // namespace vcas
