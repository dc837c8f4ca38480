// The files of a byte-level BPE.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/error.h"
#include "core/files.h"
#include "data/byte_bpe.h"
#include "data/tokenizer_files.h"

namespace vcas {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kVocab = "vocab.json";
constexpr const char* kMerges = "merges.txt";
constexpr std::string_view kVersion = "#version";
constexpr const char* kAsGpt2 = "byte-level BPE can be read as GPT-2 has it";

TokenList token_list(BpeVocabulary& vocabulary) {
  return {vocabulary.name, vocabulary.tokens, vocabulary.added, vocabulary.appended};
}

// Gives a vocabulary its merges, in their order. `fail_merge`(what) throws with the place of a
// merge.
class MergeReader {
 public:
  using Fail = std::function<void(const std::string&)>;

  explicit MergeReader(BpeVocabulary& vocabulary) : vocabulary_(vocabulary) {
    const auto pieces = std::ssize(vocabulary.tokens) - vocabulary.appended;
    for (std::int32_t id = 0; id < pieces; ++id) ids_.emplace(vocabulary.tokens[id], id);
  }

  void add(std::string_view line, const Fail& fail_merge) {
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos)
      fail_merge(fmt::format("\"{}\" is no merge, expected two tokens with a blank between", line));
    add(line.substr(0, blank), line.substr(blank + 1), fail_merge);
  }

  void add(std::string_view left, std::string_view right, const Fail& fail_merge) {
    const std::string both = std::string(left).append(right);
    const BpeMerge merge{id(left, fail_merge), id(right, fail_merge), id(both, fail_merge)};
    if (!known_.insert(std::uint64_t(merge.left) << 32 | std::uint64_t(merge.right)).second)
      fail_merge(fmt::format("the merge of \"{}\" and \"{}\" is there twice", left, right));
    vocabulary_.merges.push_back(merge);
  }

 private:
  std::int32_t id(std::string_view token, const Fail& fail_merge) const {
    const auto found = ids_.find(token);
    if (token.empty() || found == ids_.end())
      fail_merge(fmt::format("token \"{}\" of the merge is not in the vocab", token));
    return found->second;
  }

  BpeVocabulary& vocabulary_;
  std::unordered_map<std::string_view, std::int32_t> ids_;
  std::unordered_set<std::uint64_t> known_;
};

// The model of a tokenizer.json. The first ones have no type in it.
const JsonNode* find_model(const JsonFile& file) {
  const JsonNode* model = JsonFile::find(file.root(), "model");
  if (!model) return nullptr;
  const JsonNode* type = JsonFile::find(*model, "type");
  const bool is_bpe = type ? type->value == "BPE" : JsonFile::find(*model, "merges") != nullptr;
  return is_bpe ? model : nullptr;
}

void check_model(const JsonFile& file, const JsonNode& model) {
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                           "byte_fallback", "ignore_merges"})
    if (const JsonNode* set = JsonFile::find(model, name))
      if (set->value != false && set->value != "" && set->value != 0)
        file.fail_at(*set,
                     fmt::format("{} of the model is {}, and only its default can be read", name,
                                 set->value.dump()),
                     kAsGpt2);
}

bool prefix_space(const JsonFile& file) {
  if (const JsonNode* normalizer = JsonFile::find(file.root(), "normalizer"))
    file.fail_at(*normalizer, "the file has a normalizer, expected null", kAsGpt2);
  const JsonNode& splitter = file.part("pre_tokenizer", "ByteLevel");
  if (!file.boolean(splitter, "use_regex").value_or(true))
    file.fail_at(splitter, "use_regex is false, and only true can be read", kAsGpt2);
  const auto prefix = file.boolean(splitter, "add_prefix_space");
  if (!prefix) file.fail_at(splitter, "the pre_tokenizer has no add_prefix_space");
  return *prefix;
}

bool is_gpt2(const JsonNode& type) {
  return type.value == "GPT2Tokenizer" || type.value == "GPT2TokenizerFast";
}

