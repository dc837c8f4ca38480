#include "data/vocabulary.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "data/text_lines.h"
#include "data/tokenizer_files.h"

namespace vcas {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& message, const std::string& hint = {}) {
  throw Error(ExitCode::kBadData, message, hint);
}

// The tokenizer_config.json that speaks for a folder, or for the vocab.txt beside it.
fs::path config_of(const fs::path& path) {
  if (fs::is_directory(path)) return path / kTokenizerConfig;
  return path.filename() == "vocab.txt" ? path.parent_path() / kTokenizerConfig : fs::path();
}

// Throws unless tokenizer_config.json says of the normalizer what tokenizer.json in the same folder
// says. A BertTokenizer takes the former, and what is not there is true; strip_accents is as
// do_lower_case then.
void check_normalizers(const JsonFile& tokenizer, const JsonFile& config, const fs::path& folder) {
  const JsonNode* normalizer = JsonFile::find(tokenizer.root(), "normalizer");
  const JsonNode* type = JsonFile::find(config.root(), "tokenizer_class");
  const bool speaks_for_all =
      !type || type->value == "BertTokenizer" || type->value == "BertTokenizerFast";
  if (!normalizer) return;
  const auto check = [&](const char* theirs, const char* name, bool otherwise_there,
                         bool otherwise_here) {
    const bool there = tokenizer.boolean(*normalizer, theirs).value_or(otherwise_there);
    const auto given = config.boolean(config.root(), name);
    const bool here = given.value_or(speaks_for_all ? otherwise_here : there);
    if (here != there)
      fail(fmt::format("{}: {} of {} is {}{}, normalizer.{} of {} is {}", folder.string(), name,
                       kTokenizerConfig, given ? "" : "not given, which means ", here, theirs,
                       kTokenizerJson, there),
           "correct the one that does not fit the weights");
    return std::pair(there, here);
  };
  check("handle_chinese_chars", "tokenize_chinese_chars", true, true);
  const auto [there, here] = check("lowercase", "do_lower_case", true, true);
  check("strip_accents", "strip_accents", there, here);
}

TokenList token_list(Vocabulary& vocabulary) {
  return {vocabulary.name, vocabulary.tokens, vocabulary.added, vocabulary.appended};
}

// Throws where tokenizer_config.json names a tokenizer that reads a vocab.txt otherwise.
void check_class(const JsonFile& config) {
  if (!JsonFile::find(config.root(), "tokenizer_class")) return;
  const std::string_view name = config.string(config.root(), "tokenizer_class");
  std::string_view type = name;
  if (type.ends_with("Fast")) type.remove_suffix(4);
  // DistilBERT, ConvBERT and others have BERT's tokenizer under another name.
  if (type.ends_with("BertTokenizer") || type == "ElectraTokenizer") return;
  config.fail_at(*JsonFile::find(config.root(), "tokenizer_class"),
                 fmt::format("tokenizer_class is \"{}\", expected \"BertTokenizer\"", name),
                 kReadable);
}

// How text is cut into words.
Vocabulary read_tokenizer_settings(const JsonFile& file) {
  const JsonNode& normalizer = file.part("normalizer", "BertNormalizer");
  file.part("pre_tokenizer", "BertPreTokenizer");
  const JsonNode& model = file.part("model", "WordPiece");
  Vocabulary vocabulary;
  vocabulary.clean_text = file.boolean(normalizer, "clean_text").value_or(true);
  vocabulary.separate_cjk = file.boolean(normalizer, "handle_chinese_chars").value_or(true);
  vocabulary.lower_case = file.boolean(normalizer, "lowercase").value_or(true);
  vocabulary.strip_accents =
      file.boolean(normalizer, "strip_accents").value_or(vocabulary.lower_case);
  if (const JsonNode* length = JsonFile::find(model, "max_input_chars_per_word"))
    vocabulary.max_word_length = file.integer(*length, std::numeric_limits<std::int32_t>::max());
  if (const JsonNode* prefix = JsonFile::find(model, "continuing_subword_prefix"))
    if (prefix->value != "##") file.fail_at(*prefix, "continuing_subword_prefix must be \"##\"");
  return vocabulary;
}

}  // namespace

Vocabulary parse_vocab_txt(std::string_view text, const std::string& name, bool lower_case) {
  text = without_byte_order_mark(text);
  if (text.empty()) fail(fmt::format("{}: is empty, expected one token a line", name));
  check_utf8({name, std::string(text)});
  Vocabulary vocabulary{.name = name, .strip_accents = lower_case, .lower_case = lower_case};
  std::unordered_map<std::string_view, std::int32_t> ids;
  while (!text.empty()) {
    std::string_view token = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(token.size() + 1, text.size()));
    if (token.ends_with('\r')) token.remove_suffix(1);
    const std::size_t line = vocabulary.tokens.size() + 1;
    if (token.empty())
      fail(fmt::format("{}:{}: the line is empty, expected a token", name, line),
           "ids are line numbers, so an empty line would shift or add one");
    const auto [known, is_new] = ids.emplace(token, static_cast<std::int32_t>(line - 1));
    if (!is_new)
      fail(fmt::format("{}:{}: token \"{}\" is already in line {}", name, line, token,
                       known->second + 1));
    vocabulary.tokens.emplace_back(token);
  }
  for (const char* special : kSpecialTokens)
    if (const auto found = ids.find(special); found != ids.end())
      vocabulary.added.push_back({.id = found->second});
  const auto unknown = ids.find("[UNK]");
  if (unknown == ids.end())
    fail(fmt::format("{}: no token [UNK] among {} lines", name, vocabulary.tokens.size()),
         "is this a WordPiece vocabulary, one token a line?");
  vocabulary.unknown = unknown->second;
  return vocabulary;
}

