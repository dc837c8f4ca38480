// Linear maps, scores and sketches over patches, and max pooling.
#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/op_cost.h"
#include "tests/support/check_op.h"
#include "tests/support/patch_cases.h"

using namespace vcas;

namespace {

// What the cases cover:
//   kernels of 1, 2, 3 and 7, with strides, paddings and sides that do not fit each other
//   no items
//   more patches than a panel has
//   outputs for vectors of all widths
//   strides and paddings beyond the image
const PatchCase kCases[] = {
    {1, 1, 1, {.height = 1, .width = 1}},
    {0, 5, 3, {.height = 4, .width = 4, .kernel = 3, .padding = 1}},
    {3, 5, 7, {.height = 5, .width = 4, .kernel = 3, .padding = 1}},
    {2, 8, 16, {.height = 7, .width = 9, .kernel = 3, .stride = 2, .padding = 1}},
    {2, 6, 5, {.height = 7, .width = 7, .kernel = 1, .stride = 2}},
    {2, 3, 4, {.height = 13, .width = 11, .kernel = 7, .stride = 2, .padding = 3}},
    {1, 2, 3, {.height = 3, .width = 8, .kernel = 2, .stride = 3}},
    {6, 16, 8, {.height = 9, .width = 9, .kernel = 3, .padding = 2}},
    {2, 3, 63, {.height = 6, .width = 5, .kernel = 3, .padding = 1}},
    {2, 3, 4, {.height = 2, .width = 3, .kernel = 1, .stride = 5}},
    {1, 2, 3, {.height = 2, .width = 2, .kernel = 1, .stride = 3, .padding = 2}},
};

// Rows of every other item, and some of them.
std::vector<std::int64_t> rows_of_items(std::int64_t items, std::int64_t each) {
  std::vector<std::int64_t> rows;
  for (std::int64_t item = 0; item < items; item += 2)
    for (std::int64_t r = 0; r < each; ++r) rows.push_back(item * each + r);
  return rows;
}

// Tensor cores round a factor times its scale: this changes no bit of it.
double power_of_two(std::int64_t i) {
  return std::ldexp(i % 3 == 0 ? -1 : 1, static_cast<int>(i % 5));
}

}  // namespace

TEST_CASE("a convolution forward", "[convolution]") {
  on_every_backend([](TestTensors& t) {
    for (const PatchCase& of : kCases)
      for (const bool with_bias : {false, true}) {
        INFO(text(of));
        const std::int64_t values = of.patches.taps() * of.channels;
        check_op(t,
                 LinearForward{.y = t.unset({of.items * of.patches.out_rows(), of.out}),
                               .x = t.normal({of.items * of.patches.in_rows(), of.channels}),
                               .weight = t.normal({of.out, values}),
                               .bias = with_bias ? t.normal({of.out}) : Tensor{},
                               .patches = of.patches},
                 {.length = values + 1});
      }
  });
}

TEST_CASE("the gradient of a convolution's input", "[convolution]") {
  on_every_backend([](TestTensors& t) {
    for (const PatchCase& of : kCases)
      for (const bool accumulate : {false, true}) {
        INFO(text(of) << ", accumulate " << accumulate);
        const Shape pixels{of.items * of.patches.in_rows(), of.channels};
        check_op(t,
                 LinearBackwardInput{.dx = accumulate ? t.normal(pixels) : t.unset(pixels),
                                     .dy = t.normal({of.items * of.patches.out_rows(), of.out}),
                                     .weight = t.normal({of.out, of.patches.taps() * of.channels}),
                                     .patches = of.patches,
                                     .accumulate = accumulate},
                 {.length = of.patches.taps() * of.out + 1});
      }
  });
}

