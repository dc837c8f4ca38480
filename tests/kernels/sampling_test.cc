#include <algorithm>
#include <set>

#include "tests/support/check_op.h"
#include "tests/support/fewer_cases.h"

using namespace vcas;

namespace {

// Scores of very different sizes, with zeros between.
std::vector<double> uneven_scores(std::int64_t n) {
  std::vector<double> scores;
  for (std::int64_t i = 0; i < n; ++i)
    scores.push_back(i % 5 == 3 ? 0 : std::exp(3 * std::sin(1.7 * static_cast<double>(i))));
  return scores;
}

struct Drawn {
  std::vector<std::int64_t> kept;
  std::vector<double> scale;
};

struct Drawer {
  // Keeps `count` indices; without one, independent draws.
  Drawer(TestTensors& tensors, const std::vector<double>& scores, double budget,
         std::int64_t count = -1)
      : t(tensors),
        selection(count < 0 ? Selection::kBernoulli : Selection::kSystematic),
        args{.kept = t.unset(DType::kI32, {count < 0 ? std::ssize(scores) : count}),
             .scale = t.unset({count < 0 ? std::ssize(scores) : count}),
             .count = count < 0 ? t.unset(DType::kI32, {1}) : Tensor{},
             .prob = t.unset({std::ssize(scores)}),
             .score = t.of(scores),
             .budget = budget,
             .selection = selection,
             .key = {.seed = 4, .stream = Stream::kWeight}} {}

  Drawn draw(std::uint64_t step) {
    args.key.step = step;
    t.ops().run(args);
    const auto kept = t.read(args.kept), scale = t.read(args.scale);
    const auto count = args.count ? static_cast<std::size_t>(t.read(args.count)[0]) : kept.size();
    REQUIRE(count <= kept.size());
    Drawn drawn;
    for (std::size_t i = 0; i < count; ++i) {
      drawn.kept.push_back(static_cast<std::int64_t>(kept[i]));
      drawn.scale.push_back(scale[i]);
    }
    return drawn;
  }

  TestTensors& t;
  Selection selection;
  Draw args;
};

constexpr int kDraws = repetitions(4096);

// Checks kDraws draws. Each index is kept with its probability, within 5 standard errors.
// Kept indices ascend. Their scale is 1 / p, or 0 for those that only fill up.
void check_frequencies(TestTensors& t, const std::vector<double>& scores, double budget,
                       std::int64_t count = -1) {
  Drawer drawer(t, scores, budget, count);
  drawer.draw(0);
  const auto p = t.read(drawer.args.prob);
  std::vector<int> times(p.size(), 0);
  bool ascending = true, right_scale = true;
  for (int step = 0; step < kDraws; ++step) {
    const Drawn drawn = drawer.draw(static_cast<std::uint64_t>(step));
    for (std::size_t j = 0; j < drawn.kept.size(); ++j) {
      const auto i = static_cast<std::size_t>(drawn.kept[j]);
      if (j > 0) ascending = ascending && drawn.kept[j] > drawn.kept[j - 1];
      if (drawn.scale[j] == 0) continue;
      right_scale = right_scale && std::abs(drawn.scale[j] * p[i] - 1) < 1e-6;
      ++times[i];
    }
  }
  CHECK(ascending);
  CHECK(right_scale);
  for (std::size_t i = 0; i < p.size(); ++i) {
    INFO("index " << i << ", p " << p[i] << ", kept " << times[i] << " times");
    CHECK(std::abs(times[i] - kDraws * p[i]) <= 5 * std::sqrt(kDraws * p[i] * (1 - p[i])) + 1e-3);
  }
}

// Norms of `parts` of each of `rows`.
Tensor norms(TestTensors& t, std::int64_t rows, std::int64_t parts) {
  return t.wide_filled({rows, parts},
                       [](std::int64_t i) { return 0.1 + static_cast<double>(i % 13); });
}

}  // namespace

