#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numbers>

#include "core/files.h"
#include "tests/support/catch.h"
#include "tests/tools/tiny_text.h"

namespace fs = std::filesystem;

namespace {

// tiny.json as a small GPT that learns the sequence a b c d.
std::vector<std::string> as_gpt(const std::vector<std::string>& arguments) {
  return with(arguments, {"data.type=lm", "data.text.train_file=words.txt",
                          "data.text.test_file=corpus.txt", "data.text.max_length=12",
                          "model.type=gpt", "model.dropout=0", "train.batch_size=4"});
}

struct TinyWords : TinyText {
  TinyWords() {
    std::string text;
    for (int i = 0; i < 100; ++i) text += "a b c d ";
    write_text(path() / "words.txt", text + "\n");
  }
};

}  // namespace

TEST_CASE("a run whose perplexity is infinite is resumed", "[text][lm]") {
  const TinyWords tiny;
  succeeded(tiny.train(as_gpt({"run.folder=out", "train.steps=4", "train.eval_every=4",
                               "model.width=64", "optimizer.name=sgd", "schedule.kind=constant",
                               "schedule.learning_rate=3", "method.type=exact"})));
  const nlohmann::json end = tiny.end_of("out");
  CHECK(end["eval_loss"] > 710);
  CHECK(end["eval_perplexity"].is_null());
  succeeded(tiny.vcas({"train", "--resume", "out"}));
  CHECK(tiny.end_of("out")["eval_loss"] == end["eval_loss"]);
}

TEST_CASE("next words are learned, evaluated, gone on with and exported", "[text][lm]") {
  const TinyWords tiny;
  const Outcome trained = succeeded(tiny.train(as_gpt({"run.folder=out", "train.steps=120"})));
  const nlohmann::json end = tiny.end_of("out");
  CHECK(end["eval_loss"] < 0.5);
  CHECK(end["eval_accuracy"] > 0.7);
  CHECK(std::abs(std::log(end["eval_perplexity"].get<double>()) - end["eval_loss"].get<double>()) <
        1e-12);
  CHECK(contains(trained.out, "perplexity"));

  const nlohmann::json best = tiny.eval("out/best");
  const double lowest = best["eval_perplexity"], last = end["eval_perplexity"];
  CHECK(lowest <= last);
  succeeded(tiny.vcas({"report", "out"}));
  const std::string page = content(tiny.path() / "out/report.html");
  CHECK(contains(page, fmt::format("{:.4f}, {:.4f}", last, lowest)));

  const auto go_on = [&](const std::vector<std::string>& arguments) {
    return succeeded(tiny.vcas(with({"generate", "--model", "out"}, arguments))).out;
  };
  // The text grows beyond the 16 positions of the model.
  std::string expected = "c d";
  for (int i = 0; i < 10; ++i) expected += " a b c d";
  CHECK(go_on({"--prompt", "c d", "--tokens", "40", "--temperature", "0"}) == expected + "\n");
  CHECK(go_on({"--prompt", "c d", "--tokens", "40", "--top-k", "1", "--temperature", "9"}) ==
        expected + "\n");
  const std::vector<std::string> hot = {"--prompt", "a", "--tokens", "30", "--temperature", "50"};
  const std::string drawn = go_on(hot);
  CHECK(drawn == go_on(hot));
  CHECK(drawn != go_on({"--prompt", "a", "--tokens", "30", "--temperature", "50", "--seed", "1"}));
  CHECK(go_on({"--prompt", "c d", "--tokens", "40", "--temperature", "1e-300"}) == expected + "\n");
  CHECK(go_on({"--prompt=", "--tokens", "9"}) == go_on({"--prompt", "", "--tokens", "9"}));
  CHECK(go_on({"--tokens", "1", "--temperature", "0"}).size() == 2);

  // Text that nothing takes is not computed: a million tokens would be minutes.
  const std::string command = "cd " + tiny.path().string() +
                              " && env -i CUDA_VISIBLE_DEVICES= timeout 60 " VCAS_PROGRAM
                              " generate --model out --prompt c --tokens 1000000 --temperature 0"
                              " > /dev/full 2> stderr.txt";
  CHECK(WEXITSTATUS(std::system(command.c_str())) == 74);
  CHECK(contains(content(tiny.path() / "stderr.txt"),
                 "error: standard output: cannot write: No space left on device\n"));

  succeeded(tiny.vcas({"export", "--model", "out", "--to", "hf"}));
  const auto config = tiny.json("hf/config.json");
  CHECK(config["architectures"] == nlohmann::json{"GPT2LMHeadModel"});
  CHECK(config["activation_function"] == "gelu");
  CHECK(config["eos_token_id"] == 3);  // [SEP]
  const Outcome again = succeeded(tiny.train(
      as_gpt({"run.folder=again", "model.pretrained=hf", "data.text.vocabulary=", "train.steps=1",
              "schedule.learning_rate=1e-30"})));
  CHECK(tiny.end_of("again")["eval_loss"] == end["eval_loss"]);
}

