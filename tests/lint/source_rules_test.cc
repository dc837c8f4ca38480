// What holds for the text of every source file (docs/testing.md).
#include <regex>

#include "tests/lint/source_tree.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

constexpr std::size_t kMaxColumns = 100, kMaxLines = 600;

// Split, so that this file does not hold what it forbids.
const std::string kLaunch = std::string("<<") + "<";
const std::string kUnfinished[] = {std::string("TO") + "DO", std::string("FIX") + "ME"};
const std::string kLateSubjects[] = {std::string("O") + "f", std::string("Like") + "wise"};
const std::regex kMachinePath("(^|[^A-Za-z0-9_.])/(" + std::string("wo") + "rk|home|root|Users)/");

const std::vector<SourceFile>& tree() {
  static const std::vector<SourceFile> files = source_tree(VCAS_SOURCE_DIR);
  return files;
}

std::size_t columns(const std::string& line) {  // UTF-8 continuation bytes take none
  return static_cast<std::size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool contains_word(const std::string& line, const std::string& word) {
  return line.find(word) != std::string::npos &&
         std::regex_search(line, std::regex("\\b" + word + "\\b"));
}

template <class Files, class Rule>
Violations violations(const Files& files, const Rule& broken, const char* what) {
  Violations found;
  for (const SourceFile& file : files)
    for (std::size_t i = 0; i < file.lines.size(); ++i)
      if (broken(file, file.lines[i])) found.push_back(file.place(i) + what);
  return found;
}

bool is_unfinished(const SourceFile&, const std::string& line) {
  return contains_word(line, kUnfinished[0]) || contains_word(line, kUnfinished[1]);
}

bool launches(const SourceFile& file, const std::string& line) {
  return file.is_cpp() && file.name() != "launch.cuh" && line.find(kLaunch) != std::string::npos;
}

bool names_machine_path(const SourceFile&, const std::string& line) {
  return std::regex_search(line, kMachinePath);
}

// A sentence that begins with one of these has its subject late.
bool is_late(const SourceFile&, const std::string& line) {
  return contains_word(line, kLateSubjects[0]) || contains_word(line, kLateSubjects[1]);
}

bool is_long(const SourceFile& file, const std::string& line) {
  const bool code = file.is_cpp() || file.name() == "CMakeLists.txt" ||
                    file.has_extension({".cmake"}) || file.path.starts_with("tools/") ||
                    file.is_script();
  return code && columns(line) > kMaxColumns;
}

// Names that Catch2 v2, of Debian 12, has where v3, of Debian 13, has none.
bool is_catch2_v2(const SourceFile& file, const std::string& line) {
  static const std::regex names(R"((^|[^:\w])Approx\(|Catch::Matche[s]\()");
  return file.path.starts_with("tests/") && std::regex_search(line, names);
}

// What names an operation in kernels/ops.
std::vector<std::string> operations(const SourceFile& args) {
  std::vector<std::string> names;
  std::smatch found;
  std::string candidate;
  for (const std::string& line : args.lines) {
    if (std::regex_search(line, found, std::regex(R"(^(?:struct|class) (\w+) \{)")))
      candidate = found[1];
    if (line.find("kName = ") != std::string::npos) names.push_back(candidate);
  }
  return names;
}

}  // namespace

TEST_CASE("the source rules themselves") {
  const SourceFile cpp{"layers/gelu.cc", {}}, launcher{"kernels/device/launch.cuh", {}};
  CHECK(is_unfinished(cpp, "  // " + kUnfinished[0] + "(me): later"));
  CHECK_FALSE(is_unfinished(cpp, "  // mas" + kUnfinished[0] + "N"));
  CHECK(launches(cpp, "kernel" + kLaunch + "grid, block>>>();"));
  CHECK_FALSE(launches(launcher, "kernel" + kLaunch + "grid, block>>>();"));
  CHECK_FALSE(launches(cpp, "out << a << b;"));
  CHECK(names_machine_path(cpp, std::string("open(\"/ho") + "me/user/x\")"));
  CHECK_FALSE(names_machine_path(cpp, "https://example.org/root/x"));
  CHECK(is_late(cpp, "// " + kLateSubjects[0] + " all rows."));
  CHECK_FALSE(is_late(cpp, "// The sum of all rows, likewise kept."));
  CHECK(is_long(cpp, std::string(kMaxColumns + 1, 'x')));
  CHECK_FALSE(is_long(cpp, std::string(kMaxColumns - 1, 'x') + "\u00e9"));
  CHECK_FALSE(is_long({"docs/testing.md", {}}, std::string(kMaxColumns + 1, 'x')));
  const SourceFile test{"tests/core/error_test.cc", {}};
  CHECK(is_catch2_v2(test, std::string("  CHECK(x == App") + "rox(1));"));
  CHECK(is_catch2_v2(test, std::string("  CHECK_THAT(x, Catch::Match") + "es(\"a\"));"));
  CHECK_FALSE(is_catch2_v2(test, "  CHECK_THAT(x, Catch::Matchers::Matches(\"a\"));"));
  const SourceFile args{"kernels/ops/sampling.h",
                        {"struct Helper {", "};", "struct RowScore {",
                         "  static constexpr const char* kName = \"row_score\";"}};
  CHECK(operations(args) == std::vector<std::string>{"RowScore"});
}

TEST_CASE("nothing is left unfinished") {
  expect_none(violations(tree(), is_unfinished, "unfinished"));
}

TEST_CASE("kernels are launched in launch.cuh only") {
  expect_none(violations(tree(), launches, "a kernel launch outside launch.cuh"));
}

TEST_CASE("no file names a path of one machine") {
  expect_none(violations(tree(), names_machine_path, "a path of one machine"));
}

TEST_CASE("no sentence begins with a word that makes its subject late") {
  expect_none(violations(tree(), is_late, "the subject comes first"));
}

TEST_CASE("tests name Catch2 as v2 and v3 have it") {
  expect_none(violations(tree(), is_catch2_v2,
                         "Catch2 v3 has it as Catch::Matchers::Matches, or "
                         "WithinRel"));
}

TEST_CASE("lines of code have at most 100 columns") {
  expect_none(violations(tree(), is_long, "longer than 100 columns"));
}

TEST_CASE("no source file has more than 600 lines") {
  Violations found;
  for (const SourceFile& file : tree())
    if (file.is_cpp() && file.lines.size() > kMaxLines)
      found.push_back(file.path + ": " + std::to_string(file.lines.size()) + " lines");
  expect_none(found);
}

TEST_CASE("every operation appears in a test") {
  std::vector<std::string> names;
  for (const SourceFile& file : tree())
    if (file.path.starts_with("kernels/ops/"))
      for (const std::string& name : operations(file)) names.push_back(name);
  CHECK(names.size() >= 30);
  Violations found;
  for (const std::string& name : names) {
    const bool tested = std::any_of(tree().begin(), tree().end(), [&](const SourceFile& file) {
      return file.path.starts_with("tests/") && file.is_cpp() &&
             std::any_of(file.lines.begin(), file.lines.end(),
                         [&](const std::string& line) { return contains_word(line, name); });
    });
    if (!tested) found.push_back(name);
  }
  expect_none(found);
}
