#include "core/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <utility>

#include "core/utf8.h"

namespace vcas {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxDepth = 64;  // the tree is walked and freed by recursion

// "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ... -
// unexpected X; last read: '...'; expected Y" without the parts that repeat the place.
std::string plain_message(std::string message) {
  const std::size_t start = message.find(": ");
  if (start != std::string::npos) message.erase(0, start + 2);
  const std::size_t last_read = message.find("; last read: ");
  if (last_read != std::string::npos) {
    const std::size_t expected = message.rfind("; expected ");
    message.erase(last_read, expected != std::string::npos && expected > last_read
                                 ? expected - last_read
                                 : std::string::npos);
  }
  return message;
}

// Builds the tree, with the place of each token in the text.
// The parser reads a stream one token at a time.
// So at every event the stream stands at the end of the token.
// The token begins at the first significant byte after the previous one.
class PlacedTree final : public nlohmann::json_sax<Json> {
 public:
  PlacedTree(std::string_view text, std::istringstream& stream, JsonDocument& document)
      : text_(text), stream_(stream), document_(document) {}

  bool null() override { return leaf(nullptr); }
  bool boolean(bool value) override { return leaf(value); }
  bool number_integer(number_integer_t value) override { return leaf(value); }
  bool number_unsigned(number_unsigned_t value) override { return leaf(value); }
  bool number_float(number_float_t value, const string_t&) override { return leaf(value); }
  bool string(string_t& value) override { return leaf(value); }
  bool binary(binary_t&) override { return false; }  // JSON text holds none
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    next_token();
    key_.name = name;
    key_.key_begin = begin_;
    key_.key_end = end_;
    return true;
  }

  bool parse_error(std::size_t, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    const std::size_t before = end_;
    next_token();
    std::string message = plain_message(error.what());
    if (error.id == 406)  // out_of_range: not representable as a double
      message = fmt::format("{} is too large for a number", token);
    else if (begin_ < text_.size() && (text_[begin_] == '}' || text_[begin_] == ']') &&
             text_.substr(before, begin_ - before).find(',') != std::string_view::npos)
      message = fmt::format("no comma may stand before the closing '{}'", text_[begin_]);
    document_.error = {begin_, message};
    return false;
  }

 private:
  void next_token() {
    const auto position = stream_.rdbuf()->pubseekoff(0, std::ios::cur, std::ios::in);
    const std::size_t read = static_cast<std::size_t>(std::streamoff(position));
    for (begin_ = end_; begin_ < text_.size();) {
      const char c = text_[begin_];
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++begin_;
      } else if (c == '/') {
        const bool to_line_end = text_.substr(begin_, 2) == "//";
        const std::size_t stop =
            to_line_end ? text_.find_first_of("\r\n", begin_ + 2) : text_.find("*/", begin_ + 2);
        if (stop == std::string_view::npos && !to_line_end) break;
        begin_ = stop == std::string_view::npos ? text_.size() : stop + (to_line_end ? 1 : 2);
      } else if ((c == ',' || c == ':') && begin_ + 1 < read) {
        ++begin_;
      } else {
        break;
      }
    }
    end_ = std::max(begin_, read);
  }

  JsonNode& add(Json value) {
    next_token();
    // Only the byte after a number tells that it has ended.
    if (value.is_number() && std::isdigit(static_cast<unsigned char>(text_[end_ - 1])) == 0) --end_;
    key_.begin = begin_;
    key_.end = end_;
    key_.value = std::move(value);
    JsonNode& node = open_.empty() ? document_.root : open_.back()->children.emplace_back();
    node = std::exchange(key_, {});
    return node;
  }

  bool leaf(Json value) {
    add(std::move(value));
    return true;
  }

  bool open(Json value) {
    JsonNode& node = add(std::move(value));
    open_.push_back(&node);
    if (open_.size() <= kMaxDepth) return true;
    document_.error = {begin_, fmt::format("more than {} levels of nesting", kMaxDepth)};
    return false;
  }

  bool close() {
    next_token();
    open_.back()->end = end_;
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  std::istringstream& stream_;
  JsonDocument& document_;
  std::size_t begin_ = 0, end_ = 0;  // of the latest token
  JsonNode key_;                     // a key waits here for its value
  std::vector<JsonNode*> open_;      // parents are never moved while a child is open
};

std::size_t line_start(std::string_view text, std::size_t offset) {
  return offset == 0 ? 0 : text.rfind('\n', offset - 1) + 1;  // npos + 1 == 0
}

}  // namespace

JsonDocument parse_json(std::string_view text, bool ignore_comments) {
  JsonDocument document;
  // The parser takes it for the end.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    document.error = {nul, "a NUL byte; JSON is text in UTF-8"};
    return document;
  }
  std::istringstream stream{std::string(text)};
  PlacedTree tree(text, stream, document);
  Json::sax_parse(stream, &tree, Json::input_format_t::json, /*strict=*/true, ignore_comments);
  return document;
}

std::size_t SourceText::line(std::size_t offset) const {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(offset);
  return 1 + static_cast<std::size_t>(std::count(text.begin(), end, '\n'));
}

std::size_t SourceText::column(std::size_t offset) const {
  const std::size_t start = line_start(text, offset);
  const bool marked = start == 0 && offset > 0 && text.starts_with("\xEF\xBB\xBF");
  return 1 + code_points(std::string_view(text).substr(start, offset - start)) - marked;
}

std::string SourceText::place(std::size_t offset) const {
  return fmt::format("{}:{}:{}", name, line(offset), column(offset));
}

std::string SourceText::underline(std::size_t begin, std::size_t end) const {
  constexpr std::size_t kAround = 60;  // bytes before the place, and behind it, of a long line
  const std::size_t line_begin = line_start(text, begin);
  const std::size_t line_end = std::min(text.find('\n', begin), text.size());
  std::size_t start = std::max(line_begin, begin - std::min(begin, kAround));
  std::size_t stop = std::min(line_end, begin + kAround);
  while (start > line_begin && !starts_code_point(text[start])) --start;
  while (stop < line_end && !starts_code_point(text[stop])) ++stop;
  std::string shown = text.substr(start, stop - start);
  if (!shown.empty() && shown.back() == '\r') shown.pop_back();
  const std::string before = start > line_begin ? "..." : "", after = stop < line_end ? "..." : "";
  // Tabs stay tabs, so that the caret stands below its token.
  std::string margin(before.size(), ' ');
  for (const char c : std::string_view(shown).substr(0, begin - start))
    if (starts_code_point(c)) margin += c == '\t' ? '\t' : ' ';
  const std::string marked = shown.substr(std::min(begin - start, shown.size()), end - begin);
  const std::size_t tildes = std::max<std::size_t>(code_points(marked), 1) - 1;
  return fmt::format("{:5} | {}{}{}\n      | {}^{}\n", line(begin), before, shown, after, margin,
                     std::string(tildes, '~'));
}

}  // namespace vcas
