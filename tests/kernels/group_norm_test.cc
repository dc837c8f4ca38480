#include "tests/support/check_op.h"
#include "tests/support/fewer_cases.h"

using namespace vcas;

namespace {

struct Sizes {
  std::vector<std::int64_t> offsets;  // of the sets
  std::int64_t width, groups;
};
const Sizes kGroupNorms[] = {{{0, 1}, 1, 1},
                             {{0, 5, 6, 13, 16}, 12, 3},
                             {{0, 300, 700}, 40, 40},
                             {{0, 64, 128, 192}, 33, 1},
                             {{0, 9, 600}, 240, 5}};

struct Size {
  std::int64_t rows, width;
};
const Size kBatchNorms[] = {{1, 1}, {2, 7}, {65, 33}, {900, 16}, {3000, 3}, {5, 1032}};

Tensor inverse_deviations(TestTensors& t, const Shape& shape) {
  return t.wide_filled(shape, [](auto i) { return 1.0 / static_cast<double>(1 + i % 3); });
}

}  // namespace

TEST_CASE("group norm forward", "[group_norm]") {
  on_every_backend([](TestTensors& t) {
    for (const auto& [offsets, width, groups] : kGroupNorms) {
      const std::int64_t rows = offsets.back(), sets = std::ssize(offsets) - 1;
      INFO(rows << " x " << width << ", groups " << groups);
      check_op(t,
               GroupNormForward{.y = t.unset({rows, width}),
                                .y_norm = width % 2 ? t.wide_unset({rows}) : Tensor{},
                                .mean = t.wide_unset({sets, groups}),
                                .rstd = t.wide_unset({sets, groups}),
                                .x = t.normal({rows, width}, 2),
                                .gamma = t.normal({width}),
                                .beta = t.normal({width}),
                                .offsets = t.offsets(offsets),
                                .eps = 1e-3},
               {.length = rows * width});
    }
  });
}

TEST_CASE("batch norm forward, and its running statistics", "[group_norm]") {
  on_every_backend([](TestTensors& t) {
    for (const auto& [rows, width] : kBatchNorms) {
      INFO(rows << " x " << width);
      GroupNormForward args{
          .y = t.unset({rows, width}),
          .mean = t.wide_unset({1, width}),
          .rstd = t.wide_unset({1, width}),
          .running_mean = t.wide_normal({width}),
          .running_var = t.wide_filled({width}, [](auto i) { return 1 + i % 3; }),
          .x = t.filled({rows, width},
                        [](auto i) { return std::sin(i) + static_cast<double>(i % 4); }),
          .gamma = t.normal({width}),
          .beta = t.normal({width})};
      check_op(t, args, {.length = rows});
      args.given_mean = args.running_mean;
      args.given_var = args.running_var;
      args.running_mean = args.running_var = {};
      check_op(t, args, {.length = 4});
      args.offsets = t.offsets({0, rows});
      CHECK_THROWS_AS(t.ops().run(args), InternalError);
    }
  });
}

TEST_CASE("batch norm of a column that is far from zero", "[group_norm]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    const std::int64_t rows = 400, width = 5;
    const Tensor x = t.filled({rows, width}, [&](std::int64_t i) {
      return static_cast<double>(i % width) * 4096.0 + (i / width % 2 == 0 ? 1 : -1);
    });
    const Tensor rstd = t.wide_unset({1, width}), y = t.unset({rows, width});
    t.ops().run(GroupNormForward{.y = y,
                                 .mean = t.wide_unset({1, width}),
                                 .rstd = rstd,
                                 .x = x,
                                 .gamma = t.filled({width}, [](auto) { return 1; }),
                                 .beta = t.filled({width}, [](auto) { return 0; }),
                                 .eps = 1e-12});
    for (const double value : t.read(rstd)) CHECK(std::abs(value - 1) < 1e-6);
    for (const double value : t.read(y)) CHECK(std::abs(std::abs(value) - 1) < 1e-6);
  });
}

