#include <numeric>

#include "tests/support/check_op.h"

using namespace vcas;

namespace {

struct Problem {
  std::vector<std::int64_t> tokens;  // of each item
  std::int64_t heads, width;
};

// One token; widths below, at and above every vector; more queries than one block; unequal items.
const Problem kProblems[] = {{{1}, 1, 1},           {{3, 1, 5}, 2, 6},         {{17, 16}, 1, 33},
                             {{49, 49, 49}, 2, 64}, {{130, 2, 64, 65}, 1, 24}, {{20, 31}, 3, 96}};

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& tokens) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t n : tokens) offsets.push_back(offsets.back() + n);
  return offsets;
}

const RandomKey kKey{.seed = 9, .stream = Stream::kDropout, .step = 2, .site = 3};

}  // namespace

TEST_CASE("attention_forward", "[attention]") {
  on_every_backend([](TestTensors& t) {
    for (const auto& [tokens, heads, width] : kProblems)
      for (const double dropout : {0.0, 0.2}) {
        INFO(tokens.size() << " items, " << heads << " heads, width " << width << ", dropout "
                           << dropout);
        const auto offsets = offsets_of(tokens);
        const std::int64_t rows = offsets.back();
        check_op(t,
                 AttentionForward{.y = t.unset({rows, width}),
                                  .lse = t.wide_unset({rows, heads}),
                                  .qkv = t.normal({rows, 3 * width}),
                                  .offsets = t.offsets(offsets),
                                  .heads = heads,
                                  .dropout = dropout,
                                  .key = kKey,
                                  .step = heads > 1 ? t.offsets({4}) : Tensor{}},
                 {.factor = 8, .length = width});
      }
  });
}

TEST_CASE("attention_forward of the first rows alone", "[attention]") {
  on_every_backend([](TestTensors& t) {
    for (const auto& [tokens, heads, width] : kProblems)
      for (const double dropout : {0.0, 0.2}) {
        INFO(tokens.size() << " items, " << heads << " heads, width " << width << ", dropout "
                           << dropout);
        const auto offsets = offsets_of(tokens);
        const auto items = static_cast<std::int64_t>(tokens.size());
        check_op(t,
                 AttentionForward{.y = t.unset({items, width}),
                                  .lse = t.wide_unset({items, heads}),
                                  .query = t.normal({items, width}),
                                  .qkv = t.normal({offsets.back(), 2 * width}),
                                  .offsets = t.offsets(offsets),
                                  .heads = heads,
                                  .dropout = dropout,
                                  .key = kKey},
                 {.factor = 8, .length = width});
      }
  });
}

TEST_CASE("attention_forward holds for large scores", "[attention]") {
  on_every_backend([](TestTensors& t) {
    // Scores of several hundred: exponentials over- and underflow unless the largest is taken out.
    // The error of a score is relative to it.
    check_op(t,
             AttentionForward{.y = t.unset({40, 32}),
                              .lse = t.wide_unset({40, 2}),
                              .qkv = t.normal({40, 96}, 10),
                              .offsets = t.offsets({0, 40}),
                              .heads = 2},
             {.factor = 1000});
  });
}

TEST_CASE("attention_forward spreads a NaN over its item only", "[attention]") {
  on_every_backend([](TestTensors& t) {
    const std::int64_t width = 8, bad = 4 * 3 * width + 1;  // a query
    const Tensor y = t.unset({9, width});
    t.ops().run(AttentionForward{
        .y = y,
        .lse = t.wide_unset({9, 1}),
        .qkv =
            t.filled({9, 3 * width},
                     [&](std::int64_t i) { return i == bad ? std::nan("") : 0.1 * double(i % 7); }),
        .offsets = t.offsets({0, 3, 9}),
        .heads = 1});
    const auto got = t.read(y);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::isnan(got[i]) == (i / 8 == 4));
  });
}

TEST_CASE("attention_backward", "[attention]") {
  on_every_backend([](TestTensors& t) {
    for (const auto& [tokens, heads, width] : kProblems)
      for (const double dropout : {0.0, 0.2})
        for (const bool narrow : {false, true})
          for (const bool first_rows : {false, true}) {
            INFO(tokens.size() << " items, " << heads << " heads, width " << width << ", dropout "
                               << dropout << ", narrow " << narrow << ", first rows "
                               << first_rows);
            const auto offsets_full = offsets_of(tokens);
            const std::int64_t full = offsets_full.back();
            std::vector<std::int64_t> item(tokens.size());
            std::iota(item.begin(), item.end(), 0);
            if (narrow) item.erase(item.begin() + static_cast<std::ptrdiff_t>(item.size() / 3));
            std::vector<std::int64_t> kept_tokens;
            for (const std::int64_t n : item)
              kept_tokens.push_back(tokens[static_cast<std::size_t>(n)]);
            const auto offsets = offsets_of(kept_tokens);
            const std::int64_t rows = offsets.back(), parts = first_rows ? 2 : 3;
            const auto items = static_cast<std::int64_t>(tokens.size());
            const auto kept = static_cast<std::int64_t>(item.size());
            const std::int64_t queries = first_rows ? items : full;
            AttentionForward forward{.y = t.unset({queries, width}),
                                     .lse = t.wide_unset({queries, heads}),
                                     .query = first_rows ? t.normal({items, width}) : Tensor{},
                                     .qkv = t.normal({full, parts * width}),
                                     .offsets = t.offsets(offsets_full),
                                     .heads = heads,
                                     .dropout = dropout,
                                     .key = kKey,
                                     .step = narrow ? t.offsets({4}) : Tensor{}};
            t.ops().run(forward);
            check_op(
                t,
                AttentionBackward{.dquery = first_rows ? t.unset({kept, width}) : Tensor{},
                                  .dqkv = t.unset({rows, parts * width}),
                                  .dy = t.normal({first_rows ? kept : rows, width}),
                                  .query_full = forward.query,
                                  .qkv_full = forward.qkv,
                                  .y_full = forward.y,
                                  .lse_full = forward.lse,
                                  .offsets = t.offsets(offsets),
                                  .offsets_full = forward.offsets,
                                  .item = narrow ? t.indices(item) : Tensor{},
                                  .heads = heads,
                                  .dropout = dropout,
                                  .key = kKey,
                                  .step = forward.step},
                {.factor = 8, .length = width + *std::max_element(tokens.begin(), tokens.end())});
          }
  });
}
