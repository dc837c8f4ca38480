// Checkpoints: folders run/checkpoint-STEP that are complete or not there at all.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "optim/trainer.h"

namespace vcas {

// Writes model.safetensors, optimizer.safetensors and manifest.json.
// A method that remembers items also has method.safetensors.
// `state` becomes trainer_state.json: {{"trainer", trainer.state()}} and what else the caller
// wants. `texts` are files by their names. Throws kDiverged, and writes nothing, for a number that
// is not finite. Throws kBadConfig for a text by another than a plain name, or by one of the above.
// It also throws that while the weights are not set.
void save_checkpoint(const std::filesystem::path& folder, Trainer& trainer,
                     const nlohmann::json& state, const std::map<std::string, std::string>& texts);

// Sets weights and optimizer tensors. Returns the `state` that was saved with them.
// Call trainer.restore(state.at("trainer")) then: else steps count from 0.
// Throws kBadData for damaged files and kBadConfig for those of another model or other data.
// Names and shapes of all tensors are compared before one is set.
nlohmann::json load_checkpoint(const std::filesystem::path& folder, Trainer& trainer);

// Whether the checkpoint has numbers of items, and the method of `trainer` made them.
bool has_item_memory(const std::filesystem::path& folder, Trainer& trainer);

// The `state` alone, of a run: an object with an integer `step` and an object `session`.
// `data` has a text for each file, and is empty where the file lacks it. Throws kBadData for any
// other.
nlohmann::json read_trainer_state(const std::filesystem::path& folder);

// Sets the weights from a file that has all of them.
void load_weights(const SafetensorsFile& stored, Model& model, Ops& ops);

std::filesystem::path checkpoint_folder(const std::filesystem::path& run, std::int64_t step);

// Steps of the checkpoints in a run folder, ascending. They look complete at a glance.
// Links to checkpoints elsewhere are somebody's own, and do not count.
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& run);

struct NewestCheckpoint {
  std::optional<std::int64_t> step;
  std::vector<std::string> ignored;  // newer folders that are incomplete or damaged, and why
};
NewestCheckpoint find_newest_checkpoint(const std::filesystem::path& run);

// Makes `name` in the run folder a link to the checkpoint of `step`, in one go.
void link_checkpoint(const std::filesystem::path& run, const std::string& name, std::int64_t step);

// Removes all but the newest `keep` checkpoints and those of the steps in `spared`.
void prune_checkpoints(const std::filesystem::path& run, std::int64_t keep,
                       const std::vector<std::int64_t>& spared);

// Removes the checkpoints of later steps than `last`.
void remove_checkpoints_after(const std::filesystem::path& run, std::int64_t last);

}  // namespace vcas
