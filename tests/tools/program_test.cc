#include "tests/tools/program.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/metrics.h"
#include "core/safetensors.h"
#include "tests/core/json_schema_check.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

TEST_CASE("wrong configurations: every error at once, with its place and exit code") {
  const TinyRun tiny;
  write_text(tiny.path() / "wrong.json",
             "{\n"
             "  \"train\": {\"epohcs\": 3},\n"
             "  \"model\": {\"type\": \"vti\", \"width\": 16},\n"
             "  \"schedule\": {\"learning_rate\": -1}\n"
             "}\n");
  const Outcome outcome = run(tiny.path(), {"vcas-train", "--config", "wrong.json"});
  CHECK(outcome.code == 78);
  CHECK(outcome.out.empty());
  CHECK(outcome.err ==
        "wrong.json:2:13: error: unknown key \"epohcs\" in \"train\"\n"
        "    2 |   \"train\": {\"epohcs\": 3},\n"
        "      |             ^~~~~~~~\n"
        "  did you mean \"epochs\"?\n"
        "wrong.json:3:21: error: model.type \"vti\" is not one of: bert, gpt, mlp, resnet, vit\n"
        "  did you mean \"vit\"?\n"
        "wrong.json:4:33: error: schedule.learning_rate must be above 0, got -1\n"
        "3 errors; nothing was run\n");
}

