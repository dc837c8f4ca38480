#include "kernels/decorators/check_ops.h"

#include <limits>

#include "tests/decorators/fake_ops.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

// b differs from a by what `hook` does to its outputs.
std::unique_ptr<Ops> checked(FakeOps::Hook hook = {}, double scale = 1) {
  return make_check_ops(std::make_unique<FakeOps>("one"),
                        std::make_unique<FakeOps>("two", std::move(hook)), scale);
}

template <class T>
FakeOps::Hook plant(const std::string& output, std::int64_t index, T value) {
  return [=](const std::string& name, const Tensor& tensor) {
    if (name == output) tensor.ptr<T>()[index] = value;
  };
}

LinearForward linear(TestMemory& memory) {
  return {memory.f32({4, 5}), memory.f32({4, 3}), memory.f32({5, 3}), memory.f32({5})};
}

// Every tensor an operation may have, none sharing memory: [4, 4], all of it filled; four items of
// one row.
template <class Args>
Args with_all_tensors(TestMemory& memory) {
  struct Visitor {
    TestMemory& memory;
    void in(const std::string& name, const Tensor& tensor) {
      const bool offsets = name.find("offsets") != std::string::npos;
      const_cast<Tensor&>(tensor) = offsets ? memory.holding<std::int64_t>({0, 1, 2, 3, 4})
                                    : name == "filled" ? memory.holding<std::int64_t>({16})
                                    : name == "count"  ? memory.holding<std::int32_t>({16})
                                                       : memory.f32({4, 4});
    }
    void out(const std::string& name, const Tensor& tensor, bool = false) { in(name, tensor); }
  };
  Args args;
  if constexpr (requires { args.add({}); }) args.add({}), args.add({});
  if constexpr (Chain<Args>)
    for_each_part(args, [&]<class Part>(const Part& part) {
      const_cast<Part&>(part) = with_all_tensors<Part>(memory);
    });
  else
    args.visit(Visitor{memory});
  return args;
}

