#include "kernels/emu/emu_ops.h"
#include "kernels/op_cost.h"
#include "tests/support/check_op.h"
#include "tests/support/fewer_cases.h"
#include "tests/support/tensor_cores.h"

using namespace vcas;

namespace {

struct Size {
  std::int64_t rows, in, out;
};
// Awkward ones, one for each way of slicing, and one larger than a panel of gathered rows.
const Size kSizes[] = {{1, 1, 1},   {0, 5, 3},     {1, 7, 33},    {5, 33, 7},    {49, 64, 1},
                       {3, 40, 70}, {700, 33, 48}, {350, 90, 70}, {60, 100, 120}};

void check_forward(TestTensors& t) {
  for (const auto& [rows, in, out] : kSizes)
    for (const bool with_bias : {false, true}) {
      INFO(rows << " x " << in << " -> " << out << ", bias " << with_bias);
      check_op(t,
               LinearForward{.y = t.unset({rows, out}),
                             .x = t.normal({rows, in}),
                             .weight = t.normal({out, in}),
                             .bias = with_bias ? t.normal({out}) : Tensor{}},
               {.length = in + 1});
    }
}

void check_backward_input(TestTensors& t) {
  for (const auto& [rows, in, out] : kSizes)
    for (const bool accumulate : {false, true}) {
      INFO(rows << " x " << in << " <- " << out << ", accumulate " << accumulate);
      check_op(t,
               LinearBackwardInput{.dx = accumulate ? t.normal({rows, in}) : t.unset({rows, in}),
                                   .dy = t.normal({rows, out}),
                                   .weight = t.normal({out, in}),
                                   .accumulate = accumulate},
               {.length = out + 1});
    }
}

}  // namespace

TEST_CASE("linear_forward", "[linear]") { on_every_backend(check_forward); }

TEST_CASE("linear_backward_input", "[linear]") { on_every_backend(check_backward_input); }

// 132 tiles of 128 x 128, which in one case make 66 of 256 x 128. A GPU sums over more rows than
// are on their way at once; the emulator has small products for that.
TEST_CASE("a weight gradient with a large tile for each of 132 multiprocessors", "[linear]") {
  on_every_backend([](TestTensors& t) {
    const std::int64_t rows = t.ops().name() == "cuda" ? 700 : 9;
    for (const auto& [in, out] : cases_to_run({std::pair{1408, 1536}, {1536, 1408}})) {
      const auto kept = t.some_of(rows);
      check_op(t,
               LinearBackwardWeight{.dweight = t.wide_unset({out, in}),
                                    .dy = t.normal({rows, out}),
                                    .x_full = t.normal({rows, in}),
                                    .kept = t.indices(kept)},
               {.length = rows + 1});
    }
  });
}

// Copies round what is scaled to T, as products on tensor cores do.
TEST_CASE("linear_backward_weight with and without rows, kept rows and scales", "[linear]") {
  const bool copies = GENERATE(false, true);
  on_every_backend([copies](TestTensors& t) {
    for (const auto& [full, in, out] : kSizes)
      for (const bool narrow : {false, true})
        for (const int draw : cases_to_run({0, 1, 2, 3})) {
          const bool accumulate = draw == 1 || (narrow && draw == 2);
          INFO(full << " x " << in << " -> " << out << ", narrow " << narrow << ", draw " << draw);
          const auto row = t.some_of(full);
          const std::int64_t rows = narrow ? static_cast<std::int64_t>(row.size()) : full;
          auto kept = t.some_of(rows);
          const std::int64_t count = std::ssize(kept) / 2;
          if (draw == 3) std::fill(kept.begin() + count, kept.end(), INT32_MIN);  // not set
          check_op(t,
                   LinearBackwardWeight{
                       .dweight = accumulate ? t.wide_normal({out, in}) : t.wide_unset({out, in}),
                       .dy = t.normal({rows, out}),
                       .x_full = t.normal({full, in}),
                       .row = narrow ? t.indices(row) : Tensor{},
                       .kept = draw ? t.indices(kept) : Tensor{},
                       .scale = draw < 2 ? Tensor{}
                                : copies ? powers_of_two(t, std::ssize(kept))
                                         : t.wide_normal({std::ssize(kept)}),
                       .count = draw == 3 ? t.indices({count}) : Tensor{},
                       .accumulate = accumulate,
                       .copies = copies},
                   {.length = rows + 1});
        }
  });
}

