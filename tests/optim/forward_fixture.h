// A trainer with SampleF on a small data set, whose items are counted when they are read.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <thread>

#include "data/loader.h"
#include "data/synthetic.h"
#include "kernels/decorators/count_ops.h"
#include "optim/methods/vcas.h"
#include "optim/trainer.h"
#include "tests/optim/method_settings.h"
#include "tests/support/check_error.h"

namespace vcas {

enum class Content { kImages, kTexts, kNumbers };

// Images, or texts of 5, 1, 7, 3, 5, ... tokens with classes or numbers.
class CountingDataset final : public Dataset {
 public:
  static constexpr std::int64_t kClasses = 4, kVocabulary = 11;

  CountingDataset(Content content, std::int64_t items)
      : content_(content),
        images_(make_synthetic(
            {.items = items, .classes = kClasses, .shape = {1, 8, 8}, .noise = 2, .seed = 9})) {}

  std::int64_t size() const override { return images_->size(); }
  std::vector<std::int64_t> item_shape() const override {
    return content_ == Content::kImages ? images_->item_shape() : std::vector<std::int64_t>{8};
  }
  const std::vector<std::string>& class_names() const override { return images_->class_names(); }
  std::int32_t label(std::int64_t index) const override { return images_->label(index); }
  std::int64_t rows(std::int64_t index) const override {
    constexpr std::int64_t kLengths[] = {5, 1, 7, 3};
    return content_ == Content::kImages ? 1 : kLengths[index % 4];
  }
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override {
    ++read;
    std::this_thread::sleep_for(delay);
    if (content_ == Content::kImages) return images_->append(index, draw, out);
    const PhiloxAddress address = philox_address({.seed = 2, .stream = Stream::kData});
    if (out.offsets.empty()) out.offsets.push_back(0);
    for (std::int64_t t = 0; t < rows(index); ++t) {
      const float u = philox_uniform(address, static_cast<std::uint64_t>(8 * index + t));
      out.tokens.push_back(static_cast<std::int32_t>(u * static_cast<float>(kVocabulary)));
      out.token_types.push_back(0);
    }
    out.offsets.push_back(std::ssize(out.tokens));
    if (content_ == Content::kNumbers) out.targets.push_back(static_cast<float>(index % 5) - 2);
  }

  mutable std::atomic<std::int64_t> read{0};
  std::chrono::microseconds delay{0};

 private:
  Content content_;
  std::unique_ptr<Dataset> images_;
};

inline std::string config_error_of(const std::function<void()>& act) {
  const Error error = error_of(act);
  if (error.code() == ExitCode::kDone) return "no error";
  CHECK(error.code() == ExitCode::kBadConfig);
  return std::string(error.what()) + " | " + error.hint();
}

struct ForwardFixture {
  struct Settings {
    Content content = Content::kImages;
    std::int64_t items = 48, batch = 8, micro_batch = 0, total_steps = 30, prefetch = 2;
    double ratio = 0.5;        // 0: SampleF is off
    bool finds_ratio = false;  // by the budget controller
    bool probes = false, augments = false;
    double learning_rate = 3e-3, dropout = 0.1;
    std::string device = "cpu";
    std::uint64_t seed = 7;
    std::string method;  // settings of another method than VCAS with SampleF (read_method)
    std::string optimizer = "adamw";
    std::shared_ptr<Ranks> ranks = one_rank();
  };

  Settings settings;
  CountingDataset data;
  CountOps ops;
  std::unique_ptr<Model> model;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Loader> loader;

  explicit ForwardFixture(const Settings& wanted)
      : settings(wanted), data(wanted.content, wanted.items), ops(make_ops(wanted.device)) {
    model = build_model(model_options(), {1, 8, 8}, CountingDataset::kClasses, 0.0);
    const int ranks = settings.ranks->size();
    const std::int64_t most = settings.micro_batch ? settings.micro_batch : settings.batch / ranks;
    const bool text = settings.content != Content::kImages;
    const TrainerOptions options = trainer_options();
    options.method->prepare(*model);
    model->graph.finish(ops,
                        {.max_items = most, .max_tokens = text ? 8 * most : 0, .ranks = ranks});
    model->graph.parameters().initialize(ops, settings.seed);
    trainer = std::make_unique<Trainer>(*model, ops, options, nullptr);
  }

