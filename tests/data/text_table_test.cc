#include "data/text_table.h"

#include "core/files.h"
#include "tests/data/data_files.h"
#include "tests/support/shared_data.h"

using namespace vcas;

namespace {

using Rows = std::vector<std::vector<std::string>>;

Rows rows_of(TextTable& table) {
  Rows rows;
  std::vector<std::string> fields;
  while (table.next(fields)) rows.push_back(fields);
  return rows;
}

struct Folder {
  DataFolder folder;

  Rows read(const std::string& name, const std::string& text,
            const std::vector<std::string>& columns, const TableOptions& options = {}) const {
    TextTable table(folder.write_text(name, text), columns, options);
    return rows_of(table);
  }
  Error error(const std::string& name, const std::string& text,
              const std::vector<std::string>& columns = {"a", "b"},
              const TableOptions& options = {}) const {
    const Error error = error_of([&] { read(name, text, columns, options); });
    CHECK(error.code() == ExitCode::kBadData);
    return error;
  }
  void check_bad(const std::string& name, const std::string& text, const std::string& want,
                 const std::vector<std::string>& columns = {"a", "b"},
                 const TableOptions& options = {}) const {
    CHECK(std::string(error(name, text, columns, options).what()) ==
          (folder.path() / name).string() + want);
  }
};

}  // namespace

TEST_CASE("tsv: named columns in any order, quotes are letters", "[table]") {
  const Folder folder;
  const std::string text = "a\tb\tc\n1\t\"two\t3\n\t\t\n\"x\"\"\ty\tz";
  CHECK(folder.read("x.tsv", text, {"c", "a"}) == Rows{{"3", "1"}, {"", ""}, {"z", "\"x\"\""}});
  CHECK(folder.read("x.txt", text, {"b"}) == Rows{{"\"two"}, {""}, {"y"}});
  CHECK(folder.read("x", text, {"b"}, {.format = TableFormat::kTsv}).size() == 3);
}

TEST_CASE("byte order mark, CR LF and blank lines are tolerated", "[table]") {
  const Folder folder;
  CHECK(folder.read("x.tsv",
                    "\xEF\xBB\xBF"
                    "a\tb\r\n1\t2\r\n\r\n3\t4\r\n\n\n",
                    {"a", "b"}) == Rows{{"1", "2"}, {"3", "4"}});
  CHECK(folder.read("x.tsv", "a\tb\n", {"a"}).empty());
  // In another line it is part of the text.
  CHECK(folder.read("x.tsv",
                    "a\n\xEF\xBB\xBF"
                    "1\n",
                    {"a"}) == Rows{{"\xEF\xBB\xBF"
                                    "1"}});
}

TEST_CASE("blank lines are rows of empty fields where asked for", "[table]") {
  const Folder folder;
  const TableOptions blank{.blank_rows = true};
  const Rows want = {{"1", "2"}, {"", ""}, {"3", "4"}, {"", ""}};
  CHECK(folder.read("x.tsv", "a\tb\n1\t2\n\n3\t4\n\n", {"a", "b"}, blank) == want);
  CHECK(folder.read("x.tsv", "\n\na\tb\r\n1\t2\r\n\r\n3\t4\r\n\r\n", {"a", "b"}, blank) == want);
  CHECK(folder.read("x.csv", "a,b\n1,2\n\n3,\"4\"\n\n", {"a", "b"}, blank) == want);
  CHECK(folder.read("x.jsonl", "{\"a\": 1, \"b\": 2}\n\n{\"a\": 3, \"b\": 4}\n\n", {"a", "b"},
                    blank) == want);
  CHECK(folder.read("x.tsv", "a\n1\n\n", {"a"}, blank) == Rows{{"1"}, {""}});
  CHECK(folder.read("x.tsv", "a\n1", {"a"}, blank) == Rows{{"1"}});
  CHECK(
      folder.read("x.tsv", "\n\n1\t2\n\n3\t4", {"1", "0"}, {.header = false, .blank_rows = true}) ==
      Rows{{"", ""}, {"", ""}, {"2", "1"}, {"", ""}, {"4", "3"}});
  folder.check_bad("x.tsv", "a\tb\n1\t2\n \n", ":3: 1 column, expected 2 (\"b\" is missing)",
                   {"a", "b"}, blank);
}

