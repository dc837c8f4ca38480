#include "tools/run_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/log.h"
#include "kernels/device_name.h"

namespace vcas {
namespace fs = std::filesystem;

void TrainOptions::validate(ConfigErrors& errors) const {
  if (micro_batch > batch_size)
    errors.add(
        {"micro_batch", "batch_size"},
        fmt::format("must be at most train.batch_size ({}), got {}", batch_size, micro_batch));
  if (balance_lengths && micro_batch > 0 && batch_size % micro_batch != 0)
    errors.add({"balance_lengths", "micro_batch", "batch_size"},
               fmt::format("needs equal micro-batches, and train.batch_size {} is no multiple of "
                           "train.micro_batch {}",
                           batch_size, micro_batch));
  for (auto measure = measures.begin(); measure != measures.end(); ++measure)
    if (std::find(measures.begin(), measure, *measure) != measure)
      errors.add({"measures"}, fmt::format("has \"{}\" twice", *measure));
}

// What evaluations can measure of a model with this head.
static std::vector<std::string> measures_for(const ModelKind& model) {
  if (model.head() == "regression") return {"pearson", "spearman"};
  if (model.head() == "lm") return {"accuracy", "perplexity", "bits_per_byte"};
  if (model.learns_words()) return {"accuracy", "perplexity"};
  return {"accuracy", "f1", "matthews", "top5"};
}

static void check_precision(const RunConfig& config, ConfigErrors& errors) {
  const std::string &precision = config.precision, &device = config.device;
  if (precision != "f32" && device.find("cpu") != std::string::npos)
    errors.add({"precision", "device"},
               fmt::format("must be \"f32\" on device \"{}\": the CPU has no {}", device,
                           precision == "tf32" ? "tensor cores" : "operations on bf16"));
  else if (precision == "bf16" && device.starts_with("check:"))
    errors.add(
        {"precision", "device"},
        fmt::format("must not be \"bf16\" on device \"{}\": its results are not compared", device));
  if (config.train.gradient_exchange == "bf16" && precision != "bf16")
    errors.add({"train.gradient_exchange", "precision"},
               fmt::format("must be \"f32\" with precision \"{}\"", precision));
}

void RunConfig::validate(ConfigErrors& errors) const {
  check_precision(*this, errors);
  const std::string head = model.kind->head();
  const bool reads_text = model.kind->reads_text();
  const DataFacts facts = data.kind->facts();
  if (facts.text != reads_text)
    errors.add({"model.type", "data.type"},
               fmt::format("\"{}\" does not fit data.type \"{}\": it reads {}", model.kind.type,
                           data.kind.type, reads_text ? "text" : "images and vectors"));
  if (train.balance_lengths && !facts.text)
    errors.add({"train.balance_lengths", "data.type"},
               fmt::format("is for texts, and data.type \"{}\" has none", data.kind.type));
  if (facts.needs_size && model.pretrained.empty())
    errors.add({"data.image.size", "data.type"},
               "is missing: image files differ in size, and a model reads one");
  // A kind without this setting is told by its type.
  const bool has_head = reads_text && errors.origins().has("model.head");
  const std::string fitting_head = head == "mlm" ? "\"classification\"" : "\"mlm\"";
  if (reads_text && (head == "lm") != (facts.labels == LabelKind::kNextWords))
    errors.add({"model.type", "data.type"},
               fmt::format("\"{}\" does not fit data.type \"{}\": model.type \"gpt\" and data.type "
                           "\"lm\" go together",
                           model.kind.type, data.kind.type));
  else if (reads_text && (head == "mlm") != (facts.labels == LabelKind::kMaskedWords))
    errors.add({has_head ? "model.head" : "model.type", "data.type"},
               fmt::format("\"{}\" does not fit data.type \"{}\": the head mlm and data of masked "
                           "words go together{}",
                           has_head ? head : model.kind.type, data.kind.type,
                           has_head ? "; set model.head to " + fitting_head : ""));
  const std::vector<std::string> measures = measures_for(*model.kind);
  for (const std::string& measure : train.measures)
    if (std::ranges::count(measures, measure) == 0)
      errors.add({"train.measures", "model.type"},
                 fmt::format("has \"{}\", which is not among {}, those of model.head \"{}\"",
                             measure, fmt::join(measures, ", "), head));
  const bool numbers = facts.labels == LabelKind::kNumbers;
  const bool head_differs =
      (numbers || facts.labels == LabelKind::kClasses) && (head == "regression") != numbers;
  if (head_differs && !has_head)
    errors.add({"model.type", "data.type"},
               fmt::format("\"{}\" does not fit data.type \"{}\": it learns {}, and these have {} "
                           "(DataFacts::labels)",
                           model.kind.type, data.kind.type, numbers ? "classes" : "numbers",
                           numbers ? "numbers" : "classes"));
  else if (head_differs)
    errors.add({"model.head", "data.text.task", "data.type"},
               fmt::format("must {}be \"regression\": {} has {}", numbers ? "" : "not ",
                           facts.task.empty() ? data.kind.type : facts.task,
                           numbers ? "numbers to predict" : "classes"));
  // A kind may not know its measures where its settings have errors.
  const std::vector<std::string> own =
      errors.empty() ? data.kind->measures() : std::vector<std::string>();
  for (const std::string& measure : own)
    if (std::ranges::count(measures, measure) == 0)
      errors.add({"data.type"},
                 fmt::format("\"{}\" has the measure \"{}\", which is not among {}, those of "
                             "model.head \"{}\"",
                             data.kind.type, measure, fmt::join(measures, ", "), head));
  if (facts.needs_vocabulary && model.pretrained.empty())
    errors.add({"data.text.vocabulary", "model.pretrained"},
               "is missing: a vocab.txt, unless model.pretrained has one; \"cut -f 1 train.tsv | "
               "vcas vocab > vocab.txt\" learns one");
}

fs::path named(const fs::path& path) {
  const fs::path name = path.filename();
  if (!name.empty() && name != "." && name != "..") return path;
  return fs::absolute(path / "x").lexically_normal().parent_path();
}

// Empty unless the file is the configuration that a run has saved.
static fs::path run_that_saved(const fs::path& file) {
  if (file.filename() != "config.json") return {};
  const fs::path folder = named(file.parent_path());
  if (fs::exists(folder / "trainer_state.json")) return named(folder.parent_path());
  return fs::exists(folder / "metrics.jsonl") ? folder : fs::path();
}

// Forgets run.folder and run.overwrite, where they come from the settings that the run has saved.
// Where it was, and that it replaced another run there, is no wish of who reads them.
static void forget_folder(LoadedConfig& loaded, const fs::path& run) {
  const auto is_saved = [&](const char* key) { return loaded.origins.at(key).source == 1; };
  if (is_saved("run.folder")) loaded.config.run.folder.clear();
  if (is_saved("run.overwrite")) loaded.config.run.overwrite = false;
  loaded.own_folder = run.string();
}

LoadedConfig load_config(const SourceText& text, const std::vector<std::string>& overrides,
                         bool saved, const std::vector<std::string>& variant) {
  const fs::path run = run_that_saved(text.name);
  LoadedConfig loaded;
  loaded.name = std::filesystem::path(text.name).stem().string();
  loaded.origins = read_config(
      loaded.config, {.saved = saved || !run.empty(),
                      .documents = {text},
                      .environment = {{"VCAS_DEVICE", "device"}, {"VCAS_NUM_THREADS", "threads"}},
                      .overrides = overrides,
                      .variant = variant});
  loaded.own_folder = "runs/" + loaded.name;
  log_line(LogLevel::kDebug,
           "debug: settings given\n" +
               print_config(loaded.config, loaded.origins, PrintMode::kOrigins,
                            [&](const Setting& s) { return loaded.origins.at(s.key).given(); }));
  if (!run.empty()) forget_folder(loaded, run);
  return loaded;
}

LoadedConfig load_config(const std::string& path, const std::vector<std::string>& overrides) {
  return load_config(path.empty() ? SourceText{"default", "{}"} : load_config_text(path),
                     overrides);
}

RunConfig saved_config(const fs::path& checkpoint) {
  RunConfig saved;
  read_config(saved, {.saved = true,
                      .documents = {load_config_text((checkpoint / "config.json").string())}});
  return saved;
}

LoaderOptions train_loader_options(const RunConfig& config) {
  return {.batch = config.train.batch_size,
          .seed = config.seed,
          .augment = config.data.kind->augment(),
          .balanced_part = config.train.balance_lengths ? config.micro_batch() : 0,
          .threads = config.data.threads};
}

LoaderOptions eval_loader_options(const RunConfig& config) {
  return {.batch = config.eval_batch(),
          .shuffle = false,
          .drop_last = false,
          .threads = config.data.threads};
}

std::int64_t total_steps(const RunConfig& config, std::int64_t steps_per_epoch) {
  const std::int64_t steps = config.train.steps.steps(steps_per_epoch);
  return steps > 0 ? steps : config.train.epochs.steps(steps_per_epoch);
}

TrainerOptions trainer_options(const RunConfig& config, std::int64_t total_steps,
                               std::int64_t steps_per_epoch) {
  ScheduleOptions schedule = config.schedule;
  schedule.warmup_steps = schedule.warmup_steps.steps(steps_per_epoch);
  Part<MethodKind> method = config.method;
  method->settle(steps_per_epoch);
  return {.total_steps = total_steps,
          .batch = config.train.batch_size,
          .micro_batch = config.train.micro_batch,
          .seed = config.seed,
          .optimizer = config.optimizer,
          .schedule = schedule,
          .method = method,
          .sends_bf16 = config.train.gradient_exchange == "bf16"};
}

Precision precision_of(const RunConfig& config) {
  if (config.precision == "bf16") return Precision::kBf16;
  return config.precision == "tf32" ? Precision::kTf32 : Precision::kF32;
}

std::string device_name(const RunConfig& config) {
  return device_name(config.device, precision_of(config));
}

std::unique_ptr<Ops> make_ops(const RunConfig& config) {
  std::unique_ptr<Ops> ops = make_ops(config.device, precision_of(config));
  ProductChoices* const choices = ops->product_choices();
  if (choices) choices->timed = config.tune_products;
  if (config.tune_products && !choices)
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("tune_products=true, but device \"{}\" has one algorithm for each product",
                    ops->name()),
        "set tune_products=false");
  return ops;
}

int threads_of(const RunConfig& config) {
  if (config.threads > 0) return config.threads;
  return config.threads_before > 0 ? config.threads_before : usable_threads(config.local_ranks);
}

int use_threads(const RunConfig& config) {
  const int threads = threads_of(config);
#ifdef _OPENMP
  omp_set_num_threads(threads);
  return threads;
#else
  return 1;
#endif
}

}  // namespace vcas