TEST_CASE("what a user can get wrong has one message and its exit code") {
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::string error;
  };
  const TinyRun tiny;
  write_text(tiny.path() / "seeded.json",
             "{\"seed\": 3," + content(tiny.path() / "tiny.json").substr(1));
  const std::vector<std::string> train = {"vcas-train", "--config", "tiny.json"};
  const auto with = [&](const std::vector<std::string>& more) { return ::with(train, more); };
  const std::vector<Case> cases = {
      {with({"model.heads=3"}), 78,
       "--set model.heads: error: model.heads must divide model.width 16, got 3\n"
       "1 error; nothing was run\n"},
      {with({"device=emu", "model.width=256", "model.heads=1"}), 78,
       "error: vit.encoder.layer.0.attention: attention heads of width 256 need 100 KiB of shared "
       "memory, device \"emu\" has 99 KiB\n  hint: give the model more heads (model.heads), which "
       "are narrower, or train it on device=\"cpu\"\n"},
      {with({"train.balance_lengths=true"}), 78,
       "--set train.balance_lengths: error: train.balance_lengths is for texts, and data.type "
       "\"synthetic\" has none\n"
       "1 error; nothing was run\n"},
      {with({"train.gradient_exchange=bf16"}), 78,
       "--set train.gradient_exchange: error: train.gradient_exchange must be \"f32\" with "
       "precision \"f32\"\n"
       "1 error; nothing was run\n"},
      {with({"model.patch=3"}), 78,
       "error: patch_embed.patch 3 does not divide the image of 8 x 8\n"
       "  hint: set model.patch to a divisor of both\n"},
      {with({"train.log_every=0"}), 78, "error: train.log_every must be above 0, got 0\n"},
      {with({"data.synthetic.shape=[12]"}), 78,
       "error: model.type \"vit\" needs images, and the data holds vectors\n"
       "  hint: set model.type to \"mlp\"\n"},
      {with({"data.type=cifar10"}), 78,
       "--set data.type: error: data.folder is missing: data.type \"cifar10\" reads a folder with "
       "data_batch_1.bin to test_batch.bin\n"},
      {with({"data.type=cifar100"}), 78, "reads a folder with train.bin and test.bin\n"},
      {with({"data.type=idx"}), 78,
       "reads a folder with train-images-idx3-ubyte and train-labels-idx1-ubyte\n"},
      {with({"data.type=image_folder", "data.image.size=8"}), 78,
       "data.folder is missing: data.type \"image_folder\" reads a folder with train/cat/1.jpg and "
       "val/cat/2.jpg\n"},
      {with({"data.type=idx", "data.folder=nowhere"}), 66,
       "error: nowhere/train-images-idx3-ubyte: no such file"},
      {with({"data.limit=1000"}), 78, "error: data.limit is 1000, but there are 256 items"},
      {with({"train.batch_size=1000"}), 78, "error: a batch of 1000 cannot be filled"},
      {with({"train.micro_batch=64"}), 78,
       "error: train.micro_batch must be at most train.batch_size (16), got 64\n"},
      {with({"method.act_ratio=[0.1, 0.2, 0.3]"}), 78,
       "error: method.act_ratio has 3 ratios, but the model has 2 sampling gates\n"},
      {with({"threads=1025"}), 78, "threads must be at most 1024, got 1025\n"},
      {with({"data.synthetic.items=9223372036854775807", "model.depth=1000000000",
             "model.width=1048577", "train.batch_size=9223372036854775807"}),
       78,
       "data.synthetic.items must be at most 1073741824, got 9223372036854775807\n"
       "--set model.depth=1000000000: error: model.depth must be at most 10000, got 1000000000\n"
       "--set model.width=1048577: error: model.width must be at most 1048576, got 1048577\n"
       "--set train.batch_size=9223372036854775807: error: train.batch_size must be at most "
       "1073741824, got 9223372036854775807\n"
       "4 errors; nothing was run\n"},
      {with({"data.synthetic.shape=[1000,1000,1000]"}), 78,
       "error: data.synthetic.shape must have at most 67108864 values, got 1000000000\n"},
      {with({"device=cuda"}), 69,
       "device=\"cuda\" was set in --set device\n  hint: device=\"auto\""},
      {with({"device=gpu"}), 78,
       "error: device \"gpu\" is not one of: auto, cpu, cuda, emu, check:a,b"},
      {with({"device=cpu", "precision=tf32"}), 78,
       "error: precision must be \"f32\" on device \"cpu\": the CPU has no tensor cores\n"},
      {with({"device=cpu", "precision=bf16"}), 78,
       "error: precision must be \"f32\" on device \"cpu\": the CPU has no operations on bf16\n"},
      {with({"device=check:emu,cpu", "precision=bf16"}), 78,
       "error: precision must be \"f32\" on device \"check:emu,cpu\": the CPU has no operations on "
       "bf16\n"},
      {with({"device=check:emu,emu", "precision=bf16"}), 78,
       "error: precision must not be \"bf16\" on device \"check:emu,emu\": its results are not "
       "compared\n"},
      {with({"device=cpu", "tune_products=true"}), 78,
       "error: tune_products=true, but device \"cpu\" has one algorithm for each product\n"
       "  hint: set tune_products=false\n"},
      {with({"device=auto", "precision=bf16"}), 78,
       "error: precision=\"bf16\" needs a GPU, but device=\"auto\" is the CPU here; "
       "device=\"auto\" was set in --set device\n  hint: precision=\"f32\" works everywhere\n"},
      {with({"run.folder=/proc/none/x"}), 73, "error: /proc/none/x: cannot create"},
      {with({"run.folder=tiny.json"}), 73, "error: tiny.json: is a file, and a folder is needed"},
      {with({"run.folder=tiny.json/x/y"}), 73, "error: tiny.json: is a file, and a folder is need"},
      {with({"run.folder=/proc/x", "--validate"}), 73, "error: /proc/x: cannot create: "},
      {with({"run.folder=/proc/" + std::string(5000, 'x'), "--validate"}), 73, ": cannot create: "},
      {with({"--resume"}), 66,
       "error: runs/tiny: No such file or directory\n  hint: there is nothing to resume; start "
       "without --resume\n"},
      {with({"model.width=200000", "model.depth=50"}), 71, "error: out of memory: the model needs"},
      {with({"--profile-steps", "5"}), 2,
       "error: --profile-steps takes FIRST:LAST, steps counted from 1; got \"5\"\n"},
      {with({"--profile-steps", "5:4"}), 2, "got \"5:4\"\n"},
      {with({"--profile-steps", "0:4"}), 2, "got \"0:4\"\n"},
      {with({"--profile-steps", "1:"}), 2, "got \"1:\"\n"},
      {with({"--profile-steps", " 1:2"}), 2, "got \" 1:2\"\n"},
      {with({"--profile-steps", "1: 2"}), 2, "got \"1: 2\"\n"},
      {with({"--profile-steps", "1:2 "}), 2, "got \"1:2 \"\n"},
      {with({"--profile-steps", "1:99999999999999999999"}), 2, "got \"1:99999999999999999999\"\n"},
      {with({"--trace", "trace.json"}), 2,
       "error: --trace without --profile-steps\n  hint: such as --profile-steps 20:22\n"},
      {with({"--trace", "none/trace.json", "--profile-steps", "1:2"}), 73,
       "error: none/trace.json: cannot be written\n"},
      {with({"--profile-steps", "1:2", "--dry-run"}), 2, "--profile-steps is for a run of its own"},
      {with({"--profile-steps", "1:2", "device=emu"}), 69,
       "error: --profile-steps needs a GPU; device \"emu\" has no profiler here\n  hint: --trace "
       "FILE"},
      {with({"--profile-steps", "40:41", "device=emu"}), 2,
       "error: --profile-steps 40:41 is not within the steps of this run, 1:40\n  hint: "},
      {with({"--profile-steps", "40:40", "device=emu"}), 69, "has no profiler here"},
      {with({"--compare", "exact", "--timing"}), 2,
       "error: --timing is for one run, and --compare makes two\n  hint: leave one of them out\n"},
      {with({"--compare", "exact", "--dry-run"}), 2, "error: --dry-run is for one run, and"},
      {with({"--dry-run", "--resume"}), 2, "error: --dry-run tries a new run, without --resume\n"},
      {with({"--dry-run", "--validate"}), 2, "--dry-run tries a new run, without --validate\n"},
      {with({"--dry-run", "--timing"}), 2, "--dry-run tries a new run, without --timing\n"},
      {with({"--compare", "exact", "--resume", "--validate"}), 2,
       "error: --validate is for one run, and --compare makes two\n"},
      {with({"--compare", "exact", "--resume", "--resume-mode=fork"}), 2,
       "error: --compare goes on by --resume alone\n"},
      {with({"--confg"}), 2,
       "error: unknown argument --confg of vcas train\n"
       "  hint: did you mean --config?\n"},
      {with({"tiny2.json"}), 2, "error: \"tiny2.json\" is not expected here\n"},
      {{"vcas-train", "--config", "none.json"},
       66,
       "error: cannot read the configuration none.json"},
      {{"vcas-train"}, 2, "error: no configuration\n  hint: give one as in vcas-train FILE.json"},
      {with({"--print-config", "minimal"}), 2,
       "error: \"minimal\" is not expected here\n  hint: --print-config=minimal, with a \"=\"\n"},
      {{"--verison", "train"},
       2,
       "error: \"--verison\" is not expected here\n  hint: did you mean \"--version\"?\n"},
      {{"--folder", "x", "train"},
       2,
       "error: \"--folder\" is not expected here\n  hint: options stand behind a command; vcas "},
      {{"trian"}, 2, "error: there is no command \"trian\"\n  hint: did you mean \"train\"?\n"},
      {{"init", "quikstart"},
       2,
       "error: there is no template \"quikstart\"\n  hint: did you mean \"quickstart\"?\n"},
      {{"a\x1b[2J"}, 2, "error: there is no command \"a\\x1b[2J\"\n"},
      {{"inspect", "none.safetensors"}, 66, "error: none.safetensors: cannot open"},
      {{"inspect", "tiny.json"}, 65, "error: tiny.json: not a safetensors file"},
      {{"eval", "--model", "none"},
       66,
       "error: none: No such file or directory\n"
       "  hint: give a run that has saved, or one of its checkpoints"},
      {{"predict", "--model", ".", "--input", "x.tsv"},
       66,
       "error: .: no complete checkpoint\n  hint: give a run that has saved"},
      {{"eval", "--model", "tiny.json"},
       66,
       "error: tiny.json: no complete checkpoint\n  hint: give a run that has saved"},
      {{"bench", "--config", "tiny.json", "--pad-to", "-1"},
       2,
       "--pad-to: \"-1\" is no whole number"},
      {{"bench", "--config", "tiny.json", "--steps", "1e3"},
       2,
       "error: --steps: \"1e3\" is no whole number from 1 to 1000000000\n"},
      {{"generate", "--model", "none", "--seed", "-1"},
       2,
       "error: --seed: \"-1\" is no whole number from 0 to 18446744073709551615\n"},
      {{"generate", "--model", "none", "--seed", ""}, 2, "error: --seed: \"\" is no whole number"},
      {{"bench", "--config", "tiny.json", "--pad-to", "8"}, 2, "error: --pad-to needs text\n"},
      {{"compare"}, 2, "error: compare takes a configuration, or several\n"},
      {{"compare", "tiny.json", "b.json"}, 66, "error: cannot read the configuration b.json"},
      {{"compare", "tiny.json", "seeded.json"},
       78,
       "error: tiny has seed 0, and seeded has seed 3\n  hint: --set seed=0 sets it for all\n"},
  };
  for (const Case& test : cases) {
    const Outcome outcome = run(tiny.path(), test.arguments);
    CAPTURE(test.arguments);
    check_failure(outcome, test.code, {test.error});
    CHECK(outcome.out.empty());
    CHECK_FALSE(fs::exists(tiny.path() / "runs"));  // found before anything was made
  }
}

