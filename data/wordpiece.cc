#include "data/wordpiece.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <bit>

#include "core/content_hash.h"
#include "core/error.h"
#include "core/utf8.h"

namespace vcas {
namespace {

// FNV-1a, 64 bits: the hash of a text goes on byte by byte, so all prefixes of a word cost one
// pass.
constexpr std::uint64_t hash_byte(std::uint64_t hash, char byte) {
  return (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
}
constexpr std::uint64_t kWordStart = 0xcbf29ce484222325;
constexpr std::string_view kContinuation = "##";
constexpr std::uint64_t kContinuationStart =
    hash_byte(hash_byte(kWordStart, kContinuation[0]), kContinuation[1]);

std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = kWordStart;
  for (const char byte : text) hash = hash_byte(hash, byte);
  return hash;
}

// The blocks of BERT's basic tokenizer: unified and compatibility ideographs, without the Japanese
// and Korean scripts.
bool is_cjk(std::int32_t point) {
  constexpr std::pair<std::int32_t, std::int32_t> kBlocks[] = {
      {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
      {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return std::ranges::any_of(
      kBlocks, [&](const auto& block) { return block.first <= point && point <= block.second; });
}

void append_utf8(std::string& text, std::int32_t point) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(point, bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

bool is_ascii_punctuation(std::int32_t point) {
  return (33 <= point && point <= 47) || (58 <= point && point <= 64) ||
         (91 <= point && point <= 96) || (123 <= point && point <= 126);
}

}  // namespace

WordPiece::WordPiece(const std::filesystem::path& vocabulary, bool lower_case)
    : WordPiece(read_vocabulary(vocabulary, lower_case)) {}

WordPiece::WordPiece(const Vocabulary& vocabulary)
    : name_(vocabulary.name),
      clean_text_(vocabulary.clean_text),
      separate_cjk_(vocabulary.separate_cjk),
      strip_accents_(vocabulary.strip_accents),
      lower_case_(vocabulary.lower_case),
      unknown_(vocabulary.unknown),
      max_word_length_(static_cast<std::size_t>(vocabulary.max_word_length)),
      slots_(std::bit_ceil(2 * vocabulary.tokens.size() + 2)),
      added_(vocabulary.added),
      pieces_(static_cast<std::int32_t>(vocabulary.tokens.size()) - vocabulary.appended) {
  for (int byte = 0; byte < 256; ++byte) {
    const bool upper = lower_case_ && 'A' <= byte && byte <= 'Z';
    bytes_[byte] = {byte < 128 ? kind_of(byte) : Kind::kNotAscii,
                    static_cast<char>(upper ? byte - 'A' + 'a' : byte)};
  }
  ends_.push_back(0);
  for (const std::string& token : vocabulary.tokens) {
    const bool continues = token.starts_with(kContinuation);
    if (size() < pieces_)
      longest_[continues] =
          std::max(longest_[continues], token.size() - (continues ? kContinuation.size() : 0));
    const std::uint64_t hash = hash_text(token);
    std::size_t at = (hash ^ hash >> 32) & (slots_.size() - 1);
    while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {static_cast<std::uint32_t>(hash >> 32), size()};
    text_ += token;
    ends_.push_back(text_.size());
  }
  std::ranges::sort(added_, [&](const AddedToken& a, const AddedToken& b) {
    return std::pair(token(b.id).size(), a.id) < std::pair(token(a.id).size(), b.id);
  });
  for (const AddedToken& added : added_) {
    if (added.normalized)
      add_normalized(added.id);
    else
      as_they_are_.add(std::string(token(added.id)), added.id);
  }
}

void WordPiece::add_normalized(std::int32_t id) {
  const std::string normal = normalized(token(id));
  if (normal.empty())
    throw Error(ExitCode::kBadData,
                fmt::format("{}: nothing is left of the added token \"{}\" when it is normalized",
                            name_, token(id)));
  for (const TokenPatterns::Pattern& other : normalized_.all())
    if (other.text == normal)
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: the added tokens \"{}\" and \"{}\" are the same when normalized",
                              name_, token(other.id), token(id)));
  normalized_.add(normal, id);
}

std::string_view WordPiece::token(std::int32_t id) const {
  VCAS_CHECK(id >= 0 && id < size(), fmt::format("token {} of {}", id, size()));
  return std::string_view(text_).substr(ends_[id], ends_[id + 1] - ends_[id]);
}

std::uint64_t WordPiece::fingerprint() const {
  ContentHash hash;
  for (std::int32_t i = 0; i < size(); ++i) hash.add(token(i));
  for (const AddedToken& added : added_)
    hash.add_number(static_cast<std::uint64_t>(added.id) | std::uint64_t{added.normalized} << 32 |
                    std::uint64_t{added.id >= pieces_} << 33);
  for (const bool flag : {clean_text_, separate_cjk_, strip_accents_, lower_case_})
    hash.add_number(flag);
  hash.add_number(static_cast<std::uint64_t>(unknown_));
  hash.add_number(max_word_length_);
  return hash.value();
}

std::int32_t WordPiece::find(std::string_view token) const {
  return find(hash_text(token), false, token);
}

std::string WordPiece::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::string_view piece = token(ids[i]);
    if (i > 0 && piece.starts_with(kContinuation))
      piece.remove_prefix(kContinuation.size());
    else if (i > 0)
      text += ' ';
    text += piece;
  }
  return text;
}

void WordPiece::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  check_text(text);
  std::string word;
  const auto encode_words = [&](std::string_view part) { encode_plain(part, word, ids); };
  if (normalized_.all().empty()) return as_they_are_.split(text, ids, encode_words);
  as_they_are_.split(text, ids, [&](std::string_view part) {
    normalized_.split(normalized(part), ids, encode_words);
  });
}

