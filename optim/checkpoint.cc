#include "optim/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/files.h"
#include "core/json_value.h"
#include "core/nearest_name.h"
#include "core/parse_number.h"
#include "core/read_json.h"
#include "core/safetensors.h"
#include "optim/loss_queue.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "checkpoint-";
constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStateFile = "trainer_state.json";
constexpr const char* kMethodFile = "method.safetensors";
constexpr const char* kItemMemory = "item_memory";
constexpr const char* kMethodKey = "vcas.method";  // whose memory it is; absent from older files

void check_finite(const std::string& name, const std::vector<float>& values) {
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad != values.end())
    throw diverged(
        fmt::format("{} is {} at element {}, and is not saved", name, *bad, bad - values.begin()));
}

void write_tensors(const fs::path& file, Ops& ops, const std::vector<NamedTensor>& tensors,
                   std::int64_t step) {
  std::vector<std::vector<float>> host;
  std::vector<StoredTensor> stored;
  for (const auto& [name, tensor] : tensors) {
    VCAS_CHECK(tensor.dtype == DType::kF32, "a checkpoint holds numbers in f32");
    const std::vector<float>& values = host.emplace_back(to_host<float>(ops, tensor));
    check_finite(name, values);
    stored.push_back(
        {name, StoredType::kF32, tensor.shape.extents(), std::as_bytes(std::span(values))});
  }
  write_safetensors(file, std::move(stored), {{"vcas.step", std::to_string(step)}});
}

// Throws Error(kBadConfig) where `file` lacks one of the tensors, before any is overwritten.
void check_tensors(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors,
                   bool of_model) {
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : tensors) {
    const StoredTensor* stored = file.find(name);
    if (stored == nullptr)
      missing.push_back(name);
    else if (stored->shape != tensor.shape.extents())
      throw Error(ExitCode::kBadConfig,
                  fmt::format("{} has shape {} in {} but the model has {}", name,
                              shape_text(stored->shape), file.path(), tensor.shape.text()),
                  "the file belongs to another model, or data.type or model.* differ");
  }
  if (missing.empty()) return;
  throw Error(ExitCode::kBadConfig,
              fmt::format("{} lacks {} of {} tensors to load: {}", file.path(), missing.size(),
                          tensors.size(), some_of(missing)),
              of_model ? "the file belongs to another model"
                       : "optimizer.name must be that of the checkpoint");
}

void copy_tensors(const SafetensorsFile& file, Ops& ops, const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    VCAS_CHECK(tensor.dtype == DType::kF32, "a checkpoint holds numbers in f32");
    const std::vector<float> values = file.read_floats(*file.find(name));
    ops.copy_to_device(tensor.data, values.data(), tensor.bytes());
  }
}

// "/place/in/it is nan" of a number that JSON lacks; empty: it has all.
std::string bad_number(const nlohmann::json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    return fmt::format(" is {}", value.get<double>());
  if (!value.is_structured()) return {};
  for (auto it = value.begin(); it != value.end(); ++it)
    if (const std::string bad = bad_number(*it); !bad.empty())
      return fmt::format("/{}{}", value.is_object() ? it.key() : std::to_string(it - value.begin()),
                         bad);
  return {};
}

void check_finite(const nlohmann::json& state) {
  if (const std::string bad = bad_number(state); !bad.empty())
    throw diverged(fmt::format("{}: {}, and is not saved", kStateFile, bad));
}

void check_texts(const std::map<std::string, std::string>& texts) {
  static const std::set<std::string> taken = {
      "", ".", "..", kWeightsFile, kOptimizerFile, kMethodFile, kStateFile, "manifest.json"};
  for (const auto& [name, text] : texts)
    if (taken.contains(name) || name.find('/') != name.npos)
      throw Error(ExitCode::kBadConfig,
                  fmt::format("a checkpoint cannot have a text called \"{}\"", name),
                  "take the plain name of a file that a checkpoint does not have");
}

void write_item_memory(const fs::path& folder, Trainer& trainer) {
  const std::span<const float> memory = trainer.item_memory();
  if (memory.empty()) return;
  write_safetensors(
      folder / kMethodFile,
      {{kItemMemory, StoredType::kF32, {std::ssize(memory)}, std::as_bytes(memory)}},
      {{"vcas.step", std::to_string(trainer.steps())}, {kMethodKey, trainer.method_type()}});
}

void read_item_memory(const fs::path& folder, std::span<float> memory) {
  const SafetensorsFile file(folder / kMethodFile);
  const StoredTensor* stored = file.find(kItemMemory);
  if (stored == nullptr || stored->shape != std::vector{std::ssize(memory)})
    throw Error(ExitCode::kBadConfig,
                fmt::format("{} remembers {} items, and the training data has {}",
                            (folder / kMethodFile).string(),
                            stored ? fmt::format("{}", fmt::join(stored->shape, " x ")) : "no",
                            memory.size()),
                "bring the data back, or choose a method that remembers no items");
  file.read_floats(*stored, memory);
}

std::vector<NamedTensor> weights(const Model& model) {
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : model.graph.parameters().stored())
    tensors.push_back({parameter.name, parameter.master});
  return tensors;
}

// The step of "checkpoint-4000"; empty for other names.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  return parse_number<std::int64_t>(name.substr(kPrefix.size()));
}

// By its new name it is rubbish, whatever of it is left if this is interrupted.
void remove_checkpoint(const fs::path& run, std::int64_t step) {
  const fs::path folder = checkpoint_folder(run, step);
  fs::path rubbish = folder;
  rubbish += ".tmp";
  std::error_code ignored;
  fs::rename(folder, rubbish, ignored);
  fs::remove_all(rubbish, ignored);
}

}  // namespace

