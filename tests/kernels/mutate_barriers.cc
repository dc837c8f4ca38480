// Runs every operation on the emulated device without one barrier of kernels/device.
//   vcas_mutate_barriers                 lists the barriers, "<file>:<line>"
//   vcas_mutate_barriers PLACE ORDER     looks at the results without that barrier
// The exit status is 0 where they are those with the barrier. Else it is 1, or what a crash gives.
// ORDER of the threads is forward, reverse or random. PLACE "none" leaves out none.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/emu/emu_ops.h"
#include "kernels/emu/leave_out.h"
#include "kernels/ops/samples.h"
#include "tests/kernels/outputs.h"

namespace vcas {
namespace {

// Several tiles of everything that goes by tiles; then several rounds of what one block does.
const SampleSize kSizes[] = {
    {.items = 6, .tokens = 49, .width = 48, .hidden = 80, .heads = 2, .patch = 4, .keep = 1},
    {.items = 6, .tokens = 49, .width = 48, .hidden = 80, .heads = 2, .patch = 4, .keep = 3}};
const SampleSize kRounds = {.items = 2200, .tokens = 1, .width = 4};
const SampleSize kEchoes = {.items = 600, .tokens = 1, .width = 4, .keep = 3};
// A draw by one warp of scores that others have written.
const SampleSize kFewItems = {.items = 60, .tokens = 8, .width = 48};
const SampleSize kIndependentDraws = {
    .items = 2200, .tokens = 1, .width = 4, .selection = Selection::kBernoulli};
// Rows that do not lie on packs, so that no lane holds a part.
const SampleSize kOddRows = {.items = 4, .tokens = 4, .width = 35};
// A sum over more rows than are on their way at once.
const SampleSize kLongSum = {.items = 12, .tokens = 49, .width = 48, .hidden = 80, .keep = 3};
// A gathered product by specialized warps.
const SampleSize kSpecialized = {.items = 40, .tokens = 49, .width = 128, .hidden = 256, .keep = 2};
// Convolutions. Their sums are put where their last stage lies.
const SampleSize kConvolution = {
    .items = 2, .tokens = 49, .width = 32, .hidden = 80, .convolution = true};

// Attention on tensor cores, by more tiles than the grid has.
const SampleSize kLongItem = {.items = 2, .tokens = 81, .width = 32, .heads = 2};

using Outputs = std::vector<std::vector<std::byte>>;

Outputs outputs(emu::ThreadOrder order) {
  Outputs out;
  const auto collect = [&](Ops& ops, const auto& args) {
    ops.run(args);
    add_outputs(ops, args, out);
  };
  for (const SampleSize& size : kSizes) {
    const std::unique_ptr<Ops> ops = make_emu_ops(order);
    Samples calls(*ops, size);
#define VCAS_OP(Args) collect(*ops, calls.make<Args>());
    VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP
  }
  const std::unique_ptr<Ops> ops = make_emu_ops(order);
  Samples convolution_calls(*ops, kConvolution);
  collect(*ops, convolution_calls.make<LinearForward>());
  Samples calls(*ops, kRounds);
  collect(*ops, calls.make<KeepProbability>());
  collect(*ops, calls.make<Draw>());
  collect(*ops, calls.make<NarrowRows>());
  collect(*ops, calls.make<DrawItems>());
  Samples echoes(*ops, kEchoes);
  collect(*ops, echoes.make<DrawEcho>());
  Samples odd(*ops, kOddRows);
  collect(*ops, odd.make<LayerNormForward>());
  Samples few(*ops, kFewItems);
  collect(*ops, few.make<DrawItems>());
  Samples independent(*ops, kIndependentDraws);
  collect(*ops, independent.make<Draw>());

  for (const auto& [precision, warpgroup_products] :
       {std::pair{Precision::kTf32, false}, {Precision::kBf16, false}, {Precision::kBf16, true}}) {
    const std::unique_ptr<Ops> tensor_cores = make_emu_ops(order, precision, warpgroup_products);
    Samples long_sum(*tensor_cores, kLongSum, compute_dtype(precision));
    collect(*tensor_cores, long_sum.make<LinearBackwardWeight>());
    Samples specialized(*tensor_cores, kSpecialized, compute_dtype(precision));
    if (warpgroup_products) collect(*tensor_cores, specialized.make<LinearBackwardWeight>());
    Samples convolution(*tensor_cores, kConvolution, compute_dtype(precision));
    collect(*tensor_cores, convolution.make<LinearForward>());
  }

  // One item of many tiles: its blocks go round. Without tensor cores, and with them.
  const auto collect_attention = [&](Ops& some_ops, const SampleSize& size, DType dtype,
                                     const std::vector<std::int64_t>& uneven) {
    Samples long_item(some_ops, size, dtype);
    const auto forward = long_item.make<AttentionForward>();
    const auto backward = long_item.make<AttentionBackward>();
    for (const Tensor& offsets : {forward.offsets, backward.offsets, backward.offsets_full})
      some_ops.copy_to_device(offsets.data, uneven.data(), uneven.size() * sizeof uneven[0]);
    collect(some_ops, forward);
    collect(some_ops, backward);
  };
  collect_attention(*ops, kSizes[0], DType::kF32,
                    {0, 4, 8, 12, 16, 20, kSizes[0].items * kSizes[0].tokens});
  for (const Precision precision : {Precision::kTf32, Precision::kBf16})
    collect_attention(*make_emu_ops(order, precision), kLongItem, compute_dtype(precision),
                      {0, 4, kLongItem.items * kLongItem.tokens});
  return out;
}

// "<file>:<line>" of every barrier, and of every wait and fence of asynchronous work.
std::vector<std::string> barriers() {
  std::vector<std::string> places;
  for (const auto& file : std::filesystem::directory_iterator(VCAS_SOURCE_DIR "/kernels/device")) {
    if (file.path().filename() == "ptx.cuh") continue;  // which defines them
    std::ifstream lines(file.path());
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number)
      if (line.find("__syncthreads()") != std::string::npos ||
          line.find("__syncwarp()") != std::string::npos ||
          line.find("barrier_arrive(") != std::string::npos ||
          line.find("barrier_sync(") != std::string::npos ||
          line.find("copy_async_arrive(") != std::string::npos ||
          line.find("copy_async_wait<") != std::string::npos ||
          line.find("mbarrier_wait(") != std::string::npos ||
          line.find("fence_async_proxy()") != std::string::npos ||
          line.find("wgmma_fence(") != std::string::npos ||
          line.find("wgmma_wait(") != std::string::npos)
        places.push_back(fmt::format("{}:{}", file.path().filename().string(), number));
  }
  std::sort(places.begin(), places.end());
  return places;
}

emu::ThreadOrder order_of(const std::string& name) {
  if (name == "reverse") return emu::ThreadOrder::kReverse;
  return name == "random" ? emu::ThreadOrder::kRandom : emu::ThreadOrder::kForward;
}

int run(int argc, char** argv) {
  if (argc != 3) {
    for (const std::string& place : barriers()) std::cout << place << "\n";
    return 0;
  }
  const std::string place = argv[1];
  const Outputs want = outputs(emu::ThreadOrder::kForward);
  emu::leave_out_barrier(place == "none" ? "" : place);
  return outputs(order_of(argv[2])) == want ? 0 : 1;
}

}  // namespace
}  // namespace vcas

int main(int argc, char** argv) {
  try {
    return vcas::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "vcas_mutate_barriers: " << error.what() << "\n";
    return 1;
  }
}