TEST_CASE("bits per byte are the loss over the bytes of the text", "[text][lm]") {
  const TinyWords tiny;
  const std::string text = "a b \xC3\xA9 c d\n";  // 11 bytes
  write_text(tiny.path() / "stdin.txt", content(tiny.path() / "words.txt"));
  write_text(tiny.path() / "tokenizer.json",
             tiny.vcas({"vocab", "--kind", "bpe", "--size", "262"}).out);
  write_text(tiny.path() / "stdin.txt", text);
  const std::string ids = tiny.vcas({"tokenize", "--vocab", "tokenizer.json"}).out;
  REQUIRE(ids.starts_with("64 "));                       // "a"
  const auto tokens = 2 + std::ranges::count(ids, ' ');  // with that of the line end
  // Two files are two documents, with a separator between them.
  fs::create_directory(tiny.path() / "tests");
  for (const char* name : {"a.txt", "b.txt"}) write_text(tiny.path() / "tests" / name, text);
  const auto train_on = [&](const std::string& vocabulary, std::vector<std::string> more) {
    std::vector<std::string> arguments = as_gpt(std::move(more));
    arguments.insert(arguments.end(),
                     {"train.steps=4", "run.folder=" + vocabulary + "-run",
                      "data.text.test_file=tests", "data.text.vocabulary=" + vocabulary});
    return tiny.train(arguments);
  };
  succeeded(train_on("tokenizer.json", {"train.eval_every=4"}));
  const nlohmann::json end = tiny.end_of("tokenizer.json-run");
  const double bits = end["eval_loss"].get<double>() / std::numbers::ln2;
  const auto predicted = static_cast<double>(2 * tokens);  // all but the first, and the separator
  CHECK_THAT(end["eval_bits_per_byte"].get<double>(), WithinRel(bits * predicted / 21, 1e-12));

  // The blank before a text is none of its bytes.
  std::string blank = content(tiny.path() / "tokenizer.json");
  const std::string setting = "\"add_prefix_space\": ";
  for (std::size_t at = 0; (at = blank.find(setting + "false", at)) != blank.npos; ++at)
    blank.replace(at, setting.size() + 5, setting + "true");
  REQUIRE(contains(blank, setting + "true"));
  write_text(tiny.path() / "blank.json", blank);
  succeeded(train_on("blank.json", {"data.text.documents=lines"}));
  CHECK_FALSE(tiny.end_of("blank.json-run").contains("eval_bits_per_byte"));

  for (const std::string name : {"vocab.txt", "blank.json"}) {
    check_failure(train_on(name, {R"(train.measures=["bits_per_byte"])",
                                  "data.text.documents=lines", "--overwrite"}),
                  78,
                  {"train.measures has \"bits_per_byte\", and " + name +
                   " does not keep the bytes of a text as they are\n  hint: take perplexity, or "
                   "a byte-level BPE without add_prefix_space\n"});
  }
}

TEST_CASE("next words and models that do not fit each other", "[text][lm]") {
  const TinyWords tiny;
  const auto refused = [&](const std::vector<std::string>& arguments, int code,
                           const std::string& text) {
    check_failure(tiny.vcas(arguments), code, {text});
  };
  refused({"train", "tiny.json", "model.type=gpt"}, 78,
          "\"gpt\" does not fit data.type \"text\": model.type \"gpt\" and data.type \"lm\" go "
          "together");
  std::vector<std::string> bert = as_gpt({"train", "tiny.json"});
  bert.push_back("model.type=bert");
  refused(bert, 78, "\"bert\" does not fit data.type \"lm\": model.type \"gpt\" and data.type");
  std::vector<std::string> f1 = as_gpt({"train", "tiny.json"});
  f1.push_back("train.measures=[\"f1\"]");
  refused(f1, 78, "has \"f1\", which is not among accuracy, perplexity, bits_per_byte");
  succeeded(tiny.train({"run.folder=bert", "train.steps=2"}));
  refused({"generate", "--model", "bert", "--prompt", "a"}, 2,
          "generate goes on with texts, and model.type \"bert\" does not");
  refused(as_gpt({"bench", "tiny.json", "--steps", "1", "--pad-to", "16"}), 2,
          "--pad-to is for texts of different lengths, and items of next words have one\n  hint: ");
  succeeded(tiny.train(as_gpt({"run.folder=gpt", "train.steps=2"})));
  refused({"predict", "--model", "gpt", "--input", "x.tsv"}, 2,
          "predict reads texts and images; data.type of this model is \"lm\"");
  refused({"generate", "--model", "gpt", "--prompt", "a\xFF"}, 2,
          "--prompt: byte 2 is not valid UTF-8");
  refused({"generate", "--model", "gpt", "--temperature", "-1"}, 2, "not in range 0 to");
}
