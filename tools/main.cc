// vcas: one program with sub-commands; called as vcas-train it is `vcas train`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <new>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "core/nearest_name.h"
#include "tools/checkpoint_commands.h"
#include "tools/commands.h"
#include "tools/compare.h"
#include "tools/setting_arguments.h"
#include "tools/step_bench.h"
#include "tools/tokenize.h"
#include "tools/train.h"
#include "tools/version.h"
#include "tools/vocab.h"

namespace vcas {
namespace {

namespace fs = std::filesystem;

// What the command line says, for all sub-commands.
struct Arguments {
  std::string config;
  std::vector<std::string> set, positional;
  std::string resume, resume_mode = "exact", print_config = "plain", compare, profile_steps;
  bool overwrite = false, validate = false, dry_run = false, timing = false, json = false;
  std::string folder, model, name, submission, split = "test";
  std::vector<std::string> inputs;
  bool probabilities = false;
  std::int64_t steps = 20, pad_to = 0;
  TokenizeRequest tokenize;
  VocabularyOptions vocabulary;
  bool cased = false;
};

[[noreturn]] void fail_usage(const std::string& message, const std::string& hint = {}) {
  throw Error(ExitCode::kUsage, message, hint);
}

// A configuration may be given without --config.
void take_config(Arguments& arguments) {
  for (const std::string& text : arguments.positional) {
    if (!arguments.config.empty())
      fail_usage(fmt::format("\"{}\" is not expected here", text),
                 fmt::format("the configuration is {}; settings are given as section.name=value",
                             arguments.config));
    arguments.config = text;
  }
}

// An unknown device is best explained where it was set.
void check_device(const LoadedConfig& loaded) {
  try {
    make_ops(loaded.config);
  } catch (const Error& error) {
    const ConfigOrigin& origin = loaded.origins.at("device");
    if (!origin.given()) throw;
    throw Error(error.code(),
                fmt::format("{}; device=\"{}\" was set in {}", error.what(), loaded.config.device,
                            origin.where),
                error.hint());
  }
}

LoadedConfig load(const Arguments& arguments) {
  if (arguments.config.empty())
    fail_usage("no configuration",
               "give one as in vcas-train FILE.json; vcas init lists some to start from");
  LoadedConfig loaded = load_config(arguments.config, arguments.set);
  check_device(loaded);
  return loaded;
}

// "FIRST:LAST"
void parse_profile_steps(const Arguments& arguments, TrainRequest& request) {
  const char* text = arguments.profile_steps.c_str();
  int read = 0;
  if (std::sscanf(text, "%" SCNd64 ":%" SCNd64 "%n", &request.profile_first, &request.profile_last,
                  &read) != 2 ||
      text[read] != '\0' || request.profile_first < 1 ||
      request.profile_last < request.profile_first)
    fail_usage(
        fmt::format("--profile-steps takes FIRST:LAST, steps counted from 1; got \"{}\"", text));
  if (arguments.validate || arguments.dry_run || !arguments.compare.empty())
    fail_usage("--profile-steps is for a run of its own");
}

// Without --resume's own word: that of the configuration, or the newest of its own ones with its
// settings; a fork may have others.
fs::path folder_to_resume(const LoadedConfig& loaded, bool fork) {
  const RunConfig& config = loaded.config;
  if (!config.run.folder.empty()) return config.run.folder;
  return newest_run_folder(
      loaded.own_folder, [&](const fs::path& folder) { return fork || can_go_on(folder, config); });
}

void resume_comparison(CompareRequest& request, const std::string& folder) {
  const auto fits = [&](const fs::path& comparison) {
    return can_go_on(comparison / request.first_name, request.first.loaded.config) &&
           can_go_on(comparison / request.second_name, request.second.loaded.config);
  };
  request.folder = !folder.empty()                   ? fs::path(folder)
                   : request.use == FolderUse::kNext ? newest_run_folder(request.folder, fits)
                                                     : request.folder;
  settle_interrupted(request.folder);
  request.use = FolderUse::kAsItIs;
}

void run_train(const CLI::App& command, const Arguments& arguments) {
  TrainRequest request;
  request.resume = command.count("--resume") > 0;
  const bool compares = !arguments.compare.empty();
  request.fork = arguments.resume_mode == "fork";
  request.timing = arguments.timing;
  if (!arguments.profile_steps.empty()) parse_profile_steps(arguments, request);
  if (request.fork && !request.resume) fail_usage("--resume-mode without --resume");
  if (compares && (request.fork || (request.resume && arguments.validate)))
    fail_usage("--compare goes on by --resume alone");
  for (const char* option : {"--dry-run", "--timing"})
    if (compares && command.count(option) > 0)
      fail_usage(fmt::format("{} is for one run, and --compare makes two", option),
                 "leave one of them out");
  if (!arguments.resume.empty() && arguments.config.empty() && !compares) {
    request.from = find_resume_point(arguments.resume, true);
    request.loaded = load_config((request.from.checkpoint / "config.json").string(), arguments.set);
    check_device(request.loaded);
  } else {
    request.loaded = load(arguments);
  }
  const bool own_config = request.from.checkpoint.empty();  // else that of the checkpoint
  LoadedConfig& loaded = request.loaded;
  RunConfig& config = loaded.config;
  config.run.overwrite |= arguments.overwrite;
  const bool printed = command.count("--print-config") > 0;
  if (own_config && !(printed && lacks_pretrained(config))) use_pretrained_settings(loaded);
  if (printed) {
    const PrintMode mode = arguments.print_config == "origins"   ? PrintMode::kOrigins
                           : arguments.print_config == "minimal" ? PrintMode::kMinimal
                                                                 : PrintMode::kPlain;
    const auto known = [&](const Setting& setting) { return is_known(loaded, setting.key); };
    std::fputs(print_config(config, loaded.origins, mode, known).c_str(), stdout);
    return;
  }
  if (request.resume && own_config && !compares)
    request.from =
        find_resume_point(arguments.resume.empty() ? folder_to_resume(loaded, request.fork)
                                                   : fs::path(arguments.resume),
                          true);
  if (request.fork) loaded.own_folder = request.from.run.string() + "-fork";
  if (arguments.validate) {
    std::fputs(validate_run(request).c_str(), stdout);
  } else if (arguments.dry_run) {
    dry_run(loaded);
    std::fputs("ok  trained, evaluated, saved and resumed\n", stdout);
  } else if (compares) {
    CompareRequest twins = compare_with_exact(loaded);
    if (request.resume) resume_comparison(twins, arguments.resume);
    twins.json = arguments.json;
    compare(twins);
  } else {
    train(request);
  }
}

void run_compare(const CLI::App& command, const Arguments& arguments) {
  const std::vector<std::string>& files = arguments.positional;
  const bool resume = command.count("--resume") > 0;
  const bool saved = resume && files.empty() && !arguments.resume.empty();
  if (!saved && (files.empty() || files.size() > 2))
    fail_usage(
        fmt::format("compare takes two configurations, or one against exact training; got "
                    "{}",
                    files.size()));
  CompareRequest request;
  const auto load_file = [&](const std::string& file) {
    LoadedConfig loaded = load_config(file, arguments.set);
    check_device(loaded);
    use_pretrained_settings(loaded);
    return loaded;
  };
  if (saved) {
    request = saved_comparison(arguments.resume, arguments.set);
  } else if (files.size() == 1) {
    request = compare_with_exact(load_file(files[0]));
  } else {
    request.first.loaded = load_file(files[0]);
    request.second.loaded = load_file(files[1]);
    request.first_name = request.first.loaded.name;
    request.second_name = request.second.loaded.name;
    if (request.first_name == request.second_name) {
      request.first_name += "-1";
      request.second_name += "-2";
    }
    request.folder = fmt::format("runs/compare-{}-{}", request.first_name, request.second_name);
  }
  if (saved && (arguments.overwrite || !arguments.folder.empty()))
    fail_usage("--resume FOLDER goes on in that folder",
               "--folder and --overwrite are for a new comparison");
  if (!arguments.folder.empty()) {
    request.folder = arguments.folder;
    request.use = FolderUse::kNew;
  }
  if (arguments.overwrite) request.use = FolderUse::kOverwrite;
  if (resume && !saved) resume_comparison(request, arguments.resume);
  request.json = arguments.json;
  compare(request);
}

void add_set_option(CLI::App& command, Arguments& arguments) {
  command
      .add_option("--set", arguments.set,
                  "Change one setting: section.name=value; also without --set, or as "
                  "--section.name value")
      ->allow_extra_args(false)
      ->take_all();
  command.footer("Short forms of settings, where they are no options above: " + short_forms() +
                 ". vcas settings lists all settings.");
}

void add_config_options(CLI::App& command, Arguments& arguments) {
  command.add_option("-c,--config", arguments.config, "Configuration, a JSON file");
  command.add_option("file", arguments.positional, "The same without --config");
  add_set_option(command, arguments);
}

void add_model_options(CLI::App& command, Arguments& arguments) {
  command
      .add_option("--model", arguments.model,
                  "A checkpoint such as runs/x/best, or a run: its newest one")
      ->required();
  add_set_option(command, arguments);
}

// What is no setting is another input: a shell makes many files of one pattern.
void run_predict(const Arguments& arguments) {
  std::vector<std::string> inputs = arguments.inputs;
  inputs.insert(inputs.end(), arguments.positional.begin(), arguments.positional.end());
  if (inputs.empty() == arguments.submission.empty())
    fail_usage("predict needs either --input FILE or --glue-submission FOLDER");
  vcas::predict({.checkpoint = {arguments.model, arguments.set, arguments.json},
                 .inputs = {inputs.begin(), inputs.end()},
                 .probabilities = arguments.probabilities,
                 .submission = arguments.submission,
                 .split = arguments.split});
}

struct Program {
  CLI::App app{"Training with variance-controlled adaptive sampling", "vcas"};
  Arguments arguments;
  CLI::App *train, *compare, *eval, *predict, *export_model, *inspect, *bench, *schema, *init,
      *doctor, *help_config, *tokenize, *vocab;