TEST_CASE("rows that a device copies in pieces", "[linear]") {
  const auto ops = make_emu_ops();
  TestTensors t(*ops, DType::kF32);
  const std::int64_t rows = 4100, in = 1, out = 4095;
  std::vector<std::int64_t> backwards(rows);
  for (std::int64_t r = 0; r < rows; ++r) backwards[r] = rows - 1 - r;
  for (const bool draws : {false, true}) {
    INFO("draws " << draws);
    LinearBackwardWeight args{.dweight = t.wide_normal({out, in}),
                              .dy = t.normal({rows, out}),
                              .x_full = t.normal({rows, in}),
                              .row = t.indices(backwards),
                              .copies = true};
    if (draws) args.kept = t.indices(backwards), args.count = t.indices({4098});
    CHECK(args.rows_copied_at_once() == 4096);
    check_op(t, args, {.length = rows + 1});
    const std::int64_t before = emu_launches(*ops);
    ops->run(Group<LinearBackwardWeight>{args});
    CHECK(emu_launches(*ops) - before == 4);
    CHECK(op_cost(args).launches == 4);
  }
}

TEST_CASE("products that the library of a device lacks", "[linear]") {
  const auto ops = make_emu_ops();
  emu_lacks_products(*ops);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    INFO(dtype_name(dtype));
    TestTensors t(*ops, dtype);
    check_forward(t);
    check_backward_input(t);
    for (const auto& [rows, in, out] : kSizes)
      for (const bool accumulate : {false, true}) {
        INFO(rows << " x " << in << " -> " << out << ", accumulate " << accumulate);
        check_op(t,
                 LinearBackwardWeight{
                     .dweight = accumulate ? t.wide_normal({out, in}) : t.wide_unset({out, in}),
                     .dy = t.normal({rows, out}),
                     .x_full = t.normal({rows, in}),
                     .accumulate = accumulate},
                 {.length = rows + 1});
      }
  }
}

TEST_CASE("a group of weight gradients", "[linear]") {
  on_every_backend([](TestTensors& t) {
    Group<LinearBackwardWeight> group;
    for (std::size_t n = 0; n < kMostInGroup; ++n) {
      const auto& [full, in, out] = kSizes[n + 1];
      const auto row = t.some_of(full);
      const bool narrow = n % 2 == 0, draw = n % 4 != 1;  // 1 and 5: all rows
      const std::int64_t rows = narrow ? static_cast<std::int64_t>(row.size()) : full;
      const auto kept = t.some_of(rows);
      const bool accumulate = n % 3 == 0;
      group.add({.dweight = accumulate ? t.wide_normal({out, in}) : t.wide_unset({out, in}),
                 .dy = t.normal({rows, out}),
                 .x_full = t.normal({full, in}),
                 .row = narrow ? t.indices(row) : Tensor{},
                 .kept = draw ? t.indices(kept) : Tensor{},
                 .scale = draw ? t.wide_normal({std::ssize(kept)}) : Tensor{},
                 .accumulate = accumulate});
    }
    check_op(t, group, {.length = 700});
    LinearBackwardWeight counted = group[1];
    counted.count = t.indices({1});
    CHECK_THROWS_WITH(t.ops().run(counted), ContainsSubstring("without the draw"));
    CHECK_THROWS_WITH(group.add(group[0]),
                      ContainsSubstring("a group of too many: linear_backward_weight"));
  });
}