// Throws unless tokenizer_config.json says of the blank what tokenizer.json says. A GPT2Tokenizer
// takes the former, and what is not there is false.
void check_prefix_space(const JsonFile& config, const BpeVocabulary& vocabulary) {
  const JsonNode* type = JsonFile::find(config.root(), "tokenizer_class");
  const auto given = config.boolean(config.root(), "add_prefix_space");
  const bool here = given.value_or(!(type && is_gpt2(*type)) && vocabulary.add_prefix_space);
  if (here != vocabulary.add_prefix_space)
    config.fail_at(config.root(),
                   fmt::format("add_prefix_space is {}{}, and that of {} is {}",
                               given ? "" : "not given, which means ", here, vocabulary.name,
                               vocabulary.add_prefix_space),
                   "correct the one that does not fit the weights");
}

void read_merges(const fs::path& path, BpeVocabulary& vocabulary) {
  const std::string text = read_file(path);
  check_utf8({path.string(), text});
  MergeReader reader(vocabulary);
  std::string_view rest = text;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1 && line.starts_with(kVersion)) continue;
    reader.add(line, [&](const std::string& what) {
      throw Error(ExitCode::kBadData, fmt::format("{}:{}: {}", path.string(), number, what),
                  kSaveAgain);
    });
  }
}

// vocab.json and merges.txt.
BpeVocabulary read_pair(const fs::path& folder) {
  for (const char* name : {kVocab, kMerges})
    if (!fs::exists(folder / name))
      throw Error(ExitCode::kNoInput, fmt::format("{}: no such file", (folder / name).string()),
                  "a byte-level BPE is a tokenizer.json, or vocab.json and merges.txt");
  const JsonFile file(read_file(folder / kVocab), (folder / kVocab).string());
  BpeVocabulary vocabulary{.name = (folder / kVocab).string()};
  read_tokens(file, file.root(), nullptr, token_list(vocabulary));
  read_merges(folder / kMerges, vocabulary);
  if (const auto found = std::ranges::find(vocabulary.tokens, kEndOfText);
      found != vocabulary.tokens.end())
    vocabulary.added.push_back(
        {.id = static_cast<std::int32_t>(found - vocabulary.tokens.begin())});
  if (const fs::path path = folder / kTokenizerConfig; fs::exists(path)) {
    const JsonFile config(read_file(path), path.string());
    const JsonNode* type = JsonFile::find(config.root(), "tokenizer_class");
    if (type && !is_gpt2(*type))
      config.fail_at(
          *type,
          fmt::format("tokenizer_class is {}, expected \"GPT2Tokenizer\"", type->value.dump()),
          kSaveAgain);
    vocabulary.add_prefix_space = config.boolean(config.root(), "add_prefix_space").value_or(false);
    add_configured_tokens(config, token_list(vocabulary));
  }
  check_tokens_beside(folder, token_list(vocabulary));
  return vocabulary;
}

// Whether it is a vocab.json, and no tokenizer.json of that name.
bool is_pair(const fs::path& path) {
  if (path.filename() != kVocab || !fs::exists(path)) return path.filename() == kVocab;
  const JsonFile file(read_file(path), path.string());
  const JsonNode* model = JsonFile::find(file.root(), "model");
  return !model || !model->value.is_object();
}

std::vector<std::string> merge_lines(const ByteBpe& tokenizer) {
  std::vector<std::string> lines;
  for (const BpeMerge& merge : tokenizer.vocabulary().merges)
    lines.push_back(
        fmt::format("{} {}", tokenizer.token(merge.left), tokenizer.token(merge.right)));
  return lines;
}

Json tokenizer_json(const ByteBpe& tokenizer) {
  const auto byte_level = [](bool prefix, bool trim) -> Json {
    return {{"type", "ByteLevel"},
            {"add_prefix_space", prefix},
            {"trim_offsets", trim},
            {"use_regex", true}};
  };
  const bool prefix = tokenizer.vocabulary().add_prefix_space;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_tokens_json(tokenizer, tokenizer.vocabulary().added)},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level(prefix, true)},
          {"post_processor", byte_level(true, false)},
          {"decoder", byte_level(true, true)},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab_json(tokenizer)},
            // Lists of two say the same, and `tokenizers` before 0.20 cannot read them.
            {"merges", merge_lines(tokenizer)}}}};
}

}  // namespace