  Program() {
    app.set_version_flag("-V,--version", version_line);
    app.require_subcommand(1);
    const CLI::Range positive(1, 1'000'000'000);

    train = app.add_subcommand("train", "Train a model");
    add_config_options(*train, arguments);
    train
        ->add_option("--resume", arguments.resume,
                     "Go on from the newest checkpoint, or from this run or checkpoint")
        ->expected(0, 1);
    train
        ->add_option("--resume-mode", arguments.resume_mode,
                     "exact: the same run; fork: a new run from there, settings may change")
        ->check(CLI::IsMember({"exact", "fork"}));
    train->add_flag("--overwrite", arguments.overwrite, "Replace the run in the folder");
    train->add_flag("--validate", arguments.validate, "Check everything and train nothing");
    train->add_flag("--dry-run", arguments.dry_run,
                    "Two steps, an evaluation, a save and a resume; nothing is left behind");
    train
        ->add_option("--print-config", arguments.print_config,
                     "Print all settings: plain, with their origins, or minimal")
        ->expected(0, 1)
        ->check(CLI::IsMember({"", "plain", "origins", "minimal"}));
    train->add_flag("--timing", arguments.timing, "Print the seconds of each layer at the end");
    train->add_option(
        "--profile-steps", arguments.profile_steps,
        "FIRST:LAST, the steps that a profiler waiting for cudaProfilerStart records");
    train->add_option("--compare", arguments.compare, "Train beside the exact twin and print both")
        ->check(CLI::IsMember({"exact"}));
    train->add_flag("--json", arguments.json, "Print the comparison as JSON");

    compare = app.add_subcommand("compare", "Train two configurations in turns and compare them");
    compare->add_option("configs", arguments.positional,
                        "Two configurations, or one against exact training; settings are for both");
    add_set_option(*compare, arguments);
    compare->add_option("--folder", arguments.folder, "Where the folders of both runs go");
    compare
        ->add_option("--resume", arguments.resume,
                     "Go on with the newest comparison, or with the one in this folder")
        ->expected(0, 1);
    compare->add_flag("--overwrite", arguments.overwrite, "Replace what is in the folder");
    compare->add_flag("--json", arguments.json, "Print JSON");

    eval = app.add_subcommand("eval", "Evaluate a checkpoint");
    add_model_options(*eval, arguments);
    eval->add_flag("--json", arguments.json, "Print JSON");

    predict = app.add_subcommand("predict", "Predict the labels of texts or images");
    add_model_options(*predict, arguments);
    predict
        ->add_option("--input", arguments.inputs,
                     "Table with the text columns of the configuration; or images, and folders of "
                     "images, any number of them")
        ->allow_extra_args(false)
        ->take_all();
    predict->add_option("files", arguments.positional, "More inputs");
    predict->add_flag("--probabilities", arguments.probabilities,
                      "A column with the probability of each class besides");
    predict->add_option("--glue-submission", arguments.submission,
                        "Folder for the files that the GLUE server takes, instead of --input");
    predict->add_option("--split", arguments.split, "Split of the submission");

    export_model = app.add_subcommand("export", "Write a folder that Hugging Face loads");
    add_model_options(*export_model, arguments);
    export_model->add_option("--to", arguments.folder, "The new folder")->required();

    inspect = app.add_subcommand("inspect", "List the tensors of a safetensors file");
    inspect->add_option("file", arguments.model, "The file, or the folder of a checkpoint")
        ->required();
    inspect->add_flag("--json", arguments.json, "Print JSON");

    bench = app.add_subcommand("bench",
                               "Time whole steps, exact and sampled in turns, at the fixed ratios "
                               "of the configuration, else 0.2 to 0.5 for items and 0.5 for rows");
    add_config_options(*bench, arguments);
    bench->add_option("--steps", arguments.steps, "Timed steps of each kind")->check(positive);
    bench
        ->add_option("--pad-to", arguments.pad_to,
                     "Also time exact steps of texts filled up to this many tokens")
        ->check(positive);
    bench->add_flag("--json", arguments.json, "Print JSON");

    schema = app.add_subcommand("schema", "Print the JSON schema of configurations");
    init = app.add_subcommand("init", "Print a commented configuration to start from");
    init->add_option("template", arguments.name, "Its name; without one, all names are listed");
    doctor = app.add_subcommand("doctor", "Say what this machine and this build offer");
    help_config = app.add_subcommand("settings", "Explain every setting of configurations");

    tokenize = app.add_subcommand("tokenize", "Lines of text to lines of token ids");
    tokenize
        ->add_option("--vocab", arguments.tokenize.vocabulary,
                     "vocab.txt, tokenizer.json or a folder with one of them")
        ->required();
    tokenize->add_flag("--cased", arguments.tokenize.cased, "Keep case and accents");
    tokenize->add_flag("--special", arguments.tokenize.special,
                       "[CLS] before and [SEP] after each line");
    vocab = app.add_subcommand("vocab", "Learn a vocab.txt from lines of text");
    vocab->add_option("--size", arguments.vocabulary.size, "Tokens at most")->check(positive);
    vocab->add_flag("--cased", arguments.cased, "Keep case and accents");

    app.fallthrough(false);
    for (CLI::App* command : app.get_subcommands({})) command->allow_extras();
  }

  void check_extras() const {
    for (const CLI::App* command : app.get_subcommands()) {
      std::vector<std::string> extras = command->remaining();
      std::erase(extras, "--");
      if (extras.empty()) continue;
      const std::string& extra = extras.front();
      const std::string nearest =
          extra.starts_with("-") ? nearest_option(*command, extra.substr(0, extra.find('='))) : "";
      fail_usage(fmt::format("unknown argument {} of vcas {}", extra, command->get_name()),
                 nearest.empty() ? fmt::format("vcas {} --help lists them", command->get_name())
                                 : fmt::format("did you mean {}?", nearest));
    }
  }

  [[noreturn]] void fail_unknown_command(const std::string& command) const {
    std::vector<std::string> names;
    for (const CLI::App* known : app.get_subcommands({})) names.push_back(known->get_name());
    const std::string nearest = nearest_name(command, names);
    fail_usage(fmt::format("there is no command \"{}\"", command),
               nearest.empty() ? fmt::format("the commands are: {}", fmt::join(names, ", "))
                               : fmt::format("did you mean \"{}\"?", nearest));
  }

  void run() {
    check_extras();
    // A configuration right after --resume is not the folder to resume from.
    if (arguments.resume.ends_with(".json") || fs::is_regular_file(arguments.resume))
      arguments.positional.push_back(std::exchange(arguments.resume, {}));
    if (*train || *bench) take_config(arguments);
    if (*train) run_train(*train, arguments);
    if (*compare) run_compare(*compare, arguments);
    const auto checkpoint = [&] {
      return CheckpointRequest{arguments.model, arguments.set, arguments.json};
    };
    if (*eval) evaluate_checkpoint(checkpoint());
    if (*predict) run_predict(arguments);
    if (*export_model) export_checkpoint(checkpoint(), arguments.folder);
    if (*inspect) inspect_file(arguments.model, arguments.json);
    if (*bench) {
      LoadedConfig loaded = load(arguments);
      use_pretrained_settings(loaded);
      bench_steps(loaded, {arguments.steps, arguments.pad_to, arguments.json});
    }
    if (*schema) print_schema();
    if (*init) arguments.name.empty() ? print_template_names() : print_template(arguments.name);
    if (*doctor) print_doctor();
    if (*help_config) print_settings_help();
    if (*tokenize) tokenize_lines(arguments.tokenize, stdin, stdout);
    if (*vocab) {
      arguments.vocabulary.lower_case = !arguments.cased;
      print_vocabulary(arguments.vocabulary, std::cin, std::cout);
    }
  }
};

// "--print_config" means "--print-config", and that alone "--print-config=plain": the setting after
// it is none of its modes.
std::string normalized(std::string argument) {
  if (argument.starts_with("--"))
    std::replace(argument.begin(), argument.begin() + std::min(argument.find('='), argument.size()),
                 '_', '-');
  return argument == "--print-config" ? argument + "=plain" : argument;
}

// What was printed is the result: it must have arrived.
void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    fail_errno(ExitCode::kIoError, "standard output", "cannot write");
}

int run_program(std::vector<std::string> arguments) {
  Program program;
  const std::string first = arguments.empty() ? "" : arguments.front();
  for (const CLI::App* command : program.app.get_subcommands({}))
    if (command->get_name() == first) arguments = with_settings_as_set(*command, arguments);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants it
  try {
    program.app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // help, version
      program.app.exit(error);
      flush_output();
      return 0;
    }
    if (program.app.get_subcommands().empty() && !first.empty() && !first.starts_with("-"))
      program.fail_unknown_command(first);
    fail_usage(error.what(), "vcas --help lists the commands");
  }
  if (log_level() == LogLevel::kDebug) log_line(LogLevel::kDebug, "debug: " + version_line());
  program.run();
  flush_output();
  return 0;
}

int report(const Error& error) {
  // Errors of the configuration come with their places and the word itself.
  const std::string text = error.what();
  const bool bare =
      error.code() == ExitCode::kStopped ||
      (error.code() == ExitCode::kBadConfig && text.find("nothing was run") != std::string::npos);
  fmt::print(stderr, "{}{}\n", bare ? "" : "error: ", text);
  if (!error.hint().empty()) fmt::print(stderr, "  hint: {}\n", error.hint());
  return static_cast<int>(error.code());
}

}  // namespace
}  // namespace vcas

int main(int argc, char** argv) {
  using vcas::Error, vcas::ExitCode;
  std::vector<std::string> arguments;
  if (std::filesystem::path(argv[0]).filename() == "vcas-train") arguments.emplace_back("train");
  for (int i = 1; i < argc; ++i) {
    const bool ended = std::find(arguments.begin(), arguments.end(), "--") != arguments.end();
    arguments.push_back(ended ? argv[i] : vcas::normalized(argv[i]));
  }
  try {
    return vcas::run_program(std::move(arguments));
  } catch (const Error& error) {
    return vcas::report(error);
  } catch (const std::bad_alloc&) {
    return vcas::report(Error(ExitCode::kOutOfMemory, "out of memory",
                              "a smaller train.micro_batch needs less and keeps the result"));
  } catch (const std::filesystem::filesystem_error& error) {
    return vcas::report(Error(
        ExitCode::kNoInput, fmt::format("{}: {}", error.path1().string(), error.code().message())));
  } catch (const std::exception& error) {
    return vcas::report(
        Error(ExitCode::kInternal, error.what(), "this is a bug in vcas; please report it"));
  }
}
