// Convolutions whose products read the pixels where they lie, on tensor cores.
#include "tests/support/fewer_cases.h"
#include "tests/support/patch_cases.h"
#include "tests/support/tensor_cores.h"

using namespace vcas;

namespace {

// What the cases cover:
//   kernels of 1, 2, 3, 7 and 17, with strides, paddings and sides that do not fit each other
//   stages within a tap, over several taps, and with a part of one
//   small tiles and large ones
const PatchCase kCases[] = {
    {0, 8, 16, {.height = 4, .width = 4, .kernel = 3, .padding = 1}},
    {1, 8, 8, {.height = 1, .width = 1}},
    {3, 16, 24, {.height = 5, .width = 4, .kernel = 3, .padding = 1}},
    {2, 40, 16, {.height = 7, .width = 9, .kernel = 3, .stride = 2, .padding = 1}},
    {2, 8, 72, {.height = 7, .width = 7, .kernel = 1, .stride = 2}},
    {2, 8, 8, {.height = 13, .width = 11, .kernel = 7, .stride = 2, .padding = 3}},
    {1, 8, 16, {.height = 3, .width = 8, .kernel = 2, .stride = 3}},
    {2, 8, 8, {.height = 17, .width = 17, .kernel = 17, .padding = 8}},  // copied
    {3, 72, 136, {.height = 8, .width = 7, .kernel = 3, .padding = 1}},
    {4, 64, 96, {.height = 9, .width = 9, .kernel = 3, .stride = 2, .padding = 2}},
    // tiles for each of 132 multiprocessors: 128 x 64, and 128 x 128
    {2, 8, 8, {.height = 65, .width = 65, .kernel = 3, .padding = 1}},
    {3, 8, 72, {.height = 76, .width = 76}},
};

LinearForward forward(TestTensors& t, const PatchCase& of, bool bias) {
  return {.y = t.unset({of.items * of.patches.out_rows(), of.out}),
          .x = normal(t, {of.items * of.patches.in_rows(), of.channels}),
          .weight = normal(t, {of.out, of.patches.taps() * of.channels}),
          .bias = bias ? normal(t, {of.out}) : Tensor{},
          .patches = of.patches};
}

LinearBackwardInput backward(TestTensors& t, const PatchCase& of, bool accumulate) {
  const Shape pixels{of.items * of.patches.in_rows(), of.channels};
  return {.dx = accumulate ? normal(t, pixels) : t.unset(pixels),
          .dy = normal(t, {of.items * of.patches.out_rows(), of.out}),
          .weight = normal(t, {of.out, of.patches.taps() * of.channels}),
          .patches = of.patches,
          .accumulate = accumulate};
}

// With all rows, or with `draw` some: 2 scales them, 3 counts them on the device. `narrow`: those
// of every other item.
LinearBackwardWeight weight_gradient(TestTensors& t, const PatchCase& of, bool narrow, int draw) {
  const std::int64_t each = of.patches.out_rows();
  std::vector<std::int64_t> row;
  for (std::int64_t r = 0; r < of.items * each; ++r)
    if (!narrow || r / each % 2 == 0) row.push_back(r);
  const auto kept = t.some_of(std::ssize(row));
  const Shape weight{of.out, of.patches.taps() * of.channels};
  return {.dweight = draw == 1 ? t.wide_normal(weight) : t.wide_unset(weight),
          .dy = normal(t, {std::ssize(row), of.out}),
          .x_full = normal(t, {of.items * of.patches.in_rows(), of.channels}),
          .patches = of.patches,
          .row = narrow ? t.indices(row) : Tensor{},
          .kept = draw ? t.indices(kept) : Tensor{},
          .scale = draw >= 2 ? powers_of_two(t, std::ssize(kept)) : Tensor{},
          .count = draw == 3 ? t.indices({std::ssize(kept) / 2}) : Tensor{},
          .accumulate = draw == 1};
}

}  // namespace

