// Models in the form of Hugging Face: config.json and model.safetensors, with the names and layouts
// of BertForSequenceClassification, BertForMaskedLM and ViTForImageClassification. docs/models.md
// lists what is read.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"

namespace vcas {

// What config.json says.
struct HfModel {
  ModelOptions options;                   // with the vocabulary of a bert
  std::vector<std::int64_t> image_shape;  // {channels, height, width} of a vit
  std::vector<std::string> labels;        // names of the classes in order; empty: not given
  std::int32_t pad_token = 0;             // of a bert; written only
};

// What preprocessor_config.json says of images.
struct HfImageProcessor {
  std::vector<float> mean, std;         // [channels]; empty: not given
  int resample = 2;                     // in numbers of Pillow: 2 bilinear, 3 bicubic
  std::vector<std::int64_t> size = {};  // {height, width} of what comes out; empty: not given
  std::int64_t short_side = 0;          // before the middle is cut out; 0: nothing is cut off
  bool squeeze = false;  // images of another shape change it, before the middle is cut out
};

struct HfFiles {
  std::filesystem::path folder, config, weights;
};

// `path` is a folder, or the safetensors file in it. Throws Error(kNoInput) where one is missing,
// Error(kBadData) for weights in another format, with what to do.
HfFiles find_hf_files(const std::filesystem::path& path);

// Throws Error(kBadData) for a file that is no such configuration, Error(kBadConfig) for a model
// that is not one of ours.
HfModel read_hf_config(const std::filesystem::path& file);

constexpr const char* kHfImageProcessorFile = "preprocessor_config.json";

// Of that file in the folder, nothing where there is none. Throws
// Error(kBadData) for a file that is no such configuration, Error(kBadConfig) for images that are
// prepared otherwise than ours.
std::optional<HfImageProcessor> read_hf_image_processor(const std::filesystem::path& folder);
// The text of such a file, for images of `shape` [channels, height, width].
std::string image_processor_text(const HfImageProcessor& images,
                                 const std::vector<std::int64_t>& shape);

// `asked` with the sizes and dropout of the files that asked.pretrained names. Throws
// Error(kBadConfig) where the kind of model differs.
ModelOptions pretrained_options(const ModelOptions& asked);

// What became of the tensors, in names of the file.
struct LoadReport {
  std::size_t loaded = 0;               // tensors of the file that are in the model now
  std::vector<std::string> missing;     // of the head: they keep their initial values
  std::vector<std::string> unexpected;  // in the file, and the model has no use for them

  // "loaded 103 tensors; new: classifier.weight, classifier.bias; unused: cls.predictions.bias"
  std::string text() const;
};

// Sets the weights of a finished model. Throws Error(kBadConfig) where a tensor below the head is
// missing or of another shape, and where one of the head is of another shape; with
// options.new_classifier the classifier keeps its initial values, whatever the file has.
LoadReport load_hf_weights(const std::filesystem::path& file, const ModelOptions& options,
                           Model& model, Ops& ops);

// Writes config.json and model.safetensors into the folder. Throws Error(kBadConfig) for a model
// that transformers has no class for.
void save_hf_model(const std::filesystem::path& folder, const HfModel& description,
                   const Model& model, Ops& ops);

}  // namespace vcas