TEST_CASE("row_score and item_norm", "[sampling]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t full : {1, 9, 600})
      for (const std::int64_t width : {1, 7, 33, 384}) {
        const auto row = t.some_of(full);
        const auto rows = static_cast<std::int64_t>(row.size());
        const Tensor x = t.normal({full, width});
        check_op(t, RowScore{.score = t.wide_unset({full}), .dy = t.normal({full, 5}), .x_full = x},
                 {.length = width});
        check_op(t,
                 RowScore{.score = t.wide_unset({rows}),
                          .dy = t.normal({rows, 40}),
                          .x_full = x,
                          .row = t.indices(row)},
                 {.length = width + 40});
        check_op(t,
                 RowScore{.score = t.wide_unset({full}),
                          .dy = t.normal({full, 5}),
                          .x_full = x,
                          .filled = t.offsets({full / 2})},
                 {.length = width});
        const Tensor dy_norm = norms(t, rows, full == 9 ? 130 : 3), x_norm = norms(t, full, 1);
        check_op(t, RowScore{.score = t.wide_unset({rows}),
                             .dy = t.normal({rows, 40}),
                             .x_full = x,
                             .row = t.indices(row),
                             .dy_norm = dy_norm,
                             .x_norm_full = x_norm});
        check_op(t, RowScore{.score = t.wide_unset({rows}),
                             .dy = t.normal({rows, 40}),
                             .x_full = x,
                             .row = t.indices(row),
                             .dy_norm = norms(t, rows, 1),
                             .x_norm_full = x_norm});
        check_op(t,
                 RowScore{.score = t.wide_unset({full}),
                          .dy = t.normal({full, 5}),
                          .x_full = x,
                          .x_norm_full = x_norm},
                 {.length = 5});
        check_op(t,
                 RowScore{.score = t.wide_unset({rows}),
                          .dy = t.normal({rows, 40}),
                          .x_full = x,
                          .row = t.indices(row),
                          .dy_norm = dy_norm},
                 {.length = width});
        for (const bool per_token : {false, true})
          check_op(t,
                   ItemNorm{.norm = t.wide_unset({4}),
                            .x = x,
                            .offsets = t.offsets({0, full / 3, full / 3, full / 2, full}),
                            .tokens = per_token ? t.offsets({0, 3, 4, 11, 16}) : Tensor{}},
                   {.length = full * width});
      }
    CHECK_THROWS_AS(t.ops().run(RowScore{.score = t.wide_unset({9}),
                                         .dy = t.normal({9, 4}),
                                         .x_full = t.normal({9, 4}),
                                         .dy_norm = t.wide_unset({9})}),
                    InternalError);
    const Tensor one_nan =
        t.filled({2, 2}, [](std::int64_t i) { return i == 1 ? std::nan("") : 1; });
    check_op(t, RowScore{.score = t.wide_unset({2}), .dy = one_nan, .x_full = t.normal({2, 3})});
  });
}

TEST_CASE("norms of items that several blocks read", "[sampling]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t width : {800, 801})
      for (const auto& offsets : {std::vector<std::int64_t>{0, 0, 77, 90}, {0, 90}})
        check_op(t,
                 ItemNorm{.norm = t.wide_unset({std::ssize(offsets) - 1}),
                          .x = t.normal({90, width}),
                          .offsets = t.offsets(offsets)},
                 {.length = 90 * width});
  });
}

TEST_CASE("a group of row scores", "[sampling]") {
  on_every_backend([](TestTensors& t) {
    Group<RowScore> group;
    for (const std::int64_t full : {9, 0, 600, 1, 70}) {
      const auto row = t.some_of(full);
      group.add({.score = t.wide_unset({std::ssize(row)}),
                 .dy = t.normal({std::ssize(row), 3 + full % 7}),
                 .x_full = t.normal({full, 33}),
                 .row = t.indices(row),
                 .dy_norm = full % 2 ? norms(t, std::ssize(row), 1) : Tensor{},
                 .x_norm_full = full % 3 ? norms(t, full, 2) : Tensor{}});
    }
    check_op(t, group, {.length = 42});
  });
}