BpeVocabulary parse_bpe_json(std::string_view text, const std::string& name) {
  const JsonFile file(text, name);
  const JsonNode* model = find_model(file);
  if (!model) throw Error(ExitCode::kBadData, fmt::format("{}: no model of type BPE", name));
  check_model(file, *model);
  BpeVocabulary vocabulary{.name = name, .add_prefix_space = prefix_space(file)};
  const JsonNode* vocab = JsonFile::find(*model, "vocab");
  if (!vocab || !vocab->value.is_object()) file.fail_at(*model, "the model has no vocab");
  read_tokens(file, *vocab, JsonFile::find(file.root(), "added_tokens"), token_list(vocabulary));
  const JsonNode* merges = JsonFile::find(*model, "merges");
  if (!merges || !merges->value.is_array()) file.fail_at(*model, "the model has no merges");
  MergeReader reader(vocabulary);
  for (const JsonNode& merge : merges->children) {
    const auto fail_merge = [&](const std::string& what) { file.fail_at(merge, what); };
    const std::vector<JsonNode>& two = merge.children;
    if (merge.value.is_string())
      reader.add(merge.value.get_ref<const std::string&>(), fail_merge);
    else if (two.size() == 2 && two[0].value.is_string() && two[1].value.is_string())
      reader.add(two[0].value.get_ref<const std::string&>(),
                 two[1].value.get_ref<const std::string&>(), fail_merge);
    else
      fail_merge("a merge must be \"a b\" or [\"a\", \"b\"]");
  }
  return vocabulary;
}

BpeVocabulary read_bpe(const fs::path& path) {
  if (is_pair(path)) return read_pair(path.parent_path());
  if (!fs::is_directory(path)) return parse_bpe_json(read_file(path), path.string());
  const fs::path json = path / kTokenizerJson;
  if (!fs::exists(json)) return read_pair(path);
  BpeVocabulary vocabulary = parse_bpe_json(read_file(json), json.string());
  check_folder(path, token_list(vocabulary));
  if (const fs::path config = path / kTokenizerConfig; fs::exists(config))
    check_prefix_space(JsonFile(read_file(config), config.string()), vocabulary);
  return vocabulary;
}

bool is_bpe(const fs::path& path) {
  if (fs::is_directory(path)) {
    if (fs::exists(path / kTokenizerJson)) return is_bpe(path / kTokenizerJson);
    return fs::exists(path / kVocab) && !fs::exists(path / "vocab.txt");
  }
  if (is_pair(path)) return true;
  if (!fs::exists(path) || path.extension() == ".txt") return false;
  const std::string text = read_file(path);
  return is_json(path, text) && find_model(JsonFile(text, path.string())) != nullptr;
}

std::map<std::string, std::string> ByteBpe::files(std::int64_t max_length) const {
  std::string merges = fmt::format("{}: 0.2\n", kVersion);
  for (const std::string& line : merge_lines(*this)) merges.append(line).append("\n");
  const bool has_end = std::ranges::any_of(
      vocabulary_.added, [&](const AddedToken& added) { return token(added.id) == kEndOfText; });
  Json config = {{"add_prefix_space", vocabulary_.add_prefix_space},
                 {"added_tokens_decoder", Json::object()}};
  for (const AddedToken& added : vocabulary_.added)
    config["added_tokens_decoder"][std::to_string(added.id)] = added_token_json(*this, added);
  Json special = Json::object();
  for (const char* name : {"bos_token", "eos_token", "unk_token"}) {
    config[name] = has_end ? Json(kEndOfText) : Json();
    if (has_end) special[name] = kEndOfText;
  }
  config["model_max_length"] = max_length;
  config["tokenizer_class"] = "GPT2Tokenizer";
  return {{kVocab, vocab_json(*this).dump() + "\n"},
          {kMerges, merges},
          {kTokenizerConfig, config.dump(2) + "\n"},
          {kSpecialMap, special.dump(2) + "\n"},
          {kTokenizerJson, tokenizer_json(*this).dump(2) + "\n"}};
}

}  // namespace vcas
