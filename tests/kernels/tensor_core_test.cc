// Products with factors rounded to TF32, on devices that have them.
#include "kernels/emu/tensor_core.h"

#include "kernels/emu/emu_ops.h"
#include "tests/support/check_op.h"

using namespace vcas;

namespace {

// body(tensors) on every device with TF32 that is here.
void on_every_tf32_device(const std::function<void(TestTensors&)>& body) {
  for (const std::string& device : test_devices()) {
    if (device == "cpu") continue;
    INFO(device);
    const std::unique_ptr<Ops> ops = make_ops(device, Precision::kTf32);
    TestTensors tensors(*ops, DType::kF32);
    body(tensors);
  }
}

float tf32(double x) { return emu::round_to_tf32(static_cast<float>(x)); }

Tensor normal_tf32(TestTensors& t, const Shape& shape) {
  std::mt19937 random(5);
  std::normal_distribution<double> distribution;
  return t.filled(shape, [&](std::int64_t) { return tf32(distribution(random)); });
}

// 1, 2, 4, 1/2, 1/4 in turn: they keep a factor's mantissa.
Tensor powers_of_two(TestTensors& t, std::int64_t count) {
  return t.filled({count},
                  [](std::int64_t i) { return std::ldexp(1, static_cast<int>(i % 5) - 2); });
}

struct Size {
  std::int64_t depth, in, out;
};
// Small and large tiles, whole ones and parts, sums shorter and longer than what is on its way at
// once.
const Size kSizes[] = {{0, 64, 68},     {1, 4, 4},     {7, 128, 64},   {31, 132, 12},
                       {257, 64, 36},   {64, 64, 128}, {31, 260, 132}, {7, 4, 1028},
                       {257, 256, 128}, {97, 128, 512}};

// Which rows of dy and x_full a sum goes over.
enum class Rows { kNarrow, kKept, kScaled, kNarrowKept, kNarrowScaled };
constexpr Rows kRows[] = {Rows::kNarrow, Rows::kKept, Rows::kScaled, Rows::kNarrowKept,
                          Rows::kNarrowScaled};

// A sum of `size.depth` products; `make` makes factors, `make_scale` scales.
template <class Make, class MakeScale>
LinearBackwardWeight product(TestTensors& t, const Size& size, Rows rows, const Make& make,
                             const MakeScale& make_scale) {
  const bool narrow =
      rows == Rows::kNarrow || rows == Rows::kNarrowKept || rows == Rows::kNarrowScaled;
  const bool kept = rows != Rows::kNarrow;
  const std::int64_t compact = kept ? 2 * size.depth + 1 : size.depth;
  const std::int64_t full = narrow ? 3 * compact : compact;
  const auto every = [&](std::int64_t count, std::int64_t step) {
    std::vector<std::int64_t> index;
    for (std::int64_t i = 0; i < count; ++i) index.push_back((i + 1) * step - 1);
    return t.indices(index);
  };
  LinearBackwardWeight args{.dweight = t.normal({size.out, size.in}),
                            .dy = make(Shape{compact, size.out}),
                            .x_full = make(Shape{full, size.in})};
  if (narrow) args.row = every(compact, 3);
  if (kept) args.kept = every(size.depth, 2);
  if (rows == Rows::kScaled || rows == Rows::kNarrowScaled) args.scale = make_scale(size.depth);
  return args;
}

LinearBackwardWeight general_product(TestTensors& t, const Size& size, Rows rows) {
  return product(
      t, size, rows, [&](const Shape& shape) { return t.normal(shape); },
      [&](std::int64_t count) { return t.normal({count}); });
}

// The specification with factors rounded to TF32, or not.
std::vector<double> expected(const TestTensors& t, const LinearBackwardWeight& args, bool rounded) {
  std::vector<double> dw = t.read(args.dweight);
  const auto dy = t.read(args.dy), x = t.read(args.x_full), row = t.read(args.row);
  const auto kept = t.read(args.kept), scale = t.read(args.scale);
  const std::int64_t d = args.dy.width(), c = args.x_full.width();
  const std::int64_t depth = args.kept ? args.kept.elements() : args.dy.rows();
  const auto at = [](const std::vector<double>& index, std::int64_t i) {
    return index.empty() ? i : static_cast<std::int64_t>(index[static_cast<std::size_t>(i)]);
  };
  for (std::int64_t i = 0; i < depth; ++i) {
    const std::int64_t k = at(kept, i), r = at(row, k);
    const double factor = scale.empty() ? 1 : scale[static_cast<std::size_t>(i)];
    for (std::int64_t o = 0; o < d; ++o)
      for (std::int64_t j = 0; j < c; ++j) {
        double a = factor * dy[static_cast<std::size_t>(k * d + o)];
        double b = x[static_cast<std::size_t>(r * c + j)];
        if (rounded) a = tf32(a), b = tf32(b);
        dw[static_cast<std::size_t>(o * c + j)] += a * b;
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

TEST_CASE("a gathered product of numbers that TF32 has", "[tensor_core]") {
  on_every_tf32_device([](TestTensors& t) {
    for (const Size& size : kSizes)
      for (const Rows rows : kRows) {
        INFO(size.depth << ": " << size.out << " x " << size.in << ", rows "
                        << static_cast<int>(rows));
        check_op(t,
                 product(
                     t, size, rows, [&](const Shape& shape) { return normal_tf32(t, shape); },
                     [&](std::int64_t count) { return powers_of_two(t, count); }),
                 {.length = size.depth + 1});
      }
  });
}

TEST_CASE("a gathered product rounds its factors to TF32", "[tensor_core]") {
  on_every_tf32_device([](TestTensors& t) {
    for (const Size& size : kSizes)
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
        if (size.depth > 0) CHECK(largest_error(got, exact) > allowed);
      }
  });
}

TEST_CASE("dense products round their factors to TF32", "[tensor_core]") {
  on_every_tf32_device([](TestTensors& t) {
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
    check([&](const Shape& shape, int) { return normal_tf32(t, shape); }, {.length = out + 1});

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

TEST_CASE("products that 16-byte copies cannot gather stay f32", "[tensor_core]") {
  on_every_tf32_device([](TestTensors& t) {
    for (const Size& size : {Size{31, 66, 64}, Size{31, 64, 3}, Size{9, 1, 1}})
      for (const Rows rows : kRows) check_op(t, general_product(t, size, rows), {.length = 32});
    auto args = general_product(t, {31, 64, 64}, Rows::kNarrowScaled);
    args.x_full.data = static_cast<char*>(args.x_full.data) + sizeof(float);
    args.x_full.shape = {args.x_full.rows() - 1, 64};
    args.row = t.indices(std::vector<std::int64_t>(63, 5));
    check_op(t, args, {.length = 32});
  });
}

TEST_CASE("a gathered product has the same bits in any order of threads", "[tensor_core]") {
  for (const Size& size : {Size{257, 68, 64}, Size{150, 132, 260}}) {
    std::vector<std::vector<std::byte>> results;
    for (const auto order :
         {emu::ThreadOrder::kForward, emu::ThreadOrder::kReverse, emu::ThreadOrder::kRandom}) {
      const std::unique_ptr<Ops> ops = make_emu_ops(order, Precision::kTf32);
      TestTensors t(*ops, DType::kF32);
      const auto args = general_product(t, size, Rows::kNarrowScaled);
      ops->run(args);
      results.push_back(t.read_bytes(args.dweight));
    }
    CHECK(results[1] == results[0]);
    CHECK(results[2] == results[0]);
  }
}
