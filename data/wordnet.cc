#include "data/wordnet.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/parse_number.h"
#include "data/text_kind.h"
#include "data/text_lines.h"

namespace vcas {
namespace {

constexpr std::uint64_t kWordnetFormatVersion = 1;
constexpr const char* kFiles[] = {"data.noun", "data.verb", "data.adj", "data.adv"};

// Where a pointer leads: part of speech and the byte offset that names a synset in its file.
using SynsetName = std::pair<char, std::int64_t>;

struct SynsetLine {
  SynsetName name;
  Synset synset;
  std::vector<SynsetName> hypernyms;
};

// The words of a synset's line, one after another.
class Words {
 public:
  Words(std::string_view text, std::string place) : text_(text), place_(std::move(place)) {}

  std::string_view next(const char* what) {
    const std::size_t begin = text_.find_first_not_of(' ');
    if (begin == std::string_view::npos) fail(what);
    text_.remove_prefix(begin);
    const std::size_t end = std::min(text_.find(' '), text_.size());
    const std::string_view word = text_.substr(0, end);
    text_.remove_prefix(end);
    return word;
  }
  std::int64_t number(const char* what, int base = 10) {
    const auto value = parse_number<std::int64_t>(next(what), base);
    if (!value || *value < 0) fail(what);
    return *value;
  }
  [[noreturn]] void fail(const char* what) const {
    throw Error(ExitCode::kBadData, fmt::format("{}: no {} where a synset has it", place_, what),
                "the file is not one of WordNet's data files, or damaged; apt-get install "
                "--reinstall wordnet-base");
  }

 private:
  std::string_view text_;
  std::string place_;
};

// The fields of a line, in this order (wndb(5)):
//   offset, file number, type
//   count of words in hexadecimal, then each word with its id
//   count of pointers, then each with symbol, offset, part of speech, source and target
//   "| gloss"
SynsetLine parse_synset(const std::string& line, const std::string& place) {
  const std::size_t bar = line.find(" | ");
  Words words(std::string_view(line).substr(0, bar), place);
  SynsetLine out;
  out.name.second = words.number("offset");
  const std::int64_t file = words.number("lexicographer file");
  if (file >= std::ssize(lexicographer_files())) words.fail("lexicographer file");
  out.synset.lexicographer_file = static_cast<std::int32_t>(file);
  const char type = words.next("type").front();
  out.synset.part_of_speech = type == 's' ? 'a' : type;
  out.name.first = out.synset.part_of_speech;
  for (std::int64_t left = words.number("count of words", 16); left > 0; --left) {
    words.next("word");
    words.next("word's number");
  }
  for (std::int64_t left = words.number("count of pointers"); left > 0; --left) {
    const std::string_view symbol = words.next("pointer");
    const std::int64_t offset = words.number("pointer's offset");
    const char part_of_speech = words.next("pointer's part of speech").front();
    words.next("pointer's words");
    if (symbol == "@" || symbol == "@i") out.hypernyms.emplace_back(part_of_speech, offset);
  }
  if (bar == std::string::npos) words.fail("gloss");
  out.synset.gloss = line.substr(bar + 3);
  out.synset.gloss.resize(out.synset.gloss.find_last_not_of(' ') + 1);
  return out;
}

// Hypernyms of a damaged file may lead in a circle.
bool has_ancestor(const std::vector<Synset>& synsets, std::int64_t synset, std::int64_t ancestor) {
  std::set<std::int64_t> seen = {synset};
  for (std::vector<std::int64_t> open = {synset}; !open.empty();) {
    const Synset& below = synsets[open.back()];
    open.pop_back();
    for (const std::int64_t hypernym : below.hypernyms) {
      if (hypernym == ancestor) return true;
      if (seen.insert(hypernym).second) open.push_back(hypernym);
    }
  }
  return false;
}

bool is_in(Split split, std::int64_t synset) {
  constexpr std::uint32_t kTestShare = 11;  // one in so many
  std::uint32_t bits[4];
  philox_draw(data_address(0, DataSite::kWordnetSplit), static_cast<std::uint64_t>(synset), bits);
  return (uniform_below(bits[0], kTestShare) == 0) == (split == Split::kTest);
}

// A synset of the same part of speech that is neither this one nor above it.
std::int64_t draw_unrelated(const std::vector<Synset>& synsets, std::int64_t synset,
                            const std::vector<std::int64_t>& candidates) {
  constexpr std::uint64_t kMostTries = 1024;
  for (std::uint64_t attempt = 0; attempt < kMostTries; ++attempt) {
    std::uint32_t bits[4];
    philox_draw(data_address(0, DataSite::kWordnetNegative), synset * kMostTries + attempt, bits);
    const std::int64_t other =
        candidates[uniform_below(bits[0], static_cast<std::uint32_t>(candidates.size()))];
    if (other != synset && !has_ancestor(synsets, synset, other)) return other;
  }
  throw Error(ExitCode::kBadData,
              fmt::format("WordNet: synset \"{}\" is related to all others", synsets[synset].gloss),
              "the files of data.folder are cut off or damaged; apt-get install --reinstall "
              "wordnet-base");
}

class ListedRows final : public TextRows {
 public:
  explicit ListedRows(std::vector<TextRow> rows) : rows_(std::move(rows)) {}

