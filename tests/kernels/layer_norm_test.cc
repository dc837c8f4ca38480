#include <limits>

#include "tests/support/check_error.h"
#include "tests/support/check_op.h"
#include "tests/support/fewer_cases.h"

using namespace vcas;

namespace {

// A few rows also have widths that a device does not keep in registers.
std::vector<std::int64_t> widths(std::int64_t rows) {
  return rows == 5 ? std::vector<std::int64_t>{1, 7, 33, 384, 768, 1000, 1024, 1027, 4500}
                   : std::vector<std::int64_t>{1, 7, 33, 384};
}

}  // namespace

TEST_CASE("layer_norm_forward", "[layer_norm]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t rows : {0, 1, 5, 700})
      for (const std::int64_t width : widths(rows)) {
        INFO(rows << " x " << width);
        check_op(t,
                 LayerNormForward{.y = t.unset({rows, width}),
                                  .y_norm = rows % 2 ? t.wide_unset({rows}) : Tensor{},
                                  .center = t.wide_unset({rows}),
                                  .rstd = t.wide_unset({rows}),
                                  .x = t.normal({rows, width}, 2),
                                  .gamma = t.normal({width}),
                                  .beta = t.normal({width}),
                                  .eps = 1e-3},
                 {.length = width});
      }
  });
}

TEST_CASE("layer_norm of rows that are far from zero, and constant or nearly so", "[layer_norm]") {
  on_every_backend([](TestTensors& t) {
    // Entries differ by nothing or by two units in the last place of x: the mean lies between two
    // numbers, and eps is as small as BERT's.
    const std::int64_t width = GENERATE(7, 256, 1027);
    const double eps = 1e-12, ulp = t.dtype() == DType::kBF16 ? 0x1p-7 : 0x1p-23;
    const std::vector<double> bases = {0.3, 1, 1000, -77.7};
    const auto rows = static_cast<std::int64_t>(2 * bases.size());
    const Tensor x = t.filled({rows, width}, [&](std::int64_t i) {
      const double base = bases[static_cast<std::size_t>(i / width / 2)];
      const bool moves = i / width % 2 == 1 && i % width % 3 == 1;
      return base * (1 + (moves ? 2 * ulp : 0));
    });
    const Tensor y = t.unset({rows, width}), dx = t.unset({rows, width});
    const Tensor center = t.wide_unset({rows}), rstd = t.wide_unset({rows});
    const Tensor gamma = t.integers({width}), dy = t.integers({rows, width});
    t.ops().run(LayerNormForward{.y = y,
                                 .center = center,
                                 .rstd = rstd,
                                 .x = x,
                                 .gamma = gamma,
                                 .beta = t.filled({width}, [](std::int64_t) { return 0; }),
                                 .eps = eps});
    t.ops().run(LayerNormBackward{
        .dx = dx, .dy = dy, .x_full = x, .center_full = center, .rstd_full = rstd, .gamma = gamma});
    const auto in = t.read(x), out = t.read(y), scale = t.read(gamma), above = t.read(dy),
               below = t.read(dx);
    // Without OpenMP the CPU adds up a row number by number.
    const double of_sums = 2 * std::sqrt(static_cast<double>(width)) * 0x1p-23;
    const double rounding = t.dtype() == DType::kBF16 ? kBf16Rounding : std::max(1e-6, of_sums);
    const auto larger = [](double so_far, double off) {  // NaN is the largest
      return std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(so_far, off);
    };
    double worst = 0, worst_dx = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto at = [&](std::int64_t c) { return static_cast<std::size_t>(r * width + c); };
      const auto mean_of = [&](const auto& f) {
        double sum = 0;
        for (std::int64_t c = 0; c < width; ++c) sum += f(c) / static_cast<double>(width);
        return sum;
      };
      const auto g = [&](std::int64_t c) {
        return above[at(c)] * scale[static_cast<std::size_t>(c)];
      };
      // x less its first entry: the mean of x itself is not good enough even in f64.
      const auto from_first = [&](std::int64_t c) { return in[at(c)] - in[at(0)]; };
      const double mean = mean_of(from_first);
      const double variance =
          mean_of([&](std::int64_t c) { return std::pow(from_first(c) - mean, 2); });
      const double s = 1 / std::sqrt(variance + eps);
      const auto h = [&](std::int64_t c) { return (from_first(c) - mean) * s; };
      const double shift = mean_of(g), slope = mean_of([&](std::int64_t c) { return g(c) * h(c); });
      for (std::int64_t c = 0; c < width; ++c) {
        const double want = h(c) * scale[static_cast<std::size_t>(c)];
        worst = larger(worst, std::abs(out[at(c)] - want) / (1 + std::abs(want)));
        const double want_dx = s * (g(c) - shift - h(c) * slope);
        worst_dx = larger(worst_dx, std::abs(below[at(c)] - want_dx) / s / 25);
      }
    }
    INFO("width " << width << ", y off by " << worst << ", dx by " << worst_dx);
    CHECK(worst <= rounding);
    CHECK(worst_dx <= rounding);
  });
}

