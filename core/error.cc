#include "core/error.h"

namespace vcas {

void fail_check(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(std::string(file) + ":" + std::to_string(line) + ": " + condition + ": " +
                      message);
}

}  // namespace vcas
