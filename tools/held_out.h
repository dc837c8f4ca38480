// A share of the training data that is held out for evaluation (data.validation_share): whoever
// goes on with the weights must not evaluate on what they were trained on.
#pragma once

#include <filesystem>

#include "tools/run_config.h"
#include "tools/run_data.h"

namespace vcas {

// Throws kBadConfig where `config` holds out another share of the same data than `saved`.
void check_split(const RunConfig& saved, const RunConfig& config);

// Throws kBadData unless the files are those that the checkpoint was trained with, wherever they
// lie now. `saved`: its fingerprints of them.
void check_held_out_data(const std::filesystem::path& checkpoint, const nlohmann::json& saved,
                         const RunData& data);

// For a fork of the checkpoint, whose data may be others. Throws kBadConfig where they are the same
// and are split otherwise, and where a file has changed. Returns a warning where no file is known,
// else nothing.
std::string check_forked_split(const std::filesystem::path& checkpoint, const RunConfig& config,
                               const RunData& data);

}  // namespace vcas
