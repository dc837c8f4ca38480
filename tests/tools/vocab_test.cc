// vcas vocab, run as a user would.
#include "tests/support/catch.h"
#include "tests/tools/program.h"

TEST_CASE("vocab: lines of text become a vocabulary that tokenises them") {
  const TemporaryFolder folder;
  const auto vocab = [&](const std::string& text, std::vector<std::string> more) {
    write_text(folder.path() / "stdin.txt", text);
    more.insert(more.begin(), "vocab");
    return run(folder.path(), more);
  };
  const std::string text = "low low low low low\nLOWER\nl\u00f6wer,";
  const Outcome outcome = succeeded(vocab(text, {"--size", "19"}));
  CHECK(outcome.out ==
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n,\n##e\nl\n##o\n##r\n##w\n##ow\nlow\n##er\nlower\n");
  write_text(folder.path() / "vocab.txt", outcome.out);
  write_text(folder.path() / "stdin.txt", text);
  CHECK(run(folder.path(), {"tokenize", "--vocab", "vocab.txt"}).out ==
        "12 12 12 12 12\n14\n14 5\n");
  CHECK(contains(vocab(text, {"--cased"}).out, "\nLOWER\n") == false);  // it occurs once
  CHECK(contains(vocab(text + " LOWER", {"--cased"}).out, "\nLOWER\n"));

  CHECK(vocab("\xEF\xBB\xBF" + text, {"--size", "19"}).out == outcome.out);

  check_message(vocab("fine\nb\xFF\n", {}), 65,
                "error: standard input:2: byte 2 is not valid UTF-8\n"
                "  hint: if the text is Latin-1, iconv -f latin1 -t utf-8 converts it\n");
  CHECK(vocab(std::string("a\0b\0", 4), {}).err ==
        "error: standard input:1: byte 2 is NUL\n"
        "  hint: if the text is UTF-16, iconv -f utf-16 -t utf-8 converts it\n");
  CHECK(vocab("", {}).code == 65);
  CHECK(vocab(text, {"--size", "5"}).code == 78);

  std::filesystem::remove(folder.path() / "stdin.txt");
  std::filesystem::create_directory(folder.path() / "stdin.txt");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"vocab"}, {"tokenize", "--vocab", "vocab.txt"}}) {
    check_message(run(folder.path(), command), 74,
                  "error: standard input: cannot read: Is a directory\n");
  }
}

TEST_CASE("vocab: lines of text become a byte-level BPE") {
  const TemporaryFolder folder;
  const auto on = [&](const std::string& text, const std::vector<std::string>& command) {
    write_text(folder.path() / "stdin.txt", text);
    return run(folder.path(), command);
  };
  const std::string text = "low low low\nlow low low\n";
  const Outcome learnt = succeeded(on(text, {"vocab", "--kind", "bpe", "--size", "260"}));
  write_text(folder.path() / "tokenizer.json", learnt.out);
  const auto tokenize = [&](const std::vector<std::string>& more) {
    return on("low low\n\n LOW<|endoftext|>",
              with({"tokenize", "--vocab", "tokenizer.json"}, more));
  };
  CHECK(tokenize({}).out == "257 258\n\n220 43 46 54 259\n");
  CHECK(tokenize({"--cased"}).out == tokenize({}).out);
  check_failure(tokenize({"--special"}), 65, {"tokenizer.json: no token \"[CLS]\""});
  CHECK(on("\xEF\xBB\xBF\r\n\r\n", {"vocab", "--kind", "bpe"}).out ==
        on("\n\n", {"vocab", "--kind", "bpe"}).out);
  CHECK(on("\xEF\xBB\xBFlow low\r\nlow", {"tokenize", "--vocab", "tokenizer.json"}).out ==
        on("low low\nlow", {"tokenize", "--vocab", "tokenizer.json"}).out);
  CHECK(on(text, {"vocab", "--kind", "bpe", "--size", "256"}).code == 78);
  CHECK(on(text, {"vocab", "--kind", "unigram"}).code == 2);
  CHECK(on("fine\nb\xFF\n", {"vocab", "--kind", "bpe"}).code == 65);
}
