// A finished model on the CPU with a batch of random images or text, for tests of whole graphs.
#pragma once

#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "core/philox.h"
#include "core/read_numbers.h"
#include "models/model.h"
#include "optim/methods/sampled_backward.h"
#include "tests/support/text_batch.h"

namespace vcas {

// Parameters in f32, then the state, of a model on the CPU.
inline std::vector<float> stored_numbers(const Model& model) {
  std::vector<float> all;
  for (const Parameter& parameter : model.graph.parameters().stored())
    all.insert(all.end(), parameter.value.ptr<float>(),
               parameter.value.ptr<float>() + parameter.value.elements());
  return all;
}

// What a tensor on the CPU holds, f32 or f64.
inline std::vector<double> wide_numbers(const Tensor& tensor) {
  std::vector<double> out(static_cast<std::size_t>(tensor.elements()));
  read_numbers(tensor.data, tensor.dtype, std::span(out));
  return out;
}

enum class SamplingMode {
  kExact,
  kItems,         // SampleA only
  kItemsAndRows,  // SampleA and SampleW
};

// One backward of the fixture.
struct PassSettings {
  SamplingMode mode = SamplingMode::kExact;
  SampledBackward::Pass sampling;
  bool adds_gradients = true;
  double loss_scale = 1;
  BackwardHooks* hooks = nullptr;  // instead of `mode`
};

struct ModelFixture {
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
  std::vector<Tensor> gradients;
  std::unique_ptr<SampledBackward> sampled;
  std::uint64_t seed = 5;

  ModelFixture(const ModelOptions& options, const std::vector<std::int64_t>& item_shape,
               std::int64_t classes, std::int64_t items, DType dtype = DType::kF32,
               std::unique_ptr<Ops> device = make_ops("cpu"))
      : ops(std::move(device)), model(build_model(options, item_shape, classes, 0.0, dtype)) {
    Graph& graph = model->graph;
    const bool text = options.kind->reads_text();
    if (text) graph.keep(model->hidden);
    const std::int64_t tokens = text ? items * options.kind->max_positions() : 0;
    graph.finish(*ops, {.max_items = items, .max_tokens = tokens, .max_masked = tokens});
    graph.parameters().initialize(*ops, seed);
    gradients = graph.parameters().gradient_list();
    sampled = std::make_unique<SampledBackward>(*ops, graph.plan());
    if (text) {
      model->load(*ops, random_text(items, options.kind->vocabulary(), classes), 0, items);
      return;
    }
    graph.set_batch(items, {});
    const Tensor images = input("values"), labels = input("labels");
    const PhiloxAddress address = philox_address({seed, Stream::kData, 0, 0, 0});
    for (std::int64_t i = 0; i < images.elements(); ++i)
      images.ptr<float>()[i] =
          static_cast<float>(philox_normal(address, static_cast<std::uint64_t>(i)));
    for (std::int64_t i = 0; i < items; ++i)
      labels.ptr<std::int32_t>()[i] = static_cast<std::int32_t>(i % classes);
  }

  // The input of that name, which is there.
  Tensor input(std::string_view name) const {
    return model->graph.tensor(std::ranges::find_if(model->inputs, [&](const ModelInput& input) {
                                 return model->graph.plan().nodes[input.value.index].name == name;
                               })->value);
  }

  Exec exec(std::uint64_t step = 0) { return model->graph.make_exec(seed, step, true); }
  Exec forward(std::uint64_t step = 0) {
    Exec exec = this->exec(step);
    model->graph.forward(exec);
    return exec;
  }

  PassSettings context(SamplingMode mode, double act_ratio, double weight_ratio,
                       Selection selection = Selection::kBernoulli) const {
    const Graph& graph = model->graph;
    return {.mode = mode,
            .sampling = {.ratios = equal_ratios(graph.plan(), act_ratio, weight_ratio),
                         .selection = selection},
            .loss_scale = 1.0 / static_cast<double>(graph.tensor(model->loss).rows())};
  }

  BackwardContext use(const PassSettings& settings) {
    sampled->pass = settings.sampling;
    sampled->pass.samples_rows = settings.mode == SamplingMode::kItemsAndRows;
    BackwardHooks* hooks = settings.mode == SamplingMode::kExact ? nullptr : sampled.get();
    return {.gradients = {gradients, settings.adds_gradients},
            .loss_scale = settings.loss_scale,
            .hooks = settings.hooks ? settings.hooks : hooks};
  }

  // All gradients of one backward, which before are zero, or 7 where they are replaced.
  std::vector<double> gradient(Exec& exec, const PassSettings& settings) {
    const Tensor& slab = model->graph.parameters().gradients();
    ops->run(Fill{.y = slab, .value = 0});
    if (!settings.adds_gradients)
      for (const Tensor& gradient : gradients) ops->run(Fill{.y = gradient, .value = 7});
    model->graph.backward(exec, use(settings));
    return wide_numbers(slab);
  }

  double mean_loss(Exec& exec) {
    model->graph.forward(exec);
    const std::vector<double> terms = wide_numbers(model->graph.tensor(model->loss));
    return std::accumulate(terms.begin(), terms.end(), 0.0) / static_cast<double>(terms.size());
  }

  // Elements of one parameter in the slab of gradients.
  std::pair<std::size_t, std::size_t> range(const Parameter& parameter) const {
    const auto [begin, end] = model->graph.parameters().range(parameter);
    return {static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
  }
};

// Weights of deviation 0.02 leave attention nearly uniform and gradients nearly zero.
inline void enlarge_weights(const Parameters& parameters, double factor) {
  for (const Parameter& parameter : parameters.list())
    if (parameter.init.kind == Initializer::Kind::kNormal)
      for (std::int64_t i = 0; i < parameter.value.elements(); ++i) {
        if (parameter.value.dtype == DType::kF64)
          parameter.value.ptr<double>()[i] *= factor;
        else
          parameter.value.ptr<float>()[i] *= static_cast<float>(factor);
      }
}

}  // namespace vcas
