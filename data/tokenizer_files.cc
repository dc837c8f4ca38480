#include "data/tokenizer_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "core/error.h"
#include "core/files.h"
#include "core/parse_number.h"

namespace vcas {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& message, const std::string& hint = {}) {
  throw Error(ExitCode::kBadData, message, hint);
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
    const std::int32_t id = parse_number<std::int32_t>(node.name).value_or(-1);
    if (id < 0)
      config.fail_at(node, fmt::format("added_tokens_decoder: \"{}\" is no id", node.name));
    const std::string& content = config.string(node, "content");
    if (content.empty()) config.fail_at(node, "the content of an added token is empty");
    tokens.push_back({&node, content, read_added_token(config, node, id, content)});
  }
  std::ranges::sort(tokens, {}, [](const ConfiguredToken& token) { return token.token.id; });
  return tokens;
}

void check_added_tokens_file(const fs::path& path, const TokenList& list) {
  if (!fs::exists(path)) return;
  const JsonFile file(read_file(path), path.string());
  for (const JsonNode& token : file.root().children) {
    const std::int64_t id = file.integer(token, std::numeric_limits<std::int32_t>::max());
    if (id >= std::ssize(list.tokens) || list.tokens[id] != token.name)
      file.fail_at(token,
                   fmt::format("token \"{}\" is added as {}, and {} does not have it", token.name,
                               id, list.name),
                   kSaveAgain);
  }
}

// Throws where a file names a special token that texts would not be searched for.
void check_special_tokens(const fs::path& path, const TokenList& list) {
  if (!fs::exists(path)) return;
  const JsonFile file(read_file(path), path.string());
  const auto check = [&](const JsonNode& node) {
    const JsonNode* content = node.value.is_object() ? JsonFile::find(node, "content") : &node;
    if (content && std::ranges::any_of(list.added, [&](const AddedToken& token) {
          return content->value == list.tokens[token.id];
        }))
      return;
    file.fail_at(node,
                 fmt::format("a special token is {}, which {} does not add",
                             content ? content->value.dump() : "without content", list.name),
                 kSaveAgain);
  };
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"})
    if (const JsonNode* node = JsonFile::find(file.root(), name)) check(*node);
  // The second name is that of transformers 5.
  for (const char* name : {"additional_special_tokens", "extra_special_tokens"})
    if (const JsonNode* more = JsonFile::find(file.root(), name))
      for (const JsonNode& node : more->children) check(node);
}

}  // namespace

void check_utf8(const SourceText& source) {
  const auto bad = first_invalid_utf8(source.text);
  if (!bad) return;
  fail(fmt::format("{}:{}: invalid UTF-8 (byte {:#04x} at offset {})", source.name,
                   source.line(*bad), static_cast<unsigned char>(source.text[*bad]), *bad));
}

JsonFile::JsonFile(std::string_view text, const std::string& name)
    : source_{name, std::string(text)} {
  check_utf8(source_);
  document_ = parse_json(source_.text, /*ignore_comments=*/false);
  if (document_.error)
    fail(fmt::format("{}: {}", source_.place(document_.error->offset), document_.error->message),
         "the file is damaged or cut off: copy or download it again");
  if (!root().value.is_object()) fail(fmt::format("{}: not a JSON object", name));
}

const JsonNode* JsonFile::find(const JsonNode& object, std::string_view name) {
  const auto found = std::find_if(object.children.rbegin(), object.children.rend(),
                                  [&](const JsonNode& child) { return child.name == name; });
  return found == object.children.rend() || found->value.is_null() ? nullptr : &*found;
}

std::optional<bool> JsonFile::boolean(const JsonNode& object, std::string_view name) const {
  const JsonNode* node = find(object, name);
  if (!node) return std::nullopt;
  if (!node->value.is_boolean()) fail_at(*node, fmt::format("{} must be true or false", name));
  return node->value.get<bool>();
}

std::int64_t JsonFile::integer(const JsonNode& node, std::int64_t most) const {
  if (!node.value.is_number_integer() || node.value < 0 || node.value > most)
    fail_at(node, fmt::format("\"{}\" must be an integer from 0 to {}", node.name, most));
  return node.value.get<std::int64_t>();
}

const std::string& JsonFile::string(const JsonNode& object, const std::string& name) const {
  const JsonNode* node = find(object, name);
  if (!node || !node->value.is_string())
    fail_at(node ? *node : object, fmt::format("{} must be a string", name));
  return node->value.get_ref<const std::string&>();
}

const JsonNode& JsonFile::part(const std::string& name, const std::string& type) const {
  const JsonNode* node = find(root(), name);
  if (!node || !node->value.is_object())
    fail(fmt::format("{}: no {} of type {}", source_.name, name, type), kReadable);
  if (string(*node, "type") != type)
    fail_at(*node,
            fmt::format("{} is of type \"{}\", expected \"{}\"", name, string(*node, "type"), type),
            kReadable);
  return *node;
}

void JsonFile::fail_at(const JsonNode& node, const std::string& message,
                       const std::string& hint) const {
  fail(fmt::format("{}: {}", source_.place(node.begin), message), hint);
}

