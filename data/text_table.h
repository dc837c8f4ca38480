// Tables of text with named columns: TSV as GLUE has it, CSV, JSON lines; plain or compressed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/text_lines.h"

namespace vcas {

enum class TableFormat {
  kAuto,   // by the name: .tsv or .txt, .csv, .jsonl or .json, before .gz, .xz or .zst
  kTsv,    // fields end at tabs; a quote is a letter like any other
  kCsv,    // RFC 4180: fields in double quotes may hold commas, line ends and doubled quotes
  kJsonl,  // one object a line; strings, numbers and true or false become fields
};

struct TableOptions {
  TableFormat format = TableFormat::kAuto;
  bool header = true;          // false: columns are numbers, from 0; not for JSON lines
  bool skip_bad_rows = false;  // leave them out and count them, instead of an error
  bool blank_rows = false;     // a blank line is a row of one empty field (not of JSON lines)
};

// kBadConfig: a name that says no format.
TableFormat table_format(const std::filesystem::path& path, TableFormat wanted);

// Reads the wanted columns of one row after another. A row with too few or too many fields, invalid
// UTF-8, a NUL byte, bad quotes or bad JSON is bad: kBadData with file:line, or skipped. Missing
// columns are kBadData with the nearest name; files as of DecompressedFile. Blank lines are no
// rows, unless asked for.
class TextTable {
 public:
  TextTable(const std::filesystem::path& path, std::vector<std::string> columns,
            const TableOptions& options = {});

  // `fields` become the wanted columns, in the order they were asked for; false after the last row.
  bool next(std::vector<std::string>& fields);
  std::string place() const;  // "path:12", where the row begins
  std::int64_t skipped() const { return skipped_; }

 private:
  bool read_record(std::string& fault);
  void split_tsv();
  std::string split_csv();
  std::string split_json(std::vector<std::string>& fields) const;
  void read_header();
  void find_columns();

  std::string name_;
  TextLines lines_;
  std::vector<std::string> columns_;
  TableOptions options_;
  std::vector<std::string> header_;
  std::vector<std::size_t> positions_;  // [columns] in the record
  std::size_t width_ = 0;               // fields of a record
  std::string line_;
  std::vector<std::string> record_;
  std::int64_t begin_ = 0;  // line of the record
  bool pending_ = false;    // the first record was read to count its fields
  std::int64_t skipped_ = 0;
};

}  // namespace vcas