void WordPiece::encode_plain(std::string_view text, std::string& word,
                             std::vector<std::int32_t>& ids) const {
  const auto byte_at = [&](std::size_t at) -> const Byte& {
    return bytes_[static_cast<unsigned char>(text[at])];
  };
  for (std::size_t at = 0; at < text.size();) {
    switch (byte_at(at).kind) {
      case Kind::kLetter: {
        std::size_t end = at + 1;
        while (end < text.size() && byte_at(end).kind == Kind::kLetter) ++end;
        char* out = word.append(text.substr(at, end - at)).data() + word.size() - (end - at);
        for (; at < end; ++at) *out++ = byte_at(at).lower;
        break;
      }
      case Kind::kNotAscii: {
        const std::int32_t point = next_code_point(text, at);
        if (separate_cjk_ && is_cjk(point)) {
          add_word(word, ids);
          add_code_point(point, word, ids);
          add_word(word, ids);
        } else {
          add_code_point(point, word, ids);
        }
        break;
      }
      case Kind::kSpace:
        add_word(word, ids);
        ++at;
        break;
      case Kind::kPunctuation:
        add_word(word, ids);
        word = text[at++];
        add_word(word, ids);
        break;
      case Kind::kDropped:
        ++at;
    }
  }
  add_word(word, ids);
}

// What a code point is before it is decomposed; `clean_text` decides about control characters.
WordPiece::Kind WordPiece::kind_of(std::int32_t point) const {
  switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return Kind::kSpace;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return Kind::kPunctuation;
    case UTF8PROC_CATEGORY_CC:
      if (point == '\t' || point == '\n' || point == '\r') return Kind::kSpace;
      if (clean_text_) return Kind::kDropped;
      return point == '\v' || point == '\f' || point == 0x85 ? Kind::kSpace : Kind::kLetter;
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
      return clean_text_ ? Kind::kDropped : Kind::kLetter;
    default:
      if (is_ascii_punctuation(point)) return Kind::kPunctuation;
      return clean_text_ && point == 0xFFFD ? Kind::kDropped : Kind::kLetter;
  }
}

