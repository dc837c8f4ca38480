#include "models/hf_files.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/read_json.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

// Tensor -> file, as the index has it.
std::map<std::string, std::string> read_weight_map(const fs::path& index) {
  try {
    return read_json(index).at("weight_map");
  } catch (const nlohmann::json::exception& e) {
    throw Error(ExitCode::kBadData, fmt::format("{}: no weight_map from tensors to files: {}",
                                                index.string(), e.what()));
  }
}

}  // namespace

HfFiles find_hf_files(const fs::path& path) {
  const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
  HfFiles files{folder.empty() ? "." : folder, folder / "config.json",
                fs::is_directory(path) ? path / "model.safetensors" : path};
  if (fs::is_directory(path) && !fs::exists(files.weights) && fs::exists(path / kIndex))
    files.weights = path / kIndex;
  const auto other_format = [](const fs::path& file, const char* what) {
    throw Error(ExitCode::kBadData, fmt::format("{}: {} are not read", file.string(), what),
                "load it in transformers and save it again: "
                "model.save_pretrained(FOLDER, max_shard_size=\"100GB\") writes model.safetensors");
  };
  if (files.weights.extension() == ".bin" || files.weights.extension() == ".pt")
    other_format(files.weights, "pickled PyTorch weights");
  if (!fs::exists(files.weights)) {
    if (fs::exists(folder / "pytorch_model.bin"))
      other_format(folder / "pytorch_model.bin", "pickled PyTorch weights");
    throw Error(
        ExitCode::kNoInput,
        fmt::format("{}: no such file{}", files.weights.string(),
                    fs::is_directory(path) ? "" : " or folder"),
        "model.pretrained is a run, or a folder with config.json, model.safetensors and, of texts, "
        "vocab.txt, of images, preprocessor_config.json, as save_pretrained of "
        "transformers writes it; tools/get_data gets some, such as bert-base-uncased");
  }
  if (!fs::exists(files.config))
    throw Error(ExitCode::kNoInput, fmt::format("{}: no such file", files.config.string()),
                "it belongs beside the weights and says how large the model is");
  return files;
}

HfWeights::HfWeights(const fs::path& path) {
  if (path.extension() != ".json") {
    open(path);
    return;
  }
  std::map<std::string, std::string> files = read_weight_map(path);
  std::set<std::string> names;
  for (const auto& [tensor, file] : files) names.insert(file);
  for (const std::string& name : names) {
    const fs::path file = path.parent_path() / name;
    if (fs::path(name).filename() != name)
      throw Error(ExitCode::kBadData,
                  fmt::format("{}: \"{}\" is no name of a file beside it", path.string(), name));
    if (!fs::exists(file))
      throw Error(ExitCode::kNoInput,
                  fmt::format("{}: no such file, and {} names it", file.string(), path.string()),
                  "the weights are in several files, and all are needed: copy or download it");
    for (std::size_t i = open(file); i < tensors_.size(); ++i) {
      const std::string& tensor = tensors_[i].stored->name;
      const auto named = files.find(tensor);
      if (named == files.end() || named->second != name)
        throw Error(
            ExitCode::kBadData,
            fmt::format("{}: tensor {} is here, and {} has it {}", file.string(), tensor,
                        path.string(), named == files.end() ? "nowhere" : "in " + named->second),
            "the files do not belong together: copy or download them again");
      files.erase(named);
    }
  }
  if (!files.empty())
    throw Error(ExitCode::kBadData,
                fmt::format("{}: tensor {} is not here, and {} has it here",
                            (path.parent_path() / files.begin()->second).string(),
                            files.begin()->first, path.string()),
                "the files do not belong together: copy or download them again");
}

std::size_t HfWeights::open(const fs::path& file) {
  const std::size_t first = tensors_.size();
  const SafetensorsFile& opened = files_.emplace_back(file);
  for (const StoredTensor& tensor : opened.tensors()) tensors_.push_back({&tensor, &opened});
  return first;
}

}  // namespace vcas
