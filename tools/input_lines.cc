#include "tools/input_lines.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "core/files.h"
#include "data/text_lines.h"

namespace vcas {
namespace {

constexpr const char* kInput = "standard input";

}  // namespace

InputLines::~InputLines() { std::free(buffer_); }

bool InputLines::next(std::string_view& line) {
  const ssize_t length = ::getline(&buffer_, &capacity_, stdin);
  if (length < 0) {
    if (std::ferror(stdin)) fail_errno(ExitCode::kIoError, kInput, "cannot read");
    return false;
  }
  ++number_;
  line = {buffer_, static_cast<std::size_t>(length)};
  for (const char end : {'\n', '\r'})
    if (line.ends_with(end)) line.remove_suffix(1);
  if (number_ == 1) line = without_byte_order_mark(line);
  line_ = line;
  return true;
}

void InputLines::fail_line(std::string_view fault) const {
  throw Error(ExitCode::kBadData, fmt::format("{}:{}: {}", kInput, number_, fault),
              encoding_hint(line_));
}

}  // namespace vcas
