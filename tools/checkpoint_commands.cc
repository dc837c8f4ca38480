#include "tools/checkpoint_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/signals.h"
#include "data/text_lines.h"
#include "models/hf_format.h"
#include "models/weights_io.h"
#include "optim/checkpoint.h"
#include "tools/evaluation.h"
#include "tools/held_out.h"
#include "tools/model_setup.h"
#include "tools/output.h"
#include "tools/run_folder.h"
#include "tools/run_images.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// What was trained must not be called otherwise: these settings are those of the checkpoint.
void check_overrides(const RunConfig& saved, const RunConfig& config) {
  for (const ConfigChange& change : config_changes(saved, config))
    if (change.key.starts_with("model.") || change.key == "data.text.vocabulary" ||
        change.key == "data.text.lower_case")
      throw Error(ExitCode::kBadConfig,
                  fmt::format("{} is {} in the checkpoint, and cannot become {}", change.key,
                              change.before, change.after),
                  "the model was trained so");
}

const fs::path& checked(const fs::path& checkpoint) {
  check_manifest(checkpoint);
  return checkpoint;
}

// A checkpoint, without what it was made from. It has been read: its run may remove it now.
struct Trained {
  fs::path checkpoint;
  SafetensorsFile weights;
  RunConfig saved;
  LoadedConfig loaded;  // with the overrides of the request
  ModelFacts facts;
  nlohmann::json data;  // the fingerprints of its files
  std::unique_ptr<Tokenizer> tokenizer;

  Trained(const CheckpointRequest& request, const fs::path& folder)
      : checkpoint(checked(folder)), weights(folder / "model.safetensors") {
    const std::string file = (checkpoint / "config.json").string();
    saved = load_config(file, {}).config;
    loaded = load_config(file, request.overrides);
    check_overrides(saved, config());
    facts = read_model_facts(checkpoint);
    data = read_trainer_state(checkpoint).at("data");
    if (config().data.kind->facts().text) tokenizer = read_tokenizer(checkpoint);
  }

  const RunConfig& config() const { return loaded.config; }
};

// The run may remove a checkpoint while it is read. It has a newer one then.
Trained read_trained(const CheckpointRequest& request) {
  while (true) {
    const ResumePoint from = find_resume_point(request.folder, false);
    try {
      Trained trained(request, from.checkpoint);
      for (const std::string& ignored : from.ignored) log_warning("ignored " + ignored);
      return trained;
    } catch (const Error&) {
      if (fs::exists(from.checkpoint)) throw;
    }
  }
}

// Its model, with memory for batches of `items` within `limits`.
class TrainedModel {
 public:
  TrainedModel(const Trained& trained, const Tokenizer* tokenizer, const BatchLimits& limits,
               std::int64_t items)
      : ready_(make_model(trained.config(), trained.facts, tokenizer, limits, items)),
        evaluator_(*ready_.model, *ready_.ops),
        name_(trained.checkpoint.string()) {
    load_weights(trained.weights, *ready_.model, *ready_.ops);
  }

  Model& model() { return *ready_.model; }
  Ops& ops() { return *ready_.ops; }
  EvaluateBatch evaluate() {
    return [this](const Batch& batch, std::vector<float>* logits) {
      return evaluator_.evaluate(batch, name_, logits);
    };
  }

 private:
  ReadyModel ready_;
  Evaluator evaluator_;
  std::string name_;
};

// Tells on stderr how many of `items` are done.
EvaluateBatch counted(const std::string& verb, const EvaluateBatch& evaluate, std::int64_t items) {
  return [=, tell = count_on_stderr(verb, "items"), done = std::int64_t{0}](
             const Batch& batch, std::vector<float>* logits) mutable {
    const Evaluation part = evaluate(batch, logits);
    tell(done += batch.items, items);
    return part;
  };
}