Vocabulary parse_tokenizer_json(std::string_view text, const std::string& name) {
  const JsonFile file(text, name);
  Vocabulary vocabulary = read_tokenizer_settings(file);
  const JsonNode& model = file.part("model", "WordPiece");
  vocabulary.name = name;
  const JsonNode* entries = JsonFile::find(model, "vocab");
  if (!entries || !entries->value.is_object()) file.fail_at(model, "the model has no vocab");
  read_tokens(file, *entries, JsonFile::find(file.root(), "added_tokens"), token_list(vocabulary));
  const std::string& unknown = file.string(model, "unk_token");
  const auto found = std::ranges::find(vocabulary.tokens, unknown);
  if (found == vocabulary.tokens.end())
    file.fail_at(model, fmt::format("unk_token \"{}\" is not in the vocab", unknown));
  vocabulary.unknown = static_cast<std::int32_t>(found - vocabulary.tokens.begin());
  return vocabulary;
}

Vocabulary read_vocabulary(const fs::path& path, bool lower_case) {
  if (fs::is_directory(path)) {
    const fs::path json = path / kTokenizerJson;
    if (!fs::exists(json) && !fs::exists(path / "vocab.txt"))
      throw Error(ExitCode::kNoInput,
                  fmt::format("{}: neither tokenizer.json nor vocab.txt nor vocab.json is there",
                              path.string()));
    if (!fs::exists(json)) return read_vocabulary(path / "vocab.txt", lower_case);
    lower_case_of(path);  // the files must agree
    Vocabulary vocabulary = parse_tokenizer_json(read_file(json), json.string());
    check_folder(path, token_list(vocabulary));
    return vocabulary;
  }
  if (!fs::exists(path))
    throw Error(ExitCode::kNoInput, fmt::format("{}: no such file", path.string()),
                "vcas vocab learns a vocabulary from text; the folder of a Hugging Face model has "
                "its own");
  const std::string text = read_file(path);
  if (is_json(path, text)) return parse_tokenizer_json(text, path.string());
  Vocabulary vocabulary =
      parse_vocab_txt(text, path.string(), lower_case_of(path).value_or(lower_case));
  const fs::path config = config_of(path);
  if (fs::exists(config)) {
    const JsonFile file(read_file(config), config.string());
    check_class(file);
    for (const auto& [name, value] :
         {std::pair("strip_accents", &vocabulary.strip_accents),
          std::pair("tokenize_chinese_chars", &vocabulary.separate_cjk)})
      *value = file.boolean(file.root(), name).value_or(*value);
    add_configured_tokens(file, token_list(vocabulary));
  }
  if (!config.empty()) check_tokens_beside(config.parent_path(), token_list(vocabulary));
  return vocabulary;
}

std::optional<bool> lower_case_of(const fs::path& path) {
  std::optional<JsonFile> tokenizer, config;
  if (const fs::path json = fs::is_directory(path) ? path / kTokenizerJson : path;
      json.extension() == ".json" && fs::exists(json))
    tokenizer.emplace(read_file(json), json.string());
  if (const fs::path json = config_of(path); fs::exists(json))
    config.emplace(read_file(json), json.string());
  if (tokenizer && config) check_normalizers(*tokenizer, *config, path);
  if (tokenizer)
    if (const JsonNode* normalizer = JsonFile::find(tokenizer->root(), "normalizer"))
      if (const auto lower_case = tokenizer->boolean(*normalizer, "lowercase")) return lower_case;
  return config ? config->boolean(config->root(), "do_lower_case") : std::nullopt;
}

std::int32_t next_long_code_point(std::string_view text, std::size_t& at) {
  const auto* const bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  std::int32_t point = -1;
  const auto length = utf8proc_iterate(bytes + at, std::ssize(text) - std::ptrdiff_t(at), &point);
  at += static_cast<std::size_t>(std::max<utf8proc_ssize_t>(length, 1));
  return point;
}

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) std::memcpy(&eight, text.data() + at, sizeof eight);
    if (text.size() - at >= sizeof eight && (eight & 0x8080808080808080) == 0) {
      at += sizeof eight;
      continue;
    }
    const std::size_t begin = at;
    if (next_code_point(text, at) < 0) return begin;
  }
  return std::nullopt;
}

}  // namespace vcas
