// Tables of text with named columns: TSV as GLUE has it, CSV, JSON lines; plain or compressed.
#pragma once

#include <cstdint>
#include <deque>
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
  bool header = true;             // false: columns are numbers, from 0; not for JSON lines
  bool skip_bad_rows = false;     // leave them out and count them, instead of an error
  bool skip_uneven_rows = false;  // the same, of rows with too few or too many fields alone
  bool blank_rows = false;        // a blank line is a row of empty fields
  std::string column_hint = {};   // where a column is missing: what names the columns
};

// kBadConfig: a name that says no format.
TableFormat table_format(const std::filesystem::path& path, TableFormat wanted);

// "; bad rows left out: 3", or nothing.
std::string bad_rows_text(std::int64_t skipped);

// Reads the wanted columns of one row after another. Blank lines are no rows, unless asked for.
// A bad row is kBadData with file:line, or is skipped. A row is bad if it has one of these:
//   too few or too many fields
//   invalid UTF-8, or a NUL byte
//   bad quotes, or bad JSON
// A quote that is still open at the end of the file is never skipped.
// A missing column is kBadData with the nearest name. Errors of the file are DecompressedFile's.
class TextTable {
 public:
  TextTable(const std::filesystem::path& path, std::vector<std::string> columns,
            const TableOptions& options = {});

  // `fields` become the wanted columns, in the order they were asked for; false after the last row.
  bool next(std::vector<std::string>& fields);
  std::string place() const;  // "path:12", where the row begins
  std::int64_t skipped() const { return skipped_; }

 private:
  // What is wrong with a row.
  struct Fault {
    std::string text;  // empty: nothing
    bool uneven = false, lacks_column = false;
    std::string encoding_hint = {};  // where bytes are none of a text
  };

  bool next_line();
  std::int64_t line() const { return lines_.line() - std::ssize(again_); }
  bool read_record(Fault& fault);
  void split_tsv();
  void split_csv(Fault& fault);
  Fault split_json(std::vector<std::string>& fields) const;
  Fault split_row(std::vector<std::string>& fields) const;
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
  std::deque<std::string> again_;  // lines that come once more
  std::vector<std::string> record_;
  std::int64_t begin_ = 0;   // line of the record
  bool blank_ = false;       // the record is a blank line
  bool any_row_ = false;     // a row was read that had all columns
  bool pending_ = false;     // the first record was read to count its fields
  std::int64_t blanks_ = 0;  // blank rows before it, still to come
  std::int64_t skipped_ = 0;
};

}  // namespace vcas
