#include "data/mlm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "core/error.h"

namespace vcas {
namespace {

constexpr std::uint64_t kMlmFormatVersion = 3;
constexpr std::int64_t kSpecial = 2;  // [CLS] and [SEP]
constexpr int kRowBits = 20;          // of a position of random numbers; the item has the others
constexpr std::int64_t kRowLimit = std::int64_t{1} << kRowBits;

// Documents joined with [SEP], in items [CLS] ... [SEP].
void tokenise_documents(std::int64_t max_length, const Tokenizer& tokenizer,
                        const EachText& for_each_text, const TokenSink& sink) {
  const auto room = static_cast<std::size_t>(max_length - kSpecial);
  std::vector<std::int32_t> item, waiting;
  const auto add_item = [&](std::span<const std::int32_t> ids) {
    item.assign(1, tokenizer.cls());
    item.insert(item.end(), ids.begin(), ids.end());
    item.push_back(tokenizer.sep());
    sink(item);
  };
  for_each_text([&](const std::string& text, bool) {
    const std::size_t before = waiting.size();
    if (before > 0) waiting.push_back(tokenizer.sep());
    tokenizer.encode(text, waiting);
    if (before > 0 && waiting.size() == before + 1) waiting.pop_back();  // an empty document
    std::size_t used = 0;
    for (; waiting.size() - used >= room; used += room)
      add_item(std::span(waiting).subspan(used, room));
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(used));
  });
  if (!waiting.empty()) add_item(waiting);
}

}  // namespace

MlmDataset::MlmDataset(TokenStream tokens, std::int64_t item_rows, Masking masking)
    : CorpusDataset(std::move(tokens), item_rows, 0), masking_(std::move(masking)) {
  VCAS_CHECK(item_rows > kSpecial && item_rows < kRowLimit,
             fmt::format("items of {} rows", item_rows));
}

std::int64_t MlmDataset::masked_count(std::int64_t rows) const { return share_of(rows - kSpecial); }

std::int64_t MlmDataset::share_of(std::int64_t maskable) const {
  const auto wanted =
      static_cast<std::int64_t>(std::lround(masking_.probability * static_cast<double>(maskable)));
  return std::clamp<std::int64_t>(wanted, std::min<std::int64_t>(1, maskable), maskable);
}

// The words (or single tokens) of an item that may be masked.
std::vector<MlmDataset::Word> MlmDataset::maskable_words(
    std::span<const std::int32_t> tokens) const {
  std::vector<Word> words;
  for (std::int64_t row = 1; row + 1 < std::ssize(tokens); ++row) {
    const std::int32_t token = tokens[row];
    if (token == masking_.separator) continue;
    const bool goes_on = !masking_.continues.empty() && masking_.continues[token];
    if (goes_on && !words.empty() && words.back().end == row) {
      ++words.back().end;
    } else {
      words.push_back({row, row + 1});
    }
  }
  return words;
}

bool MlmDataset::can_mask() const {
  std::int64_t index = 0;
  while (index < size() && maskable_words(item_tokens(index)).empty()) ++index;
  return index < size();
}

void MlmDataset::append(std::int64_t index, const ItemDraw& draw, Batch& out) const {
  const std::span<const std::int32_t> item = item_tokens(index);
  const std::int64_t base = append_tokens(item, out);
  std::vector<Word> words = maskable_words(item);
  const auto count = static_cast<std::uint32_t>(words.size());

  // Words in random order until the number is full; a word that would exceed it is passed over.
  const PhiloxAddress address = data_address(draw.seed, DataSite::kMask, draw.epoch);
  const auto draw_words = [&](std::int64_t position, std::uint32_t(&bits)[4]) {
    philox_draw(address, static_cast<std::uint64_t>(index) << kRowBits | position, bits);
  };
  std::int64_t maskable = 0;
  for (const Word& word : words) maskable += word.end - word.begin;
  std::int64_t missing = share_of(maskable);
  const std::size_t first_masked = out.masked_rows.size();
  const auto mask_rows = [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t row = from; row < to; ++row)
      out.masked_rows.push_back(static_cast<std::int32_t>(base + row));
  };
  for (std::uint32_t i = 0; i < count && missing > 0; ++i) {
    std::uint32_t bits[4];
    draw_words(i, bits);
    std::swap(words[i], words[i + uniform_below(bits[0], count - i)]);
    const auto [begin_row, end_row] = words[i];
    if (end_row - begin_row > missing) continue;
    missing -= end_row - begin_row;
    mask_rows(begin_row, end_row);
  }
  // No word fits: part of the first one is masked, as without any there would be no loss.
  if (count > 0 && out.masked_rows.size() == first_masked)
    mask_rows(words[0].begin, words[0].begin + missing);
  std::sort(out.masked_rows.begin() + first_masked, out.masked_rows.end());
  for (std::size_t i = first_masked; i < out.masked_rows.size(); ++i) {
    const std::int32_t row = out.masked_rows[i];
    std::int32_t& token = out.tokens[row];
    out.masked_labels.push_back(token);
    std::uint32_t bits[4];
    draw_words(row - base, bits);
    const float kind = uniform_from_bits(bits[1]);
    if (kind < 0.8f) {
      token = masking_.mask;
    } else if (kind < 0.9f) {
      token = static_cast<std::int32_t>(
          uniform_below(bits[2], static_cast<std::uint32_t>(masking_.vocabulary)));
    }
  }
  out.masked_offsets.push_back(std::ssize(out.masked_rows));
}