TEST_CASE("the gradient of a convolution's weight, of all rows, some items and kept rows",
          "[convolution]") {
  on_every_backend([](TestTensors& t) {
    for (const PatchCase& of : kCases)
      for (const bool narrow : {false, true})
        for (const int draw : {0, 1, 2, 3}) {
          const bool accumulate = draw == 1 || (narrow && draw == 2);
          INFO(text(of) << ", narrow " << narrow << ", draw " << draw);
          const std::int64_t full = of.items * of.patches.out_rows();
          const std::int64_t values = of.patches.taps() * of.channels;
          const auto row = rows_of_items(of.items, of.patches.out_rows());
          const std::int64_t rows = narrow ? std::ssize(row) : full;
          const auto kept = t.some_of(rows);
          const Shape weight{of.out, values};
          check_op(
              t,
              LinearBackwardWeight{
                  .dweight = accumulate ? t.wide_normal(weight) : t.wide_unset(weight),
                  .dy = t.normal({rows, of.out}),
                  .x_full = t.normal({of.items * of.patches.in_rows(), of.channels}),
                  .patches = of.patches,
                  .row = narrow ? t.indices(row) : Tensor{},
                  .kept = draw ? t.indices(kept) : Tensor{},
                  .scale = draw >= 2 ? t.wide_filled({std::ssize(kept)}, power_of_two) : Tensor{},
                  .count = draw == 3 ? t.indices({std::ssize(kept) / 2}) : Tensor{},
                  .accumulate = accumulate},
              {.length = rows + 1});
        }
  });
}

// Sanitizers take the teams of threads that OpenMP keeps for leaks.
#if defined(_OPENMP) && !VCAS_ASAN && !VCAS_TSAN
TEST_CASE("convolutions have the same bits with any number of threads", "[convolution]") {
  // Rows and values that no tile divides: each number of threads has other tiles.
  const Patches patches{.height = 13, .width = 13, .kernel = 3, .padding = 1};
  const std::int64_t items = 7, channels = 11, out = 24, rows = items * patches.out_rows();
  const auto results = [&](CpuLevel level, DType dtype, int threads) {
    omp_set_num_threads(threads);
    const std::unique_ptr<Ops> ops = make_cpu_ops(level);
    TestTensors t(*ops, dtype);
    const Tensor x = t.normal({rows, channels}), dy = t.normal({rows, out});
    const Tensor weight = t.normal({out, 9 * channels});
    const Tensor y = t.unset({rows, out}), dx = t.unset({rows, channels});
    const Tensor dweight = t.unset({out, 9 * channels});
    ops->run(LinearForward{.y = y, .x = x, .weight = weight, .patches = patches});
    ops->run(LinearBackwardInput{.dx = dx, .dy = dy, .weight = weight, .patches = patches});
    Group<LinearBackwardWeight> group;
    group.add({.dweight = dweight, .dy = dy, .x_full = x, .patches = patches});
    ops->run(group);
    return std::vector{t.read_bytes(y), t.read_bytes(dx), t.read_bytes(dweight)};
  };
  const int before = omp_get_max_threads();
  for (const CpuLevel level : {CpuLevel::kBase, CpuLevel::kV3, CpuLevel::kV4})
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      if (!cpu_has(level)) continue;
      const auto alone = results(level, dtype, 1);
      for (const int threads : {2, 3, 5}) CHECK(results(level, dtype, threads) == alone);
    }
  omp_set_num_threads(before);
}
#endif

TEST_CASE("a group of weight gradients with and without patches", "[convolution]") {
  on_every_backend([](TestTensors& t) {
    Group<LinearBackwardWeight> group;
    for (const PatchCase& of : {kCases[2], kCases[4], kCases[3]}) {
      const bool patches = of.patches.kernel == 3;
      const std::int64_t rows = of.items * of.patches.out_rows();
      const std::int64_t values = (patches ? of.patches.taps() : 1) * of.channels;
      const auto kept = t.some_of(rows);
      group.add(
          {.dweight = t.wide_unset({of.out, values}),
           .dy = t.normal({rows, of.out}),
           .x_full = t.normal({patches ? of.items * of.patches.in_rows() : rows, of.channels}),
           .patches = patches ? of.patches : Patches{},
           .kept = t.indices(kept)});
    }
    check_op(t, group, {.length = 100});
  });
}