bool is_json(const fs::path& path, std::string_view text) {
  if (path.extension() == ".json" || path.extension() == ".txt") return path.extension() == ".json";
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

void read_tokens(const JsonFile& file, const JsonNode& vocab, const JsonNode* added,
                 const TokenList& list) {
  const std::size_t most = vocab.children.size() + (added ? added->children.size() : 0);
  std::unordered_map<std::string_view, std::int32_t> ids;
  std::vector<const std::string*> tokens(most, nullptr);
  const auto add = [&](const std::string& token, const JsonNode& id_node) {
    const auto id = static_cast<std::int32_t>(file.integer(id_node, std::ssize(tokens) - 1));
    const auto known = ids.emplace(token, id).first;
    if (known->second != id)
      file.fail_at(id_node, fmt::format("token \"{}\" has id {} already", token, known->second));
    const std::string*& place = tokens[id];
    if (place && *place != token)
      file.fail_at(id_node, fmt::format("id {} is that of \"{}\" already", id, *place));
    place = &token;
    return id;
  };
  for (const JsonNode& entry : vocab.children) add(entry.name, entry);
  const auto pieces = static_cast<std::int32_t>(ids.size());
  for (std::size_t i = 0; added && i < added->children.size(); ++i) {
    const JsonNode& token = added->children[i];
    const std::string& content = file.string(token, "content");
    const JsonNode* id = JsonFile::find(token, "id");
    if (content.empty() || !id) file.fail_at(token, "an added token needs a content and an id");
    const bool is_piece = ids.contains(content);
    list.added.push_back(read_added_token(file, token, add(content, *id), content));
    if (is_piece) continue;
    if (list.added.back().id < pieces)
      file.fail_at(*id,
                   fmt::format("added token \"{}\" has id {}, which is for the {} of the vocab",
                               content, list.added.back().id, pieces));
    ++list.appended;
  }
  while (!tokens.empty() && !tokens.back()) tokens.pop_back();
  for (const std::string* token : tokens) {
    if (!token) file.fail_at(vocab, fmt::format("no token has id {}", list.tokens.size()));
    list.tokens.push_back(*token);
  }
}

void add_configured_tokens(const JsonFile& config, const TokenList& list) {
  for (const ConfiguredToken& added : configured_tokens(config)) {
    const std::int32_t id = added.token.id, size = static_cast<std::int32_t>(list.tokens.size());
    const auto known = std::ranges::find(list.tokens, added.content);
    if (id > size || (id < size ? list.tokens[id] != added.content : known != list.tokens.end()))
      config.fail_at(
          *added.node,
          fmt::format("added token \"{}\" has id {}, which does not fit the {} tokens of "
                      "{}",
                      added.content, id, size - list.appended, list.name),
          "ids go from 0 on without a gap, and new tokens follow the last one");
    if (id == size) {
      list.tokens.push_back(added.content);
      ++list.appended;
    }
    std::erase_if(list.added, [&](const AddedToken& other) { return other.id == id; });
    list.added.push_back(added.token);
  }
}

void check_tokens_beside(const fs::path& folder, const TokenList& list) {
  check_added_tokens_file(folder / "added_tokens.json", list);
  check_special_tokens(folder / kTokenizerConfig, list);
  check_special_tokens(folder / kSpecialMap, list);
}

void check_folder(const fs::path& folder, const TokenList& list) {
  if (const fs::path path = folder / kTokenizerConfig; fs::exists(path)) {
    const JsonFile config(read_file(path), path.string());
    for (const ConfiguredToken& added : configured_tokens(config))
      if (std::ranges::none_of(list.added, [&](const AddedToken& token) {
            return token.id == added.token.id && token.normalized == added.token.normalized &&
                   list.tokens[token.id] == added.content;
          }))
        config.fail_at(
            *added.node,
            fmt::format("token \"{}\" is added as {} with normalized {}, and {} does not "
                        "add it so",
                        added.content, added.token.id, added.token.normalized, list.name),
            kSaveAgain);
  }
  check_tokens_beside(folder, list);
}

Json added_token_json(const Tokenizer& tokenizer, const AddedToken& token) {
  return {{"content", tokenizer.token(token.id)},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", token.normalized},
          {"special", token.special}};
}

Json added_tokens_json(const Tokenizer& tokenizer, const std::vector<AddedToken>& added) {
  Json tokens = Json::array();
  for (const AddedToken& token : added) {
    Json entry = {{"id", token.id}};
    entry.update(added_token_json(tokenizer, token));
    tokens.push_back(entry);
  }
  return tokens;
}

Json vocab_json(const Tokenizer& tokenizer) {
  Json vocab = Json::object();
  // Not operator[]: an ordered object looks through all it has.
  auto& entries = vocab.get_ref<Json::object_t&>();
  for (std::int32_t id = 0; id < tokenizer.pieces(); ++id)
    entries.emplace_back(std::string(tokenizer.token(id)), id);
  return vocab;
}

}  // namespace vcas
