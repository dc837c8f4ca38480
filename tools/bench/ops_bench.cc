// Speed of every operation, also as a share of what this machine does in the same run.
// Shares are of the FLOP/s of the best large product, and of the bytes per second of a large copy.
// kernels/op_cost.h counts FLOPs and bytes. Tensors that fit a cache can pass the copy.
//
//   gathered_product   linear_backward_weight over half of the rows, read where they lie
//   copied_product     the same by copies, on a device (LinearBackwardWeight::copies_rows)
//   compacted_product  as many rows side by side, which are not copied
//   gathered_layer     the weight gradients of a block in one group, over half of the rows of 8 or
//                      16 items
// linear_backward_weight of "32x32 of 16" and so on compares half of the rows with all.
//
// On a GPU, and on emu, some run in other precisions, compared with a product in that precision:
//   TF32 and bf16  the first three above; convolutions, norms and activations of ResNets
//   bf16           every operation at the smallest size; gathered_layer; what a transformer is made
//                  of, at the sizes of its steps (bert_base_32 and so on)
//
//   vcas_ops_bench [--device=cpu] [--benchmark_filter=attention] [...]

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <limits>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "core/progress.h"
#include "kernels/decorators/each_tensor.h"
#include "kernels/op_cost.h"
#include "kernels/ops/samples.h"

