#include "data/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/sizes.h"
#include "data/image_dataset.h"
#include "data/image_kind.h"
#include "data/text_kind.h"
#include "data/wordpiece.h"

namespace vcas {
namespace {

constexpr const char* kItems = "data.synthetic";  // in messages

struct ItemClass {
  std::int64_t drawn;  // decides the content
  std::int32_t label;  // what the dataset says: another one under label noise
};

template <class Options>
ItemClass item_class(const Options& options, std::int64_t item) {
  std::uint32_t words[4];
  philox_draw(data_address(options.seed, DataSite::kSyntheticLabel), item, words);
  const auto classes = static_cast<std::uint32_t>(options.classes);
  const std::int64_t drawn = uniform_below(words[0], classes);
  const bool noisy = uniform_from_bits(words[1]) < options.label_noise;
  return {drawn, static_cast<std::int32_t>(noisy ? uniform_below(words[2], classes) : drawn)};
}

std::vector<double> normals(const PhiloxAddress& address, std::int64_t count) {
  std::vector<double> values(count);
  for (std::int64_t i = 0; i < count; ++i) values[i] = philox_normal(address, i);
  return values;
}

std::unique_ptr<Dataset> make_vectors(const SyntheticOptions& options) {
  constexpr std::int64_t kLatent = 16;
  VectorContent content;
  content.width = options.shape[0];
  content.class_names = numbered_classes(options.classes);
  const std::vector<double> centres =  // [classes, kLatent]
      normals(data_address(options.seed, DataSite::kSyntheticClass), options.classes * kLatent);
  const std::vector<double> map =  // [width, kLatent]
      normals(data_address(options.seed, DataSite::kSyntheticMap), content.width * kLatent);
  const PhiloxAddress noise = data_address(options.seed, DataSite::kSyntheticNoise);
  const double scale = 1.0 / std::sqrt(double{kLatent});
  for (std::int64_t item = options.first_item; item < options.first_item + options.items; ++item) {
    const ItemClass kind = item_class(options, item);
    content.labels.push_back(kind.label);
    double latent[kLatent];
    for (std::int64_t l = 0; l < kLatent; ++l)
      latent[l] = centres[kind.drawn * kLatent + l] +
                  options.noise * philox_normal(noise, item * kLatent + l);
    for (std::int64_t j = 0; j < content.width; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < kLatent; ++l) sum += map[j * kLatent + l] * latent[l];
      content.values.push_back(static_cast<float>(std::tanh(scale * sum)));
    }
  }
  return std::make_unique<VectorDataset>(std::move(content));
}

std::unique_ptr<Dataset> make_images(const SyntheticOptions& options) {
  constexpr double kMiddle = 127.5;
  constexpr double kSignal = 40.0;
  ImageContent content;
  content.shape = options.shape;
  content.class_names = numbered_classes(options.classes);
  content.transform = options.transform;
  std::vector<float>& mean = content.transform.mean;
  std::vector<float>& std = content.transform.std;
  const std::int64_t channels = options.shape[0], height = options.shape[1],
                     width = options.shape[2], size = channels * height * width;
  if (mean.empty()) mean.assign(channels, 0.5f);
  if (std.empty()) std.assign(channels, 0.25f);
  const PhiloxAddress waves = data_address(options.seed, DataSite::kSyntheticClass);
  // [class][channels, height, width], empty until an item has drawn the class
  std::vector<std::vector<double>> patterns(static_cast<std::size_t>(options.classes));
  const auto pattern_of = [&](std::int64_t drawn) -> const std::vector<double>& {
    std::vector<double>& pattern = patterns[drawn];
    for (std::int64_t c = 0; c < channels && std::ssize(pattern) < size; ++c) {
      std::uint32_t words[4];
      philox_draw(waves, drawn * channels + c, words);
      const auto periods_down = static_cast<double>(1 + uniform_below(words[0], 3));
      const auto periods_across = static_cast<double>(1 + uniform_below(words[1], 3));
      const double phase = uniform_from_bits(words[2]);
      for (std::int64_t y = 0; y < height; ++y) {
        for (std::int64_t x = 0; x < width; ++x) {
          const double turns = phase +
                               periods_down * static_cast<double>(y) / static_cast<double>(height) +
                               periods_across * static_cast<double>(x) / static_cast<double>(width);
          pattern.push_back(std::sin(2.0 * std::numbers::pi * turns));
        }
      }
    }
    return pattern;
  };
  const PhiloxAddress noise = data_address(options.seed, DataSite::kSyntheticNoise);
  for (std::int64_t item = options.first_item; item < options.first_item + options.items; ++item) {
    const ItemClass kind = item_class(options, item);
    content.labels.push_back(kind.label);
    const std::vector<double>& pattern = pattern_of(kind.drawn);
    for (std::int64_t i = 0; i < size; ++i) {
      const double value = pattern[i] + options.noise * philox_normal(noise, item * size + i);
      content.pixels.push_back(static_cast<std::uint8_t>(
          std::lround(std::clamp(kMiddle + kSignal * value, 0.0, 255.0))));
    }
  }
  return std::make_unique<ImageDataset>(std::move(content));
}

void require(bool holds, const std::string& message) {
  if (!holds) throw Error(ExitCode::kBadConfig, "synthetic data: " + message);
}

template <class Options>
void check_items(const Options& options) {
  require(options.items > 0, fmt::format("items must be above 0, got {}", options.items));
  require(options.first_item >= 0,
          fmt::format("first_item must not be negative, got {}", options.first_item));
  require(options.classes > 0 && options.classes <= std::numeric_limits<std::int32_t>::max(),
          fmt::format("classes must be from 1 to 2^31 - 1, got {}", options.classes));
  require(options.noise >= 0 && std::isfinite(options.noise),
          fmt::format("noise must be finite and not negative, got {}", options.noise));
  require(options.label_noise >= 0 && options.label_noise <= 1,
          fmt::format("label_noise must be from 0 to 1, got {}", options.label_noise));
}

}  // namespace

