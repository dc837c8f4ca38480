// The configuration of a run: what every sub-command reads, and what is built from it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/hardware.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "models/model.h"
#include "optim/trainer.h"

namespace vcas {

struct RunOptions {
  std::string folder;
  bool overwrite = false;

  template <class Visitor>
  void fields(Visitor& v) {
    v.field("folder", folder,
            "Where checkpoints, metrics and logs go; empty: runs/<name of the configuration>, of "
            "later runs runs/<name>-2 and so on.");
    v.field("overwrite", overwrite, "Replace the folder when it holds another run.");
  }
};

struct SyntheticData {
  std::int64_t items = 4096;
  std::int64_t eval_items = 1024;
  std::int64_t classes = 10;
  std::vector<int> shape = {64};
  std::int64_t tokens = 128;
  std::int64_t vocabulary = 30522;
  double noise = 1.0;
  double label_noise = 0.0;

  template <class Visitor>
  void fields(Visitor& v) {
    v.field("items", items, "Items to train on.", between(1, 1 << 30));
    v.field("eval_items", eval_items, "Items to evaluate on.", between(1, 1 << 30));
    v.field("classes", classes, "Number of classes.", between(2, 1 << 24));
    v.field("shape", shape, "[width] of vectors, or [channels, height, width] of images.",
            between(1, 1 << 20));
    v.field("tokens", tokens, "Tokens of an item of synthetic_text.", between(3, 1 << 24));
    v.field("vocabulary", vocabulary, "Tokens of the vocabulary of synthetic_text.",
            between(16, 1 << 30));
    v.field("noise", noise, "Noise in units of the signal.", at_least(0.0));
    v.field("label_noise", label_noise, "Share of items whose label is drawn anew.",
            between(0.0, 1.0));
  }
  void validate(ConfigErrors& errors) const;
};

struct TextData {
  std::string task;
  std::string eval_split = "dev";
  std::string train_file, test_file;
  std::string first;
  std::string second;
  std::string label = "label";
  bool header = true;
  std::vector<std::string> labels;
  std::string vocabulary;
  bool lower_case = true;
  std::int64_t max_length = 128;
  double mask_probability = 0.15;
  bool whole_words = false;
  bool cache = true;

  template <class Visitor>
  void fields(Visitor& v) {
    v.field("task", task, "glue: MNLI, SST-2, ...; wordnet: is_a or lexicographer_file.");
    v.field("eval_split", eval_split,
            "What glue evaluates on; dev of MNLI: both, matched and mismatched.",
            one_of({"dev", "dev_matched", "dev_mismatched", "train"}));
    v.field("train_file", train_file,
            "Table to train on: .tsv, .csv or .jsonl, maybe .gz, .xz or .zst; of mlm also text, a "
            "document a line, a folder of such files or a pattern such as c4/*.json.gz.");
    v.field("test_file", test_file, "The same to evaluate on.");
    v.field("first", first,
            "Column of the text, or of the first text of a pair; empty: sentence, of mlm text.");
    v.field("second", second, "Column of the second text of a pair; empty: single texts.");
    v.field("label", label, "Column of the label.");
    v.field("header", header,
            "Tables begin with a line of column names; false: columns are numbers, from 0.");
    v.field("labels", labels, "Names of the classes in order; empty: as the data has them.");
    v.field("vocabulary", vocabulary,
            "vocab.txt, tokenizer.json or a folder with one of them; empty: model.pretrained.");
    v.field("lower_case", lower_case,
            "Lower case and no accents; a Hugging Face folder, or tokenizer_config.json beside "
            "vocab.txt, says it itself.");
    v.field("max_length", max_length, "Most tokens of an item; longer ones are cut.", at_least(8));
    v.field("mask_probability", mask_probability, "Share of tokens to predict (mlm).", above(0.0),
            below(1.0));
    v.field("whole_words", whole_words, "Mask all pieces of a word together (mlm).");
    v.field("cache", cache, "Keep tokenised data in VCAS_CACHE_DIR between runs.");
  }
};

struct ImageData {
  std::int64_t size = 0;
  std::int64_t short_side = 0;
  std::string fit = "auto";
  std::string interpolation = "auto";
  std::string eval_folder;
  std::vector<double> mean, std;
  std::vector<double> crop_scale;
  std::vector<double> crop_ratio = {3.0 / 4.0, 4.0 / 3.0};

