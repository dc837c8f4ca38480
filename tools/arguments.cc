#include "tools/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "core/files.h"
#include "core/mpi/mpi_ranks.h"
#include "core/parse_number.h"
#include "tools/check.h"
#include "tools/checkpoint_commands.h"
#include "tools/commands.h"
#include "tools/compare.h"
#include "tools/config_arguments.h"
#include "tools/launch.h"
#include "tools/number_checks.h"
#include "tools/output.h"
#include "tools/plan.h"
#include "tools/pretrained.h"
#include "tools/replay.h"
#include "tools/report/report.h"
#include "tools/step_bench.h"
#include "tools/tokenize.h"
#include "tools/train.h"
#include "tools/vocab.h"

namespace vcas {
namespace {

namespace fs = std::filesystem;

struct TrainArguments final : ConfigArguments {
  std::string resume, resume_mode = "exact", print_mode = "plain", compare, profile_steps, trace;
  bool overwrite = false, validate = false, dry_run = false, timing = false, json = false;

  explicit TrainArguments(CLI::App& program)
      : ConfigArguments(program.add_subcommand("train", "Train a model")) {
    command
        .add_option("--resume", resume,
                    "Go on from the newest checkpoint, or from this run or checkpoint")
        ->expected(0, 1)
        ->type_name("[FOLDER]");
    command
        .add_option("--resume-mode", resume_mode,
                    "exact: the same run; fork: a new run from there, settings may change")
        ->check(CLI::IsMember({"exact", "fork"}))
        ->capture_default_str();
    command.add_flag("--overwrite", overwrite, "Replace the run in the folder");
    command.add_flag("--validate", validate, "Check everything and train nothing");
    command.add_flag("--dry-run", dry_run,
                     "A few steps, an evaluation, a save and a resume; no run is left behind");
    command
        .add_option("--print-config", print_mode,
                    "Print all settings: plain, with their origins, or minimal")
        ->expected(0, 1)
        ->check(CLI::IsMember({"", "plain", "origins", "minimal"}));
    command.add_flag("--timing", timing, "Print the seconds of each layer at the end");
    command.add_option(
        "--profile-steps", profile_steps,
        "FIRST:LAST, the steps that --trace or a profiler waiting for cudaProfilerStart records");
    command.add_option("--trace", trace,
                       "Write each operation of these steps to this file, as a Chrome trace");
    command.add_option("--compare", compare, "Train beside the exact twin and print both")
        ->check(CLI::IsMember({"exact"}));
    command.add_flag("--json", json, "Print the comparison as JSON");
  }

  void run() override {
    move_config(resume, files);
    take_config();
    TrainRequest request;
    request.resume = has("--resume");
    request.fork = forks();
    request.timing = timing;
    request.trace = trace;
    if (!profile_steps.empty())
      parse_profile_steps(request);
    else if (!trace.empty())
      fail_usage("--trace without --profile-steps", "such as --profile-steps 20:22");
    check_modes();
    if (!validate && !dry_run && !has("--print-config")) check_launcher(*ranks);
    for (const auto& [option, mine] :
         {std::pair{"--resume", request.resume}, {"--resume-mode=fork", request.fork}})
      if (largest(*ranks, mine) > mine)
        throw Error(ExitCode::kBadConfig,
                    fmt::format("another rank has {}, and this one has not", option),
                    "give all ranks the same arguments");
    const bool own_config = resume.empty() || !config.empty() || compares();
    if (own_config) {
      request.loaded = load();
    } else {
      request.from = find_for_all(*ranks, [&] { return find_resume_point(resume, true); });
      request.loaded = load_for_device(
          load_config_text((request.from.checkpoint / "config.json").string()), set);
    }
    LoadedConfig& loaded = request.loaded;
    loaded.config.run.overwrite |= overwrite;
    request.ranks = ranks;
    settle_for_ranks(loaded.config, *ranks);
    const bool prints = has("--print-config");
    if (own_config && !(prints && lacks_pretrained(loaded.config))) use_pretrained_settings(loaded);
    if (prints) return print(loaded);
    if (request.resume && own_config && !compares())
      request.from = find_for_all(*ranks, [&] {
        return find_resume_point(resume.empty() ? folder_to_resume(loaded) : fs::path(resume),
                                 true);
      });
    if (!compares()) keep_threads(request);
    if (forks()) {
      const bool is_of_run = fs::exists(request.from.run / "metrics.jsonl");  // else a copy
      const fs::path& source = is_of_run ? request.from.run : request.from.checkpoint;
      loaded.own_folder = named(source).string() + "-fork";
    }
    start(request);
  }

