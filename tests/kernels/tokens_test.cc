#include "tests/support/check_op.h"
#include "tests/support/fewer_cases.h"

using namespace vcas;

namespace {

// Weights of items in a loss: 0, 1 and others.
Tensor weights(TestTensors& t, std::int64_t items) {
  return t.made<float>({items}, [](std::int64_t i) { return 0.25 * double(i % 7); });
}

}  // namespace

TEST_CASE("patch_extract", "[tokens]") {
  on_every_backend([](TestTensors& t) {
    const auto value = [](std::int64_t i) { return 0.01 * double(i % 1009); };
    for (const std::int64_t patch : {1, 2, 4})
      for (const bool chosen : {false, true}) {
        const Tensor image = t.made<float>({5, 3, 8, 12}, value);
        const std::int64_t items = chosen ? 3 : 5, patches = (8 / patch) * (12 / patch);
        check_op(t,
                 PatchExtract{.y = t.unset({items * patches, 3 * patch * patch}),
                              .image = image,
                              .item = chosen ? t.indices({4, 0, 2}) : Tensor{},
                              .patch = patch},
                 {.factor = 0});
      }
  });
}

TEST_CASE("patch tokens, forward and backward", "[tokens]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t items : cases_to_run({0, 1, 50}))
      for (const std::int64_t patches : {1, 16})
        for (const std::int64_t width : cases_to_run({1, 7, 96}))
          for (const bool cls : {false, true})
            for (const bool gradients : {false, true}) {
              INFO(items << " items, " << patches << " patches, width " << width << ", cls "
                         << cls);
              const std::int64_t tokens = patches + (cls ? 1 : 0);
              check_op(t, PatchTokensForward{.y = t.unset({items, tokens, width}),
                                             .patches = t.normal({items, patches, width}),
                                             .cls = cls ? t.normal({width}) : Tensor{},
                                             .position = t.normal({tokens, width})});
              check_op(t,
                       PatchTokensBackward{
                           .dpatches = t.unset({items, patches, width}),
                           .dcls = cls && gradients ? t.wide_normal({width}) : Tensor{},
                           .dposition = gradients ? t.wide_normal({tokens, width}) : Tensor{},
                           .dy = t.normal({items, tokens, width})},
                       {.length = items + 1});
            }
  });
}

TEST_CASE("pooling, forward and backward", "[tokens]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t width : {1, 7, 200})
      for (const Pooling pooling : {Pooling::kFirst, Pooling::kMean}) {
        const Tensor offsets = t.offsets({0, 1, 50, 55, 400});
        check_op(t,
                 PoolForward{.y = t.unset({4, width}),
                             .x = t.normal({400, width}),
                             .offsets = offsets,
                             .pooling = pooling},
                 {.length = 400});
        check_op(t, PoolBackward{.dx = t.unset({400, width}),
                                 .dy = t.normal({4, width}),
                                 .offsets = offsets,
                                 .pooling = pooling});
      }
    check_op(
        t, PoolBackward{.dx = t.unset({0, 3}), .dy = t.normal({0, 3}), .offsets = t.offsets({0})});
  });
}

TEST_CASE("embedding, forward and backward", "[tokens]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t full : {1, 9, 600})
      for (const std::int64_t width : {1, 7, 100})
        for (const bool narrow : {false, true}) {
          std::vector<std::int64_t> tokens;
          for (std::int64_t r = 0; r < full; ++r) tokens.push_back(r * r % 11);  // repeated
          const Tensor index = t.indices(tokens);
          check_op(
              t,
              EmbeddingForward{
                  .y = t.unset({full, width}), .table = t.normal({11, width}), .tokens = index},
              {.factor = 0});
          const auto row = t.some_of(full);
          const std::int64_t rows = narrow ? static_cast<std::int64_t>(row.size()) : full;
          for (const std::int64_t entries : {11, 600})  // few, and many
            check_op(t,
                     EmbeddingBackward{.dtable = t.wide_normal({entries, width}),
                                       .dy = t.normal({rows, width}),
                                       .tokens_full = index,
                                       .row = narrow ? t.indices(row) : Tensor{}},
                     {.length = rows + 1});
        }
    // No row; one token in all rows, or another one in each.
    for (const std::int64_t entries : {300, 600})
      for (const std::int64_t rows : {0, 1, 300})
        for (const std::int64_t step : {0, 1}) {
          std::vector<std::int64_t> tokens;
          for (std::int64_t r = 0; r < rows; ++r) tokens.push_back(299 - r * step);
          check_op(t,
                   EmbeddingBackward{.dtable = t.wide_normal({entries, 5}),
                                     .dy = t.normal({rows, 5}),
                                     .tokens_full = t.indices(tokens)},
                   {.length = rows + 1});
        }
  });
}