TEST_CASE("a table without header has numbered columns", "[table]") {
  const Folder folder;
  const TableOptions options{.header = false};
  CHECK(folder.read("x.tsv", "1\t2\t3\n4\t5\t6\n", {"2", "0"}, options) ==
        Rows{{"3", "1"}, {"6", "4"}});
  folder.check_bad("x.tsv", "1\t2\n", ":1: 2 columns, there is no column 2", {"2"}, options);
  folder.check_bad("x.tsv", "1\n", ":1: 1 column, there is no column 1", {"1"}, options);
  folder.check_bad("x.tsv", "1\t2\n3\n", ":2: 1 column, expected 2", {"0"}, options);
  check_error([&] { folder.read("x.tsv", "1\t2\n", {"text"}, options); }, ExitCode::kBadConfig,
              "without a header line columns are numbers from 0, got \"text\"");
}

TEST_CASE("csv: quoted fields hold commas, quotes and line ends", "[table]") {
  const Folder folder;
  CHECK(folder.read("x.csv", "a,b\n1,\"x, \"\"y\"\"\"\n\"two\nlines\",\"\"\n", {"a", "b"}) ==
        Rows{{"1", "x, \"y\""}, {"two\nlines", ""}});
  TextTable table(folder.folder.write_text("x.csv", "a,b\n\"1\n2\n3\",4\n5,6\n"), {"a"});
  std::vector<std::string> fields;
  REQUIRE(table.next(fields));
  CHECK(table.place().ends_with("x.csv:2"));
  REQUIRE(table.next(fields));
  CHECK(table.place().ends_with("x.csv:5"));
  folder.check_bad("x.csv", "a,b\n1,\"x\"y\n", ":2: column 2: text after the closing quote");
  folder.check_bad("x.csv", "a,b\n1,x\"y\n",
                   ":2: column 2: a quote inside a field that does not begin with one");
  CHECK(folder.error("x.csv", "a \"b\"\n1\n").hint() ==
        "a field of .csv files that has quotes stands in quotes, and its own are doubled");
  folder.check_bad("x.csv", "a,b\n1,\"x\n\xFF\"\n", ":2: line 3: byte 1 is not valid UTF-8");
  const TableOptions skip{.skip_bad_rows = true};
  folder.check_bad("x.csv", "a,b\n1,2\n\"3,4\n5,6\n",
                   ":3: column 1: a quote that is not closed before the file ends", {"a"}, skip);
}

TEST_CASE("json lines: text, numbers and booleans", "[table]") {
  const Folder folder;
  CHECK(folder.read("x.jsonl",
                    "{\"b\": \"q\\\"\\u00e9\", \"a\": 3, \"z\": [1]}\n\n"
                    "{\"a\": -1.5, \"b\": true}\n",
                    {"a", "b"}) == Rows{{"3", "q\"\xC3\xA9"}, {"-1.5", "true"}});
  const std::string own = "; each line must be a JSON object of its own";
  folder.check_bad("x.jsonl", "{\"a\": 1, \"b\": 2}\n{\"a\": 1,\n",
                   ":2: column 8: syntax error while parsing object key - unexpected end of input; "
                   "expected string literal" +
                       own);
  folder.check_bad("x.jsonl", "{\"a\": 1, \"b\": NaN}\n",
                   ":1: column 15: syntax error while parsing value - invalid literal" + own);
  folder.check_bad("x.jsonl", "{\"\u00e9\": NaN}\n",
                   ":1: column 7: syntax error while parsing value - invalid literal" + own);
  folder.check_bad("x.jsonl", "[1]\n",
                   ":1: a JSON array: each line must be an object of its own; jq -c "
                   "'.[]' makes lines of it");
  folder.check_bad("x.jsonl", "{\"a\": 1, \"b\": null}\n",
                   ":1: \"b\" is a JSON null, expected text or a number");
  folder.check_bad("x.jsonl", "{\"sentence\": \"x\"}\n",
                   ":1: no column \"sentense\" among \"sentence\"; did you mean \"sentence\"?",
                   {"sentense"});
  folder.check_bad("x.jsonl", "{\"a\": 1, \"b\": \"x\\u0000\"}\n", ":1: \"b\": byte 2 is NUL");
}