TEST_CASE("norms of very small gradients do not underflow", "[sampling]") {
  on_every_backend([](TestTensors& t) {
    const Tensor x = t.filled({3, 16}, [](std::int64_t) { return 1e-25; });
    const Tensor score = t.wide_unset({3}), item = t.wide_unset({1});
    const Tensor ones = t.filled({3, 1}, [](std::int64_t) { return 1; });
    t.ops().run(RowScore{.score = score, .dy = x, .x_full = ones});
    t.ops().run(ItemNorm{.norm = item, .x = x, .offsets = t.offsets({0, 3})});
    const Tensor norm = t.wide_unset({3});
    t.ops().run(Dropout{.y = t.unset({3, 16}), .y_norm = norm, .x = x});
    const double each = t.read(x)[0];
    CHECK(std::abs(t.read(score)[2] / (4 * each) - 1) < 1e-5);
    CHECK(std::abs(t.read(norm)[2] / (4 * each) - 1) < 1e-5);
    CHECK(std::abs(t.read(item)[0] / (std::sqrt(48) * each) - 1) < 1e-5);
  });
}

TEST_CASE("keep_probability against repeated capping", "[sampling]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    for (const std::int64_t n : {1, 2, 7, 33, 1000})
      for (const double share : {0.001, 0.1, 0.37, 0.5, 0.79, 0.81, 1.0, 3.0}) {
        INFO(n << " scores, budget " << share * static_cast<double>(n));
        check_op(t,
                 KeepProbability{.prob = t.unset({n}),
                                 .variance = t.unset(DType::kF64, {1}),
                                 .score = t.of(uneven_scores(n)),
                                 .budget = share * static_cast<double>(n)},
                 {.factor = 16, .length = n});
      }
    check_op(t, KeepProbability{.prob = t.unset({0}), .score = t.normal({0}), .budget = 1});
    check_op(t, KeepProbability{.prob = t.unset({3}), .score = t.of({0, 0, 0}), .budget = 2});
    // Each cap makes room for the next: the case where capping again and again takes n rounds.
    std::vector<double> halving;
    for (int i = 0; i < 100; ++i) halving.push_back(std::ldexp(1.0, -i));
    check_op(t, KeepProbability{.prob = t.unset({100}), .score = t.of(halving), .budget = 50.5},
             {.length = 100});
  });
}

TEST_CASE("keep_probability is the optimum, found by trying every capped set", "[sampling]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    for (const std::vector<double>& scores : std::vector<std::vector<double>>{
             {1, 2, 3, 4, 5, 6, 7, 8}, {100, 1, 1, 1, 1}, {3, 3, 3}, {1e-3, 50, 60, 1, 2, 0.5, 70}})
      for (double budget = 0.5; budget < static_cast<double>(scores.size()); budget += 0.75) {
        double best = std::numeric_limits<double>::infinity();
        for (unsigned capped = 0; capped < 1u << scores.size(); ++capped) {
          double left = budget, sum = 0, variance = 0;
          for (std::size_t i = 0; i < scores.size(); ++i)
            if (capped >> i & 1)
              left -= 1;
            else
              sum += scores[i];
          bool feasible = left >= 0 && (sum > 0 || left == 0);
          for (std::size_t i = 0; i < scores.size(); ++i) {
            if (capped >> i & 1) continue;
            const double p = left * scores[i] / sum;
            feasible = feasible && p > 0 && p <= 1;
            variance += (1 - p) / p * scores[i] * scores[i];
          }
          if (feasible) best = std::min(best, variance);
        }
        const Tensor prob = t.unset({static_cast<std::int64_t>(scores.size())});
        const Tensor variance = t.unset(DType::kF64, {1});
        t.ops().run(KeepProbability{
            .prob = prob, .variance = variance, .score = t.of(scores), .budget = budget});
        INFO("budget " << budget);
        CHECK(std::abs(t.read(variance)[0] - best) < 1e-5 * best + 1e-9);
        double sum = 0;
        for (const double p : t.read(prob)) {
          CHECK(p <= 1);
          sum += p;
        }
        CHECK(std::abs(sum - budget) < 1e-6 * budget);
      }
  });
}

