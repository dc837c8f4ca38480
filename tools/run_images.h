// The images of a run: what its configuration names, and what its model makes of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/image_transform.h"
#include "tools/run_config.h"
#include "tools/run_data.h"

namespace vcas {

// What the settings say of images, then what the trained model or the pretrained weights had.
ImageTransformOptions image_transform(const RunConfig& config, const ModelFacts* trained);

struct RunImages {
  std::unique_ptr<Dataset> data;
  std::int64_t checked = 0;               // images decoded before anything else
  std::vector<std::string> skipped = {};  // what is wrong with those that were left out
  std::string note = {};                  // on what was read
};

// `known_classes`: those of the training data, where they have been read. With `check`, or with
// data.skip_bad_rows, all files of images are decoded.
RunImages load_images(const RunConfig& config, Split split, const ImageTransformOptions& transform,
                      const std::vector<std::string>& known_classes, bool check);

// Image files and those of folders; or one file of images as idx and cifar data have it. Missing:
// kNoInput; bad: kBadData when their turn comes, or left out with data.skip_bad_rows.
Unlabelled load_unlabelled_images(const RunConfig& config, const ModelFacts& trained,
                                  const std::vector<std::filesystem::path>& inputs);

}  // namespace vcas
