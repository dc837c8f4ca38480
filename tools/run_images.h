// The images of a run: what its settings and its model make of them.
#pragma once

#include "data/image_files.h"
#include "data/image_transform.h"
#include "tools/run_config.h"
#include "tools/run_data.h"

namespace vcas {

// What the settings say of images, then what the trained model or the pretrained weights had.
// Nothing of texts.
ImageTransformOptions image_transform(const RunConfig& config, const ModelFacts* trained);

// Decodes images on all threads, with a bar where it takes long.
ImageCheck image_check(const RunConfig& config);

}  // namespace vcas
