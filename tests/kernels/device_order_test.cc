// Device kernels give the same bits whatever the order of threads and blocks.
#include "kernels/emu/emu_ops.h"
#include "kernels/op_cost.h"
#include "kernels/ops/samples.h"
#include "tests/kernels/outputs.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

SampleSize small_size(std::int64_t keep, bool convolution,
                      Selection selection = Selection::kSystematic) {
  return {.items = 6,
          .tokens = 49,
          .width = 48,
          .hidden = 80,
          .heads = 2,
          .patch = 4,
          .convolution = convolution,
          .keep = keep,
          .selection = selection};
}

// Every output of every operation, in the order of the list.
std::vector<std::vector<std::byte>> outputs(emu::ThreadOrder order, std::int64_t keep, DType dtype,
                                            bool warpgroup_products, bool convolution) {
  const std::unique_ptr<Ops> ops = make_emu_ops(order, Precision::kF32, warpgroup_products);
  const Selection selection = keep == 1 ? Selection::kBernoulli : Selection::kSystematic;
  Samples calls(*ops, small_size(keep, convolution, selection), dtype);
  std::vector<std::vector<std::byte>> out;
  const auto collect = [&](const auto& args) {
    ops->run(args);
    add_outputs(*ops, args, out);
  };
#define VCAS_OP(Args) collect(calls.make<Args>());
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP
  return out;
}

}  // namespace

TEST_CASE("operations launch what their cost says", "[device][op_cost]") {
  const std::unique_ptr<Ops> ops = make_emu_ops();
  const auto check = [&](const auto& args) {
    const std::int64_t before = emu_launches(*ops);
    ops->run(args);
    INFO(args.kName);
    CHECK(emu_launches(*ops) - before == op_cost(args).launches);
  };
  for (const auto& [keep, convolution] : {std::pair{1, false}, {3, false}, {1, true}, {3, true}}) {
    Samples calls(*ops, small_size(keep, convolution));
#define VCAS_OP(Args) check(calls.make<Args>());
    VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP
    auto copied = calls.make<LinearBackwardWeight>();
    copied.copies = true;
    check(copied);
  }
  for (const std::int64_t width : {47, 48})
    for (const std::int64_t hidden : {80, 81}) {
      Samples calls(*ops, {.items = 2, .tokens = 3, .width = width, .hidden = hidden},
                    DType::kBF16);
      check(calls.make<LinearForward>());
    }
}

TEST_CASE("the order of threads does not change a bit", "[device]") {
  for (const auto& [dtype, warpgroup_products] :
       {std::pair{DType::kF32, false}, {DType::kBF16, false}, {DType::kBF16, true}})
    for (const auto& [keep, convolution] : {std::pair{1, false}, {3, false}, {3, true}}) {
      INFO(std::string(dtype_name(dtype)) << ", keep " << keep);
      const auto run = [&, dtype = dtype, warpgroup_products = warpgroup_products, keep = keep,
                        convolution = convolution](emu::ThreadOrder order) {
        return outputs(order, keep, dtype, warpgroup_products, convolution);
      };
      const auto want = run(emu::ThreadOrder::kForward);
      for (const auto order : {emu::ThreadOrder::kReverse, emu::ThreadOrder::kRandom})
        CHECK(run(order) == want);
    }
}
