// Plain text to learn words from: documents of files and tables, one after another as tokens.
#pragma once

#include <filesystem>
#include <functional>
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