// What a code point is once normalized: decomposed, without its accents, in lower case. Marks that
// are left stay in the order of the text: no language writes two of them against the canonical
// order. `use` gets each code point with its kind before lower-casing.
template <class Use>
void WordPiece::for_each_normalized(std::int32_t code_point, Use use) const {
  if (kind_of(code_point) == Kind::kDropped) return;
  std::array<std::int32_t, 32> points = {code_point};
  std::size_t count = 1;
  if (strip_accents_)
    count = static_cast<std::size_t>(utf8proc_decompose_char(
        code_point, points.data(), std::ssize(points), UTF8PROC_DECOMPOSE, nullptr));
  for (const std::int32_t point : std::span(points).first(count)) {
    if (strip_accents_ && utf8proc_category(point) == UTF8PROC_CATEGORY_MN) continue;
    std::string text;
    append_utf8(text, lower_case_ ? utf8proc_tolower(point) : point);
    // The one capital whose small form is two code points.
    if (lower_case_ && point == 0x130) append_utf8(text, 0x307);
    use(kind_of(point), text);
  }
}

void WordPiece::add_code_point(std::int32_t code_point, std::string& word,
                               std::vector<std::int32_t>& ids) const {
  for_each_normalized(code_point, [&](Kind kind, const std::string& text) {
    if (kind != Kind::kLetter) add_word(word, ids);
    if (kind == Kind::kSpace) return;
    word += text;
    if (kind == Kind::kPunctuation) add_word(word, ids);
  });
}

// As the tokenizers library normalizes it: to normalize it again changes nothing about its words.
std::string WordPiece::normalized(std::string_view text) const {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::int32_t point = next_code_point(text, at);
    const char* around = separate_cjk_ && is_cjk(point) ? " " : "";
    out += around;
    for_each_normalized(point, [&](Kind kind, const std::string& normal) {
      out += clean_text_ && kind == Kind::kSpace ? " " : normal;
    });
    out += around;
  }
  return out;
}

// -1 where there is none. `hash` is that of the token, of which `text` lacks the leading "##" when
// it `continues`.
std::int32_t WordPiece::find(std::uint64_t hash, bool continues, std::string_view text) const {
  const auto high = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t at = (hash ^ hash >> 32) & (slots_.size() - 1); slots_[at].id >= 0;
       at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].hash != high) continue;
    std::string_view known = token(slots_[at].id);
    if (continues) {
      if (!known.starts_with(kContinuation)) continue;
      known.remove_prefix(kContinuation.size());
    }
    if (known == text) return slots_[at].id;
  }
  return -1;
}

// The same among the tokens that make up words.
std::int32_t WordPiece::find_piece(std::uint64_t hash, bool continues,
                                   std::string_view text) const {
  const std::int32_t found = find(hash, continues, text);
  return found < pieces_ ? found : -1;
}

// Appends the ids of `word` and empties it.
void WordPiece::add_word(std::string& word, std::vector<std::int32_t>& ids) const {
  if (word.empty()) return;
  const std::string_view text = word;
  const std::size_t before = ids.size();
  if (text.size() > max_word_length_ && code_points(text) > max_word_length_) {
    ids.push_back(unknown_);
  } else if (const std::int32_t whole = find_piece(hash_text(text), false, text); whole >= 0) {
    ids.push_back(whole);
  } else {
    for (std::size_t begin = 0; begin < text.size();) {
      const bool continues = begin > 0;
      const std::size_t last = std::min(text.size(), begin + longest_[continues]);
      std::uint64_t hash = continues ? kContinuationStart : kWordStart;
      std::int32_t longest = -1;
      std::size_t end = begin;
      for (std::size_t at = begin; at < last; ++at) {
        hash = hash_byte(hash, text[at]);
        const std::int32_t found = find_piece(hash, continues, text.substr(begin, at + 1 - begin));
        if (found < 0) continue;
        longest = found;
        end = at + 1;
      }
      if (longest < 0) {
        ids.resize(before);
        ids.push_back(unknown_);
        break;
      }
      ids.push_back(longest);
      begin = end;
    }
  }
  word.clear();
}

}  // namespace vcas
