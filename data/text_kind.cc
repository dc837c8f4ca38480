#include "data/text_kind.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utf8proc.h>

#include <string_view>
#include <utility>

#include "core/error.h"
#include "data/vocabulary.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// How a table looks, and which settings name its columns.
struct TableHints {
  std::string file, columns;

  TableHints(const ColumnSettings& table, const std::string& label) {
    std::vector<std::string> settings = {"data.text.first"}, names = {table.first_column()},
                             row = {"a fine film"};
    if (!table.second.empty()) {
      settings.push_back("data.text.second");
      names.push_back(table.second);
      row.push_back("a good one");
    }
    if (!label.empty()) {
      settings.push_back("data.text.label");
      names.push_back(label);
      row.push_back("yes");
    }
    file = fmt::format(
        "{} a table: in a .tsv file the line \"{}\", then for each text a line such as \"{}\"",
        label.empty() ? "--input names" : "data.text.train_file and data.text.test_file each name",
        fmt::join(names, "<TAB>"), fmt::join(row, "<TAB>"));
    if (table.header) {
      columns = fmt::format("{} {}; data.text.header=false if the file has no line of names",
                            fmt::join(settings, ", "),
                            settings.size() == 1 ? "names the column" : "name the columns");
    } else {
      for (std::size_t i = 0; i < settings.size(); ++i) settings[i] += fmt::format("={}", i);
      columns = fmt::format("number the columns, such as {}", fmt::join(settings, ", "));
    }
  }
};

bool has_capitals(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::int32_t point = next_code_point(text, at);
    if (utf8proc_tolower(point) != point) return true;
  }
  return false;
}

// Tokens with capitals are out of reach for a tokenizer that lower-cases all texts.
void check_case(const Tokenizer& tokenizer) {
  if (!tokenizer.lower_case()) return;
  std::int64_t capitals = 0;
  for (std::int32_t id = 0; id < tokenizer.pieces(); ++id) {
    const std::string_view token = tokenizer.token(id);
    capitals += !token.starts_with('[') && has_capitals(token);
  }
  constexpr std::int64_t kFew = 20;  // one in so many: a cased vocabulary has about two in five
  if (kFew * capitals <= tokenizer.pieces()) return;
  throw Error(ExitCode::kBadConfig,
              fmt::format("{} of the vocabulary's {} tokens have capitals, and texts are "
                          "lower-cased",
                          capitals, tokenizer.pieces()),
              "data.text.lower_case=false, or \"do_lower_case\": false in the "
              "tokenizer_config.json of the folder that data.text.vocabulary names");
}

}  // namespace

void TokenSettings::fields(Setting& v) {
  v.field("vocabulary", vocabulary,
          "vocab.txt, tokenizer.json or a folder with one of them; empty: model.pretrained.");
  v.field("lower_case", lower_case,
          "Lower case and no accents; a Hugging Face folder, or tokenizer_config.json beside "
          "vocab.txt, says it itself.");
  v.field("max_length", max_length, "Most tokens of an item; longer ones are cut.",
          at_least(kLeastMaxLength));
  v.field("cache", cache,
          "Keep tokenised data between runs, in VCAS_CACHE_DIR or the cache of the user.");
}

void add_header(Setting& v, bool& header) {
  v.field("header", header,
          "Tables begin with a line of column names; false: columns are numbers, from 0.");
}

void ColumnSettings::fields(Setting& v) {
  v.field("first", first,
          "Column of the text, or of the first text of a pair; empty: that of the task, else "
          "sentence.");
  v.field("second", second,
          "Column of the second text of a pair; empty: that of the task, else single texts.");
  add_header(v, header);
}

void add_class_names(Setting& v, std::vector<std::string>& names) {
  v.field("labels", names, "Names of the classes in order; empty: as the data has them.");
}

void FileSettings::fields(Setting& v, const char* train_help) {
  v.field("train_file", train_file, train_help);
  v.field("test_file", test_file, "What to evaluate on, named as train_file is.");
}

