#include "data/vocabulary.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"

namespace vcas {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kSaveAgain =
    "load the tokenizer in transformers and save it again, so that its files agree";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

[[noreturn]] void fail(const std::string& message, const std::string& hint = {}) {
  throw Error(ExitCode::kBadData, message, hint);
}

void check_utf8(const SourceText& source) {
  const auto bad = first_invalid_utf8(source.text);
  if (!bad) return;
  fail(fmt::format("{}:{}: invalid UTF-8 (byte {:#04x} at offset {})", source.name,
                   source.line(*bad), static_cast<unsigned char>(source.text[*bad]), *bad));
}

// A JSON document with named and placed access; all failures are kBadData.
class JsonFile {
 public:
  JsonFile(std::string_view text, const std::string& name) : source_{name, std::string(text)} {
    check_utf8(source_);
    document_ = parse_json(source_.text, /*ignore_comments=*/false);
    if (document_.error)
      fail(fmt::format("{}: {}", source_.place(document_.error->offset), document_.error->message),
           "the file is damaged or cut off: copy or download it again");
    if (!root().value.is_object()) fail(fmt::format("{}: not a JSON object", name));
  }

  const JsonNode& root() const { return document_.root; }

  // The latest of that name, as JSON readers have it; null counts as absent.
  static const JsonNode* find(const JsonNode& object, std::string_view name) {
    const auto found = std::find_if(object.children.rbegin(), object.children.rend(),
                                    [&](const JsonNode& child) { return child.name == name; });
    return found == object.children.rend() || found->value.is_null() ? nullptr : &*found;
  }

  std::optional<bool> boolean(const JsonNode& object, std::string_view name) const {
    const JsonNode* node = find(object, name);
    if (!node) return std::nullopt;
    if (!node->value.is_boolean()) fail_at(*node, fmt::format("{} must be true or false", name));
    return node->value.get<bool>();
  }

  std::int64_t integer(const JsonNode& node, std::int64_t most) const {
    if (!node.value.is_number_integer() || node.value < 0 || node.value > most)
      fail_at(node, fmt::format("\"{}\" must be an integer from 0 to {}", node.name, most));
    return node.value.get<std::int64_t>();
  }

  const std::string& string(const JsonNode& object, const std::string& name) const {
    const JsonNode* node = find(object, name);
    if (!node || !node->value.is_string())
      fail_at(node ? *node : object, fmt::format("{} must be a string", name));
    return node->value.get_ref<const std::string&>();
  }

  // The part `name` of the document, which must say that it is of `type`.
  const JsonNode& part(const std::string& name, const std::string& type) const {
    const JsonNode* node = find(root(), name);
    if (!node || !node->value.is_object())
      fail(fmt::format("{}: no {} of type {}", source_.name, name, type),
           "only tokenizers of BERT's kind can be read");
    if (string(*node, "type") != type)
      fail_at(
          *node,
          fmt::format("{} is of type \"{}\", expected \"{}\"", name, string(*node, "type"), type),
          "only tokenizers of BERT's kind can be read");
    return *node;
  }

  [[noreturn]] void fail_at(const JsonNode& node, const std::string& message,
                            const std::string& hint = {}) const {
    fail(fmt::format("{}: {}", source_.place(node.begin), message), hint);
  }

