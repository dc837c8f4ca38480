// Plain text to learn words from: documents of files and tables, one after another as tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/content_hash.h"
#include "data/source_file.h"
#include "data/text_kind.h"
#include "data/token_stream.h"

namespace vcas {

struct CorpusOptions {
  // Text, plain or compressed. Tables (.tsv, .csv, .jsonl, .json) have it in `text_field`.
  std::vector<std::filesystem::path> files = {};
  std::string text_field = "text";
  bool header = true;          // of tables; false: columns are numbers, from 0
  bool whole_files = false;    // a file of plain text is a document; else each line is
  bool skip_bad_rows = false;  // or lines: leave them out and count them, instead of an error
  bool cache = true;           // else all tokens are in memory
};

struct Corpus {
  TokenStream tokens;
  std::vector<SourceFile> sources;
};

// `begins`: the text begins a document. Others go on with it, and begin with white space.
using UseText = std::function<void(const std::string& text, bool begins)>;
using EachText = std::function<void(const UseText&)>;

// Gives the sink the tokens of each text. `key`: of all that these depend on, but the files.
// Throws kNoInput for missing files and kBadData for files without text.
Corpus read_corpus(const CorpusOptions& options, ContentHash key,
                   const std::function<void(const EachText&, const TokenSink&)>& tokenise);

// Items of equal length, cut from the tokens of a corpus; the last may be shorter. Models learn
// words of them, so they have no classes.
class CorpusDataset : public Dataset {
 public:
  std::int64_t size() const override { return (rows_ + item_rows_ - 1) / item_rows_; }
  std::vector<std::int64_t> item_shape() const override { return {std::min(item_rows_, rows_)}; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::int32_t label(std::int64_t) const override { return -1; }
  const TokenStream& stream() const { return stream_; }
  // Most masked positions of an item of `rows`, so memory can be planned.
  virtual std::int64_t masked_count(std::int64_t rows) const { return rows; }

 protected:
  // `targets`: tokens behind an item that are labels of its rows.
  CorpusDataset(TokenStream tokens, std::int64_t item_rows, std::int64_t targets);

  // With its targets.
  std::span<const std::int32_t> item_tokens(std::int64_t index) const;
  // Adds an item of these tokens, which has no masked positions yet. Returns its first row.
  static std::int64_t append_tokens(std::span<const std::int32_t> tokens, Batch& out);

 private:
  TokenStream stream_;
  std::int64_t item_rows_, targets_, rows_;  // rows_: of all items
  std::vector<std::string> class_names_;     // none
};

// `words` as what was opened.
OpenedData opened(std::unique_ptr<CorpusDataset> words);

// The files that a setting names, sorted by name: a file, a folder's, or those of a pattern.
// A pattern is "c4/*.json.gz", for example. Throws kNoInput if there are none.
// Throws kBadData for a path that is not UTF-8, for checkpoints name it.
std::vector<std::filesystem::path> corpus_files(const std::string& name);

// Settings in data.text that such data have in common.
struct CorpusSettings {
  FileSettings files;
  std::string first;
  bool header = true;

  void fields(Setting& v, const char* train_help);
  CorpusOptions options(const DataRequest& request, const TokenSettings& tokens) const;
};

}  // namespace vcas