 private:
  bool compares() const { return !compare.empty(); }
  bool forks() const { return resume_mode == "fork"; }

  // "FIRST:LAST"
  void parse_profile_steps(TrainRequest& request) const {
    const auto read = [](std::string_view text, std::int64_t& step) {
      step = parse_number<std::int64_t>(text).value_or(0);
      return step >= 1;
    };
    const std::string_view text = profile_steps;
    const std::size_t colon = text.find(':');
    if (colon == text.npos || !read(text.substr(0, colon), request.profile_first) ||
        !read(text.substr(colon + 1), request.profile_last) ||
        request.profile_last < request.profile_first)
      fail_usage(
          fmt::format("--profile-steps takes FIRST:LAST, steps counted from 1; got \"{}\"", text));
    if (validate || dry_run || compares()) fail_usage("--profile-steps is for a run of its own");
  }

  void check_modes() const {
    if (forks() && !has("--resume")) fail_usage("--resume-mode without --resume");
    if (json && !compares())
      fail_usage("--json without --compare", "it prints a comparison; metrics.jsonl has the run");
    if (compares() && forks()) fail_usage("--compare goes on by --resume alone");
    for (const char* option : {"--resume", "--timing", "--validate"})
      if (dry_run && has(option))
        fail_usage(fmt::format("--dry-run tries a new run, without {}", option));
    if (ranks->size() > 1 &&
        (compares() || validate || dry_run || has("--print-config") || has("--profile-steps")))
      fail_usage("comparisons, checks, profiles and --print-config run in one process",
                 "start it without mpirun");
    for (const char* option : {"--dry-run", "--timing", "--validate"})
      if (compares() && has(option))
        fail_usage(fmt::format("{} is for one run, and --compare makes two", option),
                   "leave one of them out");
  }

  void print(const LoadedConfig& loaded) const {
    const PrintMode mode = print_mode == "origins"   ? PrintMode::kOrigins
                           : print_mode == "minimal" ? PrintMode::kMinimal
                                                     : PrintMode::kPlain;
    const auto known = [&](const Setting& setting) { return is_known(loaded, setting.key); };
    print_text(print_config(loaded.config, loaded.origins, mode, known));
  }

  // Without --resume's own word: that of the configuration, or the newest of its own ones with its
  // settings; a fork may have others.
  fs::path folder_to_resume(const LoadedConfig& loaded) const {
    const RunConfig& own = loaded.config;
    if (!own.run.folder.empty()) return own.run.folder;
    return newest_run_folder(loaded.own_folder, [&](const fs::path& folder) {
      return forks() || is_run_with(folder, own);
    });
  }

  void start(const TrainRequest& request) const {
    if (validate) {
      print_text(printable(validate_run(request)));
    } else if (dry_run) {
      vcas::dry_run(request.loaded);
      print_text("ok  trained, evaluated, saved and resumed\n");
    } else if (compares()) {
      CompareRequest twins = compare_with_exact(request.loaded);
      if (request.resume) resume_comparison(twins, resume);
      twins.json = json;
      vcas::compare(twins);
    } else {
      train(request);
    }
  }
};

struct CompareArguments final : SettingArguments {
  std::vector<std::string> files, variants;
  std::string folder, resume;
  std::optional<std::string> seeds;
  double to_accuracy = 0;
  bool overwrite = false, keep_weights = false, json = false;

  explicit CompareArguments(CLI::App& program)
      : SettingArguments(program.add_subcommand(
            "compare", "Train variants of a configuration in turns and compare them")) {
    command.add_option("configs", files,
                       "One configuration, against exact training or as variants; or several, "
                       "against each other. Settings are for all");
    command
        .add_option("--variant", variants,
                    "\"NAME: KEY=VALUE KEY=VALUE\", or exact: a variant of the configuration; any "
                    "number of them")
        ->allow_extra_args(false)
        ->take_all();
    command.add_option("--seeds", seeds, "Seeds of each variant, such as 0,1,2");
    command
        .add_option("--to-accuracy", to_accuracy,
                    "Tell the time until this test accuracy; otherwise until what chooses the best "
                    "checkpoint is as good as at the base's end")
        ->check(within(0, 1));
    add_set();
    command.add_option("--folder", folder, "Where the folders of all runs go");
    command
        .add_option("--resume", resume,
                    "Go on with the newest comparison, or with the one in this folder")
        ->expected(0, 1)
        ->type_name("[FOLDER]");
    command.add_flag("--overwrite", overwrite, "Replace what is in the folder");
    command.add_flag("--keep-weights", keep_weights,
                     "Keep the checkpoints of finished runs; of two runs they are always kept");
    command.add_flag("--json", json, "Print JSON");
  }