 private:
  SourceText source_;
  JsonDocument document_;
};

bool is_json(const fs::path& path, std::string_view text) {
  if (path.extension() == ".json" || path.extension() == ".txt") return path.extension() == ".json";
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

// The tokenizer_config.json that speaks for a folder, or for the vocab.txt beside it.
fs::path config_of(const fs::path& path) {
  if (fs::is_directory(path)) return path / kConfig;
  return path.filename() == "vocab.txt" ? path.parent_path() / kConfig : fs::path();
}

// How texts are searched for the added token `content`, as `token` says.
AddedToken read_added_token(const JsonFile& file, const JsonNode& token, std::int32_t id,
                            const std::string& content) {
  for (const char* flag : {"single_word", "lstrip", "rstrip"})
    if (file.boolean(token, flag).value_or(false))
      file.fail_at(
          token, fmt::format("added token \"{}\" sets {}, which is not supported", content, flag));
  return {.id = id,
          .normalized = file.boolean(token, "normalized").value_or(false),
          .special = file.boolean(token, "special").value_or(false)};
}

// A token of added_tokens_decoder in a tokenizer_config.json.
struct ConfiguredToken {
  const JsonNode* node;
  std::string content;
  AddedToken token;
};

// In the order of their ids.
std::vector<ConfiguredToken> configured_tokens(const JsonFile& config) {
  std::vector<ConfiguredToken> tokens;
  const JsonNode* decoder = JsonFile::find(config.root(), "added_tokens_decoder");
  for (std::size_t i = 0; decoder && i < decoder->children.size(); ++i) {
    const JsonNode& node = decoder->children[i];
    std::int32_t id = -1;
    const char* end = node.name.data() + node.name.size();
    if (std::from_chars(node.name.data(), end, id).ptr != end || id < 0)
      config.fail_at(node, fmt::format("added_tokens_decoder: \"{}\" is no id", node.name));
    const std::string& content = config.string(node, "content");
    tokens.push_back({&node, content, read_added_token(config, node, id, content)});
  }
  std::ranges::sort(tokens, {}, [](const ConfiguredToken& token) { return token.token.id; });
  return tokens;
}

// Gives the tokens of a vocab.txt those that tokenizer_config.json adds.
void add_configured_tokens(const JsonFile& config, Vocabulary& vocabulary) {
  for (const ConfiguredToken& added : configured_tokens(config)) {
    const std::int32_t id = added.token.id,
                       size = static_cast<std::int32_t>(vocabulary.tokens.size());
    const auto known = std::ranges::find(vocabulary.tokens, added.content);
    if (id > size || (id < size ? vocabulary.tokens[static_cast<std::size_t>(id)] != added.content
                                : known != vocabulary.tokens.end()))
      config.fail_at(
          *added.node,
          fmt::format("added token \"{}\" has id {}, which does not fit the {} tokens of "
                      "{}",
                      added.content, id, size - vocabulary.appended, vocabulary.name),
          "ids of tokens are numbers of lines, and new tokens follow the last line");
    if (id == size) {
      vocabulary.tokens.push_back(added.content);
      ++vocabulary.appended;
    }
    std::erase_if(vocabulary.added, [&](const AddedToken& other) { return other.id == id; });
    vocabulary.added.push_back(added.token);
  }
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
                       kConfig, given ? "" : "not given, which means ", here, theirs, kTokenizer,
                       there),
           "correct the one that does not fit the weights");
    return std::pair(there, here);
  };
  check("handle_chinese_chars", "tokenize_chinese_chars", true, true);
  const auto [there, here] = check("lowercase", "do_lower_case", true, true);
  check("strip_accents", "strip_accents", there, here);
}

// Throws where an added_tokens.json has tokens that `vocabulary`, read in its folder, has not.
void check_added_tokens_file(const fs::path& folder, const Vocabulary& vocabulary) {
  const fs::path path = folder / "added_tokens.json";
  if (!fs::exists(path)) return;
  const JsonFile file(read_file(path), path.string());
  for (const JsonNode& token : file.root().children) {
    const std::int64_t id = file.integer(token, std::numeric_limits<std::int32_t>::max());
    if (id >= std::ssize(vocabulary.tokens) ||
        vocabulary.tokens[static_cast<std::size_t>(id)] != token.name)
      file.fail_at(token,
                   fmt::format("token \"{}\" is added as {}, and {} does not have it", token.name,
                               id, vocabulary.name),
                   kSaveAgain);
  }
}

// Throws unless every file of the folder agrees with its tokenizer.json.
void check_folder(const fs::path& folder, const Vocabulary& vocabulary) {
  if (const fs::path path = folder / kConfig; fs::exists(path)) {
    const JsonFile config(read_file(path), path.string());
    for (const ConfiguredToken& added : configured_tokens(config))
      if (std::ranges::none_of(vocabulary.added, [&](const AddedToken& token) {
            return token.id == added.token.id && token.normalized == added.token.normalized &&
                   vocabulary.tokens[static_cast<std::size_t>(token.id)] == added.content;
          }))
        config.fail_at(
            *added.node,
            fmt::format("token \"{}\" is added as {} with normalized {}, and {} does not "
                        "add it so",
                        added.content, added.token.id, added.token.normalized, vocabulary.name),
            kSaveAgain);
  }
  check_added_tokens_file(folder, vocabulary);
}

}  // namespace

Vocabulary parse_vocab_txt(std::string_view text, const std::string& name, bool lower_case) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
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