  bool next(TextRow& row) override {
    if (given_ == rows_.size()) return false;
    row = std::move(rows_[given_++]);
    return true;
  }
  std::string place() const override { return fmt::format("WordNet, row {}", given_); }

 private:
  std::vector<TextRow> rows_;
  std::size_t given_ = 0;
};

}  // namespace

const std::vector<std::string>& lexicographer_files() {
  static const std::vector<std::string> names = {
      "adj.all",          "adj.pert",           "adv.all",
      "noun.Tops",        "noun.act",           "noun.animal",
      "noun.artifact",    "noun.attribute",     "noun.body",
      "noun.cognition",   "noun.communication", "noun.event",
      "noun.feeling",     "noun.food",          "noun.group",
      "noun.location",    "noun.motive",        "noun.object",
      "noun.person",      "noun.phenomenon",    "noun.plant",
      "noun.possession",  "noun.process",       "noun.quantity",
      "noun.relation",    "noun.shape",         "noun.state",
      "noun.substance",   "noun.time",          "verb.body",
      "verb.change",      "verb.cognition",     "verb.communication",
      "verb.competition", "verb.consumption",   "verb.contact",
      "verb.creation",    "verb.emotion",       "verb.motion",
      "verb.perception",  "verb.possession",    "verb.social",
      "verb.stative",     "verb.weather",       "adj.ppl"};
  return names;
}

std::vector<Synset> read_wordnet(const std::filesystem::path& folder) {
  std::vector<Synset> synsets;
  std::vector<std::vector<SynsetName>> hypernyms;
  std::map<SynsetName, std::int64_t> numbers;
  for (const char* name : kFiles) {
    TextLines lines(find_plain_or_compressed(folder / name, "apt-get install wordnet-base"));
    std::string line;
    while (lines.next(line)) {
      if (line.starts_with("  ")) continue;  // the licence
      if (const std::string fault = text_fault(line); !fault.empty())
        throw Error(ExitCode::kBadData, fmt::format("{}: {}", lines.place(), fault));
      SynsetLine parsed = parse_synset(line, lines.place());
      numbers.emplace(parsed.name, std::ssize(synsets));
      synsets.push_back(std::move(parsed.synset));
      hypernyms.push_back(std::move(parsed.hypernyms));
    }
  }
  for (std::size_t i = 0; i < synsets.size(); ++i) {
    for (const SynsetName& name : hypernyms[i]) {
      const auto found = numbers.find(name);
      if (found == numbers.end())
        throw Error(ExitCode::kBadData,
                    fmt::format("{}: synset \"{}\" has a hypernym at {} {:08} that is not there",
                                folder.string(), synsets[i].gloss, name.first, name.second));
      synsets[i].hypernyms.push_back(found->second);
    }
  }
  return synsets;
}

std::vector<TextRow> wordnet_rows(const std::vector<Synset>& synsets, WordNetTask task,
                                  Split split) {
  std::vector<TextRow> rows;
  if (task == WordNetTask::kLexicographerFile) {
    for (std::int64_t i = 0; i < std::ssize(synsets); ++i)
      if (is_in(split, i))
        rows.push_back(
            {synsets[i].gloss, {}, lexicographer_files()[synsets[i].lexicographer_file]});
    return rows;
  }
  std::map<char, std::vector<std::int64_t>> candidates;
  for (std::int64_t i = 0; i < std::ssize(synsets); ++i)
    candidates[synsets[i].part_of_speech].push_back(i);
  for (std::int64_t i = 0; i < std::ssize(synsets); ++i) {
    const Synset& synset = synsets[i];
    if (synset.hypernyms.empty() || !is_in(split, i)) continue;
    const std::int64_t other = draw_unrelated(synsets, i, candidates[synset.part_of_speech]);
    rows.push_back({synset.gloss, synsets[synset.hypernyms.front()].gloss, "is_a"});
    rows.push_back({synset.gloss, synsets[other].gloss, "other"});
  }
  return rows;
}

std::unique_ptr<TextDataset> load_wordnet(const WordNetOptions& options,
                                          const Tokenizer& tokenizer) {
  const bool pairs = options.task == WordNetTask::kIsA;
  const ItemOptions items{
      .pairs = pairs,
      .labels = pairs ? std::vector<std::string>{"other", "is_a"} : lexicographer_files(),
      .max_length = options.max_length};
  std::vector<SourceFile> sources;
  const auto make = [&] {
    ListedRows rows(wordnet_rows(read_wordnet(options.folder), options.task, options.split));
    TokenContent content = tokenise_rows(rows, tokenizer, items);
    check_unchanged(sources);
    return content;
  };
  ContentHash key;
  for (const char* name : kFiles) {
    sources.push_back(source_file(
        find_plain_or_compressed(options.folder / name, "apt-get install wordnet-base")));
    key.add_number(sources.back().hash);
  }
  key.add("wordnet");
  key.add_number(kWordnetFormatVersion);
  key.add_number(static_cast<std::uint64_t>(options.split));
  items.add_to(key);
  key.add_number(tokenizer.fingerprint());
  auto dataset =
      std::make_unique<TextDataset>(options.cache ? cached_tokens(key.value(), make) : make());
  dataset->set_sources(std::move(sources));
  return dataset;
}

namespace {

class WordNet final : public LabelledTextKind {
 public:
  void fields(Setting& v) {
    Setting& text = v.section("text", kTextHelp);
    text.field("task", task_, "is_a or lexicographer_file.");
    add_text_fields(text);
  }

