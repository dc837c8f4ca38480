#include "data/byte_bpe.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "core/content_hash.h"
#include "core/error.h"

namespace vcas {
namespace {

enum class Kind : std::uint8_t { kLetter, kNumber, kSpace, kOther };

struct CodePoint {
  Kind kind;
  std::size_t bytes;
};

Kind kind_of(std::int32_t point) {
  switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return Kind::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return Kind::kNumber;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return Kind::kSpace;
    default:  // the control characters that have White_Space
      return (0x9 <= point && point <= 0xD) || point == 0x85 ? Kind::kSpace : Kind::kOther;
  }
}

CodePoint code_point(std::string_view text, std::size_t at) {
  std::size_t end = at;
  const Kind kind = kind_of(next_code_point(text, end));
  return {kind, end - at};
}

bool stands_for_itself(int byte) {
  return (33 <= byte && byte <= 126) || (161 <= byte && byte <= 172) || byte >= 174;
}

// The bytes that its characters stand for; nothing where one stands for none.
std::optional<std::string> token_bytes(std::string_view token) {
  static const std::unordered_map<std::string, char> table = [] {
    std::unordered_map<std::string, char> made;
    const std::vector<std::string> characters = byte_tokens();
    std::size_t next = 0;
    for (const bool itself : {true, false})
      for (int byte = 0; byte < 256; ++byte)
        if (stands_for_itself(byte) == itself)
          made.emplace(characters[next++], static_cast<char>(byte));
    return made;
  }();
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const std::size_t length = static_cast<unsigned char>(token[at]) < 0x80 ? 1 : 2;
    const auto found = table.find(std::string(token.substr(at, length)));
    if (found == table.end()) return std::nullopt;
    bytes += found->second;
    at += length;
  }
  return bytes;
}

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
}

}  // namespace

std::vector<std::string> byte_tokens() {
  std::vector<int> points;
  for (int byte = 0; byte < 256; ++byte)
    if (stands_for_itself(byte)) points.push_back(byte);
  for (int point = 256; points.size() < 256; ++point) points.push_back(point);
  std::vector<std::string> tokens;
  for (const int point : points) {
    std::string& token = tokens.emplace_back();
    if (point >= 0x80) token += static_cast<char>(0xC0 | point >> 6);
    token += static_cast<char>(point < 0x80 ? point : 0x80 | (point & 0x3F));
  }
  return tokens;
}

std::string_view first_word(std::string_view text) {
  if (text.front() == '\'')
    for (const std::string_view contraction : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (text.starts_with(contraction)) return text.substr(0, contraction.size());
  Kind kind = code_point(text, 0).kind;
  std::size_t end = 0, last = 0;
  if (text.front() == ' ' && text.size() > 1)
    if (const Kind next = code_point(text, 1).kind; next != Kind::kSpace) {
      kind = next;
      end = 1;
    }
  while (end < text.size()) {
    const CodePoint next = code_point(text, end);
    if (next.kind != kind) break;
    last = end;
    end += next.bytes;
  }
  // The last of several spaces is left for the word after them.
  if (kind == Kind::kSpace && end < text.size() && last > 0) end = last;
  return text.substr(0, end);
}

struct ByteBpe::Work {
  struct Symbol {
    std::int32_t token;  // -1: is part of one before it
    std::int64_t previous, next;
  };
  using Candidate = std::pair<std::int32_t, std::int64_t>;  // place of the merge, left symbol

  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

ByteBpe::ByteBpe(const std::filesystem::path& path) : ByteBpe(read_bpe(path)) {}

ByteBpe::ByteBpe(BpeVocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {
  for (const std::string& token : vocabulary_.tokens) {
    ids_.emplace(token, static_cast<std::int32_t>(ids_.size()));
    bytes_.push_back(token_bytes(token).value_or(token));
  }
  for (const std::string& token : byte_tokens()) {
    const auto byte = static_cast<unsigned char>(token_bytes(token)->front());
    byte_ids_[byte] = find(token);
    if (byte_ids_[byte] < 0 || byte_ids_[byte] >= pieces())
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: the vocab has no token \"{}\" for the byte {:#04x}", name(),
                              token, byte),
                  "the vocabulary of a byte-level BPE has all 256 bytes");
  }
  for (const BpeMerge& merge : vocabulary_.merges) {
    if (!token_bytes(token(merge.token)))
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: the merge to \"{}\" has characters that stand for no byte",
                              name(), token(merge.token)),
                  "vocabularies of byte-level BPE have \"\u0120\" for a blank");
    ranks_.emplace(pair_key(merge.left, merge.right), static_cast<std::int32_t>(ranks_.size()));
  }
  Work work;
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < pieces(); ++id) {
    ids.clear();
    add_word(bytes_[id], work, ids);
    if (ids == std::vector{id}) whole_.emplace(bytes_[id], id);
  }
  // The order in which files have them.
  std::ranges::stable_sort(vocabulary_.added, {}, &AddedToken::id);
  for (const AddedToken& added : vocabulary_.added) {
    std::string& bytes = bytes_[added.id];
    const std::string_view text = token(added.id);
    if (added.id < pieces() && bytes != text)
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: the added token \"{}\" is also a piece of words, of other bytes",
                              name(), text),
                  "an added token of the vocab is found literally, so give it another name");
    bytes = text;
    (added.normalized ? normalized_ : as_they_are_).add(std::string(text), added.id);
  }
}

