// The rule of sentences in comments and documents (CONTRIBUTING.md).
#include <algorithm>
#include <cctype>
#include <optional>
#include <regex>
#include <sstream>

#include "tests/lint/source_tree.h"

using namespace vcas;

namespace {

constexpr std::size_t kMostWords = 20;

struct Paragraph {
  std::size_t line;
  std::string text;
};

bool is_script(const SourceFile& file) {
  return file.name() == "CMakeLists.txt" || file.has_extension({".cmake", ".py", ".sh"}) ||
         (file.has_extension({""}) && !file.lines.empty() && file.lines[0].starts_with("#!"));
}

// The text of a line that is a comment.
std::optional<std::string> comment(const SourceFile& file, const std::string& line) {
  const std::string mark = file.is_cpp() ? "//" : "#";
  const std::size_t begin = line.find_first_not_of(' ');
  if (begin == std::string::npos || line.compare(begin, mark.size(), mark) != 0 ||
      line.starts_with("#!"))
    return std::nullopt;
  const std::string text = line.substr(begin + mark.size());
  return text.starts_with(' ') ? text.substr(1) : text;
}

// Rows of tables and what is indented stand alone.
std::vector<Paragraph> comments(const SourceFile& file) {
  static const std::regex gap("[^ ]  +[^ ]");
  std::vector<Paragraph> found;
  bool open = false;
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    const std::optional<std::string> text = comment(file, file.lines[i]);
    if (!text || text->find_first_not_of(' ') == std::string::npos) {
      open = false;
      continue;
    }
    const bool alone = text->starts_with("  ") || std::regex_search(*text, gap);
    if (open && !alone)
      found.back().text += " " + *text;
    else
      found.push_back({i, *text});
    open = !alone;
  }
  return found;
}

// Text without headings, tables and blocks of code. An item of a list begins a paragraph.
std::vector<Paragraph> paragraphs(const SourceFile& document) {
  static const std::regex item(R"( *(-|[0-9]+\.) .*)");
  std::vector<Paragraph> found;
  bool open = false, code = false;
  for (std::size_t i = 0; i < document.lines.size(); ++i) {
    const std::string& line = document.lines[i];
    const bool fence = line.starts_with("```");
    if (fence) code = !code;
    if (code || fence || line.empty() || line[0] == '|' || line[0] == '#') {
      open = false;
      continue;
    }
    if (open && !std::regex_match(line, item))
      found.back().text += " " + line;
    else
      found.push_back({i, line});
    open = true;
  }
  return found;
}

bool is_word(const std::string& text) {
  if (text == "a" || text == "A" || text == "I") return true;
  const auto letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  return std::adjacent_find(text.begin(), text.end(),
                            [&](char a, char b) { return letter(a) && letter(b); }) != text.end();
}

// The words of its longest sentence. A colon ends one too.
std::size_t most_words(const std::string& text) {
  std::istringstream words(text);
  std::size_t most = 0, now = 0;
  for (std::string word; words >> word;) {
    now += is_word(word);
    most = std::max(most, now);
    if (std::string(".?!:").find(word.back()) != std::string::npos) now = 0;
  }
  return most;
}

}  // namespace

TEST_CASE("the rule of sentences itself") {
  const std::string twenty =
      "one two three four five six seven eight nine ten eleven twelve "
      "thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty";
  CHECK(most_words(twenty + ".") == 20);
  CHECK(most_words(twenty + " more. Two words.") == 21);
  CHECK(most_words("x [R, C] = a + b of one: " + twenty) == 20);
  const SourceFile code{"core/x.h",
                        {"// One", "//   two alone", "// three", "// four", "int x;  // not this",
                         "// name   meaning"}};
  std::vector<std::string> texts;
  for (const Paragraph& found : comments(code)) texts.push_back(found.text);
  CHECK(texts == std::vector<std::string>{"One", "  two alone", "three four", "name   meaning"});
  const SourceFile document{"docs/x.md",
                            {"# Head", "One", "two", "", "- three", "  four", "- five", "```sh",
                             "# not this", "```", "| nor | this |", "six"}};
  texts.clear();
  for (const Paragraph& found : paragraphs(document)) texts.push_back(found.text);
  CHECK(texts == std::vector<std::string>{"One two", "- three   four", "- five", "six"});
}

TEST_CASE("a sentence has at most 20 words") {
  Violations found;
  for (const SourceFile& file : source_tree(VCAS_SOURCE_DIR)) {
    const bool document = file.has_extension({".md"});
    if (!document && !file.is_cpp() && !is_script(file)) continue;
    for (const Paragraph& paragraph : document ? paragraphs(file) : comments(file))
      if (const std::size_t words = most_words(paragraph.text); words > kMostWords)
        found.push_back(file.place(paragraph.line) + std::to_string(words) + " words");
  }
  expect_none(found);
}
