// The files of a model in Hugging Face's form.
#pragma once

#include <deque>
#include <filesystem>
#include <vector>

#include "core/safetensors.h"

namespace vcas {

struct HfFiles {
  std::filesystem::path folder, config, weights;
};

// `path` is a folder, or the file with its weights: model.safetensors, or the index of several.
// Throws Error(kNoInput) where one is missing, Error(kBadData) for weights in another format, with
// what to do.
HfFiles find_hf_files(const std::filesystem::path& path);

struct HfTensor {
  const StoredTensor* stored;
  const SafetensorsFile* file;

  std::vector<float> read_floats() const { return file->read_floats(*stored); }
};

// The tensors of a safetensors file, or of those beside it that model.safetensors.index.json names.
class HfWeights {
 public:
  // Throws Error(kNoInput) where a file is missing, Error(kBadData) where the index and the files
  // do not have the same tensors.
  explicit HfWeights(const std::filesystem::path& path);
  HfWeights(const HfWeights&) = delete;
  HfWeights& operator=(const HfWeights&) = delete;

  const std::deque<SafetensorsFile>& files() const { return files_; }
  const std::vector<HfTensor>& tensors() const { return tensors_; }

 private:
  std::size_t open(const std::filesystem::path& file);  // the number of its first tensor

  std::deque<SafetensorsFile> files_;  // which stay where they are
  std::vector<HfTensor> tensors_;
};

}  // namespace vcas