TEST_CASE("layer norms know the norms of rows whose squares f32 does not hold", "[layer_norm]") {
  on_every_backend([](TestTensors& t) {
    for (const double size : {1e-24, 1e24})
      for (const std::int64_t width : {33, 768, 1000}) {
        INFO("width " << width << ", size " << size);
        const auto sized = [&](const Shape& shape) {
          return t.filled(shape, [&](std::int64_t i) { return i % 3 ? size : -2 * size; });
        };
        // Against the tolerance of check_op they would be zero.
        const auto check_norm = [&](const Tensor& norm, const Tensor& x) {
          const auto values = t.read(x);
          for (std::int64_t r = 0; r < x.rows(); ++r) {
            double squares = 0;
            for (std::int64_t c = 0; c < width; ++c)
              squares += std::pow(values[static_cast<std::size_t>(r * width + c)], 2);
            const double off = t.read(norm)[static_cast<std::size_t>(r)] / std::sqrt(squares) - 1;
            CHECK(std::abs(off) < (t.dtype() == DType::kBF16 ? 1e-3 : 1e-5));
          }
        };
        const Shape shape{3, width};
        LayerNormForward forward{.y = t.unset(shape),
                                 .y_norm = t.wide_unset({3}),
                                 .center = t.wide_unset({3}),
                                 .rstd = t.wide_unset({3}),
                                 .x = t.normal(shape),
                                 .gamma = sized({width}),
                                 .beta = t.filled({width}, [](std::int64_t) { return 0; })};
        t.ops().run(forward);
        check_norm(forward.y_norm, forward.y);
        const LayerNormBackward backward{.dx = t.unset(shape),
                                         .dx_norm = t.wide_unset({3}),
                                         .dy = t.normal(shape),
                                         .x_full = forward.x,
                                         .center_full = forward.center,
                                         .rstd_full = forward.rstd,
                                         .gamma = forward.gamma,
                                         .dbranch = t.unset(shape),
                                         .dbranch_norm = t.wide_unset({3}),
                                         .dropout = {.p = 0.1}};
        t.ops().run(backward);
        check_norm(backward.dx_norm, backward.dx);
        check_norm(backward.dbranch_norm, backward.dbranch);
      }
  });
}

TEST_CASE("layer_norm_forward spreads a NaN over its row only", "[layer_norm]") {
  on_every_backend([](TestTensors& t) {
    check_op(t,
             LayerNormForward{
                 .y = t.unset({3, 5}),
                 .center = t.wide_unset({3}),
                 .rstd = t.wide_unset({3}),
                 .x = t.filled(
                     {3, 5}, [](std::int64_t i) { return i == 6 ? std::nan("") : double(i * i); }),
                 .gamma = t.normal({5}),
                 .beta = t.normal({5})},
             {.length = 5});
  });
}