TEST_CASE("keep_probability where a few scores hide the others in the sum", "[sampling]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    const Tensor prob = t.unset({4});
    t.ops().run(KeepProbability{.prob = prob, .score = t.of({1, 1e-20, 1, 1e-20}), .budget = 2});
    const std::vector<double> got = t.read(prob);
    CHECK(got[0] == 1);
    CHECK(got[2] == 1);
    CHECK(got[1] < 1e-15);
    CHECK(got[3] < 1e-15);
    // The sum is rounded to 2, then to 1 + 2^-52: the first is capped by one pass, not by the next.
    t.ops().run(KeepProbability{
        .prob = prob, .score = t.of({1, 0.5, 0.5, std::ldexp(1.0, -52)}), .budget = 2});
    CHECK(std::abs(t.read(prob)[0] - 1) <= epsilon(t.dtype()));
  });
}

TEST_CASE("keep_probability does not see the scale of the scores", "[sampling]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    const auto probabilities = [&](double scale) {
      auto scores = uneven_scores(50);
      for (double& score : scores) score *= scale;
      const Tensor prob = t.unset({50});
      t.ops().run(KeepProbability{.prob = prob, .score = t.of(scores), .budget = 17.25});
      return t.read(prob);
    };
    const auto want = probabilities(1);
    for (const double scale : {1e-30, 1e30}) {
      const auto got = probabilities(scale);
      for (std::size_t i = 0; i < want.size(); ++i)
        CHECK(std::abs(got[i] - want[i]) <= 8 * epsilon(t.dtype()));
    }
    CHECK(probabilities(0x1p-90) == want);
  });
}

TEST_CASE("keep_probability keeps what is not finite, so that it is noticed", "[sampling]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    const Tensor prob = t.unset({6}), variance = t.unset(DType::kF64, {1});
    t.ops().run(KeepProbability{.prob = prob,
                                .variance = variance,
                                .score = t.of({1, std::nan(""), 2, INFINITY, 0, 4}),
                                .budget = 4});
    const auto p = t.read(prob);
    CHECK(p[1] == 1);
    CHECK(p[3] == 1);
    CHECK(p[4] == 0);
    CHECK(std::abs(p[0] + p[2] + p[5] - 2) < 1e-6);
    CHECK(std::isnan(t.read(variance)[0]));
    // A budget for one draws one of them, and nothing else.
    const Drawn drawn = Drawer(t, {1, std::nan(""), 2, INFINITY, 0, 4}, 1, 1).draw(0);
    CHECK(drawn.kept == std::vector<std::int64_t>{1});
    CHECK(drawn.scale == std::vector<double>{1});
  });
}

TEST_CASE("draw as specified", "[sampling]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    for (const std::int64_t n : {0, 1, 7, 33, 500})
      for (const double share : {0.1, 0.5, 2.0})
        for (const Selection selection : {Selection::kBernoulli, Selection::kSystematic})
          for (const bool with_id : {false, true}) {
            INFO(n << " rows, share " << share << ", id " << with_id);
            std::vector<std::int64_t> id;
            for (std::int64_t i = 0; i < n; ++i) id.push_back(3 * i + 1);
            const bool systematic = selection == Selection::kSystematic;
            const std::int64_t most =
                systematic ? std::min<std::int64_t>(
                                 n, std::llround(std::ceil(share * static_cast<double>(n))))
                           : n;
            for (std::uint64_t step = 0; step < 4; ++step)
              check_op(t,
                       Draw{.kept = t.unset(DType::kI32, {most}),
                            .scale = t.unset({most}),
                            .count = systematic ? Tensor{} : t.unset(DType::kI32, {1}),
                            .prob = t.unset({n}),
                            .score = t.of(uneven_scores(n)),
                            .id = with_id ? t.indices(id) : Tensor{},
                            .budget = std::ceil(share * static_cast<double>(n)),
                            .selection = selection,
                            .key = {.seed = 8, .stream = Stream::kGate, .step = step},
                            .step = with_id ? t.offsets({7}) : Tensor{}},
                       {.factor = 16, .length = n});
          }
  });
}

