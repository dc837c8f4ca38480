#include "tests/support/check_op.h"

using namespace vcas;

namespace {

// Of a few rows those too that a device does not keep in registers.
std::vector<std::int64_t> widths(std::int64_t rows) {
  return rows == 5 ? std::vector<std::int64_t>{1, 7, 33, 384, 1000, 1024, 1027}
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
                                  .mean = t.wide_unset({rows}),
                                  .rstd = t.wide_unset({rows}),
                                  .x = t.normal({rows, width}, 2),
                                  .gamma = t.normal({width}),
                                  .beta = t.normal({width}),
                                  .eps = 1e-3},
                 {.length = width});
      }
  });
}

TEST_CASE("layer_norm_forward of rows far from zero", "[layer_norm]") {
  on_every_backend([](TestTensors& t) {
    // The variance of x - 1000: computed as E[x^2] - E[x]^2 it would be lost in f32. bf16 has no
    // 1001.
    const std::int64_t width = 256;
    const double far = t.dtype() == DType::kBF16 ? 100 : 1000;
    const Tensor x = t.filled({4, width}, [&](std::int64_t i) { return far + double(i % 2); });
    const Tensor rstd = t.wide_unset({4});
    t.ops().run(LayerNormForward{.y = t.unset({4, width}),
                                 .mean = t.wide_unset({4}),
                                 .rstd = rstd,
                                 .x = x,
                                 .gamma = t.normal({width}),
                                 .beta = t.normal({width})});
    for (const double value : t.read(rstd)) CHECK(std::abs(value - 2) < 1e-3);
  });
}

TEST_CASE("layer_norm_forward spreads a NaN over its row only", "[layer_norm]") {
  on_every_backend([](TestTensors& t) {
    check_op(t,
             LayerNormForward{
                 .y = t.unset({3, 5}),
                 .mean = t.wide_unset({3}),
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
    for (const std::int64_t full : {1, 5, 700})
      for (const std::int64_t width : widths(full))
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
                                         .mean_full = t.wide_normal({full}),
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
                                 .mean_full = t.wide_normal({5}),
                                 .rstd_full = t.wide_normal({5}),
                                 .gamma = t.normal({33})},
               {.factor = 8, .length = 33});
  });
}
