#include "tools/pretrained.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/files.h"
#include "data/text_kind.h"
#include "data/tokenizer.h"
#include "data/vocabulary.h"
#include "models/hf_format.h"
#include "models/weights_io.h"
#include "optim/checkpoint.h"
#include "tools/model_setup.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// `asked` with what the checkpoint was trained with.
ModelOptions options_of(const Pretrained& from, const ModelOptions& asked) {
  const ModelOptions trained = saved_config(from.folder).model;
  ModelOptions options = with_choices(trained, asked, from.config);
  const std::string before = trained.kind->head(), now = asked.kind->head();
  if (before != now && !trained.kind->learns_words() && !asked.kind->learns_words() &&
      !asked.new_classifier)
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("{}: model.head is \"{}\", and \"{}\" here", from.config.string(), before, now),
        "model.new_classifier=true starts a new classifier over its blocks");
  if (options.kind->reads_text() && options.kind->vocabulary() == 0)
    options.kind->set_vocabulary(read_tokenizer(from.folder)->size());
  return options;
}

// The classes of a classifier in Hugging Face's form.
std::vector<std::string> hf_classes(const Pretrained& from) {
  const HfWeights weights(from.weights);
  const HfModel model = read_hf_config(from.config);
  const auto is_classifier = [&](const HfTensor& tensor) {
    const std::string name = model.options.kind->hugging_face()->current_name(tensor.stored->name);
    return name == "classifier.weight" || name == "classifier.1.weight";  // of a ResNet
  };
  const auto classifier = std::ranges::find_if(weights.tensors(), is_classifier);
  if (classifier == weights.tensors().end() || classifier->stored->shape.empty()) return {};
  const std::int64_t classes = classifier->stored->shape[0];
  std::vector<std::string> names = model.labels;
  if (std::ssize(names) == classes) return names;
  names.clear();
  for (std::int64_t i = 0; i < classes; ++i) names.push_back(fmt::format("LABEL_{}", i));
  return names;
}

}  // namespace

Pretrained find_pretrained(const fs::path& path) {
  fs::path folder = without_slash(path);
  if (folder.filename() == "model.safetensors" && fs::is_regular_file(folder))
    folder = folder.has_parent_path() ? folder.parent_path() : ".";
  // "best" may move while the run is trained.
  if (fs::is_symlink(folder)) folder = folder.parent_path() / fs::read_symlink(folder);
  if (const std::vector<std::int64_t> steps = checkpoint_steps(folder); !steps.empty())
    folder = checkpoint_folder(folder, steps.back());
  if (fs::exists(folder / "model.json"))  // trainer_state.json may be that of transformers
    return {{folder, folder / "config.json", folder / "model.safetensors"}, true};
  return {find_hf_files(path)};
}

ModelFacts pretrained_facts(const Pretrained& from) {
  if (from.is_checkpoint) {
    ModelFacts facts = read_model_facts(from.folder);
    // Images of one size never were resized, so nothing says how others should be.
    if (facts.images && !saved_config(from.folder).data.kind->facts().has_class_folders)
      facts.images->squeeze = false;
    return facts;
  }
  return {.item_shape = read_hf_config(from.config).image_shape,
          .class_names = hf_classes(from),
          .images = read_hf_image_processor(from.folder)};
}

LoadReport load_pretrained(const Pretrained& from, const ModelOptions& options, Model& model,
                           Ops& ops) {
  if (!from.is_checkpoint) return load_hf_weights(from.weights, options, model, ops);
  check_manifest(from.folder);
  return load_own_weights(from.weights, options, model, ops);
}

void use_pretrained_settings(LoadedConfig& loaded) {
  RunConfig& config = loaded.config;
  TokenSettings* tokens = config.data.kind->tokens();
  // The run may save others while this one is trained.
  if (std::string& path = config.model.pretrained; !path.empty())
    if (const Pretrained from = find_pretrained(path); from.is_checkpoint)
      path = from.folder.string();
  const RunConfig asked = config;
  std::string model, tokenizer = tokens ? tokens->vocabulary : "";  // what speaks
  const char* hint = "leave these settings out, or change that file";
  if (!config.model.pretrained.empty()) {
    const Pretrained from = find_pretrained(config.model.pretrained);
    model = from.config.string();
    if (from.is_checkpoint) hint = "leave these settings out: the weights were trained so";
    if (tokenizer.empty()) tokenizer = from.folder.string();
    config.model = from.is_checkpoint ? options_of(from, config.model) : hf_options(config.model);
  }
  if (tokens) tokens->lower_case = lower_case_of(tokenizer).value_or(tokens->lower_case);
  std::string contradictions;
  for (const ConfigChange& change : config_changes(asked, config)) {
    const bool is_left_open = change.key == "model.vocabulary" && change.before == "0";
    const std::string& source = change.key.starts_with("model.") ? model : tokenizer;
    if (const ConfigOrigin& origin = loaded.origins.at(change.key); origin.given() && !is_left_open)
      contradictions +=
          fmt::format("{}{}: {} is {}, but {} says {}", contradictions.empty() ? "" : "\n  ",
                      origin.where, change.key, change.before, source, change.after);
    loaded.origins.set(change.key, {.where = source, .label = source});
  }
  if (!contradictions.empty()) throw Error(ExitCode::kBadConfig, contradictions, hint);
}

bool lacks_pretrained(const RunConfig& config) {
  return !config.model.pretrained.empty() && !fs::exists(config.model.pretrained);
}

bool is_known(const LoadedConfig& loaded, const std::string& key) {
  const bool decided = key.starts_with("model.") || key == "data.text.lower_case";
  return !decided || loaded.origins.at(key).given() || !lacks_pretrained(loaded.config);
}

}  // namespace vcas
