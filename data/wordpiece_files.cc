// The files of a WordPiece.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/tokenizer_files.h"
#include "data/wordpiece.h"

namespace vcas {
namespace {

using Json = nlohmann::ordered_json;

std::vector<AddedToken> by_id(std::vector<AddedToken> tokens) {
  std::ranges::sort(tokens, {}, &AddedToken::id);
  return tokens;
}

Json tokenizer_json(const WordPiece& tokenizer) {
  Json strip_accents;  // null: as lowercase
  if (tokenizer.strip_accents() != tokenizer.lower_case())
    strip_accents = tokenizer.strip_accents();
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_tokens_json(tokenizer, by_id(tokenizer.added()))},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", tokenizer.clean_text()},
            {"handle_chinese_chars", tokenizer.separate_cjk()},
            {"strip_accents", strip_accents},
            {"lowercase", tokenizer.lower_case()}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor",
           {{"type", "BertProcessing"},
            {"sep", Json::array({"[SEP]", tokenizer.sep()})},
            {"cls", Json::array({"[CLS]", tokenizer.cls()})}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", tokenizer.token(tokenizer.unk())},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", tokenizer.max_word_length()},
            {"vocab", vocab_json(tokenizer)}}}};
}

}  // namespace

std::map<std::string, std::string> WordPiece::files(std::int64_t max_length) const {
  std::string vocabulary;
  for (std::int32_t id = 0; id < pieces_; ++id) vocabulary.append(token(id)).append("\n");
  // What cuts words in another way than a BertTokenizer is not one to transformers.
  const bool is_bert =
      clean_text_ && std::cmp_equal(max_word_length_, Vocabulary().max_word_length);
  Json config = {{"tokenizer_class", is_bert ? "BertTokenizer" : "PreTrainedTokenizerFast"},
                 {"do_lower_case", lower_case_},
                 {"strip_accents", strip_accents_},
                 {"tokenize_chinese_chars", separate_cjk_},
                 {"model_max_length", max_length}};
  // Readers of a vocab.txt know the special tokens, and no others.
  if (pieces_ < size() || std::ranges::any_of(added_, &AddedToken::normalized)) {
    Json& decoder = config["added_tokens_decoder"];
    for (const AddedToken& added : by_id(added_))
      decoder[std::to_string(added.id)] = added_token_json(*this, added);
  }
  Json special = Json::object();
  for (const auto& [role, name] : {std::pair("unk_token", token(unknown_)),
                                   {"sep_token", "[SEP]"},
                                   {"pad_token", "[PAD]"},
                                   {"cls_token", "[CLS]"},
                                   {"mask_token", "[MASK]"}})
    if (std::ranges::count(added_, name, [&](const AddedToken& a) { return token(a.id); }) > 0)
      special[role] = name;
  if (!is_bert) config.update(special);
  return {{"vocab.txt", vocabulary},
          {kTokenizerConfig, config.dump(2) + "\n"},
          {kSpecialMap, special.dump(2) + "\n"},
          {kTokenizerJson, tokenizer_json(*this).dump(2) + "\n"}};
}

}  // namespace vcas
