#include <numeric>

#include "tests/support/check_op.h"

using namespace vcas;

namespace {

Tensor signs(TestTensors& t, std::int64_t count) {
  return t.wide_filled({count}, [](std::int64_t i) { return i * i % 7 < 3 ? -1 : 1; });
}

}  // namespace

TEST_CASE("item_sketch", "[sketch]") {
  on_every_backend([](TestTensors& t) {
    for (const auto& [full, out, in, a, b] : {std::array<std::int64_t, 5>{1, 1, 1, 1, 1},
                                              {40, 33, 70, 5, 7},
                                              {700, 9, 40, 9, 40},
                                              {60, 100, 50, 64, 33},
                                              {0, 8, 8, 2, 2}})
      for (const bool narrow : {false, true}) {
        INFO(full << " x " << in << " -> " << out << ", narrow " << narrow);
        const auto row = t.some_of(full);
        const std::int64_t rows = narrow ? std::ssize(row) : full;
        check_op(t,
                 ItemSketch{.sketch = t.wide_unset({4, a * b}),
                            .dy = t.normal({rows, out}),
                            .x_full = t.normal({full, in}),
                            .row = narrow ? t.indices(row) : Tensor{},
                            .offsets = t.offsets({0, rows / 3, rows / 3, rows / 2, rows}),
                            .out_sign = signs(t, out),
                            .in_sign = signs(t, in),
                            .out_buckets = a},
                 {.length = (rows + 1) * (out / a + 1) * (in / b + 1)});
      }
    for (const auto& [full, out, in, a, b] :
         {std::array<std::int64_t, 5>{1, 1, 1, 1, 1}, {700, 33, 70, 5, 7}, {60, 100, 50, 64, 33}})
      for (const bool narrow : {false, true})
        for (const std::int64_t stretches : {1, 3, 40}) {
          const bool counted = stretches % 2 == 1;
          INFO("a draw of " << full << ", narrow " << narrow << ", stretches " << stretches);
          const auto row = t.some_of(full);
          const std::int64_t rows = narrow ? std::ssize(row) : full;
          const auto kept = t.some_of(rows);
          check_op(t,
                   ItemSketch{.sketch = t.wide_unset({stretches, a * b}),
                              .dy = t.normal({rows, out}),
                              .x_full = t.normal({full, in}),
                              .row = narrow ? t.indices(row) : Tensor{},
                              .out_sign = signs(t, out),
                              .in_sign = signs(t, in),
                              .out_buckets = a,
                              .kept = t.indices(kept),
                              .scale = t.wide_normal({std::ssize(kept)}),
                              .count = counted ? t.indices({std::ssize(kept) / 2}) : Tensor{}},
                   {.length = (rows + 1) * (out / a + 1) * (in / b + 1)});
        }
    CHECK_THROWS_AS(t.ops().run(ItemSketch{.sketch = t.wide_unset({1, 8}),
                                           .dy = t.normal({3, 2}),
                                           .x_full = t.normal({3, 2}),
                                           .offsets = t.offsets({0, 3}),
                                           .out_sign = signs(t, 2),
                                           .in_sign = signs(t, 2),
                                           .out_buckets = 4}),
                    InternalError);
    ItemSketch draw{.sketch = t.wide_unset({1, 4}),
                    .dy = t.normal({3, 2}),
                    .x_full = t.normal({3, 2}),
                    .out_sign = signs(t, 2),
                    .in_sign = signs(t, 2),
                    .out_buckets = 2,
                    .kept = t.indices({0, 2}),
                    .scale = t.wide_normal({1})};
    CHECK_THROWS_WITH(t.ops().run(draw), ContainsSubstring("or of a draw by its scale"));
    draw.scale = t.wide_normal({2});
    t.ops().run(draw);
    draw.offsets = t.offsets({0, 3});
    CHECK_THROWS_WITH(t.ops().run(draw), ContainsSubstring("of items by their offsets"));
    draw.kept = {};
    CHECK_THROWS_WITH(t.ops().run(draw), ContainsSubstring("of items by their offsets"));
  });
}

TEST_CASE("gram", "[sketch]") {
  on_every_backend([](TestTensors& t) {
    for (const auto& [n, width] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 300}, {33, 5}})
      check_op(t, Gram{.gram = t.wide_unset({n, n}), .x = t.wide_normal({n, width})},
               {.length = width});
  });
}