TEST_CASE("a group of draws", "[sampling]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    for (const Selection selection : {Selection::kBernoulli, Selection::kSystematic}) {
      const bool systematic = selection == Selection::kSystematic;
      Group<Draw> group;
      for (const std::int64_t n : {33, 0, 500, 1}) {
        const std::int64_t budget = (n + 1) / 2;
        group.add(
            {.kept = t.unset(DType::kI32, {systematic ? budget : n}),
             .scale = t.unset({systematic ? budget : n}),
             .count = systematic ? Tensor{} : t.unset(DType::kI32, {1}),
             .prob = t.unset({n}),
             .score = t.of(uneven_scores(n)),
             .budget = static_cast<double>(budget),
             .selection = selection,
             .key = {.seed = 8, .stream = Stream::kWeight, .site = static_cast<unsigned>(n)}});
      }
      check_op(t, group, {.factor = 16, .length = 500});
    }
  });
}

TEST_CASE("draws of scores that only the device can count", "[sampling]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    constexpr std::int64_t kMost = 500;
    const auto first = [](const Tensor& all, std::int64_t count) {
      return Tensor{all.data, all.dtype, {count}};
    };
    for (const std::int64_t n : {0, 1, 33, 499, 500})
      for (const Selection selection : {Selection::kBernoulli, Selection::kSystematic}) {
        INFO(n << " scores");
        const Tensor filled = t.offsets({n}), score = t.of(uneven_scores(kMost));
        const bool systematic = selection == Selection::kSystematic;
        const Draw draw{.kept = t.unset(DType::kI32, {systematic ? kMost / 4 : kMost}),
                        .scale = t.unset({systematic ? kMost / 4 : kMost}),
                        .count = t.unset(DType::kI32, {1}),
                        .prob = t.unset({kMost}),
                        .score = score,
                        .budget = 0.25,
                        .filled = filled,
                        .selection = selection,
                        .key = {.seed = 8, .stream = Stream::kWeight}};
        check_op(t, draw, {.factor = 16, .length = kMost});
        // The same as of that many scores.
        Draw known = draw;
        known.score = first(score, n);
        known.prob = t.unset({n});
        known.filled = {};
        known.budget = systematic ? std::ceil(0.25 * double(n)) : 0.25 * double(n);
        const auto count = static_cast<std::int64_t>(t.read(draw.count)[0]);
        const auto kept = t.read(first(draw.kept, count));
        if (systematic) {
          CHECK(count == static_cast<std::int64_t>(known.budget));
          known.count = {};
          known.kept = t.unset(DType::kI32, {count});
          known.scale = t.unset({count});
        }
        t.ops().run(known);
        CHECK(t.read(first(known.kept, count)) == kept);
        CHECK(t.read(first(known.scale, count)) == t.read(first(draw.scale, count)));
        check_op(t,
                 KeepProbability{.prob = t.unset({kMost}),
                                 .variance = t.unset(DType::kF64, {1}),
                                 .score = score,
                                 .budget = 0.25,
                                 .filled = filled,
                                 .whole = systematic},
                 {.factor = 16, .length = kMost});
      }
  });
}

TEST_CASE("draws keep each row as often as its probability says", "[sampling]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    const std::vector<double> scores = uneven_scores(23);
    check_frequencies(t, scores, 9);
    check_frequencies(t, scores, 9, 9);
    check_frequencies(t, scores, 9, 11);
    // A sum that is no integer, zeros at both ends, a row that is always kept.
    const std::vector<double> fractional{0, 0.3, 0.9, 1, 0.05, 0.4, 0};
    check_frequencies(t, fractional, 2.65);
    check_frequencies(t, fractional, 2.65, 3);
    check_frequencies(t, {1, 1, 1, 1, 1}, 2, 2);
  });
}

TEST_CASE("systematic draws keep the budget exactly, whatever the rounding", "[sampling]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    for (const std::int64_t budget : {1, 2, 500, 1999, 3136}) {
      std::vector<double> scores;
      for (std::int64_t i = 0; i < 3136; ++i)
        scores.push_back(1 + std::sin(static_cast<double>(i * i)) * 0.999);
      Drawer drawer(t, scores, static_cast<double>(budget), budget);
      for (std::uint64_t step = 0; step < repetitions(50); ++step) {
        const Drawn drawn = drawer.draw(step);
        CHECK(std::ranges::count(drawn.scale, 0.0) == 0);
        CHECK(std::set(drawn.kept.begin(), drawn.kept.end()).size() == drawn.kept.size());
      }
    }
  });
}