TEST_CASE("bad data files are named, with code 65") {
  const TinyRun tiny;
  fs::create_directory(tiny.path() / "data");
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                           "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"})
    write_text(tiny.path() / "data" / name, "this is no data");
  check_failure(tiny.train({"data.type=idx", "data.folder=data"}), 65, {"error: data/train-"});
}

TEST_CASE("a device from the environment is named in the error") {
  const TinyRun tiny;
  check_failure(run(tiny.path(), {"vcas-train", "--config", "tiny.json"}, {"VCAS_DEVICE=cuda"}), 69,
                {"device=\"cuda\" was set in VCAS_DEVICE"});
}

TEST_CASE("a printed configuration reads back to itself") {
  const TinyRun tiny;
  const Outcome printed = succeeded(tiny.train({"--print-config", "model.depth=3"}));
  CHECK(nlohmann::json::parse(printed.out)["model"]["depth"] == 3);
  write_text(tiny.path() / "again.json", printed.out);
  CHECK(run(tiny.path(), {"vcas-train", "-c", "again.json", "--print_config"}).out == printed.out);

  const Outcome origins = tiny.train({"--print-config=origins", "model.depth=3"});
  check_contains(origins.out, {"// --set", "// tiny.json:5"});
  write_text(tiny.path() / "again.json", origins.out);
  CHECK(run(tiny.path(), {"vcas-train", "-c", "again.json", "--print-config"}).out == printed.out);
  CHECK_FALSE(contains(tiny.train({"--print-config=minimal"}).out, "label_smoothing"));
}

