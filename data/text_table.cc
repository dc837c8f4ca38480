#include "data/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json_text.h"
#include "core/nearest_name.h"
#include "core/parse_number.h"
#include "core/utf8.h"

namespace vcas {
namespace {

constexpr const char* kQuotesHint =
    "a field of .csv files that has quotes stands in quotes, and its own are doubled";
constexpr const char* kOneColumnHint =
    "the file has one column; columns end at tabs in .tsv files, at commas in .csv files";
constexpr const char* kFormatHint = "is the file cut off or of another format?";
constexpr const char* kSkipHint = "data.skip_bad_rows=true leaves bad rows out of labelled data";

std::string missing_column(const std::string& column, const std::vector<std::string>& there) {
  const std::string nearest = nearest_name(column, there);
  return fmt::format("no column \"{}\" among \"{}\"{}", column, fmt::join(there, "\", \""),
                     nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest));
}

std::string json_fault(const std::string& line) {
  const auto error = parse_json(line, /*ignore_comments=*/false).error;
  if (!error) return "not valid JSON";
  return fmt::format("column {}: {}; each line must be a JSON object of its own",
                     code_points(std::string_view(line).substr(0, error->offset)) + 1,
                     error->message);
}

}  // namespace

TableFormat table_format(const std::filesystem::path& path, TableFormat wanted) {
  if (wanted != TableFormat::kAuto) return wanted;
  std::filesystem::path name = path.filename();
  for (const char* suffix : {".gz", ".xz", ".zst"})
    if (name.extension() == suffix) name = name.stem();
  const std::string suffix = name.extension().string();
  if (suffix == ".tsv" || suffix == ".txt") return TableFormat::kTsv;
  if (suffix == ".csv") return TableFormat::kCsv;
  if (suffix == ".jsonl" || suffix == ".json") return TableFormat::kJsonl;
  throw Error(ExitCode::kBadConfig,
              fmt::format("{}: the name does not say which format the file has", path.string()),
              "names end in .tsv, .txt, .csv or .jsonl, maybe before .gz, .xz or .zst");
}

std::string bad_rows_text(std::int64_t skipped) {
  return skipped > 0 ? fmt::format("; bad rows left out: {}", skipped) : "";
}

TextTable::TextTable(const std::filesystem::path& path, std::vector<std::string> columns,
                     const TableOptions& options)
    : name_(path.string()), lines_(path), columns_(std::move(columns)), options_(options) {
  options_.format = table_format(path, options.format);
  if (options_.format != TableFormat::kJsonl) {
    read_header();
    find_columns();
  }
}

// Without a header the first record tells how many fields there are.
void TextTable::read_header() {
  Fault fault;
  if (!read_record(fault))
    throw Error(ExitCode::kBadData, fmt::format("{}: the file is empty", name_),
                "was it cut off while it was copied?");
  if (!fault.text.empty())
    throw Error(ExitCode::kBadData, fmt::format("{}: {}", place(), fault.text),
                fault.encoding_hint.empty() ? kQuotesHint : fault.encoding_hint);
  width_ = record_.size();
  if (!options_.header) {
    pending_ = true;
    if (options_.blank_rows) blanks_ = begin_ - 1;
    return;
  }
  header_ = record_;
  if (line_.find('\r') != std::string::npos)
    throw Error(ExitCode::kBadData, fmt::format("{}: a carriage return inside the line", place()),
                "if lines end so, tr '\\r' '\\n' < FILE makes ends of lines of them");
}

void TextTable::find_columns() {
  for (const std::string& column : columns_) {
    if (options_.header) {
      const auto found = std::find(header_.begin(), header_.end(), column);
      if (found == header_.end())
        throw Error(ExitCode::kBadData,
                    fmt::format("{}: {}", place(), missing_column(column, header_)),
                    header_.size() == 1 && header_[0].find_first_of(",;|\t") != std::string::npos
                        ? kOneColumnHint
                        : options_.column_hint);
      if (std::find(found + 1, header_.end(), column) != header_.end())
        throw Error(ExitCode::kBadData,
                    fmt::format("{}: two columns are named \"{}\"", place(), column),
                    "rename the one that is not meant");
      positions_.push_back(static_cast<std::size_t>(found - header_.begin()));
      continue;
    }
    const auto position = parse_number<std::size_t>(column);
    if (!position)
      throw Error(ExitCode::kBadConfig,
                  fmt::format("{}: without a header line columns are numbers from 0, got \"{}\"",
                              name_, column),
                  options_.column_hint);
    if (*position >= width_)
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: {} {}, there is no column {}", place(), width_,
                              width_ == 1 ? "column" : "columns", *position),
                  options_.column_hint);
    positions_.push_back(*position);
  }
}

std::string TextTable::place() const { return fmt::format("{}:{}", name_, begin_); }

bool TextTable::next_line() {
  if (again_.empty()) return lines_.next(line_);
  line_ = std::move(again_.front());
  again_.pop_front();
  return true;
}

// The next record, split; what is wrong with it goes to `fault`.
bool TextTable::read_record(Fault& fault) {
  const bool rows_may_be_blank =
      options_.blank_rows && (width_ > 0 || options_.format == TableFormat::kJsonl);
  do {
    if (!next_line()) return false;
  } while (line_.empty() && !rows_may_be_blank);
  begin_ = line();
  blank_ = line_.empty();
  fault.text = text_fault(line_);
  if (!fault.text.empty()) fault.encoding_hint = encoding_hint(line_);
  record_.clear();
  switch (options_.format) {
    case TableFormat::kTsv:
      split_tsv();
      break;
    case TableFormat::kCsv:
      split_csv(fault);
      break;
    default:
      break;
  }
  return true;
}