void FileSettings::check(const DataOptions& data, const char* example, ConfigErrors& errors) const {
  const bool held_out = data.validation_share > 0;
  if (train_file.empty() || (test_file.empty() && !held_out))
    errors.add(
        {train_file.empty() ? "text.train_file" : "text.test_file", "type"},
        fmt::format("is missing: data.type \"{}\" reads files, {}{}", data.kind.type, example,
                    train_file.empty() ? ""
                                       : "; data.validation_share=0.1 evaluates on a "
                                         "tenth of data.text.train_file"));
  if (held_out && !test_file.empty())
    errors.add({"validation_share", "text.test_file"},
               "is for data without an evaluation set, and data.text.test_file names one: set that "
               "to \"\" to hold items out");
  if (!data.folder.empty())
    errors.add({"folder", "type"},
               fmt::format("is not read by data.type \"{}\": data.text.train_file and "
                           "data.text.test_file name its files",
                           data.kind.type));
}

std::unique_ptr<Tokenizer> TextKind::make_tokenizer(const fs::path& pretrained) const {
  auto tokenizer = read_tokenizer(
      tokens_.vocabulary.empty() ? pretrained : fs::path(tokens_.vocabulary), tokens_.lower_case);
  check_case(*tokenizer);
  return tokenizer;
}

DataFacts TextKind::text_facts(LabelKind labels, std::string task) const {
  return {.text = true,
          .labels = labels,
          .task = std::move(task),
          .max_length = tokens_.max_length,
          .needs_vocabulary = tokens_.vocabulary.empty(),
          .is_predictable = labels != LabelKind::kMaskedWords && labels != LabelKind::kNextWords};
}

OpenedData LabelledTextKind::open_unlabelled(const DataRequest& request,
                                             const std::vector<fs::path>& inputs,
                                             const std::vector<std::int64_t>&) const {
  return opened(load_table(request, inputs.at(0), columns_, {}));
}

void LabelledTextKind::add_text_fields(Setting& v) {
  columns_.fields(v);
  add_class_names(v, classes_);
  tokens_.fields(v);
}

std::unique_ptr<TextDataset> LabelledTextKind::load_table(const DataRequest& request,
                                                          const fs::path& file,
                                                          const ColumnSettings& columns,
                                                          const std::string& label) const {
  const bool labelled = !label.empty();
  const TableHints hints(columns, label);
  return load_text({.file = file,
                    .first = columns.first_column(),
                    .second = columns.second,
                    .label = label,
                    // Predictions have a line for each row.
                    .table = {.header = columns.header,
                              .skip_bad_rows = labelled && request.skip_bad_rows,
                              .blank_rows = !labelled,
                              .column_hint = hints.columns},
                    .items = {.regression = request.learns_numbers,
                              .labels = !classes_.empty() ? classes_
                                        : labelled        ? request.known_classes
                                                          : std::vector<std::string>{},
                              .skip_bad_labels = request.skip_bad_rows,
                              .label_numbers = !classes_.empty(),
                              .max_length = tokens_.max_length},
                    .cache = tokens_.cache,
                    .missing_hint = hints.file},
                   *request.tokenizer);
}

std::vector<std::string> LabelledTextKind::idle_columns() const {
  std::vector<std::string> idle;
  for (const ConfigChange& change : config_changes(ColumnSettings(), columns_))
    idle.push_back(fmt::format("data.text.{} has no effect: training reads the columns of the task",
                               change.key));
  return idle;
}

OpenedData LabelledTextKind::opened(std::unique_ptr<TextDataset> texts) {
  const TokenContent& content = texts->content();
  return {.items = std::move(texts),
          .tokens = content.tokens,
          .has_pairs = !content.first_lengths.empty(),
          .skipped_rows = content.skipped_rows,
          .cut_rows = content.cut_rows};
}

}  // namespace vcas
