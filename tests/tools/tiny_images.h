// A folder for small runs on images, and IDX files for them.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/tools/program.h"

// A folder with what a small run needs:
//   vit        a pretrained Vision Transformer that reads 8 x 8
//   cifar      CIFAR-10 of two classes: 2 is brighter at the top, 5 at the bottom
//   tiny.json  fine-tunes the one on the other
class TinyImages : public TinyFolder {
 public:
  TinyImages()
      : TinyFolder(R"({
  "threads": 1,
  "data": {"type": "cifar10", "folder": "cifar", "flip": true, "image": {"crop_scale": [0.5, 1]}},
  "model": {"type": "vit", "pretrained": "vit", "new_classifier": true},
  "train": {"steps": 60, "batch_size": 16, "eval_every": 60},
  "optimizer": {"name": "adam"},
  "schedule": {"learning_rate": 0.01},
  "method": {"update_every": 10}
})") {
    std::filesystem::create_directories(path() / "vit");
    for (const char* name : {"config.json", "model.safetensors"})
      std::filesystem::copy_file(
          std::filesystem::path(VCAS_SOURCE_DIR) / "tests/golden/hf/vit" / name,
          path() / "vit" / name);
    write_processor({});
    std::filesystem::create_directories(path() / "cifar");
    write_text(path() / "cifar/data_batch_1.bin", records(64));
    write_text(path() / "cifar/test_batch.bin", records(16));
  }

  // With `content` besides what each has.
  void write_processor(const nlohmann::json& content) const {
    nlohmann::json whole = {{"image_mean", {0.5, 0.4, 0.3}},
                            {"image_std", {0.5, 0.25, 0.2}},
                            {"resample", 2},
                            {"size", 8}};
    if (content.is_object()) whole.update(content);
    write_text(path() / "vit/preprocessor_config.json", whole.dump());
  }

  static std::string records(int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      bytes += static_cast<char>(i % 2 == 0 ? 2 : 5);
      for (int value = 0; value < 3072; ++value)
        bytes += static_cast<char>((value % 1024 < 512) == (i % 2 == 0) ? 170 + (value + i) % 60
                                                                        : 30 + (value * i) % 60);
    }
    return bytes;
  }
};

// IDX files of `count` images of 8 x `width` in three classes, each with bright rows of its own.
inline void write_idx(const std::filesystem::path& folder, const std::string& prefix,
                      std::uint8_t count, std::uint8_t width = 6) {
  const auto header = [](std::uint8_t dims, std::initializer_list<std::uint8_t> sizes) {
    std::string text = {0, 0, 8, static_cast<char>(dims)};
    for (const std::uint8_t size : sizes) text += std::string(3, '\0') + static_cast<char>(size);
    return text;
  };
  std::string images = header(3, {count, 8, width}), labels = header(1, {count});
  for (int i = 0; i < count; ++i) {
    labels += static_cast<char>(i % 3);
    for (int y = 0; y < 8; ++y)
      for (int x = 0; x < width; ++x)
        images += static_cast<char>((y / 3 == i % 3 ? 200 : 20) + (i * 7 + y * x) % 40);
  }
  std::filesystem::create_directories(folder);
  write_text(folder / (prefix + "-images-idx3-ubyte"), images);
  write_text(folder / (prefix + "-labels-idx1-ubyte"), labels);
}

inline const std::vector<std::string> kIdx = {"model.pretrained=",
                                              "model.new_classifier=false",
                                              "data.type=idx",
                                              "data.folder=idx",
                                              "data.image.crop_scale=[]",
                                              "model.width=16",
                                              "model.depth=1",
                                              "model.heads=2",
                                              "model.patch=2"};

inline Outcome train_idx(const TinyImages& tiny, const std::vector<std::string>& settings) {
  return tiny.train(with(kIdx, settings));
}
