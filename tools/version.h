// Which program this is, and what is built into it.
#pragma once

#include <string>

namespace vcas {

// "a1b2c3d", "a1b2c3d-dirty" of a changed tree; empty for a source archive.
const char* source_commit();

// "0.1.0 (a1b2c3d)", or "0.1.0".
std::string version();

// "vcas 0.1.0 (a1b2c3d)  C++20 ...": one line of what is built in and what the machine gives.
std::string version_line();

}  // namespace vcas
