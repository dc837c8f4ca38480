// Products on tensor cores, in TF32 and bf16, on devices that have them.
#include "tests/support/fewer_cases.h"
#include "tests/support/tensor_cores.h"

using namespace vcas;

namespace {

struct Size {
  std::int64_t depth, in, out;
};
// Small and large tiles, whole ones and parts, sums shorter and longer than what is on its way at
// once.
const Size kSizes[] = {{0, 64, 68},     {1, 4, 4},     {7, 128, 64},   {31, 132, 12},
                       {257, 64, 36},   {64, 64, 128}, {31, 260, 132}, {7, 4, 1028},
                       {257, 256, 128}, {97, 128, 512}};
const Size kSizesBf16[] = {{0, 64, 72},     {1, 8, 8},      {7, 128, 64},   {31, 136, 16},
                           {257, 64, 40},   {64, 64, 128},  {31, 264, 136}, {7, 8, 1032},
                           {257, 256, 128}, {97, 128, 512}, {0, 128, 256},  {580, 384, 256}};

std::vector<Size> sizes(Precision precision) {
  return precision == Precision::kTf32
             ? std::vector<Size>(std::begin(kSizes), std::end(kSizes))
             : std::vector<Size>(std::begin(kSizesBf16), std::end(kSizesBf16));
}

// Which rows of dy and x_full a sum goes over.
enum class Rows { kNarrow, kKept, kScaled, kNarrowKept, kNarrowScaled, kNarrowCounted };
constexpr Rows kRows[] = {Rows::kNarrow,     Rows::kKept,         Rows::kScaled,
                          Rows::kNarrowKept, Rows::kNarrowScaled, Rows::kNarrowCounted};

// A sum of `size.depth` products; `make` makes factors, `make_scale` scales.
template <class Make, class MakeScale>
LinearBackwardWeight product(TestTensors& t, const Size& size, Rows rows, const Make& make,
                             const MakeScale& make_scale) {
  const bool narrow = rows != Rows::kKept && rows != Rows::kScaled;
  const bool kept = rows != Rows::kNarrow, counted = rows == Rows::kNarrowCounted;
  const bool scaled = rows == Rows::kScaled || rows == Rows::kNarrowScaled || counted;
  const std::int64_t drawn = size.depth + (counted ? 70 : 0);  // of which the count leaves depth
  const std::int64_t compact = kept ? 2 * drawn + 1 : drawn;
  const std::int64_t full = narrow ? 3 * compact : compact;
  const auto every = [&](std::int64_t count, std::int64_t step) {
    std::vector<std::int64_t> index;
    for (std::int64_t i = 0; i < count; ++i) index.push_back((i + 1) * step - 1);
    return t.indices(index);
  };
  const bool accumulate = rows != Rows::kScaled;
  const Shape shape{size.out, size.in};
  LinearBackwardWeight args{.dweight = accumulate ? t.wide_normal(shape) : t.wide_unset(shape),
                            .dy = make(Shape{compact, size.out}),
                            .x_full = make(Shape{full, size.in}),
                            .accumulate = accumulate};
  if (narrow) args.row = every(compact, 3);
  if (kept) args.kept = every(drawn, 2);
  if (scaled) args.scale = make_scale(drawn);
  if (counted) args.count = t.indices({size.depth});
  return args;
}

LinearBackwardWeight general_product(TestTensors& t, const Size& size, Rows rows) {
  return product(
      t, size, rows, [&](const Shape& shape) { return t.normal(shape); },
      [&](std::int64_t count) { return t.wide_normal({count}); });
}

// The specification with factors rounded as the precision does: to TF32 both of them, the scaled
// one after scaling; to bf16 x after scaling, as all else is bf16 before. Or not rounded.
std::vector<double> expected(const TestTensors& t, const LinearBackwardWeight& args, bool rounded) {
  std::vector<double> dw(static_cast<std::size_t>(args.dweight.elements()));
  if (args.accumulate) dw = t.read(args.dweight);
  const auto dy = t.read(args.dy), x = t.read(args.x_full), row = t.read(args.row);
  const auto kept = t.read(args.kept), scale = t.read(args.scale);
  const std::int64_t d = args.dy.width(), c = args.x_full.width();
  const auto at = [](const std::vector<double>& index, std::int64_t i) {
    return index.empty() ? i : static_cast<std::int64_t>(index[static_cast<std::size_t>(i)]);
  };
  for (std::int64_t i = 0; i < args.depth(); ++i) {
    const std::int64_t k = at(kept, i), r = at(row, k);
    const double factor = scale.empty() ? 1 : scale[static_cast<std::size_t>(i)];
    for (std::int64_t o = 0; o < d; ++o)
      for (std::int64_t j = 0; j < c; ++j) {
        const double a = dy[static_cast<std::size_t>(k * d + o)];
        const double b = x[static_cast<std::size_t>(r * c + j)];
        double term = factor * a * b;
        if (rounded && t.dtype() == DType::kF32) term = double{tf32(factor * a)} * tf32(b);
        if (rounded && t.dtype() == DType::kBF16)
          term = a * bfloat16(static_cast<float>(factor * b));
        dw[static_cast<std::size_t>(o * c + j)] += term;
      }
  }
  return dw;
}

double largest_error(const std::vector<double>& got, const std::vector<double>& want) {
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    largest = std::isnan(got[i]) ? INFINITY : std::max(largest, std::abs(got[i] - want[i]));
  return largest;
}

}  // namespace