TEST_CASE("bad rows are named by file and line", "[table]") {
  const Folder folder;
  const Error error = folder.error("x.tsv", "a\tb\n1\t2\n3\n");
  CHECK(std::string(error.what()) ==
        (folder.folder.path() / "x.tsv").string() + ":3: 1 column, expected 2 (\"b\" is missing)");
  CHECK(error.hint() ==
        "is the file cut off or of another format? data.skip_bad_rows=true "
        "leaves bad rows out of labelled data");
  folder.check_bad("x.tsv", "a\tb\n1\t2\t3\n", ":2: 3 columns, expected 2");
  folder.check_bad("x.tsv", "a\tb\n1\t2\xC3\n", ":2: byte 4 is not valid UTF-8");
  folder.check_bad("x.tsv", std::string("a\tb\n\0\t2\n", 8), ":2: byte 1 is NUL");
  folder.check_bad(
      "x.tsv", "label\tsentence\n",
      ":1: no column \"sentance\" among \"label\", \"sentence\"; did you mean \"sentence\"?",
      {"sentance"});
  folder.check_bad("x.tsv", "", ": the file is empty");
  const Error wide = folder.error("x.tsv", std::string("\xFF\xFE"
                                                       "a\0\n\0",
                                                       6));
  CHECK(wide.what() == (folder.folder.path() / "x.tsv").string() + ":1: byte 4 is NUL");
  CHECK(wide.hint() == "if the text is UTF-16, iconv -f utf-16 -t utf-8 converts it");
  CHECK(folder.error("x.tsv", "a\tb\n1\t2\xE9\n").hint() ==
        "if the text is Latin-1, iconv -f latin1 -t utf-8 converts it; data.skip_bad_rows=true "
        "leaves bad rows out of labelled data");
  CHECK(folder.error("x.csv", "a,b\n1,\"2\n\xE9\"\n").hint().starts_with("if the text is Latin-1"));
  folder.check_bad("x.tsv", "a\tb\r1\t2\r", ":1: a carriage return inside the line");
  const Error commas = folder.error("x.tsv", "a,b\n1,2\n");
  CHECK(commas.what() ==
        (folder.folder.path() / "x.tsv").string() + ":1: no column \"a\" among \"a,b\"");
  CHECK(commas.hint() ==
        "the file has one column; columns end at tabs in .tsv files, at commas in .csv files");
  CHECK(folder.error("x.tsv", "a;b\n1;2\n").hint() == commas.hint());
  CHECK(folder.error("x.tsv", "c,d\te\n").hint().empty());
  check_error([&] { folder.read("x.dat", "a\n", {"a"}); }, ExitCode::kBadConfig,
              "x.dat: the name does not say which format the file has");
}

TEST_CASE("bad rows are skipped and counted where asked for", "[table]") {
  const Folder folder;
  TextTable table(
      folder.folder.write_text("x.tsv", std::string("a\tb\n1\n2\t3\n\xFF\t1\n4\t5\t6\n7\t8\n")),
      {"a", "b"}, {.skip_bad_rows = true});
  CHECK(rows_of(table) == Rows{{"2", "3"}, {"7", "8"}});
  CHECK(table.skipped() == 3);
  const TableOptions uneven{.skip_uneven_rows = true};
  TextTable other(folder.folder.write_text("y.tsv", "a\tb\n1\n2\t3\n4\t5\t6\n"), {"a"}, uneven);
  CHECK(rows_of(other) == Rows{{"2"}});
  CHECK(other.skipped() == 2);
  folder.check_bad("y.tsv", "a\tb\n1\n\xFF\t1\n", ":3: byte 1 is not valid UTF-8", {"a"}, uneven);
}

