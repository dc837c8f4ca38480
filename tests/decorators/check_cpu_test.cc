#include "kernels/cpu/cpu_ops.h"
#include "kernels/decorators/check_ops.h"
#include "kernels/ops/samples.h"
#include "tests/support/catch.h"

using namespace vcas;

TEST_CASE("two builds of the CPU loops agree on every operation", "[check][cpu]") {
  const auto ops = make_check_ops(make_cpu_ops(CpuLevel::kBest), make_cpu_ops(CpuLevel::kBase));
  SampleSize size{.items = 8, .tokens = 16, .width = 64, .hidden = 96, .heads = 2, .patch = 4};
  for (const std::int64_t keep : {1, 4}) {
    size.keep = keep;
    Samples calls(*ops, size);
#define VCAS_OP(Args) CHECK_NOTHROW(ops->run(calls.make<Args>()));
    VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP
  }
}