TEST_CASE("checks (--validate, --dry-run) leave nothing behind") {
  const TinyRun tiny;
  const Outcome valid = succeeded(tiny.train({"--validate"}));
  check_contains(valid.out, {"ok  tiny (", "256 train, 64 test, 4 classes",
                             "   device cpu\n"});  // that of "auto"
  const Outcome dry = succeeded(tiny.train({"--dry-run", "run.folder=out"}));
  CHECK(dry.out == "ok  trained, evaluated, saved and resumed\n");
  CHECK_FALSE(fs::exists(tiny.path() / "runs"));
  CHECK_FALSE(fs::exists(tiny.path() / "out"));
  CHECK_FALSE(fs::exists(tiny.path() / "out.dry-run"));
  succeeded(tiny.train({"--dry-run"}));
  CHECK_FALSE(fs::exists(tiny.path() / "runs"));
}

TEST_CASE("eval and inspect read what training saved") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out"}));
  const nlohmann::json eval = tiny.eval("out/last");
  CHECK(eval["eval_loss"] == tiny.end_of("out")["eval_loss"]);
  CHECK(eval["eval_items"] == 64);

  const Outcome list = run(tiny.path(), {"inspect", "out/best"});
  check_contains(list.out, {"vit.encoder.layer.1.attention.qkv.weight", "[48, 16]", "format: pt"});
  CHECK(nlohmann::json::parse(run(tiny.path(), {"inspect", "out/best", "--json"}).out)["tensors"]
            .size() == 32);
  CHECK(run(tiny.path(), {"inspect", "out"}).out == run(tiny.path(), {"inspect", "out/last"}).out);
  vcas::write_safetensors(tiny.path() / "odd.safetensors", {}, {{"a\x1b[2J", "b"}});
  CHECK(contains(run(tiny.path(), {"inspect", "odd.safetensors"}).out, "a\\x1b[2J: b\n"));
}

