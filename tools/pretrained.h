// What model.pretrained names: weights in Hugging Face's form, or a checkpoint of a run.
#pragma once

#include <filesystem>

#include "models/hf_files.h"
#include "models/weights_io.h"
#include "tools/model_setup.h"
#include "tools/run_config.h"

namespace vcas {

// The folder also has files of the tokenizer or of images.
struct Pretrained : HfFiles {
  bool is_checkpoint = false;  // else in Hugging Face's form
};

// `path` is a run, whose newest checkpoint it is, a checkpoint, or what find_hf_files takes.
// Throws what that throws.
Pretrained find_pretrained(const std::filesystem::path& path);

// Its images, and the classes that its classifier has; none where it has no classifier.
// Throws Error(kBadData) for damaged files.
ModelFacts pretrained_facts(const Pretrained& from);

// Throws what load_hf_weights throws, and Error(kBadData) for a damaged checkpoint.
LoadReport load_pretrained(const Pretrained& from, const ModelOptions& options, Model& model,
                           Ops& ops);

// Gives `loaded` what the weights say: sizes and dropout of the model, the case of texts.
// model.pretrained becomes the checkpoint that a run now has.
// Throws Error(kBadConfig) where a given setting says otherwise.
void use_pretrained_settings(LoadedConfig& loaded);

// Whether model.pretrained names what is not there, so that it says nothing yet.
bool lacks_pretrained(const RunConfig& config);

// Whether the value of `key` is known: weights that are not there may decide it.
bool is_known(const LoadedConfig& loaded, const std::string& key);

}  // namespace vcas
