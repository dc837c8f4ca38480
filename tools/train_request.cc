#include "tools/train_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/files.h"
#include "core/json_value.h"
#include "core/progress.h"
#include "data/image_kind.h"
#include "data/tokenizer.h"
#include "kernels/decorators/trace_ops.h"
#include "optim/checkpoint.h"
#include "tools/held_out.h"
#include "tools/model_setup.h"
#include "tools/pretrained.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// What a checkpoint says of the data, as one object.
nlohmann::json facts_json(const ModelFacts& facts) {
  nlohmann::json all;
  for (const auto& [name, text] : model_files(facts)) all.update(nlohmann::json::parse(text));
  return all;
}

// Files that are not what they were when the checkpoint was saved, a line for each.
std::vector<std::string> changed_files(const nlohmann::json& before, const RunData& data) {
  std::vector<std::string> changes;
  nlohmann::json found = data.fingerprints(), saved = before;
  // A tokenizer is the same wherever its files lie.
  if (data.tokenizer)
    for (const auto& [file, hash] : before.items())
      if (hash == found.value(data.tokenizer->name(), nlohmann::json())) {
        found.erase(data.tokenizer->name());
        saved.erase(file);
        break;
      }
  for (const auto& [file, hash] : saved.items())
    if (!found.contains(file))
      changes.push_back(file + " is not read any more");
    else if (!is_same_fingerprint(file, hash, found.at(file)))
      changes.push_back(file + " has changed");
  for (const auto& [file, hash] : found.items())
    if (!saved.contains(file)) changes.push_back(file + " is new");
  return changes;
}

[[noreturn]] void fail_changed(const std::vector<std::string>& changes,
                               const fs::path& checkpoint) {
  throw Error(ExitCode::kBadConfig,
              fmt::format("{} since {} was saved; this run would not be an exact continuation",
                          fmt::join(changes, "\n  "), checkpoint.string()),
              "bring the files back, or add --resume-mode=fork to start a new run from these "
              "weights and this optimizer state");
}

// Throws unless going on from the checkpoint takes nothing away and leaves one timeline.
void check_continuation(const ResumePoint& from, bool overwrite) {
  const std::string checkpoint = from.checkpoint.string();
  if (!fs::exists(from.run / "metrics.jsonl"))
    throw Error(ExitCode::kNoInput,
                fmt::format("{}: not in the folder of a run ({} has no metrics.jsonl)", checkpoint,
                            from.run.string()),
                "--resume-mode=fork starts a new run from it");
  if (overwrite || from.is_newest) return;
  check_manifest(from.checkpoint);
  const std::int64_t step = read_trainer_state(from.checkpoint).at("step");
  const std::int64_t newest = find_newest_checkpoint(from.run).step.value_or(step);
  if (newest > step)
    throw Error(ExitCode::kCannotCreate,
                fmt::format("{} has later checkpoints, up to checkpoint-{}; going on from {} would "
                            "replace them",
                            from.run.string(), newest, from.checkpoint.filename().string()),
                fmt::format("--resume {} goes on from the last one, --resume-mode=fork starts a "
                            "new run, --overwrite removes the later ones",
                            from.run.string()));
}

// A run that goes on stays where it is.
void check_same_folder(const TrainRequest& request) {
  const std::string& folder = request.loaded.config.run.folder;
  const ConfigOrigin& origin = request.loaded.origins.at("run.folder");
  std::error_code error;
  if (origin.label != "--set" || folder.empty() || fs::equivalent(request.from.run, folder, error))
    return;
  throw Error(ExitCode::kUsage,
              fmt::format("{} is {}, and --resume goes on in {}", origin.where, folder,
                          request.from.run.string()),
              "leave it out; --resume-mode=fork starts a new run there");
}

// Whether they name one folder, or checkpoints of one run: a run stands for its newest.
bool is_same_source(const fs::path& a, const fs::path& b) {
  std::error_code error;
  const auto run_of = [&](const fs::path& path) {
    const fs::path folder = fs::weakly_canonical(path, error);
    return folder.filename().string().starts_with("checkpoint-") ? folder.parent_path() : folder;
  };
  return a == b || (!a.empty() && !b.empty() && run_of(a) == run_of(b));
}

// A fork has the weights and the moments of the checkpoint.
void check_fork(const fs::path& checkpoint, const RunConfig& config) {
  const RunConfig saved = saved_config(checkpoint);
  if (!is_same_source(config.model.pretrained, saved.model.pretrained) ||
      config.model.new_classifier != saved.model.new_classifier)
    throw Error(ExitCode::kBadConfig,
                fmt::format("model.pretrained and model.new_classifier are not those of {}: a fork "
                            "goes on with its weights",
                            checkpoint.string()),
                "leave them as they were; without --resume a run starts from model.pretrained");
  const auto &before = saved.optimizer.kind, &now = config.optimizer.kind;
  if (before->state() != now->state())
    throw Error(ExitCode::kBadConfig,
                fmt::format("optimizer.name is {} in {} and {} here: a fork goes on with the state "
                            "of the optimizer",
                            before.type, checkpoint.string(), now.type),
                "leave it as it was; model.pretrained starts from the weights alone");
}