Vocabulary parse_tokenizer_json(std::string_view text, const std::string& name) {
  const JsonFile file(text, name);
  Vocabulary vocabulary = read_tokenizer_settings(file);
  const JsonNode& model = file.part("model", "WordPiece");
  vocabulary.name = name;
  const JsonNode* entries = JsonFile::find(model, "vocab");
  if (!entries || !entries->value.is_object()) file.fail_at(model, "the model has no vocab");
  const JsonNode* added = JsonFile::find(file.root(), "added_tokens");
  const std::size_t most = entries->children.size() + (added ? added->children.size() : 0);
  std::unordered_map<std::string_view, std::int32_t> ids;
  std::vector<const std::string*> tokens(most, nullptr);
  const auto add = [&](const std::string& token, const JsonNode& id_node) {
    const auto id =
        static_cast<std::int32_t>(file.integer(id_node, static_cast<std::int64_t>(most) - 1));
    const auto known = ids.emplace(token, id).first;
    if (known->second != id)
      file.fail_at(id_node, fmt::format("token \"{}\" has id {} already", token, known->second));
    const std::string*& place = tokens[static_cast<std::size_t>(id)];
    if (place && *place != token)
      file.fail_at(id_node, fmt::format("id {} is that of \"{}\" already", id, *place));
    place = &token;
    return id;
  };
  for (const JsonNode& entry : entries->children) add(entry.name, entry);
  const auto pieces = static_cast<std::int32_t>(ids.size());
  for (std::size_t i = 0; added && i < added->children.size(); ++i) {
    const JsonNode& token = added->children[i];
    const std::string& content = file.string(token, "content");
    const JsonNode* id = JsonFile::find(token, "id");
    if (content.empty() || !id) file.fail_at(token, "an added token needs a content and an id");
    const bool is_piece = ids.contains(content);
    vocabulary.added.push_back(read_added_token(file, token, add(content, *id), content));
    if (is_piece) continue;
    if (vocabulary.added.back().id < pieces)
      file.fail_at(*id,
                   fmt::format("added token \"{}\" has id {}, which is for the {} of the vocab",
                               content, vocabulary.added.back().id, pieces));
    ++vocabulary.appended;
  }
  while (!tokens.empty() && !tokens.back()) tokens.pop_back();
  for (const std::string* token : tokens) {
    if (!token) file.fail_at(*entries, fmt::format("no token has id {}", vocabulary.tokens.size()));
    vocabulary.tokens.push_back(*token);
  }

  const std::string& unknown = file.string(model, "unk_token");
  const auto found = ids.find(unknown);
  if (found == ids.end())
    file.fail_at(model, fmt::format("unk_token \"{}\" is not in the vocab", unknown));
  vocabulary.unknown = found->second;
  return vocabulary;
}

Vocabulary read_vocabulary(const fs::path& path, bool lower_case) {
  if (fs::is_directory(path)) {
    const fs::path json = path / kTokenizer;
    if (!fs::exists(json) && !fs::exists(path / "vocab.txt"))
      throw Error(ExitCode::kNoInput,
                  fmt::format("{}: neither tokenizer.json nor vocab.txt is there", path.string()));
    if (!fs::exists(json)) return read_vocabulary(path / "vocab.txt", lower_case);
    lower_case_of(path);  // the files must agree
    const Vocabulary vocabulary = parse_tokenizer_json(read_file(json), json.string());
    check_folder(path, vocabulary);
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
    for (const auto& [name, value] :
         {std::pair("strip_accents", &vocabulary.strip_accents),
          std::pair("tokenize_chinese_chars", &vocabulary.separate_cjk)})
      *value = file.boolean(file.root(), name).value_or(*value);
    add_configured_tokens(file, vocabulary);
  }
  if (!config.empty()) check_added_tokens_file(config.parent_path(), vocabulary);
  return vocabulary;
}

std::optional<bool> lower_case_of(const fs::path& path) {
  std::optional<JsonFile> tokenizer, config;
  if (const fs::path json = fs::is_directory(path) ? path / kTokenizer : path;
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

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  const auto* const bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) std::memcpy(&eight, bytes + at, sizeof eight);
    if (text.size() - at >= sizeof eight && (eight & 0x8080808080808080) == 0) {
      at += sizeof eight;
      continue;
    }
    utf8proc_int32_t point = 0;
    const auto length = utf8proc_iterate(bytes + at, std::ssize(text) - std::ptrdiff_t(at), &point);
    if (length <= 0) return at;
    at += static_cast<std::size_t>(length);
  }
  return std::nullopt;
}

}  // namespace vcas
