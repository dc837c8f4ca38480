#include "tools/run_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>

#include "core/error.h"
#include "core/log.h"
#include "data/glue.h"
#include "data/vocabulary.h"
#include "models/weights_io.h"

namespace vcas {
namespace fs = std::filesystem;

void SyntheticData::validate(ConfigErrors& errors) const {
  constexpr double kMostValues = 1 << 26;
  const double values = std::accumulate(shape.begin(), shape.end(), 1.0, std::multiplies<>());
  if (values > kMostValues)
    errors.add({"shape"},
               fmt::format("must have at most {:.0f} values, got {:.0f}", kMostValues, values));
  if (shape.size() != 1 && shape.size() != 3)
    errors.add({"shape"}, fmt::format("must be [width] or [channels, height, width], got {} sizes",
                                      shape.size()));
}

void ImageData::validate(ConfigErrors& errors) const {
  const auto is_range = [](const std::vector<double>& range) {
    return range.size() == 2 && range[0] <= range[1];
  };
  if (!crop_scale.empty() && !is_range(crop_scale))
    errors.add({"crop_scale"}, "must be [low, high], or empty");
  if (!is_range(crop_ratio)) errors.add({"crop_ratio"}, "must be [low, high]");
}

void DataOptions::validate(ConfigErrors& errors) const {
  static const std::map<std::string, const char*> kExamples = {
      {"idx", "train-images-idx3-ubyte and train-labels-idx1-ubyte"},
      {"cifar10", "data_batch_1.bin to test_batch.bin"},
      {"cifar100", "train.bin and test.bin"},
      {"image_folder", "train/cat/1.jpg and val/cat/2.jpg"}};
  if (const auto example = kExamples.find(type); folder.empty() && example != kExamples.end())
    errors.add(
        {"folder", "type"},
        fmt::format("is missing: data.type \"{}\" reads a folder with {}", type, example->second));
  if (type == "synthetic" && synthetic.shape.size() != 3 && (flip || crop_padding > 0))
    errors.add({flip ? "flip" : "crop_padding", "type"},
               "needs images, and data.synthetic.shape is one of vectors");
  if (type == "image_folder" && crop_padding > 0)
    errors.add({"crop_padding", "type"},
               "needs images of one size; data.image.crop_scale=[0.08,1] cuts parts out of others");
  if (is_text() && (flip || crop_padding > 0))
    errors.add({flip ? "flip" : "crop_padding", "type"}, "needs images");
  const bool held_out = validation_share > 0;
  const bool tables = type == "text" || type == "mlm";
  if (tables && (text.train_file.empty() || (text.test_file.empty() && !held_out)))
    errors.add(
        {text.train_file.empty() ? "text.train_file" : "text.test_file", "type"},
        fmt::format("is missing: data.type \"{}\" reads files, {}{}", type,
                    type == "text" ? "such as train.tsv with the line \"sentence<TAB>label\" "
                                     "and a text and its label on each line after it"
                                   : "such as corpus.txt with a document on each line",
                    text.train_file.empty() ? ""
                                            : "; data.validation_share=0.1 evaluates on a "
                                              "tenth of data.text.train_file"));
  if (tables && held_out && !text.test_file.empty())
    errors.add({"validation_share", "text.test_file"},
               "is for data without an evaluation set, and data.text.test_file names one");
  if (type == "text" && text.label.empty())
    errors.add({"text.label", "type"},
               "is missing: which column has the labels? \"label\" is that of a table with the "
               "line \"sentence<TAB>label\"");
  if (type == "wordnet" && text.task != "is_a" && text.task != "lexicographer_file")
    errors.add({"text.task", "type"},
               fmt::format("must be \"is_a\" or \"lexicographer_file\" (apt-get install "
                           "wordnet-base gets the files), got \"{}\"",
                           text.task));
  const auto only_for = [&](const char* setting, bool set, bool read, const char* types) {
    if (set && !read)
      errors.add({setting, "type"},
                 fmt::format("is for data.type {}, not for \"{}\"", types, type));
  };
  if (!folder.empty() && (type == "text" || type == "mlm"))
    errors.add({"folder", "type"},
               fmt::format("is not read by data.type \"{}\": data.text.train_file and "
                           "data.text.test_file name its files",
                           type));
  only_for("image.eval_folder", !image.eval_folder.empty(), type == "image_folder", "image_folder");
  only_for("text.mask_probability", text.mask_probability != TextData{}.mask_probability,
           type == "mlm", "mlm");
  only_for("text.task", !text.task.empty(), type == "glue" || type == "wordnet",
           "glue and wordnet");
  only_for("text.eval_split", text.eval_split != "dev", type == "glue", "glue");
  only_for("text.whole_words", text.whole_words, type == "mlm", "mlm");
  if (type == "glue" && text.task.empty())
    errors.add(
        {"text.task", "type"},
        "is missing: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE or WNLI; \"tools/get_data "
        "SST-2\" gets the files of SST-2");
}

void TrainOptions::validate(ConfigErrors& errors) const {
  if (micro_batch > batch_size)
    errors.add(
        {"micro_batch", "batch_size"},
        fmt::format("must be at most train.batch_size ({}), got {}", batch_size, micro_batch));
  for (auto measure = measures.begin(); measure != measures.end(); ++measure)
    if (std::find(measures.begin(), measure, *measure) != measure)
      errors.add({"measures"}, fmt::format("has \"{}\" twice", *measure));
}

void RunConfig::validate(ConfigErrors& errors) const {
  if (precision != "f32" && device.find("cpu") != std::string::npos)
    errors.add({"precision", "device"},
               fmt::format("must be \"f32\" on device \"{}\": the CPU has no {}", device,
                           precision == "tf32" ? "tensor cores" : "operations on bf16"));
  else if (precision == "bf16" && device.starts_with("check:"))
    errors.add(
        {"precision", "device"},
        fmt::format("must not be \"bf16\" on device \"{}\": its results are not compared", device));
  const std::string head = model.kind->head();
  const bool reads_text = model.kind->reads_text();
  if (data.is_text() != reads_text)
    errors.add({"model.type", "data.type"},
               fmt::format("\"{}\" does not fit data.type \"{}\": it reads {}", model.kind.type,
                           data.type, reads_text ? "text" : "images and vectors"));
  if (data.type == "image_folder" && data.image.size == 0 && model.pretrained.empty())
    errors.add({"data.image.size", "data.type"},
               "is missing: image files differ in size, and a model reads one");
  if (reads_text && (head == "mlm") != (data.type == "mlm"))
    errors.add({"model.head", "data.type"},
               fmt::format("\"{}\" does not fit data.type \"{}\": the head mlm and the data mlm go "
                           "together",
                           head, data.type));
  const std::vector<std::string> measures =
      head == "regression" ? std::vector<std::string>{"pearson", "spearman"}
      : head == "mlm"      ? std::vector<std::string>{"accuracy"}
                           : std::vector<std::string>{"accuracy", "f1", "matthews", "top5"};
  for (const std::string& measure : train.measures)
    if (std::ranges::count(measures, measure) == 0)
      errors.add({"train.measures", "model.type"},
                 fmt::format("has \"{}\", which is not among {}, those of model.head \"{}\"",
                             measure, fmt::join(measures, ", "), head));
  const GlueTask* task = data.type == "glue" ? find_glue_task(data.text.task) : nullptr;
  if (reads_text && (task || data.type == "wordnet") &&
      (head == "regression") != (task && task->regression()))
    errors.add(
        {"model.head", "data.text.task", "data.type"},
        fmt::format("must {}be \"regression\": {} has {}", task && task->regression() ? "" : "not ",
                    data.text.task, task && task->regression() ? "numbers to predict" : "classes"));
  if (data.is_text() && data.type != "synthetic_text" && data.text.vocabulary.empty() &&
      model.pretrained.empty())
    errors.add({"data.text.vocabulary", "model.pretrained"},
               "is missing: a vocab.txt, unless model.pretrained has one; \"cut -f 1 train.tsv | "
               "vcas vocab > vocab.txt\" learns one");
}

// Empty unless the file is the configuration that a run has saved.
static fs::path run_that_saved(const fs::path& file) {
  const fs::path folder = file.parent_path();
  if (file.filename() != "config.json") return {};
  if (fs::exists(folder / "trainer_state.json")) return folder.parent_path();
  return fs::exists(folder / "metrics.jsonl") ? folder : fs::path();
}

// A folder that a run was in, and that it replaced another one there, is no wish of who reads its
// settings.
static void forget_folder(LoadedConfig& loaded, const fs::path& run) {
  const auto is_saved = [&](const char* key) { return loaded.origins.at(key).source == 1; };
  if (is_saved("run.folder")) loaded.config.run.folder.clear();
  if (is_saved("run.overwrite")) loaded.config.run.overwrite = false;
  loaded.own_folder = run.string();
}

LoadedConfig load_config(const SourceText& text, const std::vector<std::string>& overrides,
                         bool saved) {
  LoadedConfig loaded;
  loaded.name = std::filesystem::path(text.name).stem().string();
  loaded.origins = read_config(
      loaded.config, {.saved = saved,
                      .documents = {text},
                      .environment = {{"VCAS_DEVICE", "device"}, {"VCAS_NUM_THREADS", "threads"}},
                      .overrides = overrides});
  loaded.own_folder = "runs/" + loaded.name;
  log_line(LogLevel::kDebug,
           "debug: settings given\n" +
               print_config(loaded.config, loaded.origins, PrintMode::kOrigins,
                            [&](const Setting& s) { return loaded.origins.at(s.key).given(); }));
  return loaded;
}

LoadedConfig load_config(const std::string& path, const std::vector<std::string>& overrides) {
  if (path.empty()) return load_config(SourceText{"default", "{}"}, overrides);
  const fs::path run = run_that_saved(path);
  LoadedConfig loaded = load_config(load_config_text(path), overrides, !run.empty());
  if (!run.empty()) forget_folder(loaded, run);
  return loaded;
}

void use_pretrained_settings(LoadedConfig& loaded) {
  RunConfig& config = loaded.config;
  TextData& text = config.data.text;
  const RunConfig asked = config;
  std::string model, tokenizer = text.vocabulary;  // what speaks
  if (!config.model.pretrained.empty()) {
    const HfFiles files = find_hf_files(config.model.pretrained);
    model = files.config.string();
    if (tokenizer.empty()) tokenizer = files.folder.string();
    config.model = pretrained_options(config.model);
  }
  if (config.data.is_text()) text.lower_case = lower_case_of(tokenizer).value_or(text.lower_case);
  std::string contradictions;
  for (const ConfigChange& change : config_changes(asked, config)) {
    const std::string& source = change.key.starts_with("model.") ? model : tokenizer;
    if (const ConfigOrigin& origin = loaded.origins.at(change.key); origin.given())
      contradictions +=
          fmt::format("{}{}: {} is {}, but {} says {}", contradictions.empty() ? "" : "\n  ",
                      origin.where, change.key, change.before, source, change.after);
    loaded.origins.set(change.key, {.where = source, .label = source});
  }
  if (!contradictions.empty())
    throw Error(ExitCode::kBadConfig, contradictions,
                "leave these settings out; for another dropout, change that file");
}

bool lacks_pretrained(const RunConfig& config) {
  return !config.model.pretrained.empty() && !std::filesystem::exists(config.model.pretrained);
}

bool is_known(const LoadedConfig& loaded, const std::string& key) {
  const bool decided = key.starts_with("model.") || key == "data.text.lower_case";
  return !decided || loaded.origins.at(key).given() || !lacks_pretrained(loaded.config);
}

LoaderOptions train_loader_options(const RunConfig& config) {
  const ImageData& image = config.data.image;
  std::optional<ResizedCropOptions> resized_crop;
  if (!image.crop_scale.empty())
    resized_crop = {.scale_low = image.crop_scale[0],
                    .scale_high = image.crop_scale[1],
                    .ratio_low = image.crop_ratio[0],
                    .ratio_high = image.crop_ratio[1]};
  return {.batch = config.train.batch_size,
          .seed = config.seed,
          .limit = config.data.limit,
          .augment = {.crop_padding = config.data.crop_padding,
                      .resized_crop = resized_crop,
                      .flip = config.data.flip}};
}

LoaderOptions eval_loader_options(const RunConfig& config, const Dataset& test) {
  return {.batch = config.eval_batch(),
          .shuffle = false,
          .drop_last = false,
          .limit = std::min(config.data.eval_limit, test.size())};
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
          .method = method};
}

Precision precision_of(const RunConfig& config) {
  if (config.precision == "bf16") return Precision::kBf16;
  return config.precision == "tf32" ? Precision::kTf32 : Precision::kF32;
}

std::unique_ptr<Ops> make_ops(const RunConfig& config) {
  return make_ops(config.device, precision_of(config));
}

int use_threads(const RunConfig& config) {
  const int threads = config.threads > 0 ? config.threads : usable_threads();
#ifdef _OPENMP
  omp_set_num_threads(threads);
  return threads;
#else
  return 1;
#endif
}

}  // namespace vcas