  void run() override {
    move_config(resume, files);
    const bool saved = has("--resume") && files.empty() && !resume.empty();
    if (files.empty() && !saved)
      fail_usage("compare takes a configuration, or several",
                 "vcas compare FILE.json compares it with exact training");
    if (saved && (overwrite || !folder.empty() || !variants.empty() || seeds))
      fail_usage("--resume FOLDER goes on with what is in that folder",
                 "--folder, --overwrite, --variant and --seeds are for a new comparison");
    CompareRequest request = saved ? saved_comparison(resume, set) : new_comparison();
    if (has("--resume") && !saved) resume_comparison(request, resume);
    if (has("--to-accuracy")) request.to_accuracy = to_accuracy;
    request.keep_weights |= keep_weights;
    request.json = json;
    compare(request);
  }

 private:
  LoadedConfig load(const SourceText& text, const std::vector<std::string>& variant = {}) const {
    LoadedConfig loaded = load_for_device(text, set, variant);
    use_pretrained_settings(loaded);
    return loaded;
  }

  CompareRequest comparison_of_files() const {
    const SourceText first = load_config_text(files[0]);  // a pipe is read once
    if (files.size() == 1 && variants.empty()) return compare_with_exact(load(first));
    if (files.size() == 1)
      return compare_variants(variants, [&](const auto& more) { return load(first, more); });
    if (!variants.empty())
      fail_usage("--variant is for one configuration",
                 "several configurations are compared with each other");
    std::vector<LoadedConfig> configs = {load(first)};
    for (std::size_t i = 1; i < files.size(); ++i)
      configs.push_back(load(load_config_text(files[i])));
    return compare_configs(configs);
  }

  CompareRequest new_comparison() const {
    CompareRequest request = comparison_of_files();
    if (seeds) request.use_seeds(parse_seeds(*seeds));
    if (!folder.empty()) {
      request.folder = folder;
      request.use = FolderUse::kNew;
    }
    if (overwrite) request.use = FolderUse::kOverwrite;
    return request;
  }
};

struct CheckpointArguments : SettingArguments {
  CheckpointRequest request;

  explicit CheckpointArguments(CLI::App* added) : SettingArguments(added) {
    command
        .add_option("--model", request.folder,
                    "A checkpoint such as runs/x/best, or a run: its newest one")
        ->required();
    add_set();
  }

 protected:
  const CheckpointRequest& checkpoint() {
    request.overrides = set;
    return request;
  }
};

struct EvalArguments final : CheckpointArguments {
  explicit EvalArguments(CLI::App& program)
      : CheckpointArguments(program.add_subcommand("eval", "Evaluate a checkpoint")) {
    command.add_flag("--json", request.json, "Print JSON");
  }
  void run() override { evaluate_checkpoint(checkpoint()); }
};

struct PredictArguments final : CheckpointArguments {
  std::vector<std::string> inputs, files;
  bool probabilities = false;
  std::string submission, split = "test";

  explicit PredictArguments(CLI::App& program)
      : CheckpointArguments(
            program.add_subcommand("predict", "Predict the labels of texts or images")) {
    command
        .add_option("--input", inputs,
                    "Table with the text columns of the configuration; or images, and folders of "
                    "images, any number of them")
        ->allow_extra_args(false)
        ->take_all();
    command.add_option("files", files, "Inputs, as by --input");
    command.add_flag("--probabilities", probabilities,
                     "A column with the probability of each class besides");
    command.add_option(
        "--submission,--glue-submission", submission,
        "Folder for the files that the benchmark's server takes, instead of --input");
    command.add_option("--split", split, "Split of the submission")->capture_default_str();
  }

  // What is no setting is another input: a shell makes many files of one pattern.
  void run() override {
    inputs.insert(inputs.end(), files.begin(), files.end());
    if (inputs.empty() == submission.empty())
      fail_usage("predict needs either --input FILE or --submission FOLDER");
    if (has("--split") && submission.empty())
      fail_usage("--split without --submission", "an --input has no splits");
    predict({.checkpoint = checkpoint(),
             .inputs = {inputs.begin(), inputs.end()},
             .probabilities = probabilities,
             .submission = submission,
             .split = split});
  }
};

struct GenerateArguments final : CheckpointArguments {
  GenerateRequest generated;