void write_submission(const PredictRequest& request, const Trained& trained,
                      const DataRequest& data, TrainedModel& model) {
  const Benchmark& benchmark = *trained.config().data.kind->benchmark();
  const std::vector<std::string> splits = benchmark.splits(data, request.split);
  check_output(request.submission, "--submission");
  make_folder(request.submission, "choose another folder for the submission");
  for (const std::string& split : splits) {
    const auto items = benchmark.open_split(data, split);
    Predictions predictions{.class_names = trained.facts.class_names};
    const auto add = [&](const std::vector<float>& logits) {
      if (data.learns_numbers)
        std::ranges::copy(logits, std::back_inserter(predictions.numbers));
      else
        std::ranges::copy(predicted_classes(logits, std::ssize(predictions.class_names)),
                          std::back_inserter(predictions.classes));
    };
    predict_items(trained.config(), *items, counted("predicting", model.evaluate(), items->size()),
                  add);
    benchmark.write(request.submission, split, predictions);
  }
}

// Throws kUsage for what this model cannot predict.
void check_request(const PredictRequest& request, const RunConfig& config) {
  const std::string& type = config.data.kind.type;
  const DataFacts facts = config.data.kind->facts();
  const bool submission = !request.submission.empty();
  if (!facts.is_predictable)
    throw Error(
        ExitCode::kUsage,
        fmt::format("predict reads texts and images; data.type of this model is \"{}\"", type),
        "vcas eval evaluates models of all kinds");
  if (submission && !config.data.kind->benchmark())
    throw Error(ExitCode::kUsage, fmt::format("data.type \"{}\" has no submissions", type),
                "--input predicts labels of texts and images");
  if (request.probabilities && (submission || config.model.kind->head() == "regression"))
    throw Error(ExitCode::kUsage,
                fmt::format("--probabilities is for classes, and {}",
                            submission ? "submissions have no place for them"
                                       : "this model predicts a number"),
                "leave it out");
  if (facts.text && request.inputs.size() > 1)
    throw Error(ExitCode::kUsage,
                fmt::format("predict reads one table of texts, got {}", request.inputs.size()),
                "call it for each table");
}

std::vector<double> softmax(const float* logits, std::size_t classes) {
  const double most = *std::max_element(logits, logits + classes);
  std::vector<double> shares;
  double sum = 0;
  for (std::size_t k = 0; k < classes; ++k) {
    shares.push_back(std::exp(logits[k] - most));
    sum += shares.back();
  }
  for (double& share : shares) share /= sum;
  return shares;
}

// A batch of one item, the tokens, whose last one is to predict the next.
void set_text(std::span<const std::int32_t> tokens, Batch& batch) {
  const std::int64_t rows = std::ssize(tokens);
  batch.clear();
  batch.items = 1;
  batch.offsets = {0, rows};
  batch.tokens.assign(tokens.begin(), tokens.end());
  batch.token_types.assign(tokens.size(), 0);
  batch.masked_offsets = {0, 1};
  batch.masked_rows = {static_cast<std::int32_t>(rows - 1)};
  batch.masked_labels = {0};  // not known: only the logits are wanted
}

// The token of these logits [vocabulary] that the number in [0, 1) draws.
std::int32_t drawn_token(const GenerateRequest& request, std::vector<float> logits,
                         double uniform) {
  const auto most = std::ranges::max_element(logits);
  const float largest = *most;
  if (request.temperature == 0) return static_cast<std::int32_t>(most - logits.begin());
  std::vector<float> sorted = logits;
  const auto kept = static_cast<std::size_t>(request.top_k);
  if (kept > 0 && kept < sorted.size()) {
    std::ranges::nth_element(sorted, sorted.begin() + (kept - 1), std::greater());
    for (float& logit : logits)
      if (logit < sorted[kept - 1]) logit = -std::numeric_limits<float>::infinity();
  }
  for (float& logit : logits)
    logit = static_cast<float>((static_cast<double>(logit) - largest) / request.temperature);
  const std::vector<double> shares = softmax(logits.data(), logits.size());
  double sum = 0;
  std::size_t token = 0, last = 0;
  for (; token < shares.size() && sum <= uniform; ++token) {
    sum += shares[token];
    if (shares[token] > 0) last = token;
  }
  return static_cast<std::int32_t>(last);
}

// So that a name is one cell of a table, whatever it has.
std::string escaped(const std::string& name) {
  std::string text;
  for (const char c : name) {
    const std::size_t which = std::string_view("\\\t\n\r").find(c);
    if (which == std::string_view::npos)
      text += c;
    else
      text += {'\\', "\\tnr"[which]};
  }
  return text;
}