TEST_CASE("group norm backward", "[group_norm]") {
  on_every_backend([](TestTensors& t) {
    for (const auto& [offsets, width, groups] : kGroupNorms)
      for (const bool narrow : {false, true})
        for (const int what : {0, 1, 2, 3}) {
          const std::int64_t full = offsets.back(), sets = std::ssize(offsets) - 1;
          std::vector<std::int64_t> item, row, kept_offsets{0};
          for (std::int64_t n = 0; n < sets; ++n) {
            if (narrow && n % 2 == 0) continue;
            item.push_back(n);
            for (std::int64_t r = offsets[n]; r < offsets[n + 1]; ++r) row.push_back(r);
            kept_offsets.push_back(std::ssize(row));
          }
          const std::int64_t rows = std::ssize(row);
          INFO(rows << " of " << full << " x " << width << ", groups " << groups);
          const Tensor dx = what == 1 ? t.normal({rows, width}) : t.unset({rows, width});
          check_op(t,
                   GroupNormBackward{.dx = what == 3 ? Tensor{} : dx,
                                     .added = what == 1   ? dx
                                              : what == 2 ? t.normal({rows, width})
                                                          : Tensor{},
                                     .dx_norm = what == 2 ? t.wide_unset({rows}) : Tensor{},
                                     .dgamma = what == 2 ? Tensor{} : t.wide_normal({width}),
                                     .dbeta = what == 2 ? Tensor{} : t.wide_normal({width}),
                                     .dy = t.normal({rows, width}),
                                     .x_full = t.normal({full, width}),
                                     .mean_full = t.wide_normal({sets, groups}),
                                     .rstd_full = inverse_deviations(t, {sets, groups}),
                                     .gamma = t.normal({width}),
                                     .row = narrow ? t.indices(row) : Tensor{},
                                     .item = narrow ? t.indices(item) : Tensor{},
                                     .offsets = t.offsets(kept_offsets),
                                     .accumulate_parameters = what == 1},
                   {.length = 4 * (rows * width + 1)});
        }
  });
}

TEST_CASE("batch norm backward, of all rows, of given statistics", "[group_norm]") {
  on_every_backend([](TestTensors& t) {
    for (const auto& [rows, width] : kBatchNorms)
      for (const bool fixed : {false, true}) {
        INFO(rows << " x " << width << (fixed ? ", given" : ""));
        check_op(t,
                 GroupNormBackward{.dx = t.unset({rows, width}),
                                   .dgamma = t.wide_unset({width}),
                                   .dbeta = t.wide_unset({width}),
                                   .dy = t.normal({rows, width}),
                                   .x_full = t.normal({rows, width}),
                                   .mean_full = t.wide_normal({1, width}),
                                   .rstd_full = inverse_deviations(t, {1, width}),
                                   .gamma = t.normal({width}),
                                   .fixed = fixed},
                 {.length = 4 * rows});
      }
  });
}

TEST_CASE("batch norm backward of some items, and echoes of others", "[group_norm]") {
  on_every_backend([](TestTensors& t) {
    for (const auto& [full, width] : cases_to_run(kBatchNorms))
      for (const std::int64_t rows : {std::int64_t{0}, full / 3})
        for (const std::int64_t echoes : {std::int64_t{0}, full / 5, full - rows})
          for (const int what : {0, 1, 2}) {
            INFO(rows << " and " << echoes << " of " << full << " x " << width << ", " << what);
            std::vector<std::int64_t> row;
            for (std::int64_t r = 0; r < rows + echoes; ++r) row.push_back(full - 1 - r);
            const Shape shape{rows + echoes, width};
            const Tensor dx = what == 1 ? t.normal(shape) : t.unset(shape);
            check_op(
                t,
                GroupNormBackward{.dx = dx,
                                  .added = what == 1   ? dx
                                           : what == 2 ? t.normal(shape)
                                                       : Tensor{},
                                  .dx_norm = what == 2 ? t.wide_unset({rows + echoes}) : Tensor{},
                                  .dgamma = t.wide_unset({width}),
                                  .dbeta = t.wide_unset({width}),
                                  .dy = t.normal({rows, width}),
                                  .x_full = t.normal({full, width}),
                                  .mean_full = t.wide_normal({1, width}),
                                  .rstd_full = inverse_deviations(t, {1, width}),
                                  .gamma = t.normal({width}),
                                  .row = t.indices(row),
                                  .echo_scale = 2.5},
                {.length = 4 * (full * width + 1)});
          }
    CHECK_THROWS_AS(t.ops().run(GroupNormBackward{.dx = t.unset({3, 4}),
                                                  .dy = t.normal({2, 4}),
                                                  .x_full = t.normal({3, 4}),
                                                  .mean_full = t.wide_normal({1, 4}),
                                                  .rstd_full = t.wide_normal({1, 4}),
                                                  .gamma = t.normal({4}),
                                                  .offsets = t.offsets({0, 2})}),
                    InternalError);
  });
}