TEST_CASE("linear_backward_weight of no rows adds nothing, or writes zeros", "[linear]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t rows : {9, 0}) {
      LinearBackwardWeight args{.dweight = t.wide_normal({40, 30}),
                                .dy = t.normal({rows, 40}),
                                .x_full = t.normal({9, 30}),
                                .accumulate = true};
      if (rows > 0) {
        args.kept = t.indices({});
        args.scale = t.wide_normal({0});
      }
      const auto before = t.read(args.dweight);
      t.ops().run(args);
      CHECK(t.read(args.dweight) == before);
      args.accumulate = false;
      t.ops().run(args);
      CHECK(t.read(args.dweight) == std::vector<double>(40 * 30, 0));
    }
  });
}

TEST_CASE("products of small integers are exact", "[linear]") {
  on_every_backend([](TestTensors& t) {
    const std::int64_t rows = 400, in = 130, out = 70;
    const Tensor x = t.integers({rows, in}), dy = t.integers({rows, out});
    const Tensor weight = t.integers({out, in});
    const Tolerance exact{.factor = 0};
    check_op(t,
             LinearForward{
                 .y = t.unset({rows, out}), .x = x, .weight = weight, .bias = t.integers({out})},
             exact);
    check_op(t, LinearBackwardInput{.dx = t.unset({rows, in}), .dy = dy, .weight = weight}, exact);
    check_op(t, LinearBackwardWeight{.dweight = t.wide_unset({out, in}), .dy = dy, .x_full = x},
             exact);
    const auto kept = t.some_of(rows);
    check_op(t,
             LinearBackwardWeight{.dweight = t.wide_integers({out, in}),
                                  .dy = dy,
                                  .x_full = x,
                                  .kept = t.indices(kept),
                                  .scale = t.wide_integers({std::ssize(kept)}),
                                  .accumulate = true},
             exact);
  });
}

TEST_CASE("column_sum", "[linear]") {
  on_every_backend([](TestTensors& t) {
    for (const auto& [rows, in, out] : kSizes) {
      check_op(t, ColumnSum{.sum = t.wide_unset({out}), .x = t.normal({rows, out})},
               {.length = rows});
      check_op(
          t, ColumnSum{.sum = t.wide_normal({out}), .x = t.normal({rows, out}), .accumulate = true},
          {.length = rows + 1});
    }
    Group<ColumnSum> group;
    for (std::size_t n = 0; n < kMostInGroup; ++n) {
      const bool accumulate = n % 2 == 1;
      const std::int64_t rows = n == 2 ? 0 : 900 >> n, width = 5 + 40 * static_cast<int>(n);
      group.add({.sum = accumulate ? t.wide_normal({width}) : t.wide_unset({width}),
                 .x = t.normal({rows, width}),
                 .accumulate = accumulate});
    }
    check_op(t, group, {.length = 900});
  });
}

TEST_CASE("a NaN in a linear layer reaches the results that it belongs to", "[linear]") {
  on_every_backend([](TestTensors& t) {
    const std::int64_t rows = 60, in = 40, out = 50;
    const auto one_nan = [&](const Shape& shape, std::int64_t where) {
      return t.filled(shape, [where](std::int64_t i) {
        return i == where ? std::nan("") : static_cast<double>(i % 5);
      });
    };
    const Tensor x = one_nan({rows, in}, 7 * in + 3), dy = one_nan({rows, out}, 11 * out + 4);
    const Tensor weight = t.normal({out, in});
    check_op(t, LinearForward{.y = t.unset({rows, out}), .x = x, .weight = weight}, {.length = in});
    check_op(t, LinearBackwardInput{.dx = t.unset({rows, in}), .dy = dy, .weight = weight},
             {.length = out});
    check_op(t, LinearBackwardWeight{.dweight = t.wide_unset({out, in}), .dy = dy, .x_full = x},
             {.length = rows});
    check_op(t, ColumnSum{.sum = t.wide_unset({out}), .x = dy}, {.length = rows});
  });
}

TEST_CASE("shapes that do not fit are refused", "[linear]") {
  on_every_backend([](TestTensors& t) {
    CHECK_THROWS_AS(t.ops().run(LinearForward{
                        .y = t.unset({4, 3}), .x = t.normal({4, 5}), .weight = t.normal({5, 3})}),
                    InternalError);
  });
}