TEST_CASE("cross entropy, forward and backward", "[tokens]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t rows : cases_to_run({0, 1, 33, 500}))
      for (const std::int64_t classes : cases_to_run({1, 2, 10, 33, 1000}))
        for (const double smoothing : {0.0, 0.1}) {
          INFO(rows << " x " << classes << ", smoothing " << smoothing);
          const Tensor weight = smoothing > 0 ? weights(t, rows) : Tensor{};
          std::vector<std::int64_t> labels;
          for (std::int64_t r = 0; r < rows; ++r) labels.push_back(r * 7 % classes);
          const Tensor logits = t.normal({rows, classes}, 3);
          check_op(t,
                   CrossEntropyForward{.loss = t.wide_unset({rows}),
                                       .correct = t.unset(DType::kI32, {rows}),
                                       .logits = logits,
                                       .labels = t.indices(labels),
                                       .weight = weight,
                                       .smoothing = smoothing},
                   {.length = classes});
          check_op(t,
                   CrossEntropyBackward{.dlogits = t.unset({rows, classes}),
                                        .logits = logits,
                                        .labels = t.indices(labels),
                                        .weight = weight,
                                        .smoothing = smoothing,
                                        .scale = 0.25},
                   {.length = classes});
        }
  });
}

TEST_CASE("cross entropy: equal logits, extreme logits, NaN", "[tokens]") {
  on_every_backend([](TestTensors& t) {
    // The first of equal largest logits counts; 1e4 apart is no overflow; a NaN reaches loss and
    // slope.
    const Tensor logits = t.filled({4, 3}, [](std::int64_t i) {
      const double values[] = {1, 5, 5, 5, 5, 1, 1e4, -1e4, 0, 1, std::nan(""), 2};
      return values[i];
    });
    const Tensor labels = t.indices({1, 1, 1, 0});
    const Tensor correct = t.unset(DType::kI32, {4}), loss = t.wide_unset({4});
    const Tensor dlogits = t.unset({4, 3});
    t.ops().run(CrossEntropyForward{
        .loss = loss, .correct = correct, .logits = logits, .labels = labels, .smoothing = 0.1});
    t.ops().run(CrossEntropyBackward{.dlogits = dlogits, .logits = logits, .labels = labels});
    const auto right = t.read(correct), losses = t.read(loss), slopes = t.read(dlogits);
    CHECK(right[0] == 1);
    CHECK(right[1] == 0);
    CHECK(right[2] == 0);
    const double far = t.read(logits)[6];  // 1e4, rounded
    CHECK(std::abs(losses[2] - (0.9 * 2 * far + 0.1 * far)) < 1e-2);
    CHECK(std::isnan(losses[3]));
    CHECK(std::isnan(slopes[9]));
    CHECK(right[3] == 0);

    // None is larger than a NaN that comes first. Without numbers the first logit counts.
    const Tensor unordered = t.filled({3, 3}, [](std::int64_t i) {
      const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
      const double values[] = {nan, 5, 1, nan, nan, nan, -infinity, nan, -infinity};
      return values[i];
    });
    const Tensor first_is_right = t.unset(DType::kI32, {3});
    t.ops().run(CrossEntropyForward{.loss = t.wide_unset({3}),
                                    .correct = first_is_right,
                                    .logits = unordered,
                                    .labels = t.indices({0, 0, 0})});
    CHECK(t.read(first_is_right) == std::vector<double>{1, 1, 1});
  });
}

TEST_CASE("squared error, forward and backward", "[tokens]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t items : {0, 1, 33, 34}) {
      const Tensor weight = items % 2 == 0 ? weights(t, items) : Tensor{};
      const Tensor prediction = t.normal({items}, 3);
      const Tensor target =
          t.made<float>({items}, [](std::int64_t i) { return 0.3 * double(i % 11); });
      check_op(t, SquaredErrorForward{.loss = t.wide_unset({items}),
                                      .prediction = prediction,
                                      .target = target,
                                      .weight = weight});
      check_op(t, SquaredErrorBackward{.dprediction = t.unset({items}),
                                       .prediction = prediction,
                                       .target = target,
                                       .weight = weight,
                                       .scale = 0.25});
    }
  });
}

TEST_CASE("scatter_rows", "[tokens]") {
  on_every_backend([](TestTensors& t) {
    // Items of 4, 1, 70 and 2 rows; nothing from one of them, a row twice, not in order.
    const std::vector<std::int64_t> index{3, 0, 3, 4, 74, 5, 40, 40, 40};
    for (const std::int64_t width : {1, 7, 300}) {
      check_op(t,
               ScatterRows{.dx = t.unset({77, width}),
                           .dy = t.normal({9, width}),
                           .index_full = t.indices(index),
                           .dy_offsets = t.offsets({0, 3, 4, 9, 9}),
                           .offsets = t.offsets({0, 4, 5, 75, 77}),
                           .offsets_full = t.offsets({0, 4, 5, 75, 77})},
               {.length = 3, .roundings = 3});
      check_op(t,
               ScatterRows{.dx = t.unset({72, width}),
                           .dy = t.normal({5, width}),
                           .index_full = t.indices(index),
                           .row = t.indices({4, 5, 6, 7, 8}),
                           .item = t.indices({2, 3}),
                           .dy_offsets = t.offsets({0, 5, 5}),
                           .offsets = t.offsets({0, 70, 72}),
                           .offsets_full = t.offsets({0, 4, 5, 75, 77})},
               {.length = 3, .roundings = 3});
    }
    check_op(t, ScatterRows{.dx = t.unset({0, 3}),
                            .dy = t.normal({0, 3}),
                            .index_full = t.indices(index),
                            .dy_offsets = t.offsets({0}),
                            .offsets = t.offsets({0}),
                            .offsets_full = t.offsets({0, 4, 5, 75, 77})});
  });
}