namespace vcas {
namespace {

struct NamedSize {
  const char* name;
  SampleSize size;
};

constexpr NamedSize kSizes[] = {
    {"small", {.items = 8, .tokens = 16, .width = 64, .hidden = 256, .heads = 2, .patch = 4}},
    {"vit", {.items = 64, .tokens = 49, .width = 384, .hidden = 1536, .heads = 6, .patch = 16}},
    {"vit_quarter",
     {.items = 64, .tokens = 49, .width = 384, .hidden = 1536, .heads = 6, .patch = 16, .keep = 4}},
    {"convolution",
     {.items = 64, .tokens = 256, .width = 64, .hidden = 64, .patch = 2, .convolution = true}},
    {"narrow_convolution",
     {.items = 64, .tokens = 1024, .width = 16, .hidden = 16, .patch = 2, .convolution = true}},
};

// Weight gradients over every other row of a gradient that holds every other item.
constexpr NamedSize kGathered[] = {
    {"small", {.items = 8, .tokens = 16, .width = 64, .hidden = 256, .keep = 2}},
    {"768x768", {.items = 128, .tokens = 128, .width = 768, .hidden = 768, .keep = 2}},
    {"3072x768", {.items = 128, .tokens = 128, .width = 768, .hidden = 3072, .keep = 2}},
    {"1024x1024", {.items = 128, .tokens = 128, .width = 1024, .hidden = 1024, .keep = 2}},
    {"4096x1024", {.items = 128, .tokens = 128, .width = 1024, .hidden = 4096, .keep = 2}},
};

// Steps of 32 and 256 items.
constexpr NamedSize kTransformers[] = {
    {"bert_base_32",
     {.items = 32, .tokens = 128, .width = 768, .hidden = 3072, .heads = 12, .vocabulary = 30522}},
    {"bert_base_256",
     {.items = 256, .tokens = 128, .width = 768, .hidden = 3072, .heads = 12, .vocabulary = 30522}},
    {"bert_large_32",
     {.items = 32, .tokens = 128, .width = 1024, .hidden = 4096, .heads = 16, .vocabulary = 30522}},
    {"bert_large_256",
     {.items = 256,
      .tokens = 128,
      .width = 1024,
      .hidden = 4096,
      .heads = 16,
      .vocabulary = 30522}},
    {"vit_base_32", {.items = 32, .tokens = 197, .width = 768, .hidden = 3072, .heads = 12}},
    {"vit_base_256", {.items = 256, .tokens = 197, .width = 768, .hidden = 3072, .heads = 12}},
    {"vit_large_32", {.items = 32, .tokens = 197, .width = 1024, .hidden = 4096, .heads = 16}},
    {"vit_large_256", {.items = 256, .tokens = 197, .width = 1024, .hidden = 4096, .heads = 16}},
};
// clang-format off
#define VCAS_TRANSFORMER_OPS(X) \
  X(LinearForward) X(LinearBackwardInput) X(Group<LinearBackwardWeight>) X(Group<ColumnSum>) \
  X(AttentionForward) X(AttentionBackward) X(LayerNormForward) X(LayerNormBackward)          \
  X(GeluForward) X(GeluBackward) X(Dropout) X(Add) X(EmbeddingForward) X(EmbeddingBackward)  \
  X(DrawItems) X(GatherScaledRows) X(DrawRows) X(AdamStep)
// clang-format on

// A block's weight gradients over kept rows: of query, key and value, of what joins the heads, of
// the two wide layers.
struct BlockSize {
  const char* name;
  std::int64_t width, keep;
};
constexpr BlockSize kBlocks[] = {
    {"base_512", 768, 4}, {"base_1024", 768, 2}, {"large_512", 1024, 4}, {"large_1024", 1024, 2}};

// Convolutions of 3 x 3 of ResNets, and what stands between them, over one of `keep` items: pixels
// of an item by channels.
constexpr SampleSize convolution(std::int64_t items, std::int64_t side, std::int64_t channels,
                                 std::int64_t keep = 2) {
  return {.items = items,
          .tokens = side * side,
          .width = channels,
          .hidden = channels,
          .convolution = true,
          .keep = keep};
}
constexpr NamedSize kConvolutions[] = {{"4x4 of 8", convolution(2, 4, 8)},
                                       {"56x56 of 64", convolution(64, 56, 64)},
                                       {"28x28 of 128", convolution(64, 28, 128)},
                                       {"14x14 of 256", convolution(64, 14, 256)},
                                       {"7x7 of 512", convolution(64, 7, 512)}};

// Weight gradients of ResNet-20, over all rows of 128 items and over half of these rows. In the
// second case the gradient holds 128 of 256 items.
constexpr NamedSize kNarrow[] = {{"32x32 of 16, all rows", convolution(128, 32, 16, 1)},
                                 {"32x32 of 16, half", convolution(256, 32, 16)},
                                 {"16x16 of 32, all rows", convolution(128, 16, 32, 1)},
                                 {"16x16 of 32, half", convolution(256, 16, 32)},
                                 {"8x8 of 64, all rows", convolution(128, 8, 64, 1)},
                                 {"8x8 of 64, half", convolution(256, 8, 64)}};

struct Machine {
  double flops_per_second = 0;
  double bytes_per_second = 0;
};

// Until a device that queues its work has done it.
template <class Args>
void wait(Ops& ops, const Args& args) {
  const void* first = nullptr;  // output
  args.visit(EachTensor{[&](const char*, const Tensor& tensor, bool is_output) {
    if (is_output && !first) first = tensor.data;
  }});
  char byte = 0;
  ops.copy_to_host(&byte, first, sizeof byte);
}

template <class Args>
double best_seconds(Ops& ops, const Args& args) {
  constexpr int kRuns = 3;
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < 4; ++repeat) {
    wait(ops, args);
    const double start = monotonic_seconds();
    for (int run = 0; run < kRuns; ++run) ops.run(args);
    wait(ops, args);
    best = std::min(best, (monotonic_seconds() - start) / kRuns);
  }
  return best;
}

Machine measure(Ops& ops, DType dtype = DType::kF32) {
  Machine machine;
  for (const std::int64_t side : {1024, 4096, 8192}) {
    if (side > 1024 && ops.name() != "cuda") break;  // elsewhere it is large enough
    Samples calls(ops, {.items = side, .width = side, .hidden = side}, dtype);
    const auto product = calls.make<LinearForward>();
    machine.flops_per_second =
        std::max(machine.flops_per_second, op_cost(product).flops / best_seconds(ops, product));
  }
  Samples copy_calls(ops, {.items = 32768, .width = 1024});  // 128 MiB
  const auto copy = copy_calls.make<Copy>();
  machine.bytes_per_second = op_cost(copy).bytes / best_seconds(ops, copy);
  return machine;
}

// Times run(), which ends with `args` or stands for it.
template <class Args, class Run>
void time_calls(benchmark::State& state, Ops& ops, const Machine& machine, const Args& args,
                const Run& run) {
  wait(ops, args);
  const double start = monotonic_seconds();
  std::int64_t left = static_cast<std::int64_t>(state.max_iterations);
  for (auto _ : state) {
    run();
    if (--left == 0) wait(ops, args);
  }
  const double seconds = (monotonic_seconds() - start) / static_cast<double>(state.iterations());
  const Cost cost = op_cost(args);
  state.counters["GB/s"] = cost.bytes / seconds / 1e9;
  state.counters["of_copy"] = cost.bytes / seconds / machine.bytes_per_second;
  if (cost.flops == 0) return;
  state.counters["GFLOP/s"] = cost.flops / seconds / 1e9;
  state.counters["of_gemm_peak"] = cost.flops / seconds / machine.flops_per_second;
}

template <class Args>
void add_benchmark(Ops& ops, const NamedSize& size, const Machine& machine,
                   const std::string& suffix = "", DType dtype = DType::kF32) {
  benchmark::RegisterBenchmark(fmt::format("{}/{}{}", Args::kName, size.name, suffix).c_str(),
                               [&ops, &size, &machine, dtype](benchmark::State& state) {
                                 Samples calls(ops, size.size, dtype);
                                 const auto args = calls.make<Args>();
                                 time_calls(state, ops, machine, args, [&] { ops.run(args); });
                               })
      ->UseRealTime();
}

void add_gathered(Ops& ops, const NamedSize& size, const Machine& machine, const char* precision,
                  DType dtype = DType::kF32) {
  const auto add = [&](const char* name, auto prepare) {
    benchmark::RegisterBenchmark(fmt::format("{}/{}/{}", name, size.name, precision).c_str(),
                                 [&ops, &size, &machine, dtype, prepare](benchmark::State& state) {
                                   Samples calls(ops, size.size, dtype);
                                   auto args = calls.make<LinearBackwardWeight>();
                                   prepare(args);
                                   time_calls(state, ops, machine, args, [&] { ops.run(args); });
                                 })
        ->UseRealTime();
  };
  using Args = LinearBackwardWeight;
  add("gathered_product", [](Args& args) { args.copies = false; });
  add("copied_product", [](Args& args) { args.copies = true; });
  add("compacted_product", [](Args& args) {
    const std::int64_t rows = args.kept.elements();
    args = {.dweight = args.dweight,
            .dy = args.dy.range(0, rows),
            .x_full = args.x_full.range(0, rows)};
  });
}

void add_block(Ops& ops, const BlockSize& block, const Machine& machine, DType dtype) {
  benchmark::RegisterBenchmark(
      fmt::format("gathered_layer/{}/bf16", block.name).c_str(),
      [&ops, &block, &machine, dtype](benchmark::State& state) {
        std::deque<Samples> samples;
        Group<LinearBackwardWeight> group;
        for (const auto& [in, out] : {std::pair{1, 3}, {1, 1}, {1, 4}, {4, 1}})
          group.add(samples
                        .emplace_back(ops,
                                      SampleSize{.items = 32,
                                                 .tokens = 128,
                                                 .width = in * block.width,
                                                 .hidden = out * block.width,
                                                 .keep = block.keep},
                                      dtype)
                        .make<LinearBackwardWeight>());
        time_calls(state, ops, machine, group, [&] { ops.run(group); });
      })
      ->UseRealTime();
}

// One row of each two is kept, at random: gaps differ, as those of drawn rows do.
void add_narrow(Ops& ops, const NamedSize& size, const Machine& machine) {
  benchmark::RegisterBenchmark(
      fmt::format("{}/{}", LinearBackwardWeight::kName, size.name).c_str(),
      [&ops, &size, &machine](benchmark::State& state) {
        Samples calls(ops, size.size, DType::kF32);
        const auto args = calls.make<LinearBackwardWeight>();
        std::mt19937 random(1);
        std::vector<std::int32_t> kept(static_cast<std::size_t>(args.kept.elements()));
        for (std::size_t i = 0; i < kept.size(); ++i)
          kept[i] = static_cast<std::int32_t>(2 * i + random() % 2);
        if (args.kept) ops.copy_to_device(args.kept.data, kept.data(), args.kept.bytes());
        time_calls(state, ops, machine, args, [&] { ops.run(args); });
      })
      ->UseRealTime();
}

template <class... Args>
void add_convolution(Ops& ops, const NamedSize& size, const Machine& machine,
                     const std::string& suffix, DType dtype) {
  (add_benchmark<Args>(ops, size, machine, suffix, dtype), ...);
}

int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::string device = "auto";
  if (constexpr std::string_view kFlag = "--device=";
      argc > 1 && std::string_view(argv[1]).starts_with(kFlag)) {
    device = argv[1] + kFlag.size();
    argv[1] = argv[0];
    ++argv, --argc;
  }
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return static_cast<int>(ExitCode::kUsage);

