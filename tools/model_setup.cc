#include "tools/model_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/hardware.h"
#include "core/progress.h"
#include "core/read_json.h"
#include "data/text_kind.h"
#include "kernels/cpu/gemm.h"
#include "kernels/decorators/forwarding_ops.h"
#include "tools/report_text.h"

namespace vcas {
namespace {

// The table of words of pretrained weights has up to so many rows that no token uses.
constexpr std::int64_t kVocabularyPadding = 128;

// Refuses memory that the machine lacks. Without it Linux grants any amount, and ends the process
// without a word when the memory is used.
class MemoryLimit final : public ForwardingOps {
 public:
  explicit MemoryLimit(std::unique_ptr<Ops> inner)
      : ForwardingOps(std::move(inner)), free_(available_memory_bytes()) {}

  void* allocate(std::size_t bytes) override {
    if (static_cast<std::int64_t>(bytes) > free_)
      throw Error(ExitCode::kOutOfMemory,
                  fmt::format("out of memory: the model needs another {}, and {} of {} are left",
                              format_bytes(static_cast<double>(bytes)),
                              format_bytes(static_cast<double>(free_)),
                              format_bytes(static_cast<double>(total_memory_bytes()))),
                  "a smaller train.micro_batch needs less memory and keeps exact gradients, unless "
                  "there are BatchNorms or dropout; train.eval_batch too must be small, or the "
                  "model smaller (model.*)");
    free_ -= static_cast<std::int64_t>(bytes);
    return inner_->allocate(bytes);
  }
  void deallocate(void* data, std::size_t bytes) override {
    free_ += static_cast<std::int64_t>(bytes);
    inner_->deallocate(data, bytes);
  }