// A line for each item, which is called as its file is or by its number.
class PredictionTable {
 public:
  PredictionTable(const RunConfig& config, const std::vector<std::string>& classes,
                  const std::vector<std::string>& files, bool probabilities)
      : regression_(config.model.kind->head() == "regression"),
        probabilities_(probabilities),
        files_(files),
        text_(files.empty() ? "index\tprediction" : "file\tprediction") {
    std::ranges::transform(classes, std::back_inserter(names_), escaped);
    if (probabilities) text_ += fmt::format("\t{}", fmt::join(names_, "\t"));
  }

  // The items behind.
  void add(const std::vector<float>& logits) {
    const std::size_t width = regression_ ? 1 : names_.size();
    for (const float* row = logits.data(); row != logits.data() + logits.size(); row += width) {
      text_ += '\n' + (files_.empty() ? std::to_string(item_) : escaped(files_[item_])) + '\t';
      text_ +=
          regression_ ? fmt::format("{}", *row) : names_[std::max_element(row, row + width) - row];
      ++item_;
      if (!probabilities_) continue;
      for (const double share : softmax(row, width)) text_ += fmt::format("\t{:.6f}", share);
    }
  }

  std::string take() { return std::move(text_) + '\n'; }

 private:
  bool regression_, probabilities_;
  const std::vector<std::string>& files_;
  std::vector<std::string> names_;
  std::string text_;  // shown at the end alone: a bad image is an error, and nothing is printed
  std::size_t item_ = 0;
};

}  // namespace

void evaluate_checkpoint(const CheckpointRequest& request) {
  Trained trained = read_trained(request);
  check_split(trained.saved, trained.config());
  const RunData data(trained.config(), std::move(trained.tokenizer), trained.facts);
  if (trained.config().data.validation_share > 0)
    check_held_out_data(trained.checkpoint, trained.data, data);
  TrainedModel model(trained, data.tokenizer.get(), data.limits, trained.config().eval_batch());
  print_warnings(data.warnings);
  for (const auto& [file, hash] : data.fingerprints())
    if (trained.data.contains(file) && !is_same_fingerprint(file, trained.data[file], hash))
      log_warning(
          fmt::format("{} has changed since {} was saved", file, trained.checkpoint.string()));
  const double start = monotonic_seconds();
  const std::int64_t items = data.test->size() + (data.mismatched ? data.mismatched->size() : 0);
  const TestResult result = *evaluate_tests(
      trained.config(), data, counted("evaluating", model.evaluate(), items), [] { return false; },
      *one_rank());
  const double seconds = monotonic_seconds() - start;
  nlohmann::ordered_json values = result.to_json("eval_");
  values.update({{"eval_items", result.items},
                 {"eval_samples_per_second", static_cast<double>(result.items) / seconds}});
  const std::string text =
      request.json ? values.dump(2) + "\n"
                   : fmt::format("{}  {}  ({} items in {:.1f} s)\n", trained.checkpoint.string(),
                                 result.text(), format_count(result.items), seconds);
  print_text(text);
  if (!result.warning.empty()) log_warning(result.warning);
}

void predict(const PredictRequest& request) {
  const Trained trained = read_trained(request.checkpoint);
  const RunConfig& config = trained.config();
  check_request(request, config);
  const Tokenizer* tokenizer = trained.tokenizer.get();
  BatchLimits limits;  // of items that are not there yet
  if (tokenizer)
    limits.tokens =
        std::min(config.data.kind->facts().max_length, config.model.kind->max_positions());
  TrainedModel model(trained, tokenizer, limits, config.eval_batch());
  DataRequest data = data_request(config, Split::kTest, tokenizer);
  if (!request.submission.empty()) return write_submission(request, trained, data, model);
  data.known_classes = trained.facts.class_names;
  if (const std::vector<std::string> given = config.data.kind->given_classes();
      given != trained.saved.data.kind->given_classes() && given != data.known_classes)
    log_warning(fmt::format("data.text.labels has no effect: the classes are the model's: {}",
                            fmt::join(data.known_classes, ", ")));
  data.transform = image_transform(config, &trained.facts);
  const OpenedData found =
      config.data.kind->open_unlabelled(data, request.inputs, trained.facts.item_shape);
  PredictionTable table(config, trained.facts.class_names, found.files, request.probabilities);
  predict_items(config, *found.items, counted("predicting", model.evaluate(), found.items->size()),
                [&](const std::vector<float>& logits) { table.add(logits); });
  print_text(table.take());
  for (const std::string& fault : found.skipped) log_warning("left out " + fault);
  if (found.cut_rows > 0) log_warning(cut_rows_text(config, found, "new"));
}