TEST_CASE("a systematic draw fills up with rows of scale 0", "[sampling]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    Drawer drawer(t, {0, 0.5, 0}, 0.5, 1);
    int filled = 0;
    for (std::uint64_t step = 0; step < 64; ++step) {
      const Drawn drawn = drawer.draw(step);
      REQUIRE(drawn.kept.size() == 1);
      if (drawn.scale[0] == 0)
        ++filled;
      else
        CHECK((drawn.kept[0] == 1 && drawn.scale[0] == 2));
    }
    CHECK((filled > 10 && filled < 54));
  });
}

TEST_CASE("narrow_rows and gather_scaled_rows", "[sampling]") {
  on_every_backend([](TestTensors& t) {
    const Tensor old_offsets = t.offsets({0, 3, 4, 10, 10, 15});
    for (const bool nested : {false, true})
      for (const std::vector<std::int64_t>& kept :
           std::vector<std::vector<std::int64_t>>{{}, {2}, {0, 2, 4}, {1, 3}, {0, 1, 2, 3, 4}}) {
        const auto count = static_cast<std::int64_t>(kept.size());
        std::vector<std::int64_t> old_row;
        for (std::int64_t r = 0; r < 15; ++r) old_row.push_back(2 * r + 5);
        const NarrowRows narrow{.item = t.unset(DType::kI32, {count}),
                                .scale = t.wide_unset({count}),
                                .offsets = t.unset(DType::kI64, {count + 1}),
                                .row = t.unset(DType::kI32, {15}),
                                .source_row = t.unset(DType::kI32, {15}),
                                .row_scale = t.wide_unset({15}),
                                .kept = t.indices(kept),
                                .kept_scale = t.wide_normal({count}),
                                .old_item = nested ? t.indices({1, 4, 6, 7, 9}) : Tensor{},
                                .old_scale = nested ? t.wide_normal({5}) : Tensor{},
                                .old_offsets = old_offsets,
                                .old_row = nested ? t.indices(old_row) : Tensor{}};
        NarrowRows other = narrow;  // another layout, of one row an item
        for (Tensor* tensor : {&other.item, &other.row, &other.source_row})
          *tensor = t.unset(DType::kI32, tensor->shape);
        other.scale = t.wide_unset({count});
        other.row_scale = t.wide_unset({15});
        other.offsets = t.unset(DType::kI64, {count + 1});
        other.old_offsets = t.offsets({0, 1, 2, 3, 4, 5});
        Group<NarrowRows> group;
        group.add(narrow);
        group.add(other);
        check_op(t, group);
        const auto rows = static_cast<std::int64_t>(t.read(narrow.offsets).back());
        for (const std::int64_t width : {1, 7, 33, 4000})
          for (const bool norm : {false, true})
            check_op(t,
                     GatherScaledRows{.y = t.unset({rows, width}),
                                      .y_norm = norm ? t.wide_unset({rows}) : Tensor{},
                                      .x = t.normal({15, width}),
                                      .source_row = narrow.source_row.range(0, rows),
                                      .row_scale = narrow.row_scale.range(0, rows)},
                     {.length = norm ? width : 1});
        check_op(t,
                 GatherScaledRows{.y = t.unset({15, 7}),  // with padding
                                  .y_norm = t.wide_unset({15}),
                                  .x = t.normal({15, 7}),
                                  .source_row = narrow.source_row,
                                  .row_scale = narrow.row_scale},
                 {.length = 7});
      }
    for (const std::vector<std::int64_t>& kept :
         std::vector<std::vector<std::int64_t>>{{}, {2}, {0, 1, 2}})
      for (const std::vector<std::int64_t>& echo :
           std::vector<std::vector<std::int64_t>>{{}, {5}, {8, 0, 6}}) {
        const std::int64_t count = std::ssize(kept) + std::ssize(echo);
        check_op(t, NarrowRows{.item = t.unset(DType::kI32, {count}),
                               .scale = t.wide_unset({count}),
                               .offsets = t.unset(DType::kI64, {count + 1}),
                               .row = t.unset(DType::kI32, {4 * 9}),
                               .source_row = t.unset(DType::kI32, {4 * 9}),
                               .row_scale = t.wide_unset({4 * 9}),
                               .kept = t.indices(kept),
                               .kept_scale = t.wide_normal({std::ssize(kept)}),
                               .echo = t.indices(echo),
                               .old_item = t.indices({1, 4, 7}),
                               .old_offsets = t.offsets({0, 4, 8, 12}),
                               .old_row = t.indices({4, 5, 6, 7, 16, 17, 18, 19, 28, 29, 30, 31})});
      }
    if (t.ops().name() == "cuda") return;  // a failed check stops a GPU for good
    CHECK_THROWS_AS(t.ops().run(NarrowRows{.item = t.unset(DType::kI32, {1}),
                                           .scale = t.wide_unset({1}),
                                           .offsets = t.unset(DType::kI64, {2}),
                                           .row = t.unset(DType::kI32, {5}),
                                           .source_row = t.unset(DType::kI32, {5}),
                                           .row_scale = t.wide_unset({5}),
                                           .kept = t.indices({2}),
                                           .kept_scale = t.wide_normal({1}),
                                           .old_offsets = old_offsets}),
                    InternalError);
  });
}