std::unique_ptr<Dataset> make_synthetic(const SyntheticOptions& options) {
  const auto& shape = options.shape;
  require(shape.size() == 1 || shape.size() == 3,
          fmt::format("shape [{}] must be [width] or [channels, height, width]",
                      fmt::join(shape, ", ")));
  require(std::all_of(shape.begin(), shape.end(), [](std::int64_t n) { return n > 0; }),
          fmt::format("shape [{}] must be above 0", fmt::join(shape, ", ")));
  check_items(options);
  std::int64_t bytes =
      checked_product({options.items, shape.size() == 1 ? std::int64_t{sizeof(float)} : 1}, kItems);
  for (const std::int64_t size : shape) bytes = checked_product({bytes, size}, kItems);
  check_room(bytes, kItems);
  return shape.size() == 1 ? make_vectors(options) : make_images(options);
}

Vocabulary synthetic_vocabulary(std::int64_t tokens) {
  constexpr std::int64_t kTokenBytes = 100;  // with the tables that find it
  check_room(checked_product({tokens, kTokenBytes}, kItems), kItems);
  std::string text;
  for (const char* token : kSpecialTokens) text += fmt::format("{}\n", token);
  for (std::int64_t w = 0; w < tokens - std::ssize(kSpecialTokens); ++w)
    text += fmt::format("w{}\n", w);
  return parse_vocab_txt(text, "synthetic", true);
}

std::unique_ptr<TextDataset> make_synthetic_text(const SyntheticTextOptions& options) {
  constexpr std::int32_t kCls = 2, kSep = 3;
  check_items(options);
  const std::int64_t words = options.vocabulary - std::ssize(kSpecialTokens);
  require(options.tokens >= 3, fmt::format("tokens must be from 3, got {}", options.tokens));
  require(words >= options.classes && options.vocabulary <= std::numeric_limits<int>::max(),
          fmt::format("vocabulary must have {} special tokens and a word of each class, got {}",
                      std::size(kSpecialTokens), options.vocabulary));
  check_room(checked_product({options.items, options.tokens, sizeof(std::int32_t)}, kItems),
             kItems);
  TokenContent content;
  content.class_names = numbered_classes(options.classes);
  content.offsets = {0};
  const PhiloxAddress noise = data_address(options.seed, DataSite::kSyntheticNoise);
  for (std::int64_t item = options.first_item; item < options.first_item + options.items; ++item) {
    const ItemClass kind = item_class(options, item);
    content.labels.push_back(kind.label);
    content.tokens.push_back(kCls);
    for (std::int64_t i = 1; i + 1 < options.tokens; ++i) {
      std::uint32_t random[4];
      philox_draw(noise, static_cast<std::uint64_t>(item * options.tokens + i), random);
      std::int64_t word = uniform_below(random[0], static_cast<std::uint32_t>(words));
      if (uniform_from_bits(random[1]) * (1 + options.noise) < 1) {
        const std::int64_t of_class = (words - kind.drawn - 1) / options.classes + 1;
        word = kind.drawn +
               options.classes * uniform_below(random[2], static_cast<std::uint32_t>(of_class));
      }
      content.tokens.push_back(static_cast<std::int32_t>(std::ssize(kSpecialTokens) + word));
    }
    content.tokens.push_back(kSep);
    content.offsets.push_back(std::ssize(content.tokens));
  }
  return std::make_unique<TextDataset>(std::move(content));
}