  explicit GenerateArguments(CLI::App& program)
      : CheckpointArguments(
            program.add_subcommand("generate", "Go on with a text, by a model of next words")) {
    command.add_option("--prompt", generated.prompt, "The text; empty: a new document");
    command.add_option("--tokens", generated.tokens, "Most tokens to add")
        ->check(kPositive)
        ->capture_default_str();
    command
        .add_option("--temperature", generated.temperature,
                    "Divides the logits; 0: always the most probable token")
        ->check(within(0, 1e6))
        ->capture_default_str();
    command
        .add_option("--top-k", generated.top_k,
                    "Draw among the most probable so many; 0: among all")
        ->check(whole(0, 1'000'000'000))
        ->capture_default_str();
    command.add_option("--seed", generated.seed, "Seed of the draws")
        ->check(whole(0, std::numeric_limits<std::uint64_t>::max()))
        ->capture_default_str();
  }
  void run() override {
    generated.checkpoint = checkpoint();
    generate(generated);
  }
};

struct ExportArguments final : CheckpointArguments {
  std::string folder;

  explicit ExportArguments(CLI::App& program)
      : CheckpointArguments(
            program.add_subcommand("export", "Write a folder that Hugging Face loads")) {
    command.add_option("--to", folder, "The new folder")->required();
  }
  void run() override { export_checkpoint(checkpoint(), folder); }
};

struct ReportArguments final : Arguments {
  ReportRequest request;

  explicit ReportArguments(CLI::App& program)
      : Arguments(program.add_subcommand("report", "Show what runs have measured, as one page")) {
    command
        .add_option("runs", request.runs, "Folders of runs, or of comparisons for all their runs")
        ->required();
    command.add_option("--to", request.page, "The page; report.html in the first folder");
    command.add_option("--svg", request.svg_folder, "Folder for each plot as a file");
    command.add_option("--csv", request.csv, "File for a row of each logged step");
    command.add_option("--tensorboard", request.tensorboard_folder,
                       "Folder for the event files of TensorBoard");
  }
  void run() override { report(request); }
};

struct InspectArguments final : Arguments {
  std::string file;
  bool json = false;

  explicit InspectArguments(CLI::App& program)
      : Arguments(program.add_subcommand("inspect", "List the tensors of a safetensors file")) {
    command.add_option("file", file, "The file, the folder of a checkpoint, or a run: its newest")
        ->required();
    command.add_flag("--json", json, "Print JSON");
  }
  void run() override { inspect_file(file, json); }
};

struct ReplayArguments final : Arguments {
  ReplayRequest request;

  explicit ReplayArguments(CLI::App& program)
      : Arguments(program.add_subcommand(
            "replay", "Name the operation that made NaN or infinity in a run that ended by it")) {
    command.add_option("run", request.run, "Folder of the run")->required();
    command.add_option("--step", request.step, "Another step than that of its crash file")
        ->check(kPositive);
  }
  void run() override { replay(request); }
};

struct BenchArguments final : ConfigArguments {
  BenchRequest request;

  explicit BenchArguments(CLI::App& program)
      : ConfigArguments(program.add_subcommand(
            "bench",
            "Time whole steps, exact and sampled in turns, at the fixed ratios "
            "of the configuration, else 0.2 to 0.5 for items and 0.5 for rows")) {
    command.add_option("--steps", request.steps, "Timed steps of each kind")
        ->check(kPositive)
        ->capture_default_str();
    command
        .add_option("--pad-to", request.pad_to,
                    "Also time exact steps of texts filled up to this many tokens")
        ->check(kPositive);
    command.add_flag("--one-branch", request.one_branch,
                     "Give a device weight gradients in turn with the rest, not beside it");
    command.add_flag("--json", request.json, "Print JSON");
  }

  void run() override { bench_steps(load_whole(), request); }
};

struct PlanArguments final : ConfigArguments {
  PlanRequest request;
  bool no_timing = false;

  explicit PlanArguments(CLI::App& program)
      : ConfigArguments(program.add_subcommand(
            "plan", "Say what a run will take: memory, steps, time, disk, savings")) {
    command
        .add_option("--ratio", request.ratios,
                    "Keep ratio of items and rows to tell the savings of; any number of them")
        ->allow_extra_args(false)
        ->take_all()
        ->check(kKeepRatio)
        ->capture_default_str();
    command.add_flag("--no-timing", no_timing, "Measure no steps");
    command.add_flag("--json", request.json, "Print JSON");
  }

  void run() override {
    request.timing = !no_timing;
    plan_run(load_whole(), request);
  }
};

struct CheckArguments final : ConfigArguments {
  CheckRequest request;

  explicit CheckArguments(CLI::App& program)
      : ConfigArguments(program.add_subcommand(
            "check", "Test whether sampled gradients of this model have the exact mean")) {
    command.add_option("--draws", request.draws, "Sampled gradients of each kind")
        ->check(CLI::Range(2, 1'000'000))
        ->capture_default_str();
    command.add_option("--steps", request.steps, "Exact steps of training before")
        ->check(CLI::Range(0, 1'000'000'000))
        ->capture_default_str();
    command.add_option("--ratio", request.ratio, "Keep ratio of items and rows")
        ->check(kKeepRatio)
        ->capture_default_str();
    command.add_flag("--all", request.all, "Show every tensor");
  }

  void run() override { check_gradients(load_whole(), request); }
};

// A command without options.
struct NoArguments final : Arguments {
  NoArguments(CLI::App* added, void (*what)()) : Arguments(added), print(what) {}
  void run() override { print(); }

  void (*print)();
};

struct InitArguments final : Arguments {
  std::string name;

  explicit InitArguments(CLI::App& program)
      : Arguments(program.add_subcommand("init", "Print a commented configuration to start from")) {
    command.add_option("template", name, "Its name; without one, all names are listed");
  }
  void run() override { name.empty() ? print_template_names() : print_template(name); }
};

struct TokenizeArguments final : Arguments {
  TokenizeRequest request;

  explicit TokenizeArguments(CLI::App& program)
      : Arguments(program.add_subcommand("tokenize", "Lines of text to lines of token ids")) {
    command
        .add_option("--vocab", request.vocabulary,
                    "vocab.txt, tokenizer.json, or a folder with a tokenizer's files")
        ->required();
    command.add_flag("--cased", request.cased, "Keep case and accents");
    command.add_flag("--special", request.special, "[CLS] before and [SEP] after each line");
  }
  void run() override { tokenize_lines(request); }
};

struct VocabArguments final : Arguments {
  VocabularyOptions options;
  std::string kind = "wordpiece";
  bool cased = false;

  explicit VocabArguments(CLI::App& program)
      : Arguments(program.add_subcommand("vocab", "Learn a vocabulary from lines of text")) {
    command
        .add_option("--kind", kind,
                    "wordpiece: a vocab.txt as BERT has it; bpe: a tokenizer.json as GPT-2 has it")
        ->check(CLI::IsMember({"wordpiece", "bpe"}))
        ->capture_default_str();
    command.add_option("--size", options.size, "Tokens at most")
        ->check(kPositive)
        ->capture_default_str();
    command.add_flag("--cased", cased, "Keep case and accents, as bpe always does");
  }
  void run() override {
    if (kind == "bpe") return print_byte_bpe(options.size);
    options.lower_case = !cased;
    print_vocabulary(options);
  }
};

}  // namespace

std::vector<std::unique_ptr<Arguments>> add_commands(CLI::App& program) {
  std::vector<std::unique_ptr<Arguments>> commands;
  const auto add_plain = [&](const char* name, const char* help, void (*print)()) {
    commands.push_back(std::make_unique<NoArguments>(program.add_subcommand(name, help), print));
  };
  commands.push_back(std::make_unique<TrainArguments>(program));
  commands.push_back(std::make_unique<PlanArguments>(program));
  commands.push_back(std::make_unique<CheckArguments>(program));
  commands.push_back(std::make_unique<CompareArguments>(program));
  commands.push_back(std::make_unique<EvalArguments>(program));
  commands.push_back(std::make_unique<PredictArguments>(program));
  commands.push_back(std::make_unique<GenerateArguments>(program));
  commands.push_back(std::make_unique<ExportArguments>(program));
  commands.push_back(std::make_unique<ReportArguments>(program));
  commands.push_back(std::make_unique<InspectArguments>(program));
  commands.push_back(std::make_unique<ReplayArguments>(program));
  commands.push_back(std::make_unique<BenchArguments>(program));
  add_plain("schema", "Print the JSON schema of configurations", print_schema);
  commands.push_back(std::make_unique<InitArguments>(program));
  add_plain("doctor", "Say what this machine and this build offer", print_doctor);
  add_plain("settings", "Explain every setting of configurations", print_settings_help);
  commands.push_back(std::make_unique<TokenizeArguments>(program));
  commands.push_back(std::make_unique<VocabArguments>(program));
  return commands;
}

void fail_usage(const std::string& message, const std::string& hint) {
  throw Error(ExitCode::kUsage, message, hint);
}

}  // namespace vcas
