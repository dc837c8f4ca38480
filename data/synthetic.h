// Classification problems made from random numbers: no file needed, any size, any difficulty. Every
// value has a Philox address, so item i is the same however many items are made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/dataset.h"
#include "data/image_transform.h"
#include "data/text_dataset.h"
#include "data/vocabulary.h"

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

struct SyntheticTextOptions {
  std::int64_t items = 4096;
  std::int64_t first_item = 0;
  std::int64_t classes = 2;
  std::int64_t tokens = 128;        // of every item, [CLS] and [SEP] included
  std::int64_t vocabulary = 30522;  // tokens of `synthetic_vocabulary`
  double noise = 1.0;  // a word is one of its class's with probability 1 / (1 + noise), else any
  double label_noise = 0.0;
  std::uint64_t seed = 0;
};

// [PAD], [UNK], [CLS], [SEP], [MASK], then made-up words: word w is one of class w mod `classes`.
Vocabulary synthetic_vocabulary(std::int64_t tokens);
std::unique_ptr<TextDataset> make_synthetic_text(const SyntheticTextOptions& options);

}  // namespace vcas