TEST_CASE("layer_norm_backward", "[layer_norm]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t full : cases_to_run({1, 5, 700, 20}))
      for (const std::int64_t width : cases_to_run(widths(full)))
        for (const bool narrow : {false, true})
          for (const char* added : {"", "apart", "in place"})
            for (const bool parameters : {false, true}) {
              INFO(full << " x " << width << ", narrow " << narrow << ", added " << added
                        << ", parameters " << parameters);
              const auto row = t.some_of(full);
              const std::int64_t rows = narrow ? static_cast<std::int64_t>(row.size()) : full;
              const Shape shape{rows, width};
              const auto sum = [&] {
                return narrow ? t.wide_normal({width}) : t.wide_unset({width});
              };
              const bool apart = added == std::string_view("apart");
              const Tensor to = *added ? t.normal(shape) : Tensor{};
              check_op(t,
                       LayerNormBackward{.dx = to && !apart ? to : t.unset(shape),
                                         .added = to,
                                         .dx_norm = full > 1 ? t.wide_unset({rows}) : Tensor{},
                                         .dgamma = parameters ? sum() : Tensor{},
                                         .dbeta = parameters ? sum() : Tensor{},
                                         .dy = t.normal(shape),
                                         .x_full = t.normal({full, width}),
                                         .center_full = t.wide_normal({full}),
                                         .rstd_full = t.wide_normal({full}),
                                         .gamma = t.normal({width}),
                                         .row = narrow ? t.indices(row) : Tensor{},
                                         .accumulate_parameters = narrow},
                       {.factor = 8, .length = std::max(rows, width)});
            }
    for (const std::int64_t rows : {5, 0})
      check_op(t,
               LayerNormBackward{.dx = {},
                                 .dgamma = t.wide_unset({33}),
                                 .dbeta = t.wide_unset({33}),
                                 .dy = t.normal({rows, 33}),
                                 .x_full = t.normal({5, 33}),
                                 .center_full = t.wide_normal({5}),
                                 .rstd_full = t.wide_normal({5}),
                                 .gamma = t.normal({33})},
               {.factor = 8, .length = 33});
  });
}

// Rows of a wider gradient that are scaled, some of them twice and others not at all.
TEST_CASE("layer_norm_backward gathers its gradient", "[layer_norm]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t rows : cases_to_run({0, 1, 5, 300}))
      for (const std::int64_t width : cases_to_run(widths(rows)))
        for (const bool branch : {false, true}) {
          INFO(rows << " x " << width << ", branch " << branch);
          const bool branch_norm = branch && t.dtype() != DType::kBF16;  // of rounded numbers
          std::vector<std::int64_t> from;
          for (std::int64_t r = 0; r < rows; ++r) from.push_back((7 * r + 3) % (rows + 4));
          const Shape shape{rows, width};
          const LayerNormBackward norm{
              .dx = t.unset(shape),
              .added = branch ? Tensor{} : t.normal(shape),
              .dx_norm = t.wide_unset({rows}),
              .dgamma = t.wide_unset({width}),
              .dbeta = t.wide_unset({width}),
              .dy = t.normal({rows + 4, width}),
              .dy_row = t.indices(from),
              .dy_scale = t.wide_normal({rows}),
              .x_full = t.normal({rows + 1, width}),
              .center_full = t.wide_normal({rows + 1}),
              .rstd_full = t.wide_normal({rows + 1}),
              .gamma = t.normal({width}),
              .dbranch = branch ? t.unset(shape) : Tensor{},
              .dbranch_norm = branch_norm ? t.wide_unset({rows}) : Tensor{}};
          check_op(t, norm, {.factor = 8, .length = std::max(rows, width)});
        }
    const Tensor dy = t.normal({3, 5});
    CHECK_THROWS_AS(t.ops().run(LayerNormBackward{.dx = dy.first_rows(2),
                                                  .dy = dy,
                                                  .dy_row = t.indices({2, 0}),
                                                  .dy_scale = t.wide_normal({2}),
                                                  .x_full = t.normal({2, 5}),
                                                  .center_full = t.wide_normal({2}),
                                                  .rstd_full = t.wide_normal({2}),
                                                  .gamma = t.normal({5})}),
                    InternalError);
  });
}