TEST_CASE("a result that does not reach its file is an error") {
  const TinyRun tiny;
  succeeded(tiny.train({"run.folder=out", "train.steps=1"}));
  const std::string inside =
      "cd " + tiny.path().string() + " && env -i CUDA_VISIBLE_DEVICES= " VCAS_PROGRAM " ";
  for (const char* arguments : {"--version", "schema", "eval --model out/last", "inspect out/last",
                                "train -c tiny.json --validate"}) {
    const int status = std::system((inside + arguments + " > /dev/full 2> stderr.txt").c_str());
    const std::string error = content(tiny.path() / "stderr.txt");
    CAPTURE(arguments, error);
    CHECK(WEXITSTATUS(status) == 74);
    CHECK(contains(error,
                   "error: standard output: cannot write: No space left on device\n"
                   "  hint: make room there, or choose another place; a run goes on from its last "
                   "checkpoint by --resume\n"));
  }
}

TEST_CASE("compare prints both runs and what was saved") {
  const TinyRun tiny;
  const Outcome twins =
      succeeded(run(tiny.path(), {"compare", "tiny.json", "--folder", "twins", "--json", "--set",
                                  "method.act_ratio=[0.5]", "--set", "method.weight_ratio=[0.5]"}));
  const nlohmann::json json = nlohmann::json::parse(twins.out);
  CHECK(json["runs"][0]["name"] == "exact");
  CHECK(json["runs"][1]["name"] == "vcas");
  CHECK(json["runs"][0]["flops"]["probe"] == 0);
  // dX at 1/2, dW at 1/4 of an exact backward of the blocks; a head that is always exact
  CHECK_THAT(json["saved"]["formula_backward_flops"].get<double>(), WithinRel(0.625, 1e-6));
  CHECK_THAT(json["saved"]["formula_flops"].get<double>(), WithinRel(1.25 / 3, 1e-6));
  CHECK(json["saved"]["backward_flops"].get<double>() > 0.5);
  for (const char* name : {"exact", "vcas"})
    CHECK(fs::exists(tiny.path() / "twins" / name / "metrics.jsonl"));
  const auto both = [&](const std::string& pointer) {
    const auto of = [&](int run) {
      return json["runs"][run].at(nlohmann::json::json_pointer(pointer)).get<double>();
    };
    return std::pair(of(0), of(1));
  };
  const auto seconds = both("/seconds/train"), backward = both("/seconds/backward"),
             probe = both("/seconds/probe"), flops = both("/flops/total"),
             accuracy = both("/eval_accuracy");
  const auto share = [](double part, double whole) { return 1 - part / whole; };
  const nlohmann::json& saved = json["saved"];
  CHECK(saved["seconds"] == share(seconds.second, seconds.first));
  CHECK(saved["backward_seconds"] ==
        share(backward.second + probe.second, backward.first + probe.first));
  const double conversion = saved["seconds"].get<double>() / saved["flops"].get<double>();
  CHECK(saved["conversion"] == conversion);
  check_contains(
      content(tiny.path() / "twins/compare.md"),
      {fmt::format("| TFLOP, counted | {:.4g} | {:.4g} |\n| … saved |  | {:.1f}% |\n",
                   flops.first / 1e12, flops.second / 1e12, 100 * saved["flops"].get<double>()),
       fmt::format("| seconds of training | {:.1f} | {:.1f} |\n| … saved |  | {:.1f}% |\n",
                   seconds.first, seconds.second, 100 * saved["seconds"].get<double>()),
       fmt::format("| test accuracy | {:.4f} | {:.4f} |\n", accuracy.first, accuracy.second),
       fmt::format("| time saved / FLOPs saved |  | {:.2f} |\n", conversion)});

  const Outcome flag = succeeded(tiny.train({"--compare", "exact", "run.folder=flag"}));
  CHECK(contains(flag.out, "time saved / FLOPs saved"));
  write_text(tiny.path() / "other.json", content(tiny.path() / "tiny.json"));
  succeeded(run(tiny.path(), {"compare", "tiny.json", "other.json", "train.steps=20"}));
  CHECK(fs::exists(tiny.path() / "runs/compare-tiny-other/other/metrics.jsonl"));
  for (const char* folder : {"y", "z"}) {
    fs::create_directory(tiny.path() / folder);
    fs::copy(tiny.path() / "other.json", tiny.path() / folder);
  }
  fs::rename(tiny.path() / "other.json", tiny.path() / "other-1.json");
  succeeded(run(tiny.path(),
                {"compare", "y/other.json", "z/other.json", "other-1.json", "train.steps=1"}));
  CHECK(fs::exists(tiny.path() / "runs/compare-other-2-other-3-other-1"));
}

