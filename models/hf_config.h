// What config.json and preprocessor_config.json of Hugging Face say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"

namespace vcas {

// What config.json says.
struct HfModel {
  ModelOptions options;                   // with the vocabulary of a bert or gpt
  std::vector<std::int64_t> image_shape;  // {channels, height, width} of images
  std::vector<std::string> labels;        // names of the classes in order; empty: not given
  std::int32_t pad_token = 0;             // of a bert; written only
  std::int32_t separator = 0;             // between documents, of a gpt; written only
  // Empty where the file does not say; read only.
  std::string architecture;  // "BertForMaskedLM"
  std::string problem_type;  // "single_label_classification"
};

// Why transformers has no such model; empty where it has. `image_shape`: {channels, height, width}
// of images.
std::string hf_obstacle(const ModelOptions& options, const std::vector<std::int64_t>& image_shape);

// What preprocessor_config.json says of images.
struct HfImageProcessor {
  std::vector<float> mean, std;         // [channels]; empty: not given
  int resample = 2;                     // in numbers of Pillow: 2 bilinear, 3 bicubic
  std::vector<std::int64_t> size = {};  // {height, width} of what comes out; empty: not given
  std::int64_t short_side = 0;          // before the middle is cut out; 0: nothing is cut off
  bool squeeze = false;  // images of another shape change it, before the middle is cut out
};

// Throws Error(kBadData) for a file that is no such configuration, Error(kBadConfig) for a model
// that is not one of ours.
HfModel read_hf_config(const std::filesystem::path& file);
// The text of such a file. `classes`: of the classifier; not looked at for masked words.
std::string hf_config_text(const HfModel& description, std::int64_t classes);

constexpr const char* kHfImageProcessorFile = "preprocessor_config.json";

// What that file in the folder says, nothing where there is none. Throws
// Error(kBadData) for a file that is no such configuration, Error(kBadConfig) for images that are
// prepared otherwise than ours.
std::optional<HfImageProcessor> read_hf_image_processor(const std::filesystem::path& folder);
// The text of such a file, for images of `shape` [channels, height, width].
std::string image_processor_text(const HfImageProcessor& images,
                                 const std::vector<std::int64_t>& shape);

// `asked` with the sizes and dropout of the files that asked.pretrained names.
// Throws Error(kBadConfig) where the kind of model differs.
// It also throws that for a classifier of another kind of task, unless asked.new_classifier
// starts a new one. Throws what read_hf_config throws.
ModelOptions hf_options(const ModelOptions& asked);

}  // namespace vcas
