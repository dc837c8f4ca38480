// What kinds of images have in common: settings, augmentation, files to predict.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/data_kind.h"

namespace vcas {

// data.image.
struct ImageSettings {
  std::int64_t size = 0;
  std::int64_t short_side = 0;
  std::string fit = "auto";
  std::string interpolation = "auto";
  std::vector<double> mean, std;
  std::vector<double> crop_scale;
  std::vector<double> crop_ratio = {3.0 / 4.0, 4.0 / 3.0};
  std::int64_t cutout = 0;

  void fields(Setting& v);
  void validate(ConfigErrors& errors) const;
};

class ImageKind : public DataKind {
 public:
  void fields(Setting& v) { add_image_section(v); }

  DataFacts facts() const override { return {.is_predictable = true}; }
  // Image files and those of folders, or one file of items as this kind has them. Missing:
  // kNoInput; bad: kBadData when their turn comes, or left out where the request has a check.
  OpenedData open_unlabelled(const DataRequest& request,
                             const std::vector<std::filesystem::path>& inputs,
                             const std::vector<std::int64_t>& item_shape) const override;
  const ImageSettings* images() const override { return &image_; }
  AugmentOptions augment() const override;

 protected:
  // Returns data.image, for the fields of one kind.
  Setting& add_image_section(Setting& v);
  // A file of items without labels. Null: this kind has no such files.
  virtual std::unique_ptr<Dataset> open_records(const DataRequest& /*request*/,
                                                const std::filesystem::path& /*file*/) const {
    return nullptr;
  }

  std::int64_t crop_padding_ = 0;
  bool flip_ = false;
  ImageSettings image_;
};

}  // namespace vcas