TEST_CASE("compare reads a pipe once for all variants") {
  const TinyRun tiny;
  const std::string command =
      "cd " + tiny.path().string() +
      " && cat tiny.json | env -i CUDA_VISIBLE_DEVICES= " VCAS_PROGRAM
      " compare /dev/stdin train.steps=1 --variant exact --variant 'rows: method.sample=rows'"
      " > stdout.txt 2> stderr.txt";
  CHECK(std::system(command.c_str()) == 0);
  CHECK(fs::exists(tiny.path() / "runs/stdin-compare/rows/metrics.jsonl"));
}

TEST_CASE("an exact twin of a run is the run itself without sampling") {
  const TinyRun tiny;
  succeeded(tiny.train({"method.type=exact", "run.folder=alone"}));
  succeeded(run(tiny.path(), {"compare", "tiny.json", "--folder", "twins"}));
  const auto losses = [&](const char* file) {
    std::vector<double> list;
    std::ifstream lines(tiny.path() / file);
    for (std::string line; std::getline(lines, line);)
      if (const nlohmann::json json = nlohmann::json::parse(line); json["event"] == "train")
        list.push_back(json["loss"]);
    return list;
  };
  CHECK(losses("alone/metrics.jsonl") == losses("twins/exact/metrics.jsonl"));
}