  const std::unique_ptr<Ops> ops = make_ops(device);
  const Machine machine = measure(*ops);
  benchmark::AddCustomContext("device", ops->name());
  benchmark::AddCustomContext("product",
                              fmt::format("{:.1f} GFLOP/s", machine.flops_per_second / 1e9));
  benchmark::AddCustomContext("copy", fmt::format("{:.1f} GB/s", machine.bytes_per_second / 1e9));
  for (const NamedSize& size : kSizes) {
#define VCAS_OP(Args) add_benchmark<Args>(*ops, size, machine);
    VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP
  }
  for (const NamedSize& size : kGathered) add_gathered(*ops, size, machine, "f32");
  for (const NamedSize& size : kNarrow) add_narrow(*ops, size, machine);
  struct {
    Precision precision;
    const char* name;
    std::unique_ptr<Ops> ops = {};
    Machine machine = {};
  } tensor_cores[] = {{Precision::kTf32, "tf32"}, {Precision::kBf16, "bf16"}};
  for (auto& [precision, name, in_precision, peak] : tensor_cores) {
    if (ops->name() == "cpu") break;
    const DType dtype = compute_dtype(precision);
    in_precision = make_ops(ops->name(), precision);
    peak = measure(*in_precision, dtype);
    benchmark::AddCustomContext(fmt::format("product in {}", name),
                                fmt::format("{:.1f} GFLOP/s", peak.flops_per_second / 1e9));
    for (const NamedSize& size : kGathered) add_gathered(*in_precision, size, peak, name, dtype);
    for (const NamedSize& size : kConvolutions)
      add_convolution<LinearForward, LinearBackwardInput, LinearBackwardWeight, GroupNormForward,
                      GroupNormBackward, PointwiseForward<Relu>, PointwiseBackward<Relu>>(
          *in_precision, size, peak, fmt::format("/{}", name), dtype);
    if (precision != Precision::kBf16) continue;
#define VCAS_OP(Args) add_benchmark<Args>(*in_precision, kSizes[0], peak, "/bf16", dtype);
    VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP
    for (const BlockSize& block : kBlocks) add_block(*in_precision, block, peak, dtype);
    for (const NamedSize& size : kTransformers) {
#define VCAS_OP(Args) add_benchmark<Args>(*in_precision, size, peak, "/bf16", dtype);
      VCAS_TRANSFORMER_OPS(VCAS_OP)
#undef VCAS_OP
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace vcas

int main(int argc, char** argv) {
  try {
    return vcas::run(argc, argv);
  } catch (const vcas::Error& failure) {
    fmt::print(stderr, "vcas_ops_bench: {}\n", failure.what());
    return static_cast<int>(failure.code());
  }
}