TEST_CASE("rounding to TF32", "[tensor_core]") {
  const float ulp = 0x1p-10f;  // of 1
  CHECK(tf32(1) == 1);
  CHECK(tf32(1 + 0.49 * ulp) == 1);
  CHECK(tf32(1 + 0.5 * ulp) == 1 + ulp);
  CHECK(tf32(-1 - 0.5 * ulp) == -1 - ulp);
  CHECK(tf32(2 - 0.25 * ulp) == 2);
  CHECK(tf32(0x1.fffffep127) == INFINITY);
  CHECK(tf32(-INFINITY) == -INFINITY);
  CHECK(std::isnan(tf32(NAN)));
}

TEST_CASE("a gathered product of numbers that the precision has", "[tensor_core]") {
  const Precision precision = GENERATE(Precision::kTf32, Precision::kBf16);
  on_tensor_cores(precision, [&](TestTensors& t) {
    for (const Size& size : sizes(precision))
      for (const Rows rows : cases_to_run(kRows)) {
        INFO(size.depth << ": " << size.out << " x " << size.in << ", rows "
                        << static_cast<int>(rows));
        check_op(t,
                 product(
                     t, size, rows, [&](const Shape& shape) { return normal(t, shape); },
                     [&](std::int64_t count) { return powers_of_two(t, count); }),
                 {.length = size.depth + 1});
      }
  });
}

TEST_CASE("a gathered product rounds its factors", "[tensor_core]") {
  const Precision precision = GENERATE(Precision::kTf32, Precision::kBf16);
  on_tensor_cores(precision, [&](TestTensors& t) {
    for (const Size& size : sizes(precision))
      for (const Rows rows : {Rows::kNarrow, Rows::kNarrowScaled}) {
        INFO(size.depth << ": " << size.out << " x " << size.in << ", rows "
                        << static_cast<int>(rows));
        const auto args = general_product(t, size, rows);
        const auto want = expected(t, args, true), exact = expected(t, args, false);
        t.ops().run(args);
        const auto got = t.read(args.dweight);
        double largest = 1;
        for (const double value : want) largest = std::max(largest, std::abs(value));
        const double allowed =
            4 * epsilon(DType::kF32) * std::sqrt(static_cast<double>(size.depth + 1)) * largest;
        CHECK(largest_error(got, want) <= allowed);
        const bool rounds = precision == Precision::kTf32 || rows == Rows::kNarrowScaled;
        if (size.depth > 0 && rounds) CHECK(largest_error(got, exact) > allowed);
      }
  });
}