  template <class Visitor>
  void fields(Visitor& v) {
    v.field("size", size,
            "Side of the square that the model reads; images are resized to it. 0: that of "
            "model.pretrained, else images stay as they are.",
            between(0, 1 << 16));
    v.field("short_side", short_side,
            "Evaluation resizes the short side to this, then cuts the middle out; 0: as that of "
            "model.pretrained, else to size.",
            between(0, 1 << 16));
    v.field("fit", fit,
            "How images become squares: crop cuts the middle out, squeeze changes their shape; "
            "auto: as that of model.pretrained, else crop.",
            one_of({"auto", "crop", "squeeze"}));
    v.field("interpolation", interpolation,
            "Of resized images; auto: that of model.pretrained, else bicubic.",
            one_of({"auto", "bilinear", "bicubic"}));
    v.field("eval_folder", eval_folder,
            "Sub-folder of image_folder to evaluate on; empty: the first of val, valid, validation "
            "and test.");
    v.field("mean", mean,
            "Of each channel, of pixels from 0 to 1. Empty: that of model.pretrained, else of the "
            "data.");
    v.field("std", std, "The same for the standard deviation.", above(0.0));
    v.field("crop_scale", crop_scale,
            "[low, high]: train on a random part of each image, between these shares of its area, "
            "resized; empty: as in evaluation.",
            above(0.0), at_most(1.0));
    v.field("crop_ratio", crop_ratio, "[low, high] of the width of that part over its height.",
            above(0.0));
  }
  void validate(ConfigErrors& errors) const;
};

struct DataOptions {
  std::string type = "fashion_mnist";
  std::string folder;
  std::int64_t limit = 0;
  std::int64_t eval_limit = 0;
  double validation_share = 0;
  bool skip_bad_rows = false;
  std::int64_t crop_padding = 0;
  bool flip = false;
  SyntheticData synthetic;
  ImageData image;
  TextData text;

  bool is_text() const {
    return type == "glue" || type == "wordnet" || type == "text" || type == "mlm" ||
           type == "synthetic_text";
  }
  std::string text_column() const {
    if (!text.first.empty()) return text.first;
    return type == "mlm" ? "text" : "sentence";
  }

  template <class Visitor>
  void fields(Visitor& v) {
    v.field("type", type,
            "fashion_mnist and idx: IDX files; cifar10 and cifar100: their binary files; "
            "image_folder: JPEG and PNG files, train/CLASS/FILE and val/CLASS/FILE; synthetic: "
            "random numbers; synthetic_text: random words; glue and wordnet: their tasks; text: "
            "labelled tables; mlm: plain text to learn masked words from.",
            one_of({"fashion_mnist", "idx", "cifar10", "cifar100", "image_folder", "synthetic",
                    "synthetic_text", "glue", "wordnet", "text", "mlm"}));
    v.field("folder", folder,
            "Where the data files are; empty: where Debian installs them (fashion_mnist, wordnet), "
            "glue/TASK (glue).");
    v.field("limit", limit, "Train on the first items only; 0: on all.", at_least(0));
    v.field("eval_limit", eval_limit, "Evaluate on the first items only; 0: on all.", at_least(0));
    v.field("validation_share", validation_share,
            "Share of the training items to hold out and evaluate on, in place of evaluation data; "
            "0: none.",
            at_least(0.0), below(1.0));
    v.field("skip_bad_rows", skip_bad_rows,
            "Leave bad rows of tables and damaged images out instead of stopping.");
    v.formerly("data.text.skip_bad_rows");
    v.field("crop_padding", crop_padding,
            "Pixels added on each side of a training image before a random crop.",
            between(0, 1 << 16));
    v.field("flip", flip, "Mirror every other training image.");
    v.section("synthetic", synthetic, "Sizes of synthetic data.");
    v.section("image", image, "Images and their pixels.");
    v.section("text", text, "Texts and their tokens (glue, wordnet, text, mlm).");
  }
  void validate(ConfigErrors& errors) const;
};

struct TrainOptions {
  Duration epochs = Duration::epochs(3);
  Duration steps = 0;
  std::int64_t batch_size = 32;
  std::int64_t micro_batch = 0;
  std::int64_t eval_batch = 0;
  double label_smoothing = 0;
  Duration eval_every = 0;
  Duration checkpoint_every = 0;
  std::int64_t keep_checkpoints = 3;
  Duration log_every = 1;
  std::vector<std::string> measures;
  std::string best_measure;
  std::string positive_class;

