#include <cstdint>

#include "tests/core/environment.h"
#include "tests/support/check_error.h"
#include "tests/support/check_op.h"

using namespace vcas;

#if VCAS_ASAN
// A size that cannot be had gives null, as without the sanitizer.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#elif VCAS_TSAN
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }
#endif

namespace {

Error refused(const std::string& device, Precision precision = Precision::kF32) {
  return error_of([&] { make_ops(device, precision); });
}

}  // namespace

TEST_CASE("memory is zeroed, aligned and refused politely", "[cpu_ops]") {
  const std::unique_ptr<Ops> ops = make_ops("cpu");
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{5} << 20}) {
    auto* data = static_cast<unsigned char*>(ops->allocate(bytes));
    CHECK(reinterpret_cast<std::uintptr_t>(data) % 64 == 0);
    bool zero = true;
    for (std::size_t i = 0; i < bytes; ++i) zero = zero && data[i] == 0;
    CHECK(zero);
    std::fill_n(data, bytes, static_cast<unsigned char>(1));
    ops->deallocate(data, bytes);
  }
  for (const std::size_t bytes : {SIZE_MAX / 4, SIZE_MAX - 3})
    CHECK_THAT(error_text([&] { ops->allocate(bytes); }, ExitCode::kOutOfMemory),
               ContainsSubstring(std::to_string(bytes) + " bytes"));
}

TEST_CASE("devices by name", "[cpu_ops]") {
  CHECK(make_ops("cpu")->name() == "cpu");
  CHECK(make_ops("emu")->name() == "emu");
  CHECK_THAT(make_ops("check:cpu,cpu")->name(), ContainsSubstring("cpu,cpu"));
  if (make_ops("auto")->name() == "cpu") {
    CHECK(refused("cuda").code() == ExitCode::kUnavailable);
    CHECK_THAT(refused("cuda").what(), ContainsSubstring("no CUDA device ("));
    CHECK_THAT(refused("cuda").hint(), ContainsSubstring("auto"));
  }
  for (const char* name : {"", "gpu", "check:cpu", "check:cpu,gpu", "cpu ", "emu:"}) {
    INFO(name);
    CHECK(refused(name).code() == ExitCode::kBadConfig);
  }
  CHECK_THAT(refused("gpu").what(), ContainsSubstring("\"gpu\""));
}

TEST_CASE("precisions that a device lacks are refused", "[cpu_ops]") {
  for (const Precision precision : {Precision::kTf32, Precision::kBf16}) {
    const Error error = refused("cpu", precision);
    CHECK(error.code() == ExitCode::kBadConfig);
    CHECK_THAT(error.what(),
               ContainsSubstring(precision == Precision::kTf32 ? "precision=\"tf32\" needs a GPU"
                                                               : "precision=\"bf16\" needs a GPU"));
  }
  CHECK(make_ops("emu", Precision::kBf16)->name() == "emu");
  CHECK(make_ops("check:emu,emu", Precision::kTf32)->name() == "check:emu,emu");
  const Error compared = refused("check:emu,emu", Precision::kBf16);
  CHECK(compared.code() == ExitCode::kBadConfig);
  CHECK_THAT(compared.what(), ContainsSubstring("precision=\"bf16\" is not compared"));

  const std::unique_ptr<Ops> cpu = make_ops("cpu");
  TestTensors t(*cpu, DType::kBF16);
  CHECK_THROWS_WITH(cpu->run(TanhForward{.y = t.unset({4}), .x = t.normal({4})}),
                    ContainsSubstring("no CPU kernels for bf16"));
}

TEST_CASE("a level that the processor lacks is refused", "[cpu_ops]") {
  for (const CpuLevel level : {CpuLevel::kV3, CpuLevel::kV4})
    if (!cpu_has(level)) CHECK_THROWS_AS(make_cpu_ops(level), Error);
  CHECK(make_cpu_ops(CpuLevel::kBase)->name() == "cpu");
}

TEST_CASE("VCAS_CPU_LEVEL chooses the loops", "[cpu_ops]") {
  for (const auto& [name, level] :
       {std::pair{"v2", CpuLevel::kBase}, std::pair{"v3", CpuLevel::kV3},
        std::pair{"v4", CpuLevel::kV4}}) {
    const EnvironmentVariable asked("VCAS_CPU_LEVEL", name);
    CHECK(best_cpu_level() == level);
    if (cpu_has(level)) {
      CHECK(make_ops("cpu")->name() == "cpu");
    } else {
      CHECK(refused("cpu").code() == ExitCode::kUnavailable);
    }
  }
  {
    const EnvironmentVariable asked("VCAS_CPU_LEVEL", "avx2");
    CHECK(refused("cpu").code() == ExitCode::kBadConfig);
    CHECK_THAT(refused("cpu").what(),
               ContainsSubstring("VCAS_CPU_LEVEL=\"avx2\" is not one of: v2, v3, v4"));
  }
  const EnvironmentVariable none("VCAS_CPU_LEVEL", nullptr);
  const CpuLevel best = best_cpu_level();
  CHECK(cpu_has(best));
  const EnvironmentVariable empty("VCAS_CPU_LEVEL", "");
  CHECK(best_cpu_level() == best);
}

TEST_CASE("a precondition that breaks within a parallel region throws", "[cpu_ops]") {
  const std::unique_ptr<Ops> ops = make_ops("cpu");
  TestTensors t(*ops, DType::kF32);
  constexpr std::int64_t kScores = 4096, kKept = 4;  // enough for a thread each
  Group<Draw> draws;
  for (const DType kept : {DType::kI32, DType::kI64, DType::kI32})
    draws.add({.kept = t.unset(kept, {kKept}),
               .scale = t.unset({kKept}),
               .prob = t.unset({kScores}),
               .score = t.normal({kScores}),
               .budget = kKept,
               .selection = Selection::kSystematic});
  const auto message = ContainsSubstring(": tensor [4] holds i64, not i32");
  CHECK_THROWS_AS(ops->run(draws), InternalError);
  CHECK_THROWS_WITH(ops->run(draws), message);
  CHECK_THROWS_WITH(ops->run(Group<Draw>(draws[1])), message);

  const Tensor x = t.normal({512, 256});
  CHECK_THROWS_WITH(
      ops->run(GeluForward{.y = t.unset(x.shape), .y_norm = t.unset(DType::kI32, {512}), .x = x}),
      ContainsSubstring(": tensor [512] holds i32, not f32"));
}
