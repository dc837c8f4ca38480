// What a user may type: templates, settings in all their forms, levels of logging, versions.
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/fewer_cases.h"
#include "tests/tools/program.h"

namespace fs = std::filesystem;

namespace {

constexpr const char* kBertConfig = R"({
  "model_type": "bert", "hidden_act": "gelu", "vocab_size": 30522, "hidden_size": 768,
  "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
  "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
  "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1
})";

constexpr const char* kVitConfig = R"({
  "model_type": "vit", "hidden_act": "gelu", "hidden_size": 768, "num_hidden_layers": 12,
  "num_attention_heads": 12, "intermediate_size": 3072, "image_size": 224, "patch_size": 16,
  "num_channels": 3, "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.0,
  "attention_probs_dropout_prob": 0.0, "qkv_bias": true
})";

std::vector<std::string> template_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::istringstream lines(run(folder, {"init"}).out);
  for (std::string line; std::getline(lines, line);)
    names.push_back(line.substr(0, line.find(' ')));
  return names;
}

// As a download would leave it, as far as settings go.
void make_pretrained(const fs::path& folder, const std::string& config) {
  fs::create_directory(folder);
  write_text(folder / "config.json", config);
  write_text(folder / "model.safetensors", std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  write_text(folder / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n");
}

nlohmann::json minimal(const Outcome& outcome) {
  return nlohmann::json::parse(succeeded(outcome).out);
}

}  // namespace

TEST_CASE("init lists each template in a line: what it trains and what it needs") {
  const TinyRun tiny;
  const Outcome list = succeeded(run(tiny.path(), {"init"}));
  check_contains(list.out,
                 {"mlp_synthetic      An MLP on random vectors: a few seconds on any machine.\n",
                  "quickstart         A small Vision Transformer on Fashion-MNIST. Needs: "
                  "the package dataset-fashion-mnist\n"});
  const std::regex line(R"([a-z0-9_]+ +[A-Z].*[.?]( Needs: .+)?)");
  std::istringstream lines(list.out);
  int count = 0;
  for (std::string text; std::getline(lines, text); ++count) {
    CAPTURE(text);
    CHECK(std::regex_match(text, line));
  }
  const auto configs = fs::directory_iterator(std::string(VCAS_SOURCE_DIR) + "/configs");
  CHECK(count == std::distance(begin(configs), end(configs)));
}

TEST_CASE("what init prints is the template, and lacks at most its data") {
  const TinyRun tiny;
  for (const char* name : {"bert-base-uncased", "bert-large-uncased", "all-MiniLM-L6-v2"})
    make_pretrained(tiny.path() / name, kBertConfig);
  make_pretrained(tiny.path() / "vit-base-patch16-224-in21k", kVitConfig);
  for (const std::string& name : vcas::cases_to_run(template_names(tiny.path()))) {
    CAPTURE(name);
    const Outcome text = succeeded(run(tiny.path(), {"init", name}));
    CHECK(contains(text.out, "// "));
    write_text(tiny.path() / "made.json", text.out);
    const Outcome made = run(tiny.path(), {"vcas-train", "made.json", "--print-config"});
    const Outcome kept =
        run(tiny.path(), {"vcas-train", std::string(VCAS_SOURCE_DIR) + "/configs/" + name + ".json",
                          "--print-config"});
    CHECK(made.err == "");
    CHECK(made.code == 0);
    CHECK(made.out == kept.out);
    if (name.starts_with("bench_") || name == "mlp_synthetic") continue;  // made-up data
    const Outcome valid = run(tiny.path(), {"vcas-train", "made.json", "--validate"});
    CAPTURE(valid.err);
    // Fashion-MNIST and WordNet may be installed.
    const bool there = valid.code == 0 && contains(made.out, "fashion_mnist");
    CHECK((there || (valid.code == 66 && contains(valid.err, "\n  hint: "))));
  }
}

TEST_CASE("a configuration printed before its weights are there fits them later") {
  const TinyRun tiny;
  write_text(tiny.path() / "mnli.json", run(tiny.path(), {"init", "bert_mnli"}).out);
  const Outcome before = succeeded(run(tiny.path(), {"vcas-train", "mnli.json", "--print-config"}));
  CHECK(contains(before.out, "\"pretrained\": \"bert-base-uncased\""));
  CHECK_FALSE(contains(before.out, "\"width\""));
  CHECK_FALSE(contains(before.out, "\"lower_case\""));
  write_text(tiny.path() / "printed.json", before.out);
  make_pretrained(tiny.path() / "bert-base-uncased", kBertConfig);
  const Outcome after = run(tiny.path(), {"vcas-train", "printed.json", "--print-config"});
  CHECK(after.err == "");
  CHECK(minimal(after)["model"]["width"] == 768);
}

TEST_CASE("settings have short forms and long ones, and the later one wins") {
  const TinyRun tiny;
  const nlohmann::json config = minimal(run(tiny.path(), {"vcas-train",
                                                          "tiny.json",
                                                          "--epochs",
                                                          "3",
                                                          "--steps=0",
                                                          "--lr",
                                                          "1e-3",
                                                          "--batch_size",
                                                          "8",
                                                          "--folder",
                                                          "a=b",
                                                          "--device",
                                                          "cpu",
                                                          "--seed",
                                                          "7",
                                                          "--threads=2",
                                                          "--precision",
                                                          "f32",
                                                          "--model.depth",
                                                          "3",
                                                          "--model.ffn-ratio=2",
                                                          "--vcas.act_ratio",
                                                          "[0.5]",
                                                          "data.flip=true",
                                                          "--set",
                                                          "train.epochs=4",
                                                          "train.epochs=5",
                                                          "--epochs",
                                                          "6",
                                                          "--print-config"}));
  CHECK(config["train"]["epochs"] == 6);
  CHECK(config["train"]["steps"] == 0);
  CHECK(config["schedule"]["learning_rate"] == 1e-3);
  CHECK(config["train"]["batch_size"] == 8);
  CHECK(config["run"]["folder"] == "a=b");
  CHECK(config["device"] == "cpu");
  CHECK(config["seed"] == 7);
  CHECK(config["threads"] == 2);
  CHECK(config["model"]["depth"] == 3);
  CHECK(config["model"]["ffn_ratio"] == 2);
  CHECK(config["method"]["act_ratio"] == nlohmann::json({0.5}));
  CHECK(config["data"]["flip"] == true);
  const nlohmann::json set =
      minimal(run(tiny.path(), {"vcas-train", "-c", "tiny.json", "--epochs", "6", "--set",
                                "train.epochs=4", "train.epochs=5", "--print-config"}));
  CHECK(set["train"]["epochs"] == 5);
}

TEST_CASE("short forms are for every command with settings, after the command's own options") {
  const TinyRun tiny;
  succeeded(run(tiny.path(), {"bench", "tiny.json", "--steps", "1", "--batch-size", "8", "--device",
                              "cpu", "--json"}));
  const Outcome twins =
      succeeded(run(tiny.path(), {"compare", "tiny.json", "--folder", "twins", "--steps", "4",
                                  "--train.eval_every", "4", "--json"}));
  CHECK(nlohmann::json::parse(twins.out)["runs"][0]["steps"] == 4);
  CHECK(fs::exists(tiny.path() / "twins"));
  REQUIRE(run(tiny.path(), {"vcas-train", "tiny.json", "--steps", "2", "--folder", "out"}).code ==
          0);
  succeeded(run(tiny.path(),
                {"eval", "--model", "out", "--threads", "2", "--json", "train.eval_batch=7"}));
}

TEST_CASE("durations are steps or epochs") {
  const TinyRun tiny;
  // 256 items in batches of 16: 16 steps an epoch
  succeeded(run(tiny.path(),
                {"vcas-train", "tiny.json", "--steps", "2ep", "--train.eval_every", "0.5ep",
                 "--train.checkpoint_every", "1ep", "--train.log_every", "4st",
                 "--schedule.warmup_steps", "0.25ep", "--folder", "out", "vcas.enabled=false"}));
  std::map<std::string, std::vector<int>> steps;
  std::map<int, double> rates;
  std::istringstream lines(content(tiny.path() / "out/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    steps[json["event"]].push_back(json["step"]);
    if (json["event"] == "train") rates[json["step"]] = json["learning_rate"];
  }
  CHECK(steps["eval"] == std::vector<int>{8, 16, 24, 32});
  CHECK(steps["train"] == std::vector<int>{4, 8, 12, 16, 20, 24, 28, 32});
  CHECK(std::ranges::count(steps["checkpoint"], 16) == 1);
  // Step 4, the last of the warm-up, has 3/4 of the peak.
  CHECK_THAT(rates[4], WithinRel(0.75 * 0.003, 1e-9));
  succeeded(
      run(tiny.path(), {"vcas-train", "tiny.json", "--steps", "0", "--epochs", "5st",
                        "--train.log_every", "0.25ep", "--folder", "five", "vcas.update_every=0"}));
  CHECK(fs::exists(tiny.path() / "five/checkpoint-5"));
  std::vector<int> logged;
  for (const nlohmann::json& line : events_of(tiny.path() / "five/metrics.jsonl", "train"))
    logged.push_back(line["step"]);
  CHECK(logged == std::vector<int>{4});
}

TEST_CASE("wrong options have an error of their own") {
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::string error;
  };
  const TinyRun tiny;
  write_text(tiny.path() / "--odd.json", content(tiny.path() / "tiny.json"));
  const std::vector<Case> cases = {
      {{"vcas-train", "tiny.json", "--epohcs", "3"},
       2,
       "error: unknown argument --epohcs of vcas train\n  hint: did you mean --epochs?\n"},
      {{"vcas-train", "tiny.json", "--learning-rate", "3"},
       2,
       "error: unknown argument --learning-rate of vcas train\n"
       "  hint: did you mean --schedule.learning-rate?\n"},
      {{"compare", "tiny.json", "--trian.epochs=3"},
       2,
       "error: unknown argument --trian.epochs=3 of vcas compare\n"
       "  hint: did you mean --train.epochs?\n"},
      {{"vcas-train", "tiny.json", "--epochs"},
       2,
       "error: --epochs needs a value\n  hint: --epochs VALUE sets train.epochs\n"},
      {{"vcas-train", "tiny.json", "--seed", "--overwrite"},
       2,
       "error: --seed needs a value\n  hint: --seed VALUE sets seed\n"},
      {{"vcas-train", "tiny.json", "--seed", "-1"},
       78,
       "--set seed=-1: error: seed must be at least 0, got -1\n1 error; nothing was run\n"},
      {{"vcas-train", "tiny.json", "--epochs", "10Mtok"},
       78,
       "--set train.epochs=10Mtok: error: train.epochs must be a number of epochs, \"3ep\" or "
       "\"500st\", got \"10Mtok\"\n1 error; nothing was run\n"},
      {{"vcas-train", "tiny.json", "vcas.update_every=0.01ep"},
       78,
       "error: method.update_every \"0.01ep\" is 1 steps here, and must be above 2, the "
       "exact steps of a probe in place\n"},
      {{"vcas-train", "tiny.json", "other.json"},
       2,
       "error: \"other.json\" is not expected here\n"
       "  hint: the configuration is tiny.json; settings are given as section.name=value\n"},
      {{"vcas-train", "other.json"}, 66, "error: cannot read the configuration other.json: "},
      {{"vcas-train", "--resume", "tiny.json"},
       66,
       "error: runs/tiny: No such file or directory\n"},
      {{"eval", "tiny.json"}, 2, "error: --model is required\n"},
      {{"doctor", "--epochs", "3"}, 2, "error: unknown argument --epochs of vcas doctor\n"},
      {{"vcas-train", "tiny.json", "--json"},
       2,
       "error: --json without --compare\n"
       "  hint: it prints a comparison; metrics.jsonl has the run\n"},
      {{"predict", "--model", "out", "--input", "x.tsv", "--split", "dev"},
       2,
       "error: --split without --submission\n  hint: an --input has no splits\n"},
      {{"plan", "tiny.json", "--ratio", "nan"},
       2,
       "error: --ratio: Value nan not in range 1e-06 to 1\n"},
      {{"check", "tiny.json", "--ratio", "1.5"}, 2, "Value 1.5 not in range 1e-06 to 1\n"},
      {{"check", "tiny.json", "--ratio", "-nan"}, 2, "Value -nan not in range"},
      {{"compare", "tiny.json", "--to-accuracy", "nan"}, 2, "Value nan not in range 0 to 1\n"},
      {{"check", "other.json", "--steps", "0"}, 66, "cannot read the configuration other.json"},
      {{"check", "tiny.json", "--steps", "-1"}, 2, "Value -1 not in range "},
      {{"vcas-train", "--", "--validate"}, 66, "cannot read the configuration ./--validate"},
      {{"inspect", "--", "--odd.json"}, 65, "error: ./--odd.json: not a safetensors file"},
      {{"compare", "tiny.json", "--", "--seeds"}, 66, "cannot read the configuration ./--seeds"},
      {{"report", "one", "--", "two", "--to"}, 66, "error: one: "},
  };
  for (const Case& test : cases) {
    const Outcome outcome = run(tiny.path(), test.arguments);
    CAPTURE(test.arguments);
    check_failure(outcome, test.code, {test.error});
    CHECK(outcome.out.empty());
    CHECK_FALSE(fs::exists(tiny.path() / "runs"));
  }
  const Outcome odd = run(tiny.path(), {"vcas-train", "--validate", "--", "--odd.json"});
  CHECK(odd.err == "");
  CHECK(odd.code == 0);
}

TEST_CASE("a file or folder whose name looks like a setting is found where one is meant") {
  const TinyRun tiny;
  fs::copy(tiny.path() / "tiny.json", tiny.path() / "seed=1.json");
  for (const char* folder : {"lr=0.1", "run.json", "seed=1"})
    REQUIRE(
        run(tiny.path(), {"vcas-train", "seed=1.json", "train.steps=1", "--folder", folder}).code ==
        0);
  for (const char* folder : {"lr=0.1", "run.json", "seed=1"})
    succeeded(run(tiny.path(), {"vcas-train", "--resume", folder}));
  CHECK(run(tiny.path(), {"vcas-train", "tiny.json", "train.steps=1", "--resume", "lr=0.1"}).code ==
        0);
  succeeded(run(tiny.path(), {"vcas-train", "tiny.json", "--validate", "seed=1"}));
}

TEST_CASE("help tells defaults, and which values may be left out") {
  const TinyRun tiny;
  const auto has_line = [&](const std::string& command, const std::string& pattern) {
    const std::string help = run(tiny.path(), {command, "--help"}).out;
    CAPTURE(help, pattern);
    CHECK(std::regex_search(help, std::regex("\n +" + pattern)));
  };
  // CLI11 before 2.4 has them as "=64", and as "[64]" since.
  has_line("check", "--draws .*[=[]64\\]?\\s");
  has_line("check", "--steps .*[=[]0\\]?\\s");
  has_line("check", "--ratio .*[=[]0\\.5\\]?\\s");
  has_line("plan", "--ratio .*0\\.5");
  has_line("bench", "--steps .*[=[]20\\]?\\s");
  has_line("vocab", "--size .*[=[]8000\\]?\\s");
  has_line("vocab", "--kind .*[=[]wordpiece\\]?\\s");
  has_line("predict", "--split .*[=[]test\\]?\\s");
  has_line("train", "--resume-mode .*[=[]exact\\]?\\s");
  has_line("train", "--resume \\[FOLDER\\]");
  has_line("compare", "--resume \\[FOLDER\\]");
}

TEST_CASE("VCAS_LOG_LEVEL says what goes to standard error") {
  const TinyRun tiny;
  const auto lines_of = [&](const std::string& level) {
    const Outcome outcome = succeeded(run(tiny.path(),
                                          {"vcas-train", "tiny.json", "--steps", "8", "--folder",
                                           "out-" + level, "--overwrite", "vcas.enabled=false"},
                                          {"VCAS_LOG_LEVEL=" + level}));
    CHECK(contains(outcome.out, "done in"));
    return outcome.err;
  };
  CHECK(lines_of("error") == "");
  CHECK(lines_of("warning") == "");
  CHECK(contains(lines_of("info"), "vcas-train 0.1.0"));
  CHECK(contains(lines_of(""), "vcas-train 0.1.0"));
  CHECK_FALSE(contains(lines_of("info"), "debug: "));
  const std::string debug = lines_of("debug");
  check_contains(debug, {"debug: vcas 0.1.0", "\"steps\": 8", "// --set\n"});
  check_message(run(tiny.path(), {"doctor"}, {"VCAS_LOG_LEVEL=verbose"}), 78,
                "error: VCAS_LOG_LEVEL=\"verbose\" is not one of: error, warning, info, debug\n");
  const Outcome error = run(tiny.path(), {"inspect", "none"}, {"VCAS_LOG_LEVEL=error"});
  CHECK(contains(error.err, "error: none: cannot open"));
}

TEST_CASE("version and doctor tell what is built in from what is there") {
  const TinyRun tiny;
  const Outcome version = run(tiny.path(), {"--version"});
  CAPTURE(version.out);
  CHECK(std::regex_match(
      version.out,
      std::regex(R"(vcas 0\.1\.0( \([0-9a-f]{7,}(-dirty)?\))?  C\+\+20 \S+ [0-9.]+  )"
                 R"(CPU: (openblas|eigen) [0-9.]+( \(\w+\))?, loops (avx512|avx2|base)  )"
                 R"(CUDA: (no|[0-9.]+ for sm_.* \(device: .+\))  )"
                 R"(gzip: yes  xz: (yes|no)  zstd: (yes|no)  JPEG: (yes|no)  PNG: (yes|no)\n)")));
  std::smatch best;
  REQUIRE(std::regex_search(version.out, best, std::regex(" loops (\\w+)  ")));
  const std::string base = best[1] == "base"
                               ? " loops base  "
                               : " loops base (VCAS_CPU_LEVEL; best: " + best[1].str() + ")  ";
  for (const char* command : {"--version", "doctor"})
    CHECK(contains(run(tiny.path(), {command}, {"VCAS_CPU_LEVEL=v2"}).out, base));
  const Outcome doctor = succeeded(run(tiny.path(), {"doctor"}));
  check_contains(doctor.out, {"products  ", "cuda      "});
}

TEST_CASE("products use what the CPU has; doctor warns where another kernel is set") {
  const TinyRun tiny;
  CHECK_FALSE(contains(run(tiny.path(), {"doctor"}).out, "warning"));
  const std::string doctor = run(tiny.path(), {"doctor"}, {"OPENBLAS_CORETYPE=Haswell"}).out;
  const std::string version = run(tiny.path(), {"--version"}, {"OPENBLAS_CORETYPE=Haswell"}).out;
  if (!contains(doctor, "kernel Haswell")) return;  // Eigen, or another processor
  CHECK(contains(version, "(Haswell)"));
  CHECK(contains(doctor,
                 "  warning: kernel Haswell leaves instructions of this CPU unused\n"
                 "  hint: set OPENBLAS_CORETYPE=SkylakeX in the environment\n") ==
        contains(version, "loops avx512"));
  const std::string best = run(tiny.path(), {"doctor"}, {"OPENBLAS_CORETYPE=SkylakeX"}).out;
  CHECK_FALSE(contains(best, "warning"));
}