namespace {

// data.synthetic, with the settings that all synthetic data have.
template <class Options>
Setting& add_sizes(Setting& v, Options& options, std::int64_t& eval_items) {
  Setting& sizes = v.section("synthetic", "Sizes of synthetic data.");
  sizes.field("items", options.items, "Items to train on.", between(1, 1 << 30));
  sizes.field("eval_items", eval_items, "Items to evaluate on.", between(1, 1 << 30));
  sizes.field("classes", options.classes, "Number of classes.", between(2, 1 << 24));
  sizes.field("noise", options.noise, "Noise in units of the signal.", at_least(0.0));
  sizes.field("label_noise", options.label_noise, "Share of items whose label is drawn anew.",
              between(0.0, 1.0));
  return sizes;
}

template <class Options>
Options of_request(Options options, std::int64_t eval_items, const DataRequest& request) {
  if (request.split == Split::kTest) {
    options.first_item = options.items;
    options.items = eval_items;
  }
  options.seed = request.seed;
  return options;
}

class SyntheticValues final : public ImageKind {
 public:
  void fields(Setting& v) {
    ImageKind::fields(v);
    add_sizes(v, options_, eval_items_)
        .field("shape", shape_, "[width] of vectors, or [channels, height, width] of images.",
               between(1, 1 << 20));
  }

  std::string summary() const override { return "random numbers"; }
  DataFacts facts() const override { return {.is_made_up = true}; }
  const ImageSettings* images() const override {
    return shape_.size() == 3 ? ImageKind::images() : nullptr;
  }
  void check(const DataOptions&, ConfigErrors& errors) const override {
    constexpr double kMostValues = 1 << 26;
    const double values = std::accumulate(shape_.begin(), shape_.end(), 1.0, std::multiplies<>());
    if (values > kMostValues)
      errors.add({"synthetic.shape"},
                 fmt::format("must have at most {:.0f} values, got {:.0f}", kMostValues, values));
    if (shape_.size() != 1 && shape_.size() != 3)
      errors.add(
          {"synthetic.shape"},
          fmt::format("must be [width] or [channels, height, width], got {} sizes", shape_.size()));
    if (shape_.size() != 3 && (flip_ || crop_padding_ > 0))
      errors.add({flip_ ? "flip" : "crop_padding", "type"},
                 "needs images, and data.synthetic.shape is one of vectors");
  }
  std::vector<std::string> idle_settings(const DataOptions&) const override {
    std::vector<std::string> idle;
    if (images()) return idle;
    for (const ConfigChange& change : config_changes(ImageSettings(), image_))
      idle.push_back(fmt::format(
          "data.image.{} has no effect: data.synthetic.shape is one of vectors", change.key));
    return idle;
  }

  OpenedData open(const DataRequest& request) const override {
    SyntheticOptions options = of_request(options_, eval_items_, request);
    options.shape = {shape_.begin(), shape_.end()};
    options.transform = request.transform;
    return {.items = make_synthetic(options)};
  }

 private:
  SyntheticOptions options_;
  std::int64_t eval_items_ = 1024;
  std::vector<int> shape_ = {64};
};
VCAS_REGISTER_PART(DataKind, "synthetic", SyntheticValues);

class SyntheticTexts final : public DataKind {
 public:
  void fields(Setting& v) {
    Setting& sizes = add_sizes(v, options_, eval_items_);
    sizes.field("tokens", options_.tokens, "Tokens of an item of synthetic_text.",
                between(3, 1 << 24));
    sizes.field("vocabulary", options_.vocabulary, "Tokens of the vocabulary of synthetic_text.",
                between(16, 1 << 30));
    add_class_names(v.section("text", kTextHelp), classes_);
  }

  std::string summary() const override { return "random words"; }
  DataFacts facts() const override { return {.text = true, .is_made_up = true}; }
  OpenedData open(const DataRequest& request) const override {
    auto texts = make_synthetic_text(of_request(options_, eval_items_, request));
    const std::span<const std::int32_t> tokens = texts->content().tokens;
    return {.items = std::move(texts), .tokens = tokens};
  }
  std::vector<std::string> given_classes() const override { return classes_; }
  std::unique_ptr<Tokenizer> make_tokenizer(const std::filesystem::path&) const override {
    return std::make_unique<WordPiece>(synthetic_vocabulary(options_.vocabulary));
  }

 private:
  SyntheticTextOptions options_{.classes = 10};
  std::int64_t eval_items_ = 1024;
  std::vector<std::string> classes_;
};
VCAS_REGISTER_PART(DataKind, "synthetic_text", SyntheticTexts);

}  // namespace

}  // namespace vcas
