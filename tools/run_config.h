// The configuration of a run: what every sub-command reads, and what is built from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/hardware.h"
#include "data/data_kind.h"
#include "data/loader.h"
#include "models/model.h"
#include "optim/trainer.h"

namespace vcas {

struct RunOptions {
  std::string folder;
  bool overwrite = false;
  double rank_timeout = 600;

  void fields(Setting& v) {
    v.field("folder", folder,
            "Where checkpoints, metrics and logs go; empty: runs/<name of the configuration>, of "
            "later runs runs/<name>-2 and so on.");
    v.field("overwrite", overwrite, "Replace the folder when it holds another run.");
    v.field("rank_timeout", rank_timeout,
            "Seconds without the end of a step, of a batch of an evaluation or of a checkpoint "
            "after which a run of several processes ends, as one of them hangs.",
            above(0.0));
  }
};

struct TrainOptions {
  Duration epochs = Duration::epochs(3);
  Duration steps = 0;
  std::int64_t batch_size = 32;
  std::int64_t micro_batch = 0;
  std::int64_t eval_batch = 0;
  bool balance_lengths = false;
  std::string gradient_exchange = "f32";
  double label_smoothing = 0;
  Duration eval_every = 0;
  std::int64_t patience = 0;
  Duration checkpoint_every = 0;
  std::int64_t keep_checkpoints = 3;
  Duration log_every = 1;
  std::vector<std::string> measures;
  std::string best_measure;
  std::string positive_class;

  void fields(Setting& v) {
    v.field("epochs", epochs, "Passes over the training data, in whole batches.", above(0.0));
    v.field("steps", steps, "Optimizer steps; 0: as many as the epochs have.", at_least(0));
    v.field("batch_size", batch_size, "Items of an optimizer step.", between(1, 1 << 30));
    v.field("micro_batch", micro_batch,
            "Items computed at once, for less memory; 0: the whole batch. Exact gradients are the "
            "same, unless there are BatchNorms or dropout; sampling then draws from each part.",
            between(0, 1 << 30));
    v.field("eval_batch", eval_batch, "Items of an evaluation at once; 0: as in training.",
            between(0, 1 << 30));
    v.field("balance_lengths", balance_lengths,
            "Deals the texts of a step to its micro-batches by length, so that all take equally "
            "long.");
    v.field("gradient_exchange", gradient_exchange,
            "What gradients are on their way between processes. bf16: each is rounded once; "
            "sums stay f32. It needs precision=bf16.",
            one_of({"f32", "bf16"}));
    v.field("label_smoothing", label_smoothing,
            "Share of the target spread over all classes in training; evaluations have none.",
            at_least(0.0), below(1.0));
    v.field("eval_every", eval_every, "Steps between evaluations; 0: once an epoch.", at_least(0));
    v.field("patience", patience,
            "Evaluations in a row that are not the best so far, after which the run ends; 0: it "
            "makes all its steps.",
            at_least(0));
    v.field("checkpoint_every", checkpoint_every,
            "Steps between checkpoints; 0: with each evaluation. The best and the last are always "
            "kept.",
            at_least(0));
    v.field("keep_checkpoints", keep_checkpoints, "Newest checkpoints to keep.", at_least(1));
    v.field("log_every", log_every, "Steps between lines in metrics.jsonl.", above(0.0));
    v.field(
        "measures", measures,
        "What an evaluation measures besides the loss. Empty: what the GLUE task has, pearson "
        "and spearman of numbers, perplexity and accuracy of next words and bits_per_byte where a "
        "tokenizer keeps all bytes, else accuracy.",
        one_of({"accuracy", "f1", "matthews", "top5", "pearson", "spearman", "perplexity",
                "bits_per_byte"}));
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
  bool tune_products = false;
  int threads = 0;
  std::uint64_t seed = 0;
  DataOptions data;
  ModelOptions model;
  TrainOptions train;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  Part<MethodKind> method = TrainerOptions().method;

  void fields(Setting& v) {
    v.section("run", run, "Where the run is kept.");
    v.field("device", device,
            "auto: cuda where a GPU answers, else cpu; cpu; cuda; emu: kernels of cuda on the CPU; "
            "check:a,b: each operation on both, compared.");
    v.field("precision", precision,
            "What a GPU's tensor cores are given. tf32: factors of matrix products are rounded to "
            "10 bits of mantissa; numbers in memory and sums stay f32. bf16: activations, their "
            "gradients and the weights that layers read have 16 bits; sums, statistics, gradients "
            "of weights and the weights that are updated and saved stay f32.",
            one_of({"f32", "tf32", "bf16"}));
    v.field("tune_products", tune_products,
            "Times several algorithms for each matrix product of a GPU when its shape first comes, "
            "and takes the fastest. Checkpoints keep the choice; another run may choose "
            "otherwise, and then rounds otherwise.");
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

  // No setting: where `threads` is 0, those of the run that this one goes on with. 0: a new run.
  int threads_before = 0;
  int ranks = 1, local_ranks = 1;  // no settings: processes of this run, and on this machine
  bool is_first_rank = true;

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

// The same place by a path that ends in a name, as "." does not: folders beside it take that name.
std::filesystem::path named(const std::filesystem::path& path);

// File, then environment (VCAS_DEVICE, VCAS_NUM_THREADS), then overrides "a.b=c", then those of a
// variant. An empty path stands for the defaults.
// The configuration that a run has saved is no reason to overwrite a run.
LoadedConfig load_config(const std::string& path, const std::vector<std::string>& overrides);
LoadedConfig load_config(const SourceText& text, const std::vector<std::string>& overrides,
                         bool saved = false, const std::vector<std::string>& variant = {});
// What a checkpoint was trained with.
RunConfig saved_config(const std::filesystem::path& checkpoint);

LoaderOptions train_loader_options(const RunConfig& config);
LoaderOptions eval_loader_options(const RunConfig& config);
std::int64_t total_steps(const RunConfig& config, std::int64_t steps_per_epoch);
TrainerOptions trainer_options(const RunConfig& config, std::int64_t total_steps,
                               std::int64_t steps_per_epoch);

Precision precision_of(const RunConfig& config);

// Ops::name() of what make_ops makes. Throws what it throws.
std::string device_name(const RunConfig& config);

// The device of the configuration, in its precision.
std::unique_ptr<Ops> make_ops(const RunConfig& config);

// The number of threads.
int threads_of(const RunConfig& config);
// Sets it, and returns it.
int use_threads(const RunConfig& config);

}  // namespace vcas
