// What training steps ask of a GPU, counted without computing anything (kernels/op_cost.h), and the
// least time an H200 could take for them. Prints a table.
#include <fmt/format.h>

#include <cstring>
#include <iostream>

#include "kernels/op_cost.h"
#include "optim/trainer.h"

namespace vcas {
namespace {

// Readings and data sheet of an H200 SXM; the cost of a launch on a stream, and of a kernel within
// a graph.
constexpr double kBytesPerSecond = 4.3e12, kLaunchSeconds = 4e-6, kGraphKernelSeconds = 1.3e-6;
constexpr double kF32FlopsPerSecond = 67e12, kTf32FlopsPerSecond = 415e12;

// Has no memory and computes nothing: what it is asked for is counted above it. What it gives back
// is zero.
class DryOps final : public Ops {
 public:
  std::string name() const override { return "dry"; }
  void* allocate(std::size_t bytes) override {
    next_ += (bytes + 255) / 256 * 256;
    return reinterpret_cast<void*>(next_);  // an address that nobody reads
  }
  void deallocate(void*, std::size_t) override {}
  void copy_to_device(void*, const void*, std::size_t) override {}
  void copy_to_host(void* host, const void*, std::size_t bytes) override {
    std::memset(host, 0, bytes);
  }
#define VCAS_OP(Args) \
  void run(const Args&) override {}
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

 private:
  std::uintptr_t next_ = 256;
};

struct Case {
  const char* name;
  ModelOptions model;
  std::vector<std::int64_t> item_shape;  // of images
  std::int64_t items, tokens;
};

Batch batch_of(const Case& c) {
  Batch batch{.items = c.items};
  batch.labels.assign(static_cast<std::size_t>(c.items), 0);
  if (!c.item_shape.empty()) {
    std::int64_t values = c.items;
    for (const std::int64_t extent : c.item_shape) values *= extent;
    batch.values.assign(static_cast<std::size_t>(values), 0.0f);
    return batch;
  }
  for (std::int64_t n = 0; n <= c.items; ++n) batch.offsets.push_back(n * c.tokens);
  batch.tokens.assign(static_cast<std::size_t>(c.items * c.tokens), 0);
  batch.token_types = batch.tokens;
  return batch;
}

void print_step(const Case& c, bool exact) {
  CountOps ops(std::make_unique<DryOps>());
  const std::unique_ptr<Model> model = build_model(c.model, c.item_shape, 3, 0);
  model->graph.finish(ops, {.max_items = c.items, .max_tokens = c.items * c.tokens});
  TrainerOptions options{.total_steps = 2, .batch = c.items};
  options.vcas.enabled = !exact;
  for (std::int64_t i = 0; i < c.model.depth; ++i)
    options.vcas.act_ratio.push_back(0.2 + 0.3 * static_cast<double>(i) /
                                               static_cast<double>(c.model.depth - 1));
  options.vcas.weight_ratio = {0.5};
  Trainer trainer(*model, ops, options, nullptr);
  const Batch batch = batch_of(c);
  trainer.step(batch);
  ops.reset();
  trainer.step(batch);

  Cost step;
  std::int64_t in_graph = 0;
  double f32 = 0, tf32 = 0;
  for (const CostRow& row : ops.rows()) {
    step.flops += row.flops;
    step.bytes += row.bytes;
    step.launches += row.launches;
    if (row.place.ends_with("/forward") || row.place.ends_with("/backward") ||
        row.place.ends_with("/sample"))
      in_graph += row.launches;
    const double moving = row.bytes / kBytesPerSecond;
    f32 += std::max(row.flops / kF32FlopsPerSecond, moving);
    tf32 += std::max(row.flops / kTf32FlopsPerSecond, moving);
  }
  const std::int64_t queued = step.launches - in_graph + 1;
  const double launching = kLaunchSeconds * static_cast<double>(step.launches);
  const double with_graph = kLaunchSeconds * static_cast<double>(queued) +
                            kGraphKernelSeconds * static_cast<double>(in_graph);
  std::cout << fmt::format(
      "| {} | {} x {} | {} | {:.2f} | {:.1f} | {} | {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} "
      "|\n",
      c.name, c.items, c.tokens, exact ? "exact" : "VCAS", step.flops / 1e12, step.bytes / 1e9,
      step.launches, queued, ops.waits(), 1e3 * (f32 + launching), 1e3 * (f32 + with_graph),
      1e3 * (tf32 + launching), 1e3 * (tf32 + with_graph));
}

ModelOptions transformer(const char* type, std::int64_t width, std::int64_t depth) {
  ModelOptions model;
  model.type = type;
  model.width = width;
  model.depth = depth;
  model.heads = width / 64;
  model.patch = 16;
  model.vocabulary = 30522;
  model.dropout = model.attention_dropout = model.type == "bert" ? 0.1 : 0.0;
  return model;
}

}  // namespace
}  // namespace vcas

int main() {
  using namespace vcas;
  std::cout << "| model | items x tokens | step | TFLOP | GB | launches | with a graph | waits | "
               "ms, f32 | with a graph | ms, tf32 | with a graph |\n"
               "|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  const std::vector<std::int64_t> image = {3, 224, 224};
  for (const Case& c : {Case{"BERT-base", transformer("bert", 768, 12), {}, 32, 128},
                        Case{"BERT-base", transformer("bert", 768, 12), {}, 256, 128},
                        Case{"BERT-large", transformer("bert", 1024, 24), {}, 32, 128},
                        Case{"ViT-base", transformer("vit", 768, 12), image, 32, 197}})
    for (const bool exact : {true, false}) print_step(c, exact);
}
