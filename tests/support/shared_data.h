// Real data beside the source tree, too large to live in it: tests that need some skip where it is
// absent.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/catch.h"

namespace vcas {

// The folder or file `name` of $VCAS_SHARED_DATA, else of ../shared/data beside the source tree.
// Empty, with a warning, where it is absent.
inline std::filesystem::path shared_data(const std::string& name) {
  const char* set = std::getenv("VCAS_SHARED_DATA");
  const std::filesystem::path top =
      set ? std::filesystem::path(set)
          : std::filesystem::path(VCAS_SOURCE_DIR).parent_path() / "shared" / "data";
  if (std::filesystem::exists(top / name)) return top / name;
  WARN("skipped: no " << (top / name).string() << "; VCAS_SHARED_DATA names another folder");
  return {};
}

}  // namespace vcas