TEST_CASE("dense products round their factors to TF32", "[tensor_core]") {
  on_tensor_cores(Precision::kTf32, [](TestTensors& t) {
    const std::int64_t rows = 50, in = 70, out = 90;
    const auto check = [&](const auto& make, Tolerance tolerance) {
      check_op(t,
               LinearForward{.y = t.unset({rows, out}),
                             .x = make(Shape{rows, in}, 0),
                             .weight = make(Shape{out, in}, 1)},
               tolerance);
      check_op(t,
               LinearBackwardInput{.dx = t.normal({rows, in}),
                                   .dy = make(Shape{rows, out}, 0),
                                   .weight = make(Shape{out, in}, 1),
                                   .accumulate = true},
               tolerance);
      check_op(t,
               LinearBackwardWeight{.dweight = t.normal({out, in}),
                                    .dy = make(Shape{rows, out}, 0),
                                    .x_full = make(Shape{rows, in}, 1)},
               tolerance);
    };
    check([&](const Shape& shape, int) { return normal(t, shape); }, {.length = out + 1});

    // What TF32 lacks is lost, on both sides.
    for (const int side : {0, 1}) {
      const auto make = [&](const Shape& shape, int factor) {
        return t.filled(shape, [&](std::int64_t) { return factor == side ? 1 + 0x1p-12 : 1; });
      };
      const Tensor y = t.unset({rows, out}), dx = t.unset({rows, in});
      const Tensor dweight = t.filled({out, in}, [](std::int64_t) { return 0; });
      t.ops().run(LinearForward{.y = y, .x = make({rows, in}, 0), .weight = make({out, in}, 1)});
      t.ops().run(
          LinearBackwardInput{.dx = dx, .dy = make({rows, out}, 0), .weight = make({out, in}, 1)});
      t.ops().run(LinearBackwardWeight{
          .dweight = dweight, .dy = make({rows, out}, 0), .x_full = make({rows, in}, 1)});
      for (const auto& [result, length] : {std::pair{y, in}, {dx, out}, {dweight, rows}})
        for (const double value : t.read(result)) CHECK(value == static_cast<double>(length));
    }
  });
}

// f32, or bf16 with scaling in f32: nothing is rounded.
TEST_CASE("products that 16-byte copies cannot gather round nothing", "[tensor_core]") {
  const Precision precision = GENERATE(Precision::kTf32, Precision::kBf16);
  on_tensor_cores(precision, [&](TestTensors& t) {
    const std::int64_t uneven = precision == Precision::kTf32 ? 66 : 68;
    for (const Size& size : {Size{31, uneven, 64}, Size{31, 64, 3}, Size{9, 1, 1}})
      for (const Rows rows : kRows) check_op(t, general_product(t, size, rows), {.length = 32});
    auto args = general_product(t, {31, 64, 64}, Rows::kNarrowScaled);
    args.x_full.data = static_cast<char*>(args.x_full.data) + dtype_bytes(t.dtype());
    args.x_full.shape = {args.x_full.rows() - 1, 64};
    args.row = t.indices(std::vector<std::int64_t>(63, 5));
    check_op(t, args, {.length = 32});
  });
}

// Together they have tiles enough for large ones, which most alone have not; one has to go without
// tensor cores.
TEST_CASE("gathered products of a group have the bits of each alone", "[tensor_core]") {
  const Precision precision = GENERATE(Precision::kTf32, Precision::kBf16);
  on_tensor_cores(precision, [&](TestTensors& t) {
    std::vector<Size> all = {{33, 64, 72}, {257, 136, 264}, {9, 66, 64}, {0, 64, 64}, {97, 8, 8}};
    Group<LinearBackwardWeight> group;
    std::vector<std::vector<std::byte>> before, alone;
    for (const Size& size : all) {
      group.add(general_product(t, size, Rows::kNarrowScaled));
      const Tensor& dweight = group[group.size() - 1].dweight;
      before.push_back(t.read_bytes(dweight));
      t.ops().run(group[group.size() - 1]);
      alone.push_back(t.read_bytes(dweight));
      t.ops().copy_to_device(dweight.data, before.back().data(), dweight.bytes());
    }
    t.ops().run(group);
    for (std::size_t n = 0; n < group.size(); ++n)
      CHECK(t.read_bytes(group[n].dweight) == alone[n]);
    CHECK(alone[1] != before[1]);
  });
}