bool has_read_vocabulary(const fs::path& checkpoint, const RunData& data) {
  const nlohmann::json saved = read_trainer_state(checkpoint).at("data");
  const std::string hash = data.fingerprints().at(data.tokenizer->name());
  return std::ranges::any_of(saved, [&](const nlohmann::json& of) { return of == hash; });
}

// Whether a folder of Hugging Face's form has a vocabulary with other tokens.
bool has_other_tokens(const fs::path& folder, const Tokenizer& tokenizer) try {
  const std::unique_ptr<Tokenizer> own = read_tokenizer(folder);
  std::int32_t id = 0;
  const std::int32_t common = std::min(own->size(), tokenizer.size());
  while (id < common && own->token(id) == tokenizer.token(id)) ++id;
  return id < common;
} catch (const Error&) {  // it has none that can be read, and need not
  return false;
}

// Where the weights of a new run come from, if they were trained with another vocabulary.
// `checkpoint`: parent_of.
fs::path trained_with_other_tokens(const TrainRequest& request, const fs::path& checkpoint,
                                   const RunData& data) {
  const std::string& pretrained = request.loaded.config.model.pretrained;
  if (!data.tokenizer) return {};
  if (!checkpoint.empty()) return has_read_vocabulary(checkpoint, data) ? fs::path() : checkpoint;
  if (pretrained.empty() || request.resume) return {};
  const fs::path folder = find_pretrained(pretrained).folder;
  return has_other_tokens(folder, *data.tokenizer) ? folder : fs::path();
}

// The checkpoint whose weights a new run starts from. Empty: there is none.
fs::path parent_of(const TrainRequest& request) {
  const std::string& pretrained = request.loaded.config.model.pretrained;
  if (request.resume) return request.fork ? request.from.checkpoint : fs::path();
  if (pretrained.empty()) return {};
  const Pretrained from = find_pretrained(pretrained);
  return from.is_checkpoint ? from.folder : fs::path();
}

// Words tell nothing of labels.
bool has_learned_labels(const fs::path& checkpoint, const RunConfig& config) {
  const RunConfig before = saved_config(checkpoint);
  return !before.model.kind->learns_words() || config.model.kind->learns_words();
}

// Settings with values of their own that nothing reads, and why.
std::vector<std::string> idle_settings(const TrainRequest& request, const Model& model) {
  const RunConfig& config = request.loaded.config;
  std::vector<std::string> idle = config.method->idle_settings(model);
  const auto add = [&](const std::vector<std::string>& more) {
    idle.insert(idle.end(), more.begin(), more.end());
  };
  add(config.data.kind->idle_settings(config.data));
  add(config.optimizer.kind->idle_settings());
  // Pretrained weights decide settings of models.
  if (config.model.pretrained.empty()) add(config.model.kind->idle_settings());
  const TrainOptions& train = config.train;
  // Steps that come later are meant to overrule epochs.
  const ConfigOrigin &epochs = request.loaded.origins.at("train.epochs"),
                     &steps = request.loaded.origins.at("train.steps");
  const bool together =
      !request.resume && (epochs.source == steps.source || epochs.label == steps.label);
  // A saved configuration has the default too.
  const bool is_asked = epochs.given() && (epochs.source != steps.source ||
                                           train.epochs.text() != TrainOptions().epochs.text());
  if (is_asked && steps.given() && train.steps.amount() > 0 &&
      (together || epochs.source > steps.source))
    idle.push_back("train.epochs has no effect: train.steps is given");
  if (train.label_smoothing > 0 && config.model.kind->head() == "regression")
    idle.push_back("train.label_smoothing has no effect: model.head is \"regression\"");
  if (config.model.new_classifier && config.model.pretrained.empty())
    idle.push_back("model.new_classifier has no effect: model.pretrained is empty");
  if (const ImageSettings* images = config.data.kind->images()) {
    const bool cuts = !images->crop_scale.empty();
    const bool resizes = images->size > 0 || !config.model.pretrained.empty();
    if (!cuts && images->crop_ratio != ImageSettings().crop_ratio)
      idle.push_back("data.image.crop_ratio has no effect: data.image.crop_scale is empty");
    if (!resizes && images->fit != ImageSettings().fit)
      idle.push_back("data.image.fit has no effect: data.image.size is 0");
    if (!resizes && !cuts && images->interpolation != ImageSettings().interpolation)
      idle.push_back("data.image.interpolation has no effect: data.image.size is 0");
  }
  if (config.optimizer.clip != OptimizerOptions().clip && config.optimizer.max_gradient_norm == 0)
    idle.push_back("optimizer.clip has no effect: optimizer.max_gradient_norm is 0");
  return idle;
}

}  // namespace

