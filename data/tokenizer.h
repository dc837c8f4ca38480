// Text to token ids, whatever the kind of tokenizer. Readers of text know nothing else of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vcas {

// The const functions may be called from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text`, without [CLS] and [SEP]. Invalid UTF-8 is kBadData.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  // The text of tokens from 0 to size() - 1, special ones too. It may be cut within UTF-8.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  virtual const std::string& name() const = 0;  // of the file it was read from
  virtual std::int32_t size() const = 0;        // tokens
  virtual std::int32_t pieces() const = 0;      // the first so many tokens make up words
  virtual bool lower_case() const = 0;          // capitals become small letters
  virtual std::string_view token(std::int32_t id) const = 0;
  virtual bool adds_blank() const { return false; }        // before a text that begins with none
  virtual bool continues_word(std::int32_t id) const = 0;  // a piece that no word begins with
  // Hash of everything that decides the ids, for keys of caches.
  virtual std::uint64_t fingerprint() const = 0;

  virtual std::int32_t find(std::string_view token) const = 0;  // -1 where there is none
  bool has(std::string_view token) const { return find(token) >= 0; }
  // kBadData, with the nearest token, where there is none.
  std::int32_t id(std::string_view token) const;
  // The token between documents, -1 where there is none.
  virtual std::int32_t find_separator() const = 0;
  // The same. kBadData where there is none.
  std::int32_t separator() const;
  // The token of words that no others make up, -1 where others make up every word.
  virtual std::int32_t unk() const = 0;
  std::int32_t cls() const { return id("[CLS]"); }
  std::int32_t sep() const { return id("[SEP]"); }
  std::int32_t pad() const { return id("[PAD]"); }
  std::int32_t mask() const { return id("[MASK]"); }

  // Its files as transformers has them, by name. A tokenizer read from them has the same
  // fingerprint. `max_length`: most tokens of an item.
  virtual std::map<std::string, std::string> files(std::int64_t max_length) const = 0;

 protected:
  static void check_text(std::string_view text);  // kBadData unless it is UTF-8
};

// What the file, or a folder of files, describes. Throws as these do:
//   a ByteBpe    tokenizer.json with a model of type BPE, a folder with vocab.json alone
//   a WordPiece  all else
// `lower_case`: where the files do not say it, and only of a WordPiece.
std::unique_ptr<Tokenizer> read_tokenizer(const std::filesystem::path& path,
                                          bool lower_case = true);

}  // namespace vcas
