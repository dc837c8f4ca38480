#include "data/lm.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "core/error.h"

namespace vcas {
namespace {

constexpr std::uint64_t kLmFormatVersion = 2;

// Whole files are encoded in parts. A part ends with the last word of a line.
void check_whole_files(const Tokenizer& tokenizer) {
  if (tokenizer.adds_blank())
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("{} adds a blank before each text, and whole files are encoded in parts",
                    tokenizer.name()),
        "data.text.documents=lines, or \"add_prefix_space\": false there");
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  for (std::int32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string_view token = tokenizer.token(id);
    const std::size_t word = token.find_first_not_of(kBlanks);
    if (word == token.npos ||
        (token.find('\n', word) == token.npos && kBlanks.find(token.back()) == kBlanks.npos))
      continue;
    throw Error(ExitCode::kBadConfig,
                fmt::format("{}: token {} has a line end or a last blank behind a word, and whole "
                            "files are encoded in parts that end there",
                            tokenizer.name(), id),
                "data.text.documents=lines, whose texts are whole lines");
  }
}

}  // namespace

void LmDataset::append(std::int64_t index, const ItemDraw& /*draw*/, Batch& out) const {
  const std::span<const std::int32_t> item = item_tokens(index);
  const std::int64_t first = append_tokens(item.first(item.size() - 1), out);
  out.masked_labels.insert(out.masked_labels.end(), item.begin() + 1, item.end());
  out.masked_rows.resize(out.tokens.size());
  std::iota(out.masked_rows.begin() + first, out.masked_rows.end(),
            static_cast<std::int32_t>(first));
  out.masked_offsets.push_back(std::ssize(out.masked_rows));
}

std::unique_ptr<LmDataset> load_lm(const CorpusOptions& options, std::int64_t max_length,
                                   const Tokenizer& tokenizer) {
  if (options.whole_files) check_whole_files(tokenizer);
  ContentHash key;
  key.add("lm");
  key.add_number(kLmFormatVersion);
  key.add_number(tokenizer.fingerprint());
  Corpus corpus = read_corpus(options, key, [&](const EachText& each, const TokenSink& sink) {
    std::vector<std::int32_t> ids;
    bool any = false, separated = true;  // from the document before
    each([&](const std::string& text, bool begins) {
      ids.clear();
      tokenizer.encode(text, ids);
      separated = separated && !begins;
      if (ids.empty()) return;
      if (any && !separated) ids.insert(ids.begin(), tokenizer.separator());
      sink(ids);
      any = separated = true;
    });
  });
  if (corpus.tokens.tokens().size() < 2)
    throw Error(ExitCode::kBadData, fmt::format("{}: a single token, which no other predicts",
                                                corpus.sources.back().path.string()));
  auto dataset = std::make_unique<LmDataset>(std::move(corpus.tokens), max_length);
  dataset->set_sources(std::move(corpus.sources));
  return dataset;
}

namespace {

class NextWords final : public TextKind {
 public:
  void fields(Setting& v) {
    Setting& text = v.section("text", kTextHelp);
    corpus_.fields(text,
                   "Text to train on, or a table (.tsv, .csv, .jsonl), maybe .gz, .xz or .zst; a "
                   "folder of such files or a pattern such as c4/*.json.gz.");
    text.field("documents", documents_,
               "What of plain text is a document: a file with its line ends, or a line (lm).",
               one_of({"files", "lines"}));
    tokens_.fields(text);
  }

  std::string summary() const override { return "plain text to learn next words from"; }
  DataFacts facts() const override { return text_facts(LabelKind::kNextWords); }
  void check(const DataOptions& data, ConfigErrors& errors) const override {
    corpus_.files.check(data, "such as corpus.txt", errors);
  }

  OpenedData open(const DataRequest& request) const override {
    CorpusOptions options = corpus_.options(request, tokens_);
    options.whole_files = documents_ == "files";
    return opened(load_lm(options, tokens_.max_length, *request.tokenizer));
  }

 private:
  CorpusSettings corpus_;
  std::string documents_ = "files";
};
VCAS_REGISTER_PART(DataKind, "lm", NextWords);

}  // namespace

}  // namespace vcas