void check_request(const TrainRequest& request) {
  if (request.continues()) check_same_config(request.from.checkpoint, request.loaded.config);
  if (request.fork) check_fork(request.from.checkpoint, request.loaded.config);
  if (!request.ranks->is_first()) return;  // the others write nothing
  if (request.continues()) {
    check_same_folder(request);
    check_continuation(request.from, request.loaded.config.run.overwrite);
  }
  if (const fs::path parent = parent_of(request);
      !parent.empty() && request.use() != FolderUse::kNext)
    check_not_source(request.loaded.folder(), parent);
  check_run_folder(request.folder(), request.use());
  if (!request.trace.empty()) check_output(request.trace, "--trace", TraceOps::kBegin);
}

void keep_threads(TrainRequest& request) {
  if (!request.continues()) return;
  const nlohmann::json state = read_trainer_state(request.from.checkpoint);
  const Place place = request.ranks->place();
  if (state.value("ranks", nlohmann::json(place.size)) != place.size) return;
  if (!state.contains("threads")) return;     // of an earlier version
  nlohmann::json threads = state["threads"];  // of each rank; in an earlier version one number
  if (threads.is_array() && threads.size() == static_cast<std::size_t>(place.size))
    threads = nlohmann::json(threads[place.rank]);
  if (!threads.is_number_unsigned() || threads < 1 || threads > kMostThreads)
    throw Error(ExitCode::kBadData, fmt::format("{}: trainer_state.json has {} threads",
                                                request.from.checkpoint.string(), threads.dump()));
  threads.get_to(request.loaded.config.threads_before);
}

void check_same_files(const TrainRequest& request, const RunData& data) {
  if (!request.continues()) return;
  const std::vector<std::string> changes =
      changed_files(read_trainer_state(request.from.checkpoint).at("data"), data);
  if (!changes.empty()) fail_changed(changes, request.from.checkpoint);
}

void check_same_data(const fs::path& checkpoint, const nlohmann::json& saved, const RunData& data,
                     bool fork) {
  std::vector<std::string> changes = changed_files(saved, data);
  if (const fs::path hashes = checkpoint / kImageHashesFile;
      !fork && fs::exists(hashes) && !data.expect_images(read_file(hashes)))
    changes.push_back(hashes.string() + " has more or fewer images than there are");
  const nlohmann::json facts = facts_json(read_model_facts(checkpoint)),
                       found_facts = facts_json(data.facts());
  for (const auto& [fact, before] : facts.items())
    if (const nlohmann::json now = found_facts.value(fact, nlohmann::json()); now != before)
      changes.push_back(
          fmt::format("{} has changed from {} to {}", fact, before.dump(), now.dump()));
  if (changes.empty()) return;
  if (fork)
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("{} since {} was saved; what its method remembers is of other items",
                    fmt::join(changes, "\n  "), checkpoint.string()),
        "bring the files back, or choose a method that remembers no items, such as vcas with "
        "method.forward=false");
  fail_changed(changes, checkpoint);
}

std::vector<std::string> run_warnings(const TrainRequest& request, const RunData& data,
                                      const Model& model) {
  std::vector<std::string> warnings = data.warnings;
  const RunConfig& config = request.loaded.config;
  std::ranges::copy(idle_settings(request, model), std::back_inserter(warnings));
  constexpr std::int64_t kFew = 10;  // one in so many
  const std::int64_t items = data.train->size(), left = items % config.train.batch_size;
  if (left * kFew > items)
    warnings.push_back(
        fmt::format("{} of {} items, others each time, are left out of an epoch: it has whole "
                    "batches of {} (train.batch_size)",
                    format_count(left), format_count(items), config.train.batch_size));
  const fs::path checkpoint = parent_of(request);
  if (!checkpoint.empty() && request.fork) {
    const RunConfig before = saved_config(checkpoint);
    if (before.train.batch_size != config.train.batch_size)
      warnings.push_back(
          fmt::format("train.batch_size was {} and is {}: epochs and the place in the data are "
                      "counted as if all steps had had {} items",
                      before.train.batch_size, config.train.batch_size, config.train.batch_size));
    const nlohmann::json state = read_trainer_state(checkpoint);
    const nlohmann::json had = state.value("items", nlohmann::json());  // null in earlier versions
    if (json_holds<std::int64_t>(had) &&
        had.get<std::int64_t>() / config.train.batch_size != items / config.train.batch_size)
      warnings.push_back(fmt::format(
          "the training data had {} items and have {}: epochs and the place in the "
          "data are counted as if there had always been {}",
          format_count(had.get<std::int64_t>()), format_count(items), format_count(items)));
  }
  if (!checkpoint.empty() && has_learned_labels(checkpoint, config)) {
    std::string split = check_forked_split(checkpoint, config, data);
    // Other classes are what weights alone are for.
    const bool learns_more =
        request.fork || (!config.model.new_classifier &&
                         read_model_facts(checkpoint).class_names == data.facts().class_names);
    if (learns_more && !split.empty()) warnings.push_back(std::move(split));
  }
  if (const fs::path trained = trained_with_other_tokens(request, checkpoint, data);
      !trained.empty())
    warnings.push_back(fmt::format(
        "{} is not the vocabulary that {} was trained with: its tokens may have other numbers",
        data.tokenizer->name(), trained.string()));
  return warnings;
}

}  // namespace vcas