  std::string summary() const override { return "glosses of WordNet, its tasks"; }
  DataFacts facts() const override { return text_facts(LabelKind::kClasses, task_); }
  void check(const DataOptions&, ConfigErrors& errors) const override {
    if (task_ != "is_a" && task_ != "lexicographer_file")
      errors.add({"text.task", "type"},
                 fmt::format("must be \"is_a\" or \"lexicographer_file\" (apt-get install "
                             "wordnet-base gets the files), got \"{}\"",
                             task_));
  }
  std::vector<std::string> idle_settings(const DataOptions&) const override {
    return idle_columns();
  }

  OpenedData open(const DataRequest& request) const override {
    WordNetOptions options{
        .task = task_ == "is_a" ? WordNetTask::kIsA : WordNetTask::kLexicographerFile,
        .split = request.split,
        .max_length = tokens_.max_length,
        .cache = tokens_.cache};
    if (!request.folder.empty()) options.folder = request.folder;
    return opened(load_wordnet(options, *request.tokenizer));
  }
  OpenedData open_unlabelled(const DataRequest& request,
                             const std::vector<std::filesystem::path>& inputs,
                             const std::vector<std::int64_t>& item_shape) const override {
    if (task_ == "is_a" && columns_.second.empty())
      throw Error(ExitCode::kBadConfig,
                  "the model reads pairs of texts, and data.text.second names none",
                  "data.text.first=COLUMN and data.text.second=COLUMN name those of the input");
    return LabelledTextKind::open_unlabelled(request, inputs, item_shape);
  }

 private:
  std::string task_;
};
VCAS_REGISTER_PART(DataKind, "wordnet", WordNet);

}  // namespace

}  // namespace vcas