void TextTable::split_tsv() {
  std::size_t begin = 0;
  for (std::size_t tab; (tab = line_.find('\t', begin)) != std::string::npos; begin = tab + 1)
    record_.emplace_back(line_, begin, tab - begin);
  record_.emplace_back(line_, begin);
}

// A quoted field may go on in the following lines. A stray quote goes on until the next one: then
// the lines between come again, as they may be rows of their own.
void TextTable::split_csv(Fault& fault) {
  std::vector<std::string> more;  // lines behind the first
  const auto note = [&](const std::string& what) {
    if (fault.text.empty()) fault.text = what;
  };
  const auto note_quotes = [&](const std::string& what) {
    note(fmt::format("column {}: {}", record_.size(), what));
    again_.insert(again_.begin(), more.begin(), more.end());
  };
  std::size_t at = 0;
  while (true) {
    std::string& field = record_.emplace_back();
    if (at < line_.size() && line_[at] == '"') {
      ++at;
      while (true) {
        if (at == line_.size()) {
          // Nobody wants to skip the rest of the file.
          if (!next_line())
            throw Error(
                ExitCode::kBadData,
                fmt::format("{}: column {}: a quote that is not closed before the file ends",
                            place(), record_.size()),
                "is the file cut off, or is it one without quoting (TSV)?");
          more.push_back(line_);
          if (const std::string bad = text_fault(line_); !bad.empty()) {
            if (fault.text.empty()) fault.encoding_hint = encoding_hint(line_);
            note(fmt::format("line {}: {}", line(), bad));
          }
          field += '\n';
          at = 0;
        } else if (line_[at] != '"') {
          field += line_[at++];
        } else if (at + 1 < line_.size() && line_[at + 1] == '"') {
          field += '"';
          at += 2;
        } else {
          ++at;
          break;
        }
      }
      if (at < line_.size() && line_[at] != ',') return note_quotes("text after the closing quote");
    }
    const std::size_t comma = std::min(line_.find(',', at), line_.size());
    const std::string_view rest = std::string_view(line_).substr(at, comma - at);
    if (rest.find('"') != std::string_view::npos)
      return note_quotes("a quote inside a field that does not begin with one");
    field += rest;
    if (comma == line_.size()) return;
    at = comma + 1;
  }
}

TextTable::Fault TextTable::split_json(std::vector<std::string>& fields) const {
  const nlohmann::json object = nlohmann::json::parse(line_, nullptr, false);
  if (object.is_discarded()) return {json_fault(line_)};
  if (object.is_array())
    return {"a JSON array: each line must be an object of its own; jq -c '.[]' makes lines of it"};
  if (!object.is_object())
    return {fmt::format("a JSON {}, expected an object", object.type_name())};
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const auto found = object.find(columns_[i]);
    if (found == object.end()) {
      std::vector<std::string> there;
      for (const auto& [name, value] : object.items()) there.push_back(name);
      return {.text = missing_column(columns_[i], there), .lacks_column = true};
    }
    if (found->is_string()) {
      fields[i] = found->get<std::string>();
      if (const std::string fault = text_fault(fields[i]); !fault.empty())  // "\u0000"
        return {fmt::format("\"{}\": {}", columns_[i], fault)};
    } else if (found->is_number() || found->is_boolean()) {
      fields[i] = found->dump();
    } else {
      return {fmt::format("\"{}\" is a JSON {}, expected text or a number", columns_[i],
                          found->type_name())};
    }
  }
  return {};
}

// The wanted fields of the record; what is wrong with it.
TextTable::Fault TextTable::split_row(std::vector<std::string>& fields) const {
  if (options_.format == TableFormat::kJsonl) return split_json(fields);
  if (record_.size() != width_) {
    const bool fewer = record_.size() < width_;
    return {.text = fmt::format("{} {}, expected {}{}", record_.size(),
                                record_.size() == 1 ? "column" : "columns", width_,
                                fewer && options_.header
                                    ? fmt::format(" (\"{}\" is missing)", header_[record_.size()])
                                    : ""),
            .uneven = true};
  }
  for (std::size_t i = 0; i < columns_.size(); ++i) fields[i] = record_[positions_[i]];
  return {};
}

bool TextTable::next(std::vector<std::string>& fields) {
  while (true) {
    fields.assign(columns_.size(), "");
    if (blanks_ > 0) {
      --blanks_;
      return true;
    }
    Fault fault;
    if (!std::exchange(pending_, false) && !read_record(fault)) return false;
    if (blank_) return true;
    if (fault.text.empty()) fault = split_row(fields);
    if (fault.text.empty()) return any_row_ = true;
    if (!options_.skip_bad_rows && !(fault.uneven && options_.skip_uneven_rows))
      throw Error(ExitCode::kBadData, fmt::format("{}: {}", place(), fault.text),
                  fault.lacks_column && !any_row_ ? options_.column_hint
                  : fault.encoding_hint.empty()
                      ? fmt::format("{} {}", kFormatHint, kSkipHint)
                      : fmt::format("{}; {}", fault.encoding_hint, kSkipHint));
    ++skipped_;
  }
}

}  // namespace vcas