 private:
  std::int64_t free_;
};

// OpenMP ends the process without our words where it cannot start a thread. This throws before.
void check_threads_start(int threads) {
  static int had = 1;  // OpenMP keeps them
  if (threads <= had) return;
  std::vector<std::jthread> others;
  std::promise<void> all_are_there;
  const std::shared_future<void> reached = all_are_there.get_future();
  while (std::ssize(others) + 1 < threads) others.emplace_back([reached] { reached.wait(); });
  had = threads;
}

// Without a model.
ReadyModel make_ready_ops(const RunConfig& config, const Watch& watch) {
  check_threads_start(use_threads(config));  // the device looks at the number when it is made
  ReadyModel ready;
  std::unique_ptr<Ops> ops = make_ops(config);
  const auto wrap = [&ops]<class Outer>(Outer*& outer, auto&&... more) {
    auto made = std::make_unique<Outer>(std::move(ops), std::forward<decltype(more)>(more)...);
    outer = made.get();
    ops = std::move(made);
  };
  if (ops->name() == "cpu") ops = std::make_unique<MemoryLimit>(std::move(ops));
  if (auto profiler = make_profiler(ops->name())) wrap(ready.ranges, std::move(profiler));
  if (!watch.trace.empty()) wrap(ready.trace, watch.trace);
  if (watch.finite) wrap(ready.finite);
  ready.ops = std::make_unique<CountOps>(std::move(ops));
  return ready;
}

void check_head(const ModelOptions& options) {
  const std::string head = options.kind->head();
  constexpr std::array kHeads = {"classification", "regression", "mlm", "lm"};
  if (std::ranges::count(kHeads, head) > 0) return;
  throw Error(ExitCode::kBadConfig,
              fmt::format("model.type \"{}\" has the head \"{}\", which is not among {}",
                          options.kind.type, head, fmt::join(kHeads, ", ")),
              "ModelKind::head says how the model is evaluated (models/model.h)");
}

void check_logits(const Model& model, bool regression, std::int64_t classes) {
  const ValueSpec& logits = model.graph.spec(model.logits);
  if (logits.width == (regression ? 1 : classes) && logits.layout == Layout::items(1)) return;
  throw Error(
      ExitCode::kBadConfig,
      fmt::format("Model::logits is [{} an item, {}], and {}", logits.layout.text(), logits.width,
                  regression ? "the model learns one number of an item"
                             : fmt::format("the data have {} classes", classes)),
      regression ? "the logits of a regression are [1 an item, 1]"
                 : "the logits of a classification are [1 an item, classes]; "
                   "ModelKind::build is told the number of classes");
}

}  // namespace

ReadyModel make_model(const RunConfig& config, const ModelFacts& facts, const Tokenizer* tokenizer,
                      const BatchLimits& limits, std::int64_t items, const Watch& watch) {
  ReadyModel ready = make_ready_ops(config, watch);
  ready.model = make_model(*ready.ops, compute_dtype(precision_of(config)), config, facts,
                           tokenizer, limits, items);
  check_room_for_products(config);
  return ready;
}

void check_room_for_products(const RunConfig& config) {
  constexpr std::size_t kBuffer = 129 << 20;  // of OpenBLAS, 128 MiB and what aligns them
  rlimit limit{};
  if (!gemm_library().name.starts_with("openblas") || ::getrlimit(RLIMIT_AS, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY)
    return;
  const std::size_t bytes = static_cast<std::size_t>(threads_of(config)) * kBuffer;
  void* room =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED)
    throw Error(ExitCode::kOutOfMemory,
                fmt::format("the limit of the address space, {}, leaves less than the {} that "
                            "products on {} threads need",
                            format_bytes(static_cast<double>(limit.rlim_cur)),
                            format_bytes(static_cast<double>(bytes)), threads_of(config)),
                "raise it (ulimit -v), or set fewer threads");
  ::munmap(room, bytes);
}

std::unique_ptr<Model> make_model(Ops& ops, DType dtype, const RunConfig& config,
                                  const ModelFacts& facts, const Tokenizer* tokenizer,
                                  const BatchLimits& limits, std::int64_t items) {
  check_head(config.model);
  std::unique_ptr<Model> model =
      build_model(model_options(config, tokenizer), facts.item_shape, std::ssize(facts.class_names),
                  config.train.label_smoothing, dtype);
  const std::int64_t positions = config.model.kind->max_positions();
  const std::int64_t max_length = config.data.kind->facts().max_length;
  if (max_length > positions)
    throw Error(ExitCode::kBadConfig,
                fmt::format("data.text.max_length is {}, and the model has {} positions",
                            max_length, positions),
                positions < kLeastMaxLength
                    ? fmt::format("model.max_positions must be at least {}, the least "
                                  "data.text.max_length",
                                  kLeastMaxLength)
                    : fmt::format("data.text.max_length={} cuts longer items off", positions));
  if (limits.tokens > positions)
    throw Error(ExitCode::kBadConfig,
                fmt::format("items have up to {} tokens, and the model has {} positions",
                            limits.tokens, positions),
                "shorten the items (data.synthetic.tokens, --pad-to), or raise "
                "model.max_positions of a new model");
  if (model->logits.index < 0)
    throw Error(ExitCode::kBadConfig, "Model::logits is not set",
                "ModelKind::build sets it to the value that evaluations read");
  config.method->prepare(*model);
  model->graph.finish(ops, {.max_items = items,
                            .max_tokens = items * limits.tokens,
                            .max_masked = items * limits.masked,
                            .ranks = config.ranks});
  if (!config.model.kind->learns_words())
    check_logits(*model, config.model.kind->head() == "regression", std::ssize(facts.class_names));
  return model;
}

ModelOptions model_options(const RunConfig& config, const Tokenizer* tokenizer) {
  ModelOptions options = config.model;
  if (!tokenizer) return options;
  ModelKind& model = *options.kind;
  const std::int64_t tokens = tokenizer->size();
  if (model.vocabulary() == 0) model.set_vocabulary(tokens);
  // A run may have been trained with any number of rows.
  const bool other_weights = !options.pretrained.empty() &&
                             !std::filesystem::exists(options.pretrained + "/model.json") &&
                             tokens <= model.vocabulary() - kVocabularyPadding;
  if (tokens > model.vocabulary() || other_weights)
    throw Error(ExitCode::kBadConfig,
                fmt::format("the tokenizer has {} tokens, but the model has {}", tokens,
                            model.vocabulary()),
                options.pretrained.empty() ? "raise model.vocabulary"
                                           : "use the vocabulary that came with the weights");
  return options;
}

std::map<std::string, std::string> model_files(const ModelFacts& facts, const Tokenizer* tokenizer,
                                               std::int64_t positions) {
  std::map<std::string, std::string> files;
  if (tokenizer) files = tokenizer->files(positions);
  if (facts.images)
    files[kHfImageProcessorFile] = image_processor_text(*facts.images, facts.item_shape);
  nlohmann::ordered_json json = {{"item_shape", facts.item_shape},
                                 {"class_names", facts.class_names}};
  if (facts.images) json["squeeze"] = facts.images->squeeze;
  files["model.json"] = json.dump(2) + "\n";
  return files;
}

ModelFacts read_model_facts(const std::filesystem::path& checkpoint) {
  const std::filesystem::path file = checkpoint / "model.json";
  const nlohmann::json json = read_json(file);
  try {
    ModelFacts facts{.item_shape = json.at("item_shape"),
                     .class_names = json.at("class_names"),
                     .images = read_hf_image_processor(checkpoint)};
    // Older checkpoints, which do not say it, cut all images.
    if (facts.images) facts.images->squeeze = json.value("squeeze", false);
    return facts;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ExitCode::kBadData, fmt::format("{}: {}", file.string(), e.what()));
  }
}

}  // namespace vcas
