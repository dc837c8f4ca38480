#include "data/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/nearest_name.h"

namespace vcas {
namespace {

std::string missing_column(const std::string& column, const std::vector<std::string>& there) {
  const std::string nearest = nearest_name(column, there);
  return fmt::format("no column \"{}\" among {}{}", column, fmt::join(there, ", "),
                     nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest));
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
  std::string fault;
  if (!read_record(fault))
    throw Error(ExitCode::kBadData, fmt::format("{}: the file is empty", name_),
                "was it cut off while it was copied?");
  if (!fault.empty()) throw Error(ExitCode::kBadData, fmt::format("{}: {}", place(), fault));
  width_ = record_.size();
  pending_ = !options_.header;
  if (options_.header) header_ = record_;
}

void TextTable::find_columns() {
  for (const std::string& column : columns_) {
    if (options_.header) {
      const auto found = std::find(header_.begin(), header_.end(), column);
      if (found == header_.end())
        throw Error(ExitCode::kBadData,
                    fmt::format("{}: {}", place(), missing_column(column, header_)));
      positions_.push_back(static_cast<std::size_t>(found - header_.begin()));
      continue;
    }
    std::size_t position = 0;
    const char* end = column.data() + column.size();
    const auto [stop, status] = std::from_chars(column.data(), end, position);
    if (status != std::errc() || stop != end)
      throw Error(ExitCode::kBadConfig,
                  fmt::format("{}: without a header line columns are numbers from 0, got \"{}\"",
                              name_, column));
    if (position >= width_)
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: {} columns, there is no column {}", place(), width_, position));
    positions_.push_back(position);
  }
}

std::string TextTable::place() const { return fmt::format("{}:{}", name_, begin_); }

// The next record, split; what is wrong with it goes to `fault`.
bool TextTable::read_record(std::string& fault) {
  do {
    if (!lines_.next(line_)) return false;
  } while (line_.empty() && !(options_.blank_rows && width_ > 0));
  begin_ = lines_.line();
  fault = text_fault(line_);
  record_.clear();
  switch (options_.format) {
    case TableFormat::kTsv:
      split_tsv();
      break;
    case TableFormat::kCsv: {
      const std::string bad_quotes = split_csv();
      if (fault.empty()) fault = bad_quotes;
      break;
    }
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

// What is wrong with the quotes, or nothing. A quoted field may go on in the following lines.
std::string TextTable::split_csv() {
  std::string fault;
  const auto note = [&](std::string what) {
    if (fault.empty()) fault = std::move(what);
  };
  std::size_t at = 0;
  while (true) {
    std::string& field = record_.emplace_back();
    if (at < line_.size() && line_[at] == '"') {
      ++at;
      while (true) {
        if (at == line_.size()) {
          // Nobody wants to skip the rest of the file.
          if (!lines_.next(line_))
            throw Error(
                ExitCode::kBadData,
                fmt::format("{}: column {}: a quote that is not closed before the file ends",
                            place(), record_.size()),
                "is the file cut off, or is it one without quoting (TSV)?");
          if (const std::string bad = text_fault(line_); !bad.empty())
            note(fmt::format("line {}: {}", lines_.line(), bad));
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
      if (at < line_.size() && line_[at] != ',')
        note(fmt::format("column {}: text after the closing quote", record_.size()));
    }
    const std::size_t comma = std::min(line_.find(',', at), line_.size());
    const std::string_view rest = std::string_view(line_).substr(at, comma - at);
    if (rest.find('"') != std::string_view::npos)
      note(fmt::format("column {}: a quote inside a field that does not begin with one",
                       record_.size()));
    field += rest;
    if (comma == line_.size()) return fault;
    at = comma + 1;
  }
}

std::string TextTable::split_json(std::vector<std::string>& fields) const {
  const nlohmann::json object = nlohmann::json::parse(line_, nullptr, false);
  if (object.is_discarded()) return "not valid JSON";
  if (!object.is_object()) return fmt::format("a JSON {}, expected an object", object.type_name());
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const auto found = object.find(columns_[i]);
    if (found == object.end()) {
      std::vector<std::string> there;
      for (const auto& [name, value] : object.items()) there.push_back(name);
      return missing_column(columns_[i], there);
    }
    if (found->is_string()) {
      fields[i] = found->get<std::string>();
      if (const std::string fault = text_fault(fields[i]); !fault.empty())  // "\u0000"
        return fmt::format("\"{}\": {}", columns_[i], fault);
    } else if (found->is_number() || found->is_boolean()) {
      fields[i] = found->dump();
    } else {
      return fmt::format("\"{}\" is a JSON {}, expected text or a number", columns_[i],
                         found->type_name());
    }
  }
  return {};
}

bool TextTable::next(std::vector<std::string>& fields) {
  fields.resize(columns_.size());
  while (true) {
    std::string fault;
    if (!std::exchange(pending_, false) && !read_record(fault)) return false;
    if (fault.empty() && options_.format == TableFormat::kJsonl) {
      fault = split_json(fields);
    } else if (fault.empty() && record_.size() != width_) {
      const bool fewer = record_.size() < width_;
      fault = fmt::format("{} {}, expected {}{}", record_.size(),
                          record_.size() == 1 ? "column" : "columns", width_,
                          fewer && options_.header
                              ? fmt::format(" (\"{}\" is missing)", header_[record_.size()])
                              : "");
    }
    if (fault.empty()) {
      if (options_.format != TableFormat::kJsonl)
        for (std::size_t i = 0; i < columns_.size(); ++i) fields[i] = record_[positions_[i]];
      return true;
    }
    if (!options_.skip_bad_rows)
      throw Error(ExitCode::kBadData, fmt::format("{}: {}", place(), fault),
                  "is the file cut off or of another format? data.skip_bad_rows=true "
                  "leaves bad rows out of labelled data");
    ++skipped_;
  }
}

}  // namespace vcas
