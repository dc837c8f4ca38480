// Weights to start from, most of them in the form of Hugging Face, with its names and layouts.
// docs/models.md lists the classes that are read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/hf_config.h"
#include "models/model.h"

namespace vcas {

// What became of the tensors, in names of the file.
struct LoadReport {
  std::filesystem::path file;
  std::size_t loaded = 0;               // tensors of the file that are in the model now
  std::vector<std::string> missing;     // of the head: they keep their initial values
  std::vector<std::string> unexpected;  // in the file, and the model has no use for them

  // "loaded 103 tensors; new: classifier.weight, classifier.bias; unused: cls.predictions.bias"
  std::string text() const;
};

// Sets the weights of a finished model.
// Throws Error(kBadConfig) if a tensor is of another shape, or one below the head is missing.
// With options.new_classifier the classifier keeps its initial values.
LoadReport load_hf_weights(const std::filesystem::path& file, const ModelOptions& options,
                           Model& model, Ops& ops);

// The same for the model.safetensors of a checkpoint, with the names of ours.
// It also throws where parts of a head that was trained are missing, or have no place: a head is of
// one piece.
LoadReport load_own_weights(const std::filesystem::path& file, const ModelOptions& options,
                            Model& model, Ops& ops);

// Writes config.json and model.safetensors into the folder.
// Throws Error(kBadConfig) for a model that transformers has no class for.
void save_hf_model(const std::filesystem::path& folder, const HfModel& description,
                   const Model& model, Ops& ops);

}  // namespace vcas
