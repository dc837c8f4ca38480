// Classification problems made from random numbers: no file needed, any size, any difficulty. Every
// value has a Philox address, so item i is the same however many items are made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/dataset.h"
#include "data/image_transform.h"

namespace vcas {

struct SyntheticOptions {
  std::int64_t items = 4096;
  std::int64_t first_item = 0;  // a test set is the same problem from another first item
  std::int64_t classes = 10;
  // {width}: Gaussian clusters in a latent space, tanh of a fixed random map of it.
  // {channels, height, width}: one wave per class and channel, with noise, as bytes.
  std::vector<std::int64_t> shape = {64};
  double noise = 1.0;        // of the latent, or of a pixel; in units of the signal
  double label_noise = 0.0;  // this share of the items gets a label drawn anew from all classes
  std::uint64_t seed = 0;
  ImageTransformOptions transform = {};  // of images; without mean or std: those of the noise
};

std::unique_ptr<Dataset> make_synthetic(const SyntheticOptions& options);

}  // namespace vcas