  template <class Visitor>
  void fields(Visitor& v) {
    v.field("epochs", epochs, "Passes over the training data.", above(0.0));
    v.field("steps", steps, "Optimizer steps; 0: as many as the epochs have.", at_least(0));
    v.field("batch_size", batch_size, "Items of an optimizer step.", between(1, 1 << 30));
    v.field("micro_batch", micro_batch,
            "Items computed at once, for less memory; 0: the whole batch. Exact gradients are the "
            "same; sampling then draws from each part.",
            between(0, 1 << 30));
    v.field("eval_batch", eval_batch, "Items of an evaluation at once; 0: as in training.",
            between(0, 1 << 30));
    v.field("label_smoothing", label_smoothing, "Share of the target spread over all classes.",
            at_least(0.0), below(1.0));
    v.field("eval_every", eval_every, "Steps between evaluations; 0: once an epoch.", at_least(0));
    v.field("checkpoint_every", checkpoint_every,
            "Steps between checkpoints; 0: with each evaluation. The best and the last are always "
            "kept.",
            at_least(0));
    v.field("keep_checkpoints", keep_checkpoints, "Newest checkpoints to keep.", at_least(1));
    v.field("log_every", log_every, "Steps between lines in metrics.jsonl.", at_least(1));
    v.field("measures", measures,
            "What an evaluation measures besides the loss. Empty: what the GLUE task has, pearson "
            "and spearman of numbers, else accuracy.",
            one_of({"accuracy", "f1", "matthews", "top5", "pearson", "spearman"}));
    v.field("best_measure", best_measure,
            "One of the measures, or loss: chooses the best checkpoint; empty: the first.");
    v.field("positive_class", positive_class,
            "Class that f1 is about. Empty: the second of two classes; of more classes f1 is then "
            "the mean over all.");
  }
  void validate(ConfigErrors& errors) const;
};

struct RunConfig {
  RunOptions run;
  std::string device = "auto";
  std::string precision = "f32";
  int threads = 0;
  std::uint64_t seed = 0;
  DataOptions data;
  ModelOptions model;
  TrainOptions train;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  Part<MethodKind> method{"vcas", "What backward computes."};

  template <class Visitor>
  void fields(Visitor& v) {
    v.section("run", run, "Where the run is kept.");
    v.field("device", device, "auto, cpu, cuda, emu (its kernels on the CPU), or check:a,b.");
    v.field("precision", precision,
            "What a GPU's tensor cores are given. tf32: factors of matrix products are rounded to "
            "10 bits of mantissa; numbers in memory and sums stay f32. bf16: activations, their "
            "gradients and the weights that layers read have 16 bits; sums, statistics, gradients "
            "of weights and the weights that are updated and saved stay f32.",
            one_of({"f32", "tf32", "bf16"}));
    v.field("threads", threads, "Threads of the CPU; 0: all that this process may use.",
            between(0, kMostThreads));
    v.field("seed", seed, "Seed of everything random.");
    v.section("data", data, "What to train on.");
    v.section("model", model, "What to train.");
    v.section("train", train, "How long, and in what portions.");
    v.section("optimizer", optimizer, "How gradients change the weights.");
    v.section("schedule", schedule, "The learning rate.");
    v.section("method", method, "How gradients are computed: exactly, or from samples.");
    v.formerly({.name = "vcas", .flag = "enabled", .on = "vcas", .off = "exact"});
  }
  void validate(ConfigErrors& errors) const;

  std::int64_t micro_batch() const {
    return train.micro_batch > 0 ? train.micro_batch : train.batch_size;
  }
  std::int64_t eval_batch() const {
    return train.eval_batch > 0 ? train.eval_batch : micro_batch();
  }
};

struct LoadedConfig {
  RunConfig config;
  ConfigOrigins origins;
  std::string name;        // of the file without folder and suffix
  std::string own_folder;  // where run.folder is empty

  std::string folder() const { return config.run.folder.empty() ? own_folder : config.run.folder; }
};

// File, then environment (VCAS_DEVICE, VCAS_NUM_THREADS), then overrides "a.b=c". An empty path
// stands for the defaults. The configuration that a run has saved is no reason to overwrite a run.
LoadedConfig load_config(const std::string& path, const std::vector<std::string>& overrides);
LoadedConfig load_config(const SourceText& text, const std::vector<std::string>& overrides,
                         bool saved = false);

// Gives `loaded` what Hugging Face folders say: the sizes and dropout of model.pretrained, the case
// of the tokenizer. Throws kBadConfig where settings were given that say otherwise.
void use_pretrained_settings(LoadedConfig& loaded);

// Whether model.pretrained names what is not there, so that it says nothing yet.
bool lacks_pretrained(const RunConfig& config);
// False for a setting that such a folder will decide.
bool is_known(const LoadedConfig& loaded, const std::string& key);

LoaderOptions train_loader_options(const RunConfig& config);
LoaderOptions eval_loader_options(const RunConfig& config, const Dataset& test);
std::int64_t total_steps(const RunConfig& config, std::int64_t steps_per_epoch);
TrainerOptions trainer_options(const RunConfig& config, std::int64_t total_steps,
                               std::int64_t steps_per_epoch);

Precision precision_of(const RunConfig& config);

// The device of the configuration, in its precision.
std::unique_ptr<Ops> make_ops(const RunConfig& config);

// Sets the number of threads from the configuration; returns it.
int use_threads(const RunConfig& config);

}  // namespace vcas
