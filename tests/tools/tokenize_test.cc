// vcas tokenize, run as a user would.
#include "tests/support/catch.h"
#include "tests/tools/program.h"

namespace {

struct Tokenize : TemporaryFolder {
  Tokenize() {
    write_text(path() / "vocab.txt",
               "[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\nlow\n##est\n\u00e9\ne\nThe\n");
  }

  Outcome operator()(const std::string& lines, std::vector<std::string> more = {}) const {
    write_text(path() / "stdin.txt", lines);
    more.insert(more.begin(), {"tokenize", "--vocab", "vocab.txt"});
    return run(path(), more);
  }
};

}  // namespace

TEST_CASE("tokenize: lines of text become lines of ids") {
  const Tokenize tokenize;
  const Outcome plain = succeeded(tokenize("The lowest \u00e9\n\n  \r\nlow[SEP]x"));
  CHECK(plain.err.empty());
  CHECK(plain.out == "4 5 6 8\n\n\n5 3 1\n");
  CHECK(tokenize("The \u00e9\n", {"--cased"}).out == "9 7\n");
  CHECK(tokenize("low\n\n", {"--special"}).out == "2 5 3\n2 3\n");
  CHECK(tokenize("").out.empty());
  CHECK(tokenize("\xEF\xBB\xBFlow\r\nlow\r").out == "5\n5\n");
  std::string lines, ids;
  for (int i = 0; i < 40000; ++i) {
    lines += "lowest\n";
    ids += "5 6\n";
  }
  CHECK(tokenize(lines).out == ids);
}

TEST_CASE("tokenize: what is wrong is said once, with its place") {
  const Tokenize tokenize;
  const Outcome latin1 = tokenize("the\nlow\xE9\n");
  CHECK(latin1.code == 65);
  CHECK(latin1.out.empty());
  CHECK(latin1.err ==
        "error: standard input:2: byte 4 is not valid UTF-8\n"
        "  hint: if the text is Latin-1, iconv -f latin1 -t utf-8 converts it\n");
  CHECK(contains(tokenize(std::string("\xFF\xFEt\0", 4)).err,
                 "standard input:1: byte 1 is not valid UTF-8\n  hint: if the text is UTF-16, "));
  CHECK(run(tokenize.path(), {"tokenize"}).code == 2);
  check_failure(run(tokenize.path(), {"tokenize", "--vocab", "no.txt"}), 66, {"no.txt"});
  write_text(tokenize.path() / "tokenizer.json", R"({
    "normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 0}}})");
  check_failure(run(tokenize.path(), {"tokenize", "--vocab", "tokenizer.json", "--cased"}), 2,
                {"--cased, but tokenizer.json lower-cases"});
  check_failure(run(tokenize.path(), {"tokenize", "--vocab", ".", "--special"}), 65,
                {"tokenizer.json: no token \"[CLS]\""});
}
