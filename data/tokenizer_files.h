// What the readers of tokenizers' files have in common. Every failure is kBadData with its place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_text.h"
#include "data/tokenizer.h"
#include "data/vocabulary.h"

namespace vcas {

inline constexpr const char* kTokenizerJson = "tokenizer.json";
inline constexpr const char* kTokenizerConfig = "tokenizer_config.json";
inline constexpr const char* kSpecialMap = "special_tokens_map.json";
inline constexpr const char* kReadable =
    "WordPiece as BERT has it and byte-level BPE as GPT-2 has it can be read";
inline constexpr const char* kSaveAgain =
    "load the tokenizer in transformers and save it again, so that its files agree";

void check_utf8(const SourceText& source);

// A JSON object with named and placed access.
class JsonFile {
 public:
  JsonFile(std::string_view text, const std::string& name);

  const JsonNode& root() const { return document_.root; }

  // The latest of that name, as JSON readers have it; null counts as absent.
  static const JsonNode* find(const JsonNode& object, std::string_view name);

  std::optional<bool> boolean(const JsonNode& object, std::string_view name) const;
  // From 0 to `most`.
  std::int64_t integer(const JsonNode& node, std::int64_t most) const;
  const std::string& string(const JsonNode& object, const std::string& name) const;
  // The part `name` of the document, which must say that it is of `type`.
  const JsonNode& part(const std::string& name, const std::string& type) const;

  [[noreturn]] void fail_at(const JsonNode& node, const std::string& message,
                            const std::string& hint = {}) const;

 private:
  SourceText source_;
  JsonDocument document_;
};

// Whether a tokenizer is a tokenizer.json: by the ending of its name, else by its first character.
bool is_json(const std::filesystem::path& path, std::string_view text);

// What every kind of vocabulary has.
struct TokenList {
  const std::string& name;
  std::vector<std::string>& tokens;
  std::vector<AddedToken>& added;
  std::int32_t& appended;
};

// An added token as files have it, without its id.
nlohmann::ordered_json added_token_json(const Tokenizer& tokenizer, const AddedToken& token);
// What a tokenizer.json lists: the added tokens with their ids, and the ids of the pieces.
nlohmann::ordered_json added_tokens_json(const Tokenizer& tokenizer,
                                         const std::vector<AddedToken>& added);
nlohmann::ordered_json vocab_json(const Tokenizer& tokenizer);

// Adds the tokens of `vocab`, an object of ids, and those of the list `added`, which may be null.
// Ids must be 0 to n-1, with tokens that are added alone at the end.
void read_tokens(const JsonFile& file, const JsonNode& vocab, const JsonNode* added,
                 const TokenList& list);

// Adds the tokens of added_tokens_decoder in a tokenizer_config.json to those of another file.
void add_configured_tokens(const JsonFile& config, const TokenList& list);

// Throws where a file of the folder has added or special tokens that the list, read there, has not.
void check_tokens_beside(const std::filesystem::path& folder, const TokenList& list);
// The same for a list read from a tokenizer.json, of added_tokens_decoder too.
void check_folder(const std::filesystem::path& folder, const TokenList& list);

}  // namespace vcas
