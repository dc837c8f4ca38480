// Speed of every operation, also as a share of what this machine does in the same run: of the
// FLOP/s of a 1024^3 product, and of the bytes per second of a large copy (kernels/op_cost.h counts
// both). Tensors that fit a cache can pass the copy.
//
//   vcas_ops_bench [--device=cpu] [--benchmark_filter=attention] [...]

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <string_view>
#include <vector>

#include "kernels/op_cost.h"
#include "tools/bench/op_calls.h"

namespace vcas {
namespace {

struct NamedSize {
  const char* name;
  OpSize size;
};

constexpr NamedSize kSizes[] = {
    {"small", {.items = 8, .tokens = 16, .width = 64, .hidden = 256, .heads = 2, .patch = 4}},
    {"vit", {.items = 64, .tokens = 49, .width = 384, .hidden = 1536, .heads = 6, .patch = 16}},
    {"vit_quarter",
     {.items = 64, .tokens = 49, .width = 384, .hidden = 1536, .heads = 6, .patch = 16, .keep = 4}},
};

struct Machine {
  double flops_per_second = 0;
  double bytes_per_second = 0;
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Until a device that queues its work has done it.
template <class Args>
void wait(Ops& ops, const Args& args) {
  struct FirstOutput {
    const void* data = nullptr;
    void out(const char*, const Tensor& tensor, bool = false) {
      if (!data) data = tensor.data;
    }
    void in(const char*, const Tensor&) {}
  } first;
  args.visit(first);
  char byte = 0;
  ops.copy_to_host(&byte, first.data, sizeof byte);
}

template <class Args>
double best_seconds(Ops& ops, const Args& args) {
  constexpr int kRuns = 3;
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < 4; ++repeat) {
    wait(ops, args);
    const Clock::time_point start = Clock::now();
    for (int run = 0; run < kRuns; ++run) ops.run(args);
    wait(ops, args);
    best = std::min(best, seconds_since(start) / kRuns);
  }
  return best;
}

Machine measure(Ops& ops) {
  OpCalls product_calls(ops, {.items = 1024, .width = 1024, .hidden = 1024});
  const auto product = product_calls.make<LinearForward>();
  OpCalls copy_calls(ops, {.items = 32768, .width = 1024});  // 128 MiB
  const auto copy = copy_calls.make<Copy>();
  return {op_cost(product).flops / best_seconds(ops, product),
          op_cost(copy).bytes / best_seconds(ops, copy)};
}

template <class Args>
void add_benchmark(Ops& ops, const NamedSize& size, const Machine& machine) {
  benchmark::RegisterBenchmark(
      fmt::format("{}/{}", Args::kName, size.name).c_str(),
      [&ops, &size, &machine](benchmark::State& state) {
        OpCalls calls(ops, size.size);
        const auto args = calls.make<Args>();
        wait(ops, args);
        const Clock::time_point start = Clock::now();
        for (auto _ : state) ops.run(args);
        wait(ops, args);
        const double seconds = seconds_since(start) / static_cast<double>(state.iterations());
        const Cost cost = op_cost(args);
        state.counters["GB/s"] = cost.bytes / seconds / 1e9;
        state.counters["of_copy"] = cost.bytes / seconds / machine.bytes_per_second;
        if (cost.flops == 0) return;
        state.counters["GFLOP/s"] = cost.flops / seconds / 1e9;
        state.counters["of_gemm_peak"] = cost.flops / seconds / machine.flops_per_second;
      })
      ->UseRealTime();
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
  benchmark::AddCustomContext("1024^3 product",
                              fmt::format("{:.1f} GFLOP/s", machine.flops_per_second / 1e9));
  benchmark::AddCustomContext("copy", fmt::format("{:.1f} GB/s", machine.bytes_per_second / 1e9));
  for (const NamedSize& size : kSizes) {
#define VCAS_OP(Args) add_benchmark<Args>(*ops, size, machine);
    VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP
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
