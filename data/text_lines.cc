#include "data/text_lines.h"

#include <fmt/format.h>

#include "data/vocabulary.h"

namespace vcas {

TextLines::TextLines(const std::filesystem::path& path)
    : name_(path.string()), file_(path), buffer_(1 << 16) {}

bool TextLines::refill() {
  const std::size_t size = file_.read(buffer_);
  rest_ = {reinterpret_cast<const char*>(buffer_.data()), size};
  return size > 0;
}

bool TextLines::next(std::string& line) {
  line.clear();
  if (rest_.empty() && !refill()) return false;
  ++line_;
  std::size_t end;
  while ((end = rest_.find('\n')) == std::string_view::npos) {
    line += rest_;
    rest_ = {};
    if (!refill()) break;
  }
  if (end != std::string_view::npos) {
    line += rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
  }
  if (line.ends_with('\r')) line.pop_back();
  if (line_ == 1) line.erase(0, line.size() - without_byte_order_mark(line).size());
  return true;
}

std::string TextLines::place() const { return fmt::format("{}:{}", name_, line_); }

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  return text;
}

std::string text_fault(std::string_view line) {
  const std::size_t nul = line.find('\0');
  if (nul != std::string_view::npos) return fmt::format("byte {} is NUL", nul + 1);
  if (const auto invalid = first_invalid_utf8(line))
    return fmt::format("byte {} is not valid UTF-8", *invalid + 1);
  return {};
}

std::string encoding_hint(std::string_view line) {
  return line.find('\0') == std::string_view::npos
             ? "if the text is Latin-1, iconv -f latin1 -t utf-8 converts it"
             : "if the text is UTF-16, iconv -f utf-16 -t utf-8 converts it";
}

}  // namespace vcas