// What a check names: of a chain, the first part.
template <class Args>
const char* checked_name() {
  if constexpr (Chain<Args>)
    return std::remove_cvref_t<std::tuple_element_t<0, decltype(Args{}.parts())>>::kName;
  else
    return Args::kName;
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("equal backends pass and a's outputs stay", "[check]") {
  const auto ops = checked();
  CHECK(ops->name() == "check:one,two");
  TestMemory memory(*ops);
  const LinearForward args = linear(memory);
  ops->run(args);
  CHECK(args.y.ptr<float>()[19] == 20);
}

TEST_CASE("b starts from the old content of outputs that are added to", "[check]") {
  const auto ops = checked();
  TestMemory memory(*ops);
  const ColumnSum args{memory.f32({3}), memory.f32({4, 3}), true};
  for (float i = 1; i <= 3; ++i) {
    ops->run(args);
    CHECK(args.sum.ptr<float>()[2] == 3 * i);
  }
}

TEST_CASE("an operation in place is in place on both backends", "[check]") {
  const auto ops = checked();
  TestMemory memory(*ops);
  const Tensor x = memory.f32({4, 5}), full = memory.f32({4, 5});
  for (int i = 0; i < 2; ++i) {
    CHECK_NOTHROW(ops->run(GeluBackward{.dx = x, .dy = x, .saved_full = full}));
    CHECK_NOTHROW(ops->run(Add{x, x, full}));
    CHECK_NOTHROW(ops->run(Dropout{.y = x, .x = x}));
  }
  CHECK(x.ptr<float>()[0] == 6);
}

TEST_CASE("rounding in place is measured by what was read there", "[check]") {
  const auto run = [](float read) {
    const auto cancels = plant<float>("dx", 3, 4);  // what was read is gone
    const auto ops = make_check_ops(
        std::make_unique<FakeOps>("one", cancels),
        std::make_unique<FakeOps>("two",
                                  [&](const std::string& name, const Tensor& tensor) {
                                    cancels(name, tensor);
                                    plant<float>("dx", 0, 1 + 1e-4f)(name, tensor);
                                  }),
        1);
    TestMemory memory(*ops);
    const Tensor x = memory.f32({4, 5}), full = memory.f32({4, 5});
    x.ptr<float>()[3] = read;
    ops->run(GeluBackward{.dx = x, .dy = x, .saved_full = full});
  };
  CHECK_THROWS_AS(run(1), InternalError);
  CHECK_NOTHROW(run(1000));
}

TEST_CASE("a wrong value is reported with operation, place, output and index", "[check]") {
  const auto ops = checked([](const std::string& output, const Tensor& tensor) {
    if (output != "y") return;
    tensor.ptr<float>()[13] = 14.5f;
    tensor.ptr<float>()[17] = -1;
  });
  TestMemory memory(*ops);
  ops->enter("block.7/attention");
  CHECK_THROWS_AS(ops->run(linear(memory)), InternalError);
  CHECK_THROWS_WITH(ops->run(linear(memory)),
                    ContainsSubstring("linear_forward at 'block.7/attention': y[2, 3] of [4, 5] is "
                                      "14 on one and 14.5 on two") &&
                        ContainsSubstring("2 of 20 elements differ"));
}

TEST_CASE("rounding passes, more does not, and the scale widens it", "[check]") {
  const float eps = std::numeric_limits<float>::epsilon();
  const auto run = [](float value, double scale) {
    const auto ops = checked(plant("score", 1, value), scale);
    TestMemory memory(*ops);
    ops->run(RowScore{memory.f32({2}), memory.f32({2, 9}), memory.f32({2, 7}), {}});
  };
  CHECK_NOTHROW(run(2 * (1 + 16 * eps), 1));
  CHECK_THROWS_AS(run(2 * (1 + 64 * eps), 1), InternalError);
  CHECK_NOTHROW(run(2 * (1 + 64 * eps), 4));
}

TEST_CASE("sums are measured by their terms, which may cancel", "[check]") {
  const auto run = [](float term) {
    const auto ops = checked(plant("sum", 0, 1 + 1e-4f));
    TestMemory memory(*ops);
    const Tensor x = memory.f32({4, 1});
    x.ptr<float>()[3] = term;
    ops->run(ColumnSum{memory.f32({1}), x});
  };
  CHECK_THROWS_AS(run(1), InternalError);
  CHECK_NOTHROW(run(1000));
}

TEST_CASE("NaN and infinity on one side only are reported", "[check]") {
  for (const float value : {kNaN, kInfinity, -kInfinity}) {
    const auto ops = checked(plant("y", 3, value));
    TestMemory memory(*ops);
    CHECK_THROWS_WITH(ops->run(linear(memory)), ContainsSubstring("y[0, 3]"));

    const auto other = make_check_ops(std::make_unique<FakeOps>("one", plant("y", 3, value)),
                                      std::make_unique<FakeOps>("two"));
    TestMemory other_memory(*other);
    CHECK_THROWS_WITH(other->run(linear(other_memory)), ContainsSubstring("y[0, 3]"));

    const auto both = make_check_ops(std::make_unique<FakeOps>("one", plant("y", 3, value)),
                                     std::make_unique<FakeOps>("two", plant("y", 3, value)));
    TestMemory both_memory(*both);
    CHECK_NOTHROW(both->run(linear(both_memory)));
  }
}

TEST_CASE("integers are compared exactly", "[check]") {
  const auto ops = checked(plant<std::int32_t>("correct", 1, 3));
  TestMemory memory(*ops);
  const CrossEntropyForward args{memory.f32({4}), memory.tensor(DType::kI32, {4}),
                                 memory.f32({4, 10}), memory.tensor(DType::kI32, {4})};
  CHECK_THROWS_WITH(ops->run(args),
                    ContainsSubstring("correct[1] of [4] is 2 on one and 3 on two"));
}

TEST_CASE("a draw is compared as far as it is set", "[check]") {
  const auto run = [](std::int64_t index) {  // the fake draws one index
    const auto ops = checked(plant<std::int32_t>("kept", index, 77));
    TestMemory memory(*ops);
    ops->run(Draw{.kept = memory.tensor(DType::kI32, {4}),
                  .scale = memory.f32({4}),
                  .count = memory.tensor(DType::kI32, {1}),
                  .prob = memory.f32({4}),
                  .score = memory.f32({4})});
  };
  CHECK_THROWS_WITH(run(0), ContainsSubstring("kept[0]"));
  CHECK_NOTHROW(run(1));
}

TEST_CASE("every operation is checked", "[check]") {
  const auto same = checked();
  const auto different = checked([](const std::string&, const Tensor& tensor) {
    static_cast<std::byte*>(tensor.data)[tensor.bytes() - 1] ^= std::byte{0x40};
  });
#define VCAS_OP(Args)                                                       \
  {                                                                         \
    TestMemory memory(*same), other_memory(*different);                     \
    CHECK_NOTHROW(same->run(with_all_tensors<Args>(memory)));               \
    CHECK_THROWS_WITH(different->run(with_all_tensors<Args>(other_memory)), \
                      ContainsSubstring(checked_name<Args>()));             \
  }
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP
}