std::string_view ByteBpe::token(std::int32_t id) const {
  VCAS_CHECK(id >= 0 && id < size(), fmt::format("token {} of {}", id, size()));
  return vocabulary_.tokens[id];
}

std::int32_t ByteBpe::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

std::uint64_t ByteBpe::fingerprint() const {
  ContentHash hash;
  hash.add("byte-level BPE");
  for (const std::string& token : vocabulary_.tokens) hash.add(token);
  for (const BpeMerge& merge : vocabulary_.merges)
    hash.add_number(pair_key(merge.left, merge.right));
  for (const TokenPatterns* patterns : {&as_they_are_, &normalized_}) {
    hash.add_number(patterns->all().size());
    for (const TokenPatterns::Pattern& pattern : patterns->all()) hash.add_number(pattern.id);
  }
  hash.add_number(pieces());
  hash.add_number(vocabulary_.add_prefix_space);
  return hash.value();
}

void ByteBpe::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  check_text(text);
  Work work;
  as_they_are_.split(text, ids, [&](std::string_view part) {
    normalized_.split(part, ids, [&](std::string_view plain) { encode_plain(plain, work, ids); });
  });
}

std::string ByteBpe::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    VCAS_CHECK(id >= 0 && id < size(), fmt::format("token {} of {}", id, size()));
    text += bytes_[id];
  }
  return text;
}

void ByteBpe::encode_plain(std::string_view text, Work& work,
                           std::vector<std::int32_t>& ids) const {
  std::string longer;
  if (vocabulary_.add_prefix_space && !text.empty() && text.front() != ' ')
    text = longer.append(" ").append(text);
  while (!text.empty()) {
    const std::string_view word = first_word(text);
    if (const auto whole = whole_.find(word); whole != whole_.end())
      ids.push_back(whole->second);
    else
      add_word(word, work, ids);
    text.remove_prefix(word.size());
  }
}

std::int32_t ByteBpe::rank(std::int32_t left, std::int32_t right) const {
  const auto found = ranks_.find(pair_key(left, right));
  return found == ranks_.end() ? -1 : found->second;
}

// A heap keeps long words from quadratic time.
void ByteBpe::add_word(std::string_view word, Work& work, std::vector<std::int32_t>& ids) const {
  auto& [symbols, heap] = work;
  symbols.clear();
  heap.clear();
  for (const char byte : word) {
    const std::int64_t at = std::ssize(symbols);
    symbols.push_back({byte_ids_[static_cast<unsigned char>(byte)], at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  const auto symbol = [&](std::int64_t at) -> Work::Symbol& { return work.symbols[at]; };
  const auto consider = [&](std::int64_t at) {
    if (at < 0 || symbol(at).next < 0) return;
    const std::int32_t found = rank(symbol(at).token, symbol(symbol(at).next).token);
    if (found < 0) return;
    work.heap.emplace_back(found, at);
    std::ranges::push_heap(work.heap, std::greater<>());
  };
  for (std::int64_t at = 0; at < std::ssize(symbols); ++at) consider(at);
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::greater<>());
    const auto [place, at] = heap.back();
    heap.pop_back();
    const BpeMerge& merge = vocabulary_.merges[place];
    Work::Symbol& left = symbol(at);
    // Another merge may have taken one of the two.
    if (left.token != merge.left || left.next < 0 || symbol(left.next).token != merge.right)
      continue;
    Work::Symbol& right = symbol(left.next);
    left.token = merge.token;
    right.token = -1;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = at;
    consider(left.previous);
    consider(at);
  }
  for (const Work::Symbol& made : symbols)
    if (made.token >= 0) ids.push_back(made.token);
}

}  // namespace vcas