void generate(const GenerateRequest& request) {
  if (const std::string fault = text_fault(request.prompt); !fault.empty())
    throw Error(ExitCode::kUsage, "--prompt: " + fault);
  const Trained trained = read_trained(request.checkpoint);
  if (trained.config().model.kind->head() != "lm")
    throw Error(ExitCode::kUsage,
                fmt::format("generate goes on with texts, and model.type \"{}\" does not",
                            trained.config().model.kind.type),
                "model.type \"gpt\" learns to");
  const Tokenizer* tokenizer = trained.tokenizer.get();
  const std::int64_t positions = trained.config().model.kind->max_positions();
  TrainedModel model(trained, tokenizer, {.tokens = positions, .masked = 1}, 1);
  std::vector<std::int32_t> tokens;
  tokenizer->encode(request.prompt, tokens);
  const bool begins = tokens.empty();
  if (begins) tokens.push_back(tokenizer->separator());
  const EvaluateBatch evaluate = model.evaluate();
  std::size_t printed = 0;
  const auto print = [&] {
    const std::string text = tokenizer->decode(std::span(tokens).subspan(begins ? 1 : 0));
    write_output(std::string_view(text).substr(printed));
    printed = text.size();
  };
  print();
  Batch batch;
  std::vector<float> logits;
  for (std::int64_t i = 0; i < request.tokens; ++i) {
    const std::int64_t first = std::max<std::int64_t>(0, std::ssize(tokens) - positions);
    set_text(std::span(tokens).subspan(first), batch);
    logits.clear();
    evaluate(batch, &logits);
    logits.resize(tokenizer->size());  // rows that no token has go
    const std::int32_t token = drawn_token(
        request, logits, philox_uniform(data_address(request.seed, DataSite::kGenerate), i));
    if (token == tokenizer->find_separator()) break;
    tokens.push_back(token);
    print();
  }
  write_output("\n");
}

void export_checkpoint(const CheckpointRequest& request, const fs::path& target) {
  const Trained trained = read_trained(request);
  check_outside_runs(target, "--to");
  std::error_code ignored;
  if (fs::exists(target, ignored) &&
      !(fs::is_directory(target, ignored) && fs::is_empty(target, ignored)))
    throw Error(ExitCode::kCannotCreate,
                fmt::format("{}: exists and is not an empty folder", target.string()),
                "give a new folder by --to");
  const SignalHandlers signals;
  AtomicFolder folder(target);
  const Tokenizer* tokenizer = trained.tokenizer.get();
  TrainedModel model(trained, tokenizer,
                     tokenizer ? BatchLimits{.tokens = 1, .masked = 1} : BatchLimits{}, 1);
  HfModel description{.options = model_options(trained.config(), tokenizer),
                      .image_shape = trained.facts.item_shape,
                      .labels = trained.facts.class_names};
  const ModelKind& kind = *trained.config().model.kind;
  if (kind.head() == "lm") description.separator = tokenizer->separator();
  if (const HfFormat* format = kind.hugging_face(); format && format->names_padding())
    description.pad_token = tokenizer->pad();
  save_hf_model(folder.path(), description, model.model(), model.ops());
  if (tokenizer)
    for (const auto& [name, text] : tokenizer->files(kind.max_positions()))
      atomic_write(folder.path() / name, text);
  else if (trained.facts.images)
    atomic_write(folder.path() / kHfImageProcessorFile,
                 image_processor_text(*trained.facts.images, trained.facts.item_shape));
  stop_if_asked();
  folder.commit();
  print_text(fmt::format("{} -> {}\n", trained.checkpoint.string(), target.string()));
}

}  // namespace vcas