TEST_CASE("bench prints times, rates and memory") {
  const TinyRun tiny;
  const Outcome outcome =
      succeeded(run(tiny.path(), {"bench", "-c", "tiny.json", "--steps", "2", "--json"}));
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  CHECK(json["act_ratio"] == nlohmann::json({0.2, 0.5}));
  CHECK(json["flops_ratio"].get<double>() > 1.2);
  CHECK(json["peak_flops_per_second"].get<double>() > 0);
  CHECK(json["products"].size() >= 4);
  CHECK(json["device"] == "cpu");  // that of "auto"
  CHECK(json["precision"] == "f32");
  CHECK(json["probe_seconds"].get<double>() > 0);
  const nlohmann::json &exact = json["exact"], &sampled = json["sampled"];
  const double sampled_seconds = sampled["median_seconds"], probe = json["probe_seconds"];
  CHECK(json["time_ratio"] == exact["median_seconds"].get<double>() / sampled_seconds);
  CHECK(json["flops_ratio"] == exact["flops"].get<double>() / sampled["flops"].get<double>());
  CHECK(json["probe_every"] == 5);
  CHECK(json["probe_share"] == probe / (5 * sampled_seconds + probe));
  const nlohmann::json plan = nlohmann::json::parse(
      succeeded(run(tiny.path(), {"plan", "tiny.json", "--no-timing", "--json"})).out);
  CHECK(exact["flops"] == plan["flops"]["step"]);
  const std::vector<std::string> fixed = {"bench",
                                          "-c",
                                          "tiny.json",
                                          "--steps",
                                          "1",
                                          "method.act_ratio=[0.3]",
                                          "method.weight_ratio=[0.7]"};
  const Outcome given = succeeded(run(tiny.path(), fixed));
  check_contains(given.out, {"sampled at fixed ratios · keep act 0.30-0.30 · w 0.70-0.70 · ",
                             "exact / sampled time", "\nno probes: the ratios are fixed\n"});
  const Outcome fields = succeeded(run(tiny.path(), with(fixed, {"--json"})));
  const nlohmann::json once = nlohmann::json::parse(fields.out);
  for (const char* key : {"probe_seconds", "probe_every", "probe_share"}) {
    CHECK(json.contains(key));
    CHECK_FALSE(once.contains(key));
  }
  for (const char* kind : {"exact", "sampled"}) {  // families of operations share the one step
    double seconds = 0;
    for (const nlohmann::json& family : once[kind]["families"]) seconds += family.get<double>();
    CHECK_THAT(seconds, WithinRel(once[kind]["median_seconds"].get<double>(), 1e-9));
  }
  CHECK_THAT(once["exact_best_flops_per_second"].get<double>(),
             WithinRel(once["exact"]["flops"].get<double>() /
                           once["exact"]["median_seconds"].get<double>(),
                       1e-9));
}

TEST_CASE("bench samples what the configuration lets it") {
  const TinyRun tiny;
  const auto ratios = [&](const std::string& sample) {
    const nlohmann::json json = nlohmann::json::parse(
        succeeded(run(tiny.path(), {"bench", "-c", "tiny.json", "--steps", "1", "--json",
                                    "method.sample=" + sample}))
            .out);
    return std::pair(json["act_ratio"][0].get<double>(), json["weight_ratio"][0].get<double>());
  };
  CHECK(ratios("both") == std::pair(0.2, 0.5));
  CHECK(ratios("items") == std::pair(0.2, 1.0));
  CHECK(ratios("rows") == std::pair(1.0, 0.5));
}

TEST_CASE("schema, settings and doctor") {
  const TinyRun tiny;
  const auto schema = nlohmann::json::parse(run(tiny.path(), {"schema"}).out);
  const auto accepts = [&](const char* selection) {  // vcas has other ones
    return vcas::accepts(schema,
                         {{"method", {{"type", "selective_backprop"}, {"selection", selection}}}});
  };
  CHECK(accepts("rank"));
  CHECK_FALSE(accepts("rnak"));
  const std::string help = run(tiny.path(), {"settings"}).out;
  CHECK(contains(help, "method.tau_act  (vcas)\n"));
  CHECK_FALSE(contains(help, "\n    The same"));  // vcas init shows one setting without the other
  CHECK(contains(run(tiny.path(), {"doctor"}).out, "threads"));
  CHECK(contains(run(tiny.path(), {"--version"}).out, "vcas 0."));
  CHECK(contains(run(tiny.path(), {"--help"}).out, "compare"));
}

TEST_CASE("the timing table names every layer") {
  const TinyRun tiny;
  const Outcome outcome = tiny.train({"--timing", "run.folder=out"});
  check_contains(outcome.out, {"vit.encoder.layer.1.output.dense", "(all parameters)"});
}
