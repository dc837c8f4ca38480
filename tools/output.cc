#include "tools/output.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "core/files.h"

namespace vcas {

void print_text(const std::string& text) { std::fputs(text.c_str(), stdout); }

void write_output(std::string_view text) {
  const bool arrived = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
                       std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (arrived) return;
  if (errno == EPIPE) std::_Exit(static_cast<int>(ExitCode::kIoError));
  fail_errno(ExitCode::kIoError, "standard output", "cannot write");
}

}  // namespace vcas