TEST_CASE("patches copied apart in several pieces", "[convolution]") {
  // More than 32 MiB of patches.
  const Patches patches{.height = 40, .width = 40, .kernel = 3, .padding = 1};
  const std::int64_t items = 5, channels = 128, values = 9 * channels;
  const std::int64_t rows = items * patches.out_rows();
  REQUIRE(rows > Patches::rows_at_once(values));
  for (const std::string& device : test_devices())
    on_backend(device, *make_ops(device), DType::kF32, [&](TestTensors& t) {
      const Tensor x = t.normal({rows, channels}), dy = t.normal({rows, 1});
      const Tensor weight = t.normal({1, values});
      check_op(t,
               LinearForward{.y = t.unset({rows, 1}), .x = x, .weight = weight, .patches = patches},
               {.length = values});
      check_op(t,
               LinearBackwardInput{
                   .dx = t.unset({rows, channels}), .dy = dy, .weight = weight, .patches = patches},
               {.length = 9});
      const auto kept = t.some_of(rows);
      LinearBackwardWeight gradient{
          .dweight = t.wide_unset({1, values}), .dy = dy, .x_full = x, .patches = patches};
      check_op(t, gradient, {.length = rows});
      gradient.kept = t.indices(kept);
      gradient.count = t.indices({std::ssize(kept) - 7});
      check_op(t, gradient, {.length = rows});
    });
}

TEST_CASE("scores and sketches of patches", "[convolution]") {
  on_every_backend([](TestTensors& t) {
    for (const PatchCase& of : kCases)
      for (const bool narrow : {false, true})
        for (const int norms : {0, 1, 2}) {
          INFO(text(of) << ", narrow " << narrow << ", norms " << norms);
          const std::int64_t each = of.patches.out_rows();
          const auto row = rows_of_items(of.items, each);
          const std::int64_t rows = narrow ? std::ssize(row) : of.items * each;
          const std::int64_t pixels = of.items * of.patches.in_rows();
          const std::int64_t values = of.patches.taps() * of.channels;
          const Tensor x = t.normal({pixels, of.channels}), dy = t.normal({rows, of.out});
          const auto positive = [](std::int64_t i) { return 1 + static_cast<double>(i % 5); };
          check_op(t,
                   Group<RowScore>{RowScore{
                       .score = t.wide_unset({rows}),
                       .dy = dy,
                       .x_full = x,
                       .row = narrow ? t.indices(row) : Tensor{},
                       .dy_norm = norms > 1 ? t.wide_filled({rows, 1}, positive) : Tensor{},
                       .x_norm_full = norms > 0 ? t.wide_filled({pixels, 1}, positive) : Tensor{},
                       .patches = of.patches}},
                   {.length = values + of.out});
          const auto sign = [](std::int64_t i) { return i % 3 == 1 ? -1.0 : 1.0; };
          const std::int64_t a = (of.out + 1) / 2, b = (values + 2) / 3;
          check_op(t,
                   ItemSketch{.sketch = t.wide_unset({2, a * b}),
                              .dy = dy,
                              .x_full = x,
                              .row = narrow ? t.indices(row) : Tensor{},
                              .offsets = t.offsets({0, rows / 2, rows}),
                              .out_sign = t.wide_filled({of.out}, sign),
                              .in_sign = t.wide_filled({values}, sign),
                              .out_buckets = a,
                              .patches = of.patches},
                   {.length = 6 * (rows + 1)});
          const auto kept = t.some_of(rows);
          check_op(t,
                   ItemSketch{.sketch = t.wide_unset({2, a * b}),
                              .dy = dy,
                              .x_full = x,
                              .row = narrow ? t.indices(row) : Tensor{},
                              .out_sign = t.wide_filled({of.out}, sign),
                              .in_sign = t.wide_filled({values}, sign),
                              .out_buckets = a,
                              .patches = of.patches,
                              .kept = t.indices(kept),
                              .scale = t.wide_normal({std::ssize(kept)})},
                   {.length = 6 * (rows + 1)});
        }
  });
}