  ModelOptions model_options() const {
    const std::string dropout = "dropout=" + std::to_string(settings.dropout);
    if (settings.content == Content::kImages)
      return read_model_options(
          {"type=vit", "width=16", "depth=2", "heads=2", "patch=4", "ffn_ratio=2", dropout});
    return read_model_options(
        {"type=bert", "width=8", "depth=2", "heads=2", "max_positions=8",
         "vocabulary=" + std::to_string(CountingDataset::kVocabulary), dropout,
         settings.content == Content::kNumbers ? "head=regression" : "head=classification"});
  }

  TrainerOptions trainer_options() const {
    TrainerOptions options;
    options.total_steps = settings.total_steps;
    options.batch = settings.batch;
    options.micro_batch = settings.micro_batch;
    options.items = settings.items;
    options.seed = settings.seed;
    options.optimizer.kind.type = settings.optimizer;
    options.schedule.learning_rate = settings.learning_rate;
    options.ranks = settings.ranks;
    if (!settings.method.empty()) {
      options.method = read_method(settings.method);
      return options;
    }
    auto& vcas = dynamic_cast<VcasKind&>(*options.method);
    if (settings.probes)
      vcas.controller = "paper", vcas.update_every = 4, vcas.s_step = 0.2;
    else
      vcas.act_ratio = {1};
    vcas.forward = settings.ratio > 0;
    vcas.forward_ratio = settings.finds_ratio ? 0 : settings.ratio;
    if (settings.finds_ratio) {
      vcas.act_ratio.clear();
      vcas.controller = "budget";
      vcas.update_every = 4;
      vcas.tau_act = vcas.tau_w = vcas.tau_f = 0.3;
    }
    return options;
  }

  const Batch& next() {
    if (!loader)
      loader = std::make_unique<Loader>(
          data,
          LoaderOptions{
              .batch = settings.batch,
              .seed = settings.seed,
              .augment = {.crop_padding = settings.augments ? 1 : 0, .flip = settings.augments},
              .prefetch = settings.prefetch,
              .place = settings.ranks->place()},
          trainer->steps(), trainer->chooser());
    return loader->next();
  }

  // The numbers of the items of the steps from the present one to `until`.
  // `queues`: a step is queued while the device is at the one before.
  std::vector<std::vector<std::int64_t>> run(std::int64_t until, bool queues = false) {
    std::vector<std::vector<std::int64_t>> ids;
    const auto finish = [&](std::size_t most) {
      while (trainer->queued() > most) reports.push_back(trainer->finish());
    };
    while (trainer->steps() < until) {
      const Batch& batch = next();
      ids.push_back(batch.ids);
      const bool probed = trainer->queue(batch).probed;
      finish(queues && !probed ? 1 : 0);
    }
    finish(0);
    return ids;
  }
  std::vector<StepReport> reports;

  std::vector<float> weights() { return host(model->graph.parameters().masters()); }
  std::vector<float> gradient() {
    std::vector<float> all;
    for (const Tensor& one : model->graph.parameters().gradient_list())
      std::ranges::copy(host(one), std::back_inserter(all));
    return all;
  }
  std::vector<float> host(const Tensor& tensor) { return to_host<float>(ops, tensor); }
  ForwardSample& forward() const { return dynamic_cast<ForwardSample&>(*trainer->chooser()); }
};

// One batch is the whole data, and its gradient never changes.
inline ForwardFixture::Settings fixed_gradient(Content content, std::int64_t micro_batch,
                                               const std::string& device,
                                               const std::string& method = "") {
  return {.content = content,
          .items = 16,
          .batch = 16,
          .micro_batch = micro_batch,
          .total_steps = 1000,
          .learning_rate = 1e-30,
          .dropout = 0,
          .device = device,
          .method = method};
}

// || mean of the samples - exact ||^2 over what it is in the mean if that is their mean.
inline double error_of_mean(const std::vector<std::vector<double>>& samples,
                            const std::vector<double>& exact) {
  const auto count = static_cast<double>(samples.size());
  double error = 0, variance = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    double mean = 0;
    for (const auto& sample : samples) mean += sample[i] / count;
    for (const auto& sample : samples) variance += std::pow(sample[i] - mean, 2) / (count - 1);
    error += std::pow(mean - exact[i], 2);
  }
  return error / (variance / count);
}

inline std::vector<double> wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

inline std::vector<std::int64_t> numbers_to(std::int64_t count) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
  return numbers;
}

}  // namespace vcas