void save_checkpoint(const fs::path& folder, Trainer& trainer, const nlohmann::json& state,
                     const std::map<std::string, std::string>& texts) {
  check_weights_set(trainer.ops(), trainer.model());
  check_finite(state);
  check_texts(texts);
  AtomicFolder target(folder);
  const std::int64_t step = trainer.steps();
  write_tensors(target.path() / kWeightsFile, trainer.ops(), weights(trainer.model()), step);
  write_tensors(target.path() / kOptimizerFile, trainer.ops(), trainer.optimizer().state(), step);
  write_item_memory(target.path(), trainer);
  atomic_write(target.path() / kStateFile, state.dump(2) + "\n");
  for (const auto& [name, text] : texts) atomic_write(target.path() / name, text);
  write_manifest(target.path());
  target.commit();
}

nlohmann::json load_checkpoint(const fs::path& folder, Trainer& trainer) {
  check_manifest(folder);
  nlohmann::json state = read_json(folder / kStateFile);
  const SafetensorsFile weights_file(folder / kWeightsFile),
      optimizer_file(folder / kOptimizerFile);
  const std::vector<NamedTensor> parameters = weights(trainer.model());
  const std::vector<NamedTensor>& moments = trainer.optimizer().state();
  check_tensors(weights_file, parameters, /*of_model=*/true);
  check_tensors(optimizer_file, moments, /*of_model=*/false);
  if (has_item_memory(folder, trainer)) read_item_memory(folder, trainer.item_memory());
  copy_tensors(weights_file, trainer.ops(), parameters);
  trainer.model().graph.parameters().round_values(trainer.ops());
  copy_tensors(optimizer_file, trainer.ops(), moments);
  return state;
}

bool has_item_memory(const fs::path& folder, Trainer& trainer) {
  if (trainer.item_memory().empty() || !fs::exists(folder / kMethodFile)) return false;
  const SafetensorsFile file(folder / kMethodFile);
  const auto method = file.metadata().find(kMethodKey);
  return method == file.metadata().end() || method->second == trainer.method_type();
}

nlohmann::json read_trainer_state(const fs::path& folder) {
  const fs::path file = folder / kStateFile;
  nlohmann::json state = read_json(file);
  if (!state.is_object() || !json_holds<std::int64_t>(state["step"]) ||
      !state["session"].is_object() ||
      (state.contains("data") && !json_holds<std::map<std::string, std::string>>(state["data"])))
    throw Error(ExitCode::kBadData,
                fmt::format("{}: no object with an integer \"step\", an object \"session\" and "
                            "texts in \"data\"",
                            file.string()),
                "use an earlier checkpoint");
  state.emplace("data", nlohmann::json::object());
  return state;
}

void load_weights(const SafetensorsFile& stored, Model& model, Ops& ops) {
  const std::vector<NamedTensor> tensors = weights(model);
  check_tensors(stored, tensors, /*of_model=*/true);
  copy_tensors(stored, ops, tensors);
  model.graph.parameters().round_values(ops);
}

fs::path checkpoint_folder(const fs::path& run, std::int64_t step) {
  return run / fmt::format("{}{}", kPrefix, step);
}

std::vector<std::int64_t> checkpoint_steps(const fs::path& run) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, error))
    if (const auto step = step_of(entry.path().filename().string());
        step && !entry.is_symlink() && fs::exists(entry.path() / "manifest.json"))
      steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

NewestCheckpoint find_newest_checkpoint(const fs::path& run) {
  NewestCheckpoint newest;
  bool was_removed = false;  // by the run, which has a newer one then
  std::vector<std::pair<std::int64_t, fs::path>> folders;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_symlink()) continue;
    if (const auto step = step_of(name))
      folders.emplace_back(*step, entry.path());
    else if (name.starts_with(kPrefix) && name.find(".tmp") != name.npos)
      newest.ignored.push_back(name + ": not written to its end");
  }
  std::sort(folders.rbegin(), folders.rend());
  for (const auto& [step, folder] : folders) {
    try {
      check_manifest(folder);
      newest.step = step;
      break;
    } catch (const Error& e) {
      newest.ignored.push_back(folder.filename().string() + ": " + e.what());
      was_removed |= !fs::exists(folder, error);
    }
  }
  if (!newest.step && was_removed) return find_newest_checkpoint(run);
  return newest;
}

void link_checkpoint(const fs::path& run, const std::string& name, std::int64_t step) {
  const fs::path temporary = run / (name + ".tmp");
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_directory_symlink(checkpoint_folder("", step), temporary, error);
  if (!error) fs::rename(temporary, run / name, error);
  if (error)
    throw Error(ExitCode::kCannotCreate,
                fmt::format("{}: cannot create: {}", (run / name).string(), error.message()));
}

void prune_checkpoints(const fs::path& run, std::int64_t keep,
                       const std::vector<std::int64_t>& spared) {
  const std::vector<std::int64_t> steps = checkpoint_steps(run);
  const std::int64_t excess = std::ssize(steps) - std::max<std::int64_t>(keep, 0);
  for (std::int64_t i = 0; i < excess; ++i) {
    const std::int64_t step = steps[i];
    if (std::ranges::count(spared, step) == 0) remove_checkpoint(run, step);
  }
}

void remove_checkpoints_after(const fs::path& run, std::int64_t last) {
  for (const std::int64_t step : checkpoint_steps(run))
    if (step > last) remove_checkpoint(run, step);
}

}  // namespace vcas