TEST_CASE("convolutions on tensor cores", "[convolution][tensor_core]") {
  const Precision precision = GENERATE(Precision::kTf32, Precision::kBf16);
  on_tensor_cores(precision, [&](TestTensors& t) {
    for (const PatchCase& of : cases_to_run(kCases)) {
      INFO(text(of));
      const std::int64_t values = of.patches.taps() * of.channels;
      const bool few_tiles = of.items * of.patches.out_rows() < 1000;  // else they take long
      for (const bool once : few_tiles ? cases_to_run({false, true}) : std::vector{true}) {
        check_op(t, forward(t, of, once), {.length = values + 1});
        check_op(t, backward(t, of, once), {.length = of.patches.taps() * of.out + 1});
        for (const int draw : few_tiles ? cases_to_run({0, 1, 2, 3}) : std::vector{0, 3})
          check_op(t, weight_gradient(t, of, once, draw),
                   {.length = of.items * of.patches.out_rows() + 1});
      }
    }
  });
}

TEST_CASE("convolutions round their factors to TF32", "[convolution][tensor_core]") {
  on_tensor_cores(Precision::kTf32, [](TestTensors& t) {
    const PatchCase of{2, 8, 12, {.height = 5, .width = 5, .kernel = 3, .padding = 1}};
    auto y = forward(t, of, false);
    auto dx = backward(t, of, false);
    const auto beyond = [](std::int64_t) { return 1 + 0x1p-12; };
    const auto ones = [](std::int64_t) { return 1.0; };
    const auto integers_only = [&](const auto& args, const Tensor& out) {
      t.ops().run(args);
      for (const double value : t.read(out)) CHECK(value == std::round(value));
    };
    for (const bool left : {false, true}) {
      y.x = t.filled(y.x.shape, left ? std::function<double(std::int64_t)>(beyond) : ones);
      y.weight =
          t.filled(y.weight.shape, left ? std::function<double(std::int64_t)>(ones) : beyond);
      integers_only(y, y.y);
      dx.dy = t.filled(dx.dy.shape, left ? std::function<double(std::int64_t)>(beyond) : ones);
      dx.weight = y.weight;
      integers_only(dx, dx.dx);
    }
  });
}

TEST_CASE("convolutions on tensor cores have the same bits in any order of threads",
          "[convolution][tensor_core]") {
  const Precision precision = GENERATE(Precision::kTf32, Precision::kBf16);
  for (const PatchCase& of : cases_to_run({kCases[3], kCases[8]})) {
    std::vector<std::vector<std::byte>> first;
    for (const auto order :
         {emu::ThreadOrder::kForward, emu::ThreadOrder::kReverse, emu::ThreadOrder::kRandom})
      for (const bool warpgroup_products : {false, true}) {
        const std::unique_ptr<Ops> ops = make_emu_ops(order, precision, warpgroup_products);
        TestTensors t(*ops, compute_dtype(precision));
        const auto y = forward(t, of, true);
        const auto dx = backward(t, of, true);
        const auto dweight = weight_gradient(t, of, true, 2);
        ops->run(y), ops->run(dx), ops->run(dweight);
        const std::vector<std::vector<std::byte>> results = {t.read_bytes(y.y), t.read_bytes(dx.dx),
                                                             t.read_bytes(dweight.dweight)};
        if (first.empty()) first = results;
        CHECK(results == first);
      }
  }
}

TEST_CASE("long sums of few entries go in pieces", "[convolution][tensor_core]") {
  const Precision precision = GENERATE(Precision::kF32, Precision::kTf32, Precision::kBf16);
  on_tensor_cores(precision, [&](TestTensors& t) {
    const PatchCase of{5, 8, 8, {.height = 37, .width = 41, .kernel = 2}};
    for (const int draw : cases_to_run({0, 1, 2, 3})) {
      const auto args = weight_gradient(t, of, false, draw);
      INFO("draw " << draw);
      CHECK((args.pieces_of_sum() > 1) == true);
      check_op(t, args, {.length = 8000});
    }
    // Alone and in a group, behind a product that is whole.
    Group<LinearBackwardWeight> group;
    for (const PatchCase& other : {kCases[2], of, of})
      group.add(weight_gradient(t, other, false, 2));
    check_op(t, group, {.length = 8000});
  });
}