// The sum is rounded before the norm, as dropout alone rounds it. So of bf16 the bits are compared
// and not the specification, which does not round.
TEST_CASE("a layer norm that computes its sum has the bits of dropout and norm", "[layer_norm]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t rows : {0, 1, 5, 300})
      for (const std::int64_t width : widths(rows))
        for (const double p : {0.0, 0.3}) {
          INFO(rows << " x " << width << ", p " << p);
          const Shape shape{rows, width};
          const Tensor step = p > 0 ? t.offsets({4}) : Tensor{};
          LayerNormForward norm{.y = t.unset(shape),
                                .y_norm = t.wide_unset({rows}),
                                .center = t.wide_unset({rows}),
                                .rstd = t.wide_unset({rows}),
                                .x = t.unset(shape),
                                .gamma = t.normal({width}),
                                .beta = t.normal({width}),
                                .branch = t.normal(shape),
                                .residual = t.normal(shape),
                                .dropout = {p, {.seed = 3, .site = 2}, step}};
          if (t.dtype() != DType::kBF16) check_op(t, norm, {.length = width});
          t.ops().run(norm);
          const auto sum = t.read_bytes(norm.x), y = t.read_bytes(norm.y),
                     y_norm = t.read_bytes(norm.y_norm);
          t.ops().run(norm.sum());
          norm.branch = norm.residual = {};
          t.ops().run(norm);
          CHECK((t.read_bytes(norm.x) == sum));
          CHECK((t.read_bytes(norm.y) == y));
          CHECK((t.read_bytes(norm.y_norm) == y_norm));
        }
  });
}

TEST_CASE("layer_norm_backward of a branch has the bits of norm and dropout", "[layer_norm]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t full : {1, 5, 300})
      for (const std::int64_t width : widths(full))
        for (const bool narrow : {false, true}) {
          INFO(full << " x " << width << ", narrow " << narrow);
          const auto row = t.some_of(full);
          const std::int64_t rows = narrow ? static_cast<std::int64_t>(row.size()) : full;
          const Shape shape{rows, width};
          LayerNormBackward norm{.dx = t.unset(shape),
                                 .added = narrow ? t.normal(shape) : Tensor{},
                                 .dx_norm = t.wide_unset({rows}),
                                 .dgamma = t.wide_unset({width}),
                                 .dbeta = t.wide_unset({width}),
                                 .dy = t.normal(shape),
                                 .x_full = t.normal({full, width}),
                                 .center_full = t.wide_normal({full}),
                                 .rstd_full = t.wide_normal({full}),
                                 .gamma = t.normal({width}),
                                 .row = narrow ? t.indices(row) : Tensor{},
                                 .dbranch = t.unset(shape),
                                 .dbranch_norm = full > 1 ? t.wide_unset({rows}) : Tensor{},
                                 .dropout = {0.3, {.seed = 3, .site = 2}, t.offsets({4})}};
          if (t.dtype() != DType::kBF16)
            check_op(t, norm, {.factor = 8, .length = std::max(rows, width)});
          const auto bits = [&](const Dropout& drop) {
            std::vector<std::vector<std::byte>> of;
            for (const Tensor& out : {norm.dx, norm.dx_norm, norm.dgamma, drop.y})
              of.push_back(t.read_bytes(out));
            return of;
          };
          t.ops().run(norm);
          const Dropout drop = norm.drop();
          const auto together = bits(drop);
          norm.dbranch = norm.dbranch_norm = {};
          t.ops().run(norm);
          t.ops().run(drop);
          CHECK((bits(drop) == together));
        }
  });
}

TEST_CASE("rows that need more shared memory than the device has are refused", "[layer_norm]") {
  const std::unique_ptr<Ops> ops = make_ops("emu");
  on_backend("emu", *ops, DType::kF32, [](TestTensors& t) {
    constexpr std::int64_t kWidth = 12800;
    const LayerNormBackward wide{.dgamma = t.wide_unset({kWidth}),
                                 .dbeta = t.wide_unset({kWidth}),
                                 .dy = t.normal({1, kWidth}),
                                 .x_full = t.normal({1, kWidth}),
                                 .center_full = t.wide_normal({1}),
                                 .rstd_full = t.wide_normal({1}),
                                 .gamma = t.normal({kWidth})};
    check_whole_error(
        [&] { t.ops().run(wide); }, ExitCode::kBadConfig,
        "layer norms of width 12800 need 101 KiB of shared memory, device \"emu\" has 99 "
        "KiB",
        "make the model narrower, or train it on device=\"cpu\"");
  });
}