std::unique_ptr<MlmDataset> load_mlm(const MlmOptions& options, const Tokenizer& tokenizer) {
  if (options.max_length <= kSpecial)
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("data.text.max_length must be above {}, the special tokens of an item, got {}",
                    kSpecial, options.max_length));
  if (options.max_length >= kRowLimit)
    throw Error(ExitCode::kBadConfig,
                fmt::format("data.text.max_length must be below {}, the rows of an item that have "
                            "random numbers, got {}",
                            kRowLimit, options.max_length),
                "128 to 512 is usual; longer documents make several items");
  if (!(options.mask_probability > 0 && options.mask_probability < 1))
    throw Error(ExitCode::kBadConfig,
                fmt::format("data.text.mask_probability must be above 0 and below 1, got {}",
                            options.mask_probability));
  ContentHash key;
  key.add("mlm");
  key.add_number(kMlmFormatVersion);
  key.add_number(static_cast<std::uint64_t>(options.max_length));
  key.add_number(tokenizer.fingerprint());
  Corpus corpus =
      read_corpus(options.corpus, key, [&](const EachText& each, const TokenSink& sink) {
        tokenise_documents(options.max_length, tokenizer, each, sink);
      });
  MlmDataset::Masking masking{.probability = options.mask_probability,
                              .mask = tokenizer.mask(),
                              .separator = tokenizer.sep(),
                              .vocabulary = tokenizer.size()};
  if (options.whole_words)
    for (std::int32_t id = 0; id < tokenizer.size(); ++id)
      masking.continues.push_back(tokenizer.continues_word(id));
  auto dataset = std::make_unique<MlmDataset>(std::move(corpus.tokens), options.max_length,
                                              std::move(masking));
  if (!dataset->can_mask())
    throw Error(
        ExitCode::kBadData,
        fmt::format("{}: no token can be masked", corpus.sources.back().path.string()),
        "all texts are [SEP], which stands between documents: name a file that has words too");
  dataset->set_sources(std::move(corpus.sources));
  return dataset;
}

namespace {

class MaskedWords final : public TextKind {
 public:
  void fields(Setting& v) {
    Setting& text = v.section("text", kTextHelp);
    corpus_.fields(text,
                   "Text to train on, a document a line, or a table (.tsv, .csv, .jsonl), maybe "
                   ".gz, .xz or .zst; a folder of such files or a pattern such as c4/*.json.gz.");
    text.field("mask_probability", options_.mask_probability, "Share of tokens to predict (mlm).",
               above(0.0), below(1.0));
    text.field("whole_words", options_.whole_words, "Mask all pieces of a word together (mlm).");
    tokens_.fields(text);
  }

  std::string summary() const override { return "plain text to learn masked words from"; }
  DataFacts facts() const override { return text_facts(LabelKind::kMaskedWords); }
  void check(const DataOptions& data, ConfigErrors& errors) const override {
    corpus_.files.check(data, "such as corpus.txt with a document on each line", errors);
  }

  OpenedData open(const DataRequest& request) const override {
    MlmOptions options = options_;
    options.corpus = corpus_.options(request, tokens_);
    options.max_length = tokens_.max_length;
    return opened(load_mlm(options, *request.tokenizer));
  }

 private:
  CorpusSettings corpus_;
  MlmOptions options_;  // what the settings say of it
};
VCAS_REGISTER_PART(DataKind, "mlm", MaskedWords);

}  // namespace

}  // namespace vcas
