// vcas eval, predict, generate and export: what can be done with a trained model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace vcas {

struct CheckpointRequest {
  std::filesystem::path folder;  // a checkpoint, or a run whose newest one is meant
  std::vector<std::string> overrides = {};
  bool json = false;
};

// Prints loss and measures on the test data of the configuration.
void evaluate_checkpoint(const CheckpointRequest& request);

// Prints a line for each item of `inputs`: its class, or its number in a regression.
// An item is an image, or a row of a table with the text columns of the configuration.
// Given `submission`, writes the files of a benchmark there instead: those of `split`.
// MNLI's test split has those of test_mismatched and diagnostic too, if they are there.
struct PredictRequest {
  CheckpointRequest checkpoint;
  std::vector<std::filesystem::path> inputs = {};
  bool probabilities = false;             // a column for each class besides
  std::filesystem::path submission = {};  // folder
  std::string split = "test";
};
void predict(const PredictRequest& request);

// Prints a text, and then token by token how the model goes on with it.
// It stops at the end of a document.
struct GenerateRequest {
  CheckpointRequest checkpoint;
  std::string prompt = {};
  std::int64_t tokens = 100;
  double temperature = 1;  // divides the logits; 0: always the most probable token
  std::int64_t top_k = 0;  // draw among the most probable so many; 0: among all
  std::uint64_t seed = 0;
};
void generate(const GenerateRequest& request);

// Writes a folder that transformers loads: config.json and model.safetensors.
// Text models have the vocabulary there too.
void export_checkpoint(const CheckpointRequest& request, const std::filesystem::path& target);

}  // namespace vcas
