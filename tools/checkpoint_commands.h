// vcas eval, predict and export: what can be done with a trained model.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace vcas {

struct CheckpointRequest {
  std::filesystem::path folder;  // a checkpoint, or a run whose newest one is meant
  std::vector<std::string> overrides = {};
  bool json = false;
};

// Loss and measures on the test data of the configuration.
void evaluate_checkpoint(const CheckpointRequest& request);

// Prints a line for each item of `inputs` with its class, or its number of a regression: for each
// row of a table with the text columns of the configuration, for each image of files and folders.
// With `submission` the files of a GLUE task are predicted and submissions are written there
// instead: those of `split`, and with MNLI's test split those of test_mismatched and diagnostic
// where they are.
struct PredictRequest {
  CheckpointRequest checkpoint;
  std::vector<std::filesystem::path> inputs = {};
  bool probabilities = false;             // a column for each class besides
  std::filesystem::path submission = {};  // folder
  std::string split = "test";
};
void predict(const PredictRequest& request);

// Writes a folder that transformers loads: config.json, model.safetensors and, of a text model,
// the vocabulary.
void export_checkpoint(const CheckpointRequest& request, const std::filesystem::path& target);

}  // namespace vcas