TEST_CASE("a weight gradient over all patches reads as many bytes with `row` as without",
          "[convolution][op_cost]") {
  const auto ops = make_ops("cpu");
  TestTensors t(*ops, DType::kF32);
  LinearBackwardWeight args{.dweight = t.unset({16, 4 * 32}),
                            .dy = t.unset({2 * 16, 16}),
                            .x_full = t.unset({2 * 64, 32}),
                            .patches = {.height = 8, .width = 8, .kernel = 2, .stride = 2}};
  const double bytes = op_cost(args).bytes;
  CHECK(bytes == 4 * (16 * 4 * 32 + 2 * 16 * 16 + 2 * 64 * 32));
  args.row = t.unset(DType::kI32, {2 * 16});
  CHECK(op_cost(args).bytes == bytes + 4 * 2 * 16);
  args.row = t.unset(DType::kI32, {16});  // the patches of one of two items
  CHECK(op_cost(args).bytes == 4 * (16 * 4 * 32 + 16 * 16 + 64 * 32 + 16));
}

TEST_CASE("pixels and outputs of 32 GiB are not read where they lie", "[convolution]") {
  // An item has 2^27 bytes of pixels, and a quarter as many of outputs.
  const Patches patches{.height = 1024, .width = 1024, .kernel = 2, .stride = 2};
  const auto rows_of = [](std::int64_t items, std::int64_t rows, std::int64_t width) {
    return Tensor{nullptr, DType::kBF16, {items * rows, width}};
  };
  const auto reads = [&](std::int64_t items, std::int64_t channels, std::int64_t outputs) {
    return reads_pixels(patches, rows_of(items, patches.in_rows(), channels),
                        rows_of(items, patches.out_rows(), outputs));
  };
  CHECK(reads(255, 64, 64));
  CHECK_FALSE(reads(256, 64, 64));
  CHECK(reads(255, 64, 256));
  CHECK_FALSE(reads(256, 8, 256));
}

TEST_CASE("max pooling", "[convolution]") {
  on_every_backend([](TestTensors& t) {
    for (const PatchCase& of : kCases) {
      if (of.patches.padding >= of.patches.kernel) continue;
      INFO(text(of));
      const std::int64_t rows = of.items * of.patches.out_rows(), c = of.channels;
      const Shape pixels{of.items * of.patches.in_rows(), c};
      // The first of equal numbers counts; NaN is the largest.
      for (const Tensor& x : {t.normal(pixels), t.integers(pixels), t.filled(pixels, [](auto i) {
                                return i % 13 == 5 ? std::nan("") : static_cast<double>(i % 3);
                              })}) {
        const MaxPoolForward forward{.y = t.unset({rows, c}),
                                     .tap = t.unset(DType::kI32, {rows, c}),
                                     .x = x,
                                     .patches = of.patches};
        check_op(t, forward, {.factor = 0});
        const auto row = rows_of_items(of.items, of.patches.out_rows());
        const std::int64_t kept_items = (of.items + 1) / 2;
        for (const bool narrow : {false, true})
          check_op(t,
                   MaxPoolBackward{
                       .dx = t.unset({(narrow ? kept_items : of.items) * of.patches.in_rows(), c}),
                       .dy = t.normal({narrow ? std::ssize(row) : rows, c}),
                       .tap_full = forward.tap,
                       .row = narrow ? t.indices(row) : Tensor{},
                       .patches = of.patches},
                   {.length = of.patches.taps()});
      }
    }
  });
}

TEST_CASE("convolutions whose shapes do not fit are refused", "[convolution]") {
  on_every_backend([](TestTensors& t) {
    const Patches patches{.height = 4, .width = 4, .kernel = 3, .padding = 1};
    CHECK_THROWS_AS(t.ops().run(LinearForward{.y = t.unset({16, 2}),
                                              .x = t.normal({16, 5}),
                                              .weight = t.normal({2, 5}),
                                              .patches = patches}),
                    InternalError);
    CHECK_THROWS_AS(t.ops().run(LinearForward{.y = t.unset({15, 2}),
                                              .x = t.normal({16, 5}),
                                              .weight = t.normal({2, 45}),
                                              .patches = patches}),
                    InternalError);
  });
}
