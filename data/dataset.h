// Labelled items that a Loader turns into batches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/philox.h"
#include "data/augment.h"
#include "data/batch.h"
#include "data/source_file.h"

namespace vcas {

enum class Split { kTrain, kTest };

// Sites of Stream::kData: no two uses of the data's randomness share an address.
enum class DataSite : std::uint32_t {
  kShuffle,
  kAugment,
  kSyntheticLabel,
  kSyntheticClass,
  kSyntheticMap,
  kSyntheticNoise,
  kMask,
  kWordnetSplit,
  kWordnetNegative,
  kResizedCrop,
  kValidation,
  kCutout,
  kSubset,
  kGenerate,
};

inline PhiloxAddress data_address(std::uint64_t seed, DataSite site, std::uint64_t epoch = 0) {
  return philox_address({.seed = seed,
                         .stream = Stream::kData,
                         .step = epoch,
                         .site = static_cast<std::uint32_t>(site)});
}

// An integer in [0, n) from 32 random bits; the bias is below n / 2^32.
inline std::int64_t uniform_below(std::uint32_t bits, std::uint32_t n) {
  return static_cast<std::int64_t>((std::uint64_t{bits} * n) >> 32);
}

// What the random part of an item depends on, besides its number: two epochs differ, and a resumed
// run draws what the uninterrupted one drew.
struct ItemDraw {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  AugmentOptions augment = {};  // images only
};

struct ImageTransformOptions;

// The const functions are called from the loader's threads and the caller's at the same time.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  // {channels, height, width} of images, {width} of feature vectors, {most rows of an item} of
  // texts.
  virtual std::vector<std::int64_t> item_shape() const = 0;
  // One name per class.
  virtual const std::vector<std::string>& class_names() const = 0;
  std::int64_t classes() const { return std::ssize(class_names()); }
  // In [0, classes()), or -1 where unknown.
  virtual std::int32_t label(std::int64_t index) const = 0;
  // Tokens of an item of text. 1 where items are alike. Known without reading the item.
  virtual std::int64_t rows(std::int64_t /*index*/) const { return 1; }
  // Appends the content of one item to `out`: values, or tokens with their offsets, and targets or
  // masked positions where the dataset has them. The loader adds label and number.
  virtual void append(std::int64_t index, const ItemDraw& draw, Batch& out) const = 0;
  // How images become values; null where there are none.
  virtual const ImageTransformOptions* image_transform() const { return nullptr; }

  // The files it was made from; none where nothing was read.
  virtual const std::vector<SourceFile>& sources() const { return sources_; }
  void set_sources(std::vector<SourceFile> sources) { sources_ = std::move(sources); }

 private:
  std::vector<SourceFile> sources_;
};

// A base for datasets that change something of another, which others may use too.
class ForwardingDataset : public Dataset {
 public:
  explicit ForwardingDataset(std::shared_ptr<const Dataset> inner) : inner_(std::move(inner)) {}

  std::int64_t size() const override { return inner_->size(); }
  std::vector<std::int64_t> item_shape() const override { return inner_->item_shape(); }
  const std::vector<std::string>& class_names() const override { return inner_->class_names(); }
  std::int32_t label(std::int64_t index) const override { return inner_->label(index); }
  std::int64_t rows(std::int64_t index) const override { return inner_->rows(index); }
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override {
    inner_->append(index, draw, out);
  }
  const ImageTransformOptions* image_transform() const override {
    return inner_->image_transform();
  }
  const std::vector<SourceFile>& sources() const override { return inner_->sources(); }

 protected:
  const std::shared_ptr<const Dataset> inner_;
};

// Another dataset with its classes renumbered: class i becomes ids[i], a permutation, and keeps its
// name.
class RelabelledDataset final : public ForwardingDataset {
 public:
  RelabelledDataset(std::unique_ptr<Dataset> inner, std::vector<std::int32_t> ids);

  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::int32_t label(std::int64_t index) const override {
    const std::int32_t label = inner_->label(index);
    return label < 0 ? label : ids_[label];
  }

 private:
  std::vector<std::int32_t> ids_;
  std::vector<std::string> class_names_;
};

// Names "0", "1", ...: for datasets that come without.
std::vector<std::string> numbered_classes(std::int64_t classes);
// Names from a file, plain or compressed: its lines without the blank ones.
// None, one twice, or one that is no UTF-8: kBadData.
std::vector<std::string> read_class_names(const std::filesystem::path& file);

struct VectorContent {
  std::int64_t width = 0;
  std::vector<float> values = {};         // [N, width]
  std::vector<std::int32_t> labels = {};  // [N]
  std::vector<std::string> class_names = {};
};

class VectorDataset final : public Dataset {
 public:
  // Throws Error(kBadData) for a label that is no class, and for too many or too few values.
  explicit VectorDataset(VectorContent content);

  std::int64_t size() const override { return std::ssize(content_.labels); }
  std::vector<std::int64_t> item_shape() const override { return {content_.width}; }
  const std::vector<std::string>& class_names() const override { return content_.class_names; }
  std::int32_t label(std::int64_t index) const override { return content_.labels[index]; }
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override;

 private:
  VectorContent content_;
};

}  // namespace vcas