TEST_CASE("a stray quote costs its own row alone", "[table]") {
  const Folder folder;
  TextTable table(
      folder.folder.write_text("x.csv", "a,b\n\"oops,1\nfine,2\n\"two\nlines\",3\nok,\"4\"\n5\n"),
      {"a", "b"}, {.skip_bad_rows = true});
  std::vector<std::string> fields;
  REQUIRE(table.next(fields));
  CHECK(fields == std::vector<std::string>{"fine", "2"});
  CHECK(table.place().ends_with("x.csv:3"));
  REQUIRE(table.next(fields));
  CHECK(fields == std::vector<std::string>{"two\nlines", "3"});
  REQUIRE(table.next(fields));
  CHECK(fields == std::vector<std::string>{"ok", "4"});
  CHECK(table.place().ends_with("x.csv:6"));
  CHECK_FALSE(table.next(fields));
  CHECK(table.skipped() == 2);
}

TEST_CASE("a column that is not there, or twice, is met with what names it", "[table]") {
  const Folder folder;
  const TableOptions options{.column_hint = "data.text.first names the column"};
  for (const auto& [name, text] :
       {std::pair("x.tsv", "a\tb\n1\t2\n"), std::pair("x.jsonl", "{\"a\": 1}\n"),
        std::pair("x.jsonl", "\n{\"a\": 1}\n")})
    CHECK(folder.error(name, text, {"c"}, options).hint() == options.column_hint);
  // Rows before it have the column: no setting is wrong, but the row.
  CHECK_THAT(folder.error("x.jsonl", "{\"a\": 1}\n{\"b\": 2}\n", {"a"}, options).hint(),
             ContainsSubstring("data.skip_bad_rows=true leaves bad rows out"));
  const TableOptions headless{.header = false, .column_hint = options.column_hint};
  CHECK(folder.error("x.tsv", "1\t2\n", {"2"}, headless).hint() == options.column_hint);
  folder.check_bad("x.tsv", "a\tb\ta\n", ":1: two columns are named \"a\"", {"a"});
  CHECK(folder.read("x.tsv", "a\tb\ta\n1\t2\t3\n", {"b"}) == Rows{{"2"}});
}

TEST_CASE("compressed tables are told by their content, formats by the inner name", "[table]") {
  const DataFolder folder;
  std::string text = "a,b\n";
  for (int i = 0; i < 50000; ++i)
    text += std::to_string(i) + ",\"" + std::to_string(i % 997) + "\"\n";
  CHECK(table_format("x.tsv.zst", TableFormat::kAuto) == TableFormat::kTsv);
  CHECK(table_format("x.json", TableFormat::kAuto) == TableFormat::kJsonl);
  const Bytes packed = gzip(Bytes(text.begin(), text.end()));
  TextTable table(folder.write("x.csv.gz", packed), {"b", "a"});
  const Rows rows = rows_of(table);
  REQUIRE(rows.size() == 50000);
  CHECK(rows[40000] == std::vector<std::string>{std::to_string(40000 % 997), "40000"});
  check_error(
      [&] {
        TextTable cut(folder.write("cut.csv.gz", Bytes(packed.begin(), packed.begin() + 5000)),
                      {"a"}, {.skip_bad_rows = true});
        rows_of(cut);
      },
      ExitCode::kBadData, "cut.csv.gz: gzip data is cut off after 5000 bytes");
}

TEST_CASE("real tables are read to their last row", "[table]") {
  struct Table {
    std::string file;
    std::vector<std::string> columns;
    std::size_t rows;
  };
  const std::vector<Table> tables = {
      {"sst2/test.tsv", {"sentence", "label"}, 872},
      {"sst2/train.tsv", {"sentence", "label"}, 60614},
      {"nli/mix_train.tsv.gz", {"premise", "hypothesis", "label"}, 29489},
      {"glue_small/cola_train.tsv", {"sentence", "label"}, 7250},
      {"glue_small/mrpc_test.tsv", {"sentence1", "sentence2", "label"}, 1725},
      {"glue_small/rte_dev.tsv", {"sentence1", "sentence2", "label"}, 277},
  };
  for (const Table& want : tables) {
    const std::filesystem::path file = shared_data(want.file);
    if (file.empty()) continue;
    INFO(want.file);
    TextTable table(file, want.columns);
    CHECK(rows_of(table).size() == want.rows);
  }
}