TEST_CASE("draw_echo", "[sampling]") {
  on_every_backend([](TestTensors& t) {
    struct Case {
      std::int64_t items;
      std::vector<std::int64_t> id, kept;
      std::int64_t echoes;
    };
    std::vector<std::int64_t> many;
    for (std::int64_t i = 0; i < 1500; i += 3) many.push_back(i);
    for (const auto& [items, id, kept, echoes] : std::vector<Case>{{1, {}, {}, 1},
                                                                   {5, {}, {0, 1, 2, 3, 4}, 0},
                                                                   {8, {}, {0, 2, 5}, 2},
                                                                   {9, {7, 2, 4}, {0, 2}, 7},
                                                                   {1500, {}, many, 40}}) {
      INFO(echoes << " of " << items);
      check_op(t, DrawEcho{.item = t.unset(DType::kI32, {echoes}),
                           .kept = t.indices(kept),
                           .id = id.empty() ? Tensor{} : t.indices(id),
                           .items = items,
                           .key = {.seed = 3, .stream = Stream::kEcho, .step = 2, .site = 4}});
    }
    CHECK_THROWS_AS(t.ops().run(DrawEcho{
                        .item = t.unset(DType::kI32, {2}), .kept = t.indices({1}), .items = 2}),
                    InternalError);
  });
}

TEST_CASE("draw_echo takes each item that was not kept equally often, at each place",
          "[sampling][law]") {
  constexpr std::int64_t kItems = 7, kEchoes = 3;
  const auto ops = make_ops("cpu");
  TestTensors t(*ops, DType::kF32);
  std::vector<std::vector<int>> count(kEchoes, std::vector<int>(kItems));
  DrawEcho args{.item = t.unset(DType::kI32, {kEchoes}),
                .kept = t.indices({1, 4}),
                .items = kItems,
                .key = {.seed = 3, .stream = Stream::kEcho}};
  for (args.key.step = 0; args.key.step < kDraws; ++args.key.step) {
    ops->run(args);
    for (std::int64_t e = 0; e < kEchoes; ++e)
      ++count[static_cast<std::size_t>(e)]
             [static_cast<std::size_t>(args.item.ptr<std::int32_t>()[e])];
  }
  // Five standard errors of a binomial count.
  const double mean = kDraws / 5.0, bound = 5 * std::sqrt(mean * 0.8);
  for (const std::vector<int>& at_place : count)
    for (std::int64_t i = 0; i < kItems; ++i)
      CHECK(std::abs(at_place[static_cast<std::size_t>(i)] - (i == 1 || i == 4 ? 0 : mean)) <=
            (i == 1 || i == 4 ? 0 : bound));
}
