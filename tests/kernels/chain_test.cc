// Chains of operations (kernels/ops/op.h) give the bits of their parts, called one by one.
#include "kernels/op_cost.h"
#include "tests/kernels/outputs.h"
#include "tests/support/check_op.h"

using namespace vcas;

namespace {

// What only the parts write shows as well: the chain has left it unset.
template <Chain Args>
void check_chain(TestTensors& t, const Args& args) {
  std::vector<std::vector<std::byte>> of_chain, of_parts;
  t.ops().run(args);
  add_outputs(t.ops(), args, of_chain);
  for_each_part(args, [&](const auto& part) { t.ops().run(part); });
  add_outputs(t.ops(), args, of_parts);
  CHECK(of_parts == of_chain);
}

}  // namespace

TEST_CASE("a draw of rows is its scores and draws", "[sampling]") {
  on_every_backend([](TestTensors& t) {
    for (const Selection selection : {Selection::kBernoulli, Selection::kSystematic})
      for (const bool counted : {false, true}) {
        const bool systematic = selection == Selection::kSystematic;
        INFO("systematic " << systematic << ", counted " << counted);
        const auto positive = [](std::int64_t i) { return 1 + static_cast<double>(i % 5); };
        DrawRows chain;
        for (const std::int64_t full : {33, 0, 3000, 1, 70}) {
          const auto row = t.some_of(full);
          const std::int64_t n = std::ssize(row), budget = (n + 1) / 2;
          const Tensor filled = counted ? t.offsets({n / 2}) : Tensor{};
          chain.scores.add(
              {.score = t.wide_unset({n}),
               .dy = t.normal({n, 3 + full % 7}),
               .x_full = t.normal({full, 33}),
               .row = t.indices(row),
               .dy_norm = full == 70     ? t.wide_filled({n, 2}, positive)
                          : full == 3000 ? t.wide_filled({n, 1}, positive)
                                         : Tensor{},
               .x_norm_full = full == 3000 ? t.wide_filled({full, 1}, positive) : Tensor{},
               .filled = filled});
          chain.draws.add({.kept = t.unset(DType::kI32, {systematic ? budget : n}),
                           .scale = t.wide_unset({systematic ? budget : n}),
                           .count = systematic && !counted ? Tensor{} : t.unset(DType::kI32, {1}),
                           .prob = t.wide_unset({n}),
                           .score = chain.scores[chain.scores.size() - 1].score,
                           .id = t.indices(row),
                           .budget = counted ? 0.5 : static_cast<double>(budget),
                           .filled = filled,
                           .selection = selection,
                           .key = {.seed = 8, .stream = Stream::kWeight, .site = unsigned(full)}});
        }
        check_chain(t, chain);
        CHECK(t.read(chain.draws[2].prob)[0] > 0);
        chain.draws.add(chain.draws[0]);
        CHECK_THROWS_AS(t.ops().run(chain), InternalError);
      }
  });
}

TEST_CASE("a draw of items is its scores, its draw and its row sets", "[sampling]") {
  on_every_backend([](TestTensors& t) {
    using Numbers = std::vector<std::int64_t>;
    struct Case {
      Numbers offsets, widths, kept;
    };
    const auto first_of = [](std::int64_t items) {  // of 0 to 3 rows each
      Numbers offsets{0};
      for (std::int64_t i = 0; i < items; ++i) offsets.push_back(offsets.back() + i % 4);
      return offsets;
    };
    // Several blocks read an item of 8,000 columns. More than a warp has lanes for, and than it
    // draws from.
    for (const auto& [offsets, widths, all_kept] :
         std::vector<Case>{{{0, 3, 4, 10, 10, 15}, {7, 8, 384}, {0, 1, 3, 5}},
                           {{0, 3, 4, 10, 10, 15}, {8000}, {3}},
                           {{0, 100, 101, 102, 103, 104}, {7, 8, 384}, {0, 1, 3, 5}},
                           {{0, 1, 8500, 8503, 8503, 9000}, {7}, {3}},
                           {first_of(60), {8}, {0, 20, 43}},
                           {first_of(256), {8}, {37}},
                           {first_of(257), {8}, {0, 37}}})
      for (const std::int64_t width : widths)
        for (const std::int64_t kept : all_kept) {
          const std::int64_t rows = offsets.back(), items = std::ssize(offsets) - 1;
          // A block adds up in an order of its size, which f64 shows.
          if (items > 256 && t.dtype() == DType::kF64) continue;
          INFO(kept << " of " << items << " items of width " << width << ", " << rows << " rows");
          const bool per_token = rows == 15;
          DrawItems chain{
              .norm = {.norm = t.wide_unset({items}),
                       .x = t.normal({rows, width}),
                       .offsets = t.offsets(offsets),
                       .tokens = per_token ? t.offsets({0, 3, 4, 11, 16, 20}) : Tensor{}},
              .draw = {.kept = t.unset(DType::kI32, {kept}),
                       .scale = t.wide_unset({kept}),
                       .prob = t.wide_unset({items}),
                       .score = {},
                       .budget = static_cast<double>(kept),
                       .selection = Selection::kSystematic,
                       .key = {.seed = 8, .stream = Stream::kGate}}};
          chain.draw.score = chain.norm.norm;
          Numbers one_row, old_item;
          for (std::int64_t i = 0; i <= items; ++i) one_row.push_back(i);
          for (std::int64_t i = 0; i < items; ++i) old_item.push_back(2 * i + 1);
          for (const Numbers& of_layout : {offsets, one_row}) {
            Numbers old_row;
            for (std::int64_t r = 0; r < of_layout.back(); ++r) old_row.push_back(3 * r + 2);
            chain.rows.add({.item = t.unset(DType::kI32, {kept}),
                            .scale = t.wide_unset({kept}),
                            .offsets = t.unset(DType::kI64, {kept + 1}),
                            .row = t.unset(DType::kI32, {rows}),
                            .source_row = t.unset(DType::kI32, {rows}),
                            .row_scale = t.wide_unset({rows}),
                            .kept = chain.draw.kept,
                            .kept_scale = chain.draw.scale,
                            .old_item = t.indices(old_item),
                            .old_scale = t.wide_normal({items}),
                            .old_offsets = t.offsets(of_layout),
                            .old_row = kept % 2 == 1 ? t.indices(old_row) : Tensor{}});
          }
          check_chain(t, chain);
          CHECK(op_cost(chain).launches == (rows > 8192 ? 2 : 1));
          CHECK(t.read(chain.rows[0].offsets).back() >= static_cast<double>(kept) - 1);
          chain.draw.selection = Selection::kBernoulli;
          CHECK_THROWS_AS(t.ops().run(chain), InternalError);
        }
  });
}
