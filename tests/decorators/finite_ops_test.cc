#include "kernels/decorators/finite_ops.h"

#include <limits>

#include "tests/decorators/fake_ops.h"
#include "tests/support/check_error.h"

using namespace vcas;

namespace {

std::string fault_of(FiniteOps& ops, const auto& args) {
  return error_text([&] { ops.run(args); }, ExitCode::kDiverged);
}

}  // namespace

TEST_CASE("the first number that is not finite has place, operation and inputs", "[finite]") {
  const auto [device, dtype] = GENERATE(
      std::pair("cpu", DType::kF32), std::pair("cpu", DType::kF64), std::pair("emu", DType::kBF16));
  FiniteOps ops(make_ops(device));
  TestMemory memory(ops);
  const Tensor x = memory.tensor(dtype, {2, 3}), y = memory.tensor(dtype, {2, 3});
  ops.run(Fill{x, 2});
  const GeluForward gelu{.y = y, .x = x};
  ops.run(Fill{x.first_rows(1), std::numeric_limits<double>::infinity()});
  CHECK(fault_of(ops, gelu) == "");  // nobody watches

  ops.watch();
  ops.enter("block.0");
  CHECK(fault_of(ops, gelu) ==
        "block.0: gelu_forward makes y[0, 0] inf, and 3 of 6 elements are not finite\n"
        "  x [2, 3]: 2 to 2, 3 not finite\n"
        "  what was not finite before came with the data, or from a layer's own loops");
  ops.run(Fill{x, 3e38});
  if (dtype != DType::kF64)
    CHECK_THAT(fault_of(ops, Add{.y = y, .a = x, .b = x}),
               ContainsSubstring("add makes y[0, 0] inf") && !ContainsSubstring("loops"));
  ops.run(Fill{x, 2});
  CHECK(fault_of(ops, gelu) == "");
}

TEST_CASE("elements that an operation does not set do not count", "[finite]") {
  FiniteOps ops(make_ops("cpu"));
  TestMemory memory(ops);
  const Tensor scale = memory.tensor(DType::kF32, {4}), score = memory.tensor(DType::kF32, {4});
  ops.run(Fill{scale, std::numeric_limits<double>::quiet_NaN()});
  ops.run(Fill{score, 0});  // nothing is drawn
  ops.watch();
  const Draw draw{.kept = memory.tensor(DType::kI32, {4}),
                  .scale = scale,
                  .count = memory.tensor(DType::kI32, {1}),
                  .prob = memory.tensor(DType::kF32, {4}),
                  .score = score,
                  .budget = 2,
                  .selection = Selection::kBernoulli};
  CHECK(fault_of(ops, draw) == "");
}