// Each has tiles of 256 x 128 for the multiprocessors that the emulator counts.
TEST_CASE("gathered products by specialized warps", "[tensor_core][specialized]") {
  on_tensor_cores(Precision::kBf16, [&](TestTensors& t) {
    const auto in_pieces = product(
        t, {2100, 128, 256}, Rows::kNarrowScaled,
        [&](const Shape& shape) { return normal(t, shape); },
        [&](std::int64_t count) { return powers_of_two(t, count); });
    CHECK(in_pieces.pieces_of_sum() > 1);
    check_op(t, in_pieces, {.length = 2100});
    Group<LinearBackwardWeight> group;
    std::vector<std::vector<std::byte>> alone;
    for (const Size& size : {Size{330, 128, 512}, {0, 128, 512}, {97, 256, 256}, {700, 128, 512}}) {
      group.add(general_product(t, size, Rows::kNarrowScaled));
      const Tensor& dweight = group[group.size() - 1].dweight;
      const std::vector<std::byte> before = t.read_bytes(dweight);
      t.ops().run(group[group.size() - 1]);
      alone.push_back(t.read_bytes(dweight));
      t.ops().copy_to_device(dweight.data, before.data(), dweight.bytes());
    }
    for (std::size_t n = 0; n < group.size(); ++n)
      CHECK((t.read_bytes(group[n].dweight) == alone[n]) == (n == 1));  // a sum of nothing
    t.ops().run(group);
    for (std::size_t n = 0; n < group.size(); ++n)
      CHECK(t.read_bytes(group[n].dweight) == alone[n]);
  });
}

// Each launch has tiles for a GPU of 132 multiprocessors. The emulator has enough with less.
// The first has 72 tiles of 256 x 128, by specialized warps, and the group 68 of them. The second
// has 136 of 128 x 128, since its width is no multiple of 256. Sums of ten stages go round the four
// places twice, those of a piece four times.
TEST_CASE("gathered products with tiles for a whole GPU", "[tensor_core][specialized]") {
  on_tensor_cores(Precision::kBf16, [&](TestTensors& t) {
    const bool gpu = t.ops().name() == "cuda";
    const std::int64_t in = gpu ? 1024 : 128;
    const auto counted = [&](const Size& size) {
      return product(
          t, size, Rows::kNarrowCounted, [&](const Shape& shape) { return normal(t, shape); },
          [&](std::int64_t count) { return powers_of_two(t, count); });
    };
    for (const std::int64_t out : {gpu ? 2304 : 512, gpu ? 2176 : 384}) {
      INFO(out << " x " << in);
      check_op(t, counted({600, in, out}), {.length = 601});
    }
    Group<LinearBackwardWeight> group;
    for (const Size& size :
         {Size{330, in, gpu ? 2048 : 512}, Size{0, 128, 512}, Size{2100, 128, 256}})
      group.add(counted(size));
    CHECK(group[2].pieces_of_sum() == 2);
    check_op(t, group, {.length = 2101});
  });
}

TEST_CASE("a gathered product has the same bits in any order of threads", "[tensor_core]") {
  const Precision precision = GENERATE(Precision::kTf32, Precision::kBf16);
  for (const Size& size : {Size{257, 72, 64}, Size{150, 136, 264}, Size{580, 128, 256}}) {
    std::vector<std::vector<std::byte>> results;
    // Both kernels of bf16 sum in the order of k here.
    for (const bool warpgroup_products : {false, true})
      for (const auto order :
           {emu::ThreadOrder::kForward, emu::ThreadOrder::kReverse, emu::ThreadOrder::kRandom}) {
        const std::unique_ptr<Ops> ops = make_emu_ops(order, precision, warpgroup_products);
        TestTensors t(*ops, compute_dtype(precision));
        const auto args = general_product(t, size, Rows::kNarrowScaled);
        ops->run(args);
        results.push_back(t.read_bytes(args.dweight));
        CHECK(results.back() == results.front());
      }
  }
}
