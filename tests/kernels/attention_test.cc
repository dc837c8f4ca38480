#include <numeric>

#include "kernels/emu/emu_ops.h"
#include "kernels/emu/tensor_core.h"
#include "tests/support/check_error.h"
#include "tests/support/check_op.h"
#include "tests/support/fewer_cases.h"

using namespace vcas;

namespace {

struct Problem {
  std::vector<std::int64_t> tokens;  // of each item
  std::int64_t heads, width;

  // For an output of bf16. Tensor cores multiply P M and dS rounded to bf16.
  // So each number of a sum is off by up to 2^-8 of itself, and by about 2^-9 in the mean.
  // Such errors have either sign. They add up as the numbers do, which have either sign too.
  // The sum is off by about 2^-9 of the outputs' size. The test allows 2^-8 of the largest output.
  int roundings() const {
    const std::int64_t head_width = width / heads;
    return head_width % 16 == 0 && head_width <= 128 ? 2 : 1;
  }
};

// One token; widths below, at and above every vector; more queries than one block; unequal items.
const Problem kProblems[] = {{{1}, 1, 1},           {{3, 1, 5}, 2, 6},         {{17, 16}, 1, 33},
                             {{49, 49, 49}, 2, 64}, {{130, 2, 64, 65}, 1, 24}, {{20, 31}, 3, 96}};

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& tokens) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t n : tokens) offsets.push_back(offsets.back() + n);
  return offsets;
}

// For tensor cores: parts of a tile, whole ones and several, of queries and of keys; heads
// that fill their tiles and others.
const std::vector<std::int64_t> kLengths = {1, 15, 16, 17, 63, 64, 65, 130, 257};
const Problem kOnTensorCores[] = {{kLengths, 1, 64}, {kLengths, 1, 128}, {{17, 65}, 2, 32},
                                  {{65, 17}, 2, 64}, {{17, 65}, 2, 160}, {{65}, 1, 96}};

const RandomKey kKey{.seed = 9, .stream = Stream::kDropout, .step = 2, .site = 3};

// body(tensors) for bf16 and for f32 in TF32 on every device with tensor cores that is here.
void on_tensor_cores(const std::function<void(TestTensors&)>& body) {
  for (const Precision precision : {Precision::kBf16, Precision::kTf32})
    on_emu_and_cuda(precision, body);
}

// For results of sums of `length` numbers. In TF32 factors are off by up to 2^-11 of themselves:
// 2^-9 of the largest result is allowed.
Tolerance tolerance_of(const TestTensors& t, const Problem& problem, std::int64_t length,
                       bool tensor_cores) {
  const bool tf32 = tensor_cores && t.dtype() == DType::kF32;
  const double factor = 0x1p-9 / epsilon(t.dtype()) / std::sqrt(static_cast<double>(length));
  return {.factor = tf32 ? factor : 8, .length = length, .roundings = problem.roundings()};
}

// Which rows are queries, which items have gradients, and whether later keys are hidden.
struct Rows {
  bool first, narrow, causal;
};

AttentionForward forward_of(TestTensors& t, const Problem& problem, double dropout, Rows rows) {
  const auto& [tokens, heads, width] = problem;
  const auto offsets = offsets_of(tokens);
  const auto items = static_cast<std::int64_t>(tokens.size());
  const std::int64_t queries = rows.first ? items : offsets.back();
  return {.y = t.unset({queries, width}),
          .y_norm = dropout > 0 ? t.wide_unset({queries, heads}) : Tensor{},
          .lse = t.wide_unset({queries, heads}),
          .query = rows.first ? t.normal({items, width}) : Tensor{},
          .qkv = t.normal({offsets.back(), (rows.first ? 2 : 3) * width}),
          .offsets = t.offsets(offsets),
          .heads = heads,
          .dropout = dropout,
          .causal = rows.causal,
          .key = kKey,
          .step = heads > 1 ? t.offsets({4}) : Tensor{}};
}

// The backward of a forward pass that has run.
AttentionBackward backward_of(TestTensors& t, const Problem& problem,
                              const AttentionForward& forward, Rows rows) {
  const auto& [tokens, heads, width] = problem;
  std::vector<std::int64_t> item(tokens.size());
  std::iota(item.begin(), item.end(), 0);
  if (rows.narrow) item.erase(item.begin() + static_cast<std::ptrdiff_t>(item.size() / 3));
  std::vector<std::int64_t> kept_tokens;
  for (const std::int64_t n : item) kept_tokens.push_back(tokens[static_cast<std::size_t>(n)]);
  const auto offsets = offsets_of(kept_tokens);
  const auto kept = static_cast<std::int64_t>(item.size());
  return {.dquery = rows.first ? t.unset({kept, width}) : Tensor{},
          .dqkv = t.unset({offsets.back(), forward.qkv.width()}),
          .dqkv_norm =
              forward.y_norm && !rows.first ? t.wide_unset({offsets.back(), heads, 2}) : Tensor{},
          .dy = t.normal({rows.first ? kept : offsets.back(), width}),
          .query_full = forward.query,
          .qkv_full = forward.qkv,
          .y_full = forward.y,
          .lse_full = forward.lse,
          .offsets = t.offsets(offsets),
          .offsets_full = forward.offsets,
          .item = rows.narrow ? t.indices(item) : Tensor{},
          .heads = heads,
          .dropout = forward.dropout,
          .causal = forward.causal,
          .key = kKey,
          .step = forward.step};
}

std::string text_of(const Problem& problem, double dropout, Rows rows) {
  return std::to_string(problem.tokens.size()) + " items, " + std::to_string(problem.heads) +
         " heads, width " + std::to_string(problem.width) + ", dropout " + std::to_string(dropout) +
         (rows.first ? ", first rows" : "") + (rows.narrow ? ", narrow" : "") +
         (rows.causal ? ", causal" : "");
}

void check_forward(TestTensors& t, const Problem& problem, double dropout, Rows rows,
                   bool tensor_cores = false) {
  INFO(text_of(problem, dropout, rows));
  check_op(t, forward_of(t, problem, dropout, rows),
           tolerance_of(t, problem, problem.width, tensor_cores));
}

void check_backward(TestTensors& t, const Problem& problem, double dropout, Rows rows,
                    bool tensor_cores = false) {
  INFO(text_of(problem, dropout, rows));
  const AttentionForward forward = forward_of(t, problem, dropout, rows);
  t.ops().run(forward);
  const std::int64_t longest = *std::max_element(problem.tokens.begin(), problem.tokens.end());
  check_op(t, backward_of(t, problem, forward, rows),
           tolerance_of(t, problem, problem.width + longest, tensor_cores));
}

}  // namespace

TEST_CASE("attention_forward", "[attention]") {
  on_every_backend([](TestTensors& t) {
    for (const Problem& problem : kProblems)
      for (const double dropout : {0.0, 0.2})
        for (const bool causal : {false, true})
          check_forward(t, problem, dropout, {.causal = causal});
  });
}

TEST_CASE("attention_forward of the first rows alone", "[attention]") {
  on_every_backend([](TestTensors& t) {
    for (const Problem& problem : kProblems)
      for (const double dropout : {0.0, 0.2})
        check_forward(t, problem, dropout, {.first = true, .causal = dropout > 0});
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
    for (const Problem& problem : kProblems)
      for (const double dropout : {0.0, 0.2})
        for (const bool narrow : {false, true})
          for (const bool first : {false, true})
            for (const bool causal : {false, true})
              check_backward(t, problem, dropout,
                             {.first = first, .narrow = narrow, .causal = causal});
  });
}

TEST_CASE("a changed later token leaves earlier rows' bits alone", "[attention]") {
  const auto check = [](TestTensors& t) {
    // In a tile of its own or not, of queries or of keys, of each kernel.
    for (const std::int64_t changed : {1, 37, 64, 99, 129}) {
      INFO("token " << changed);
      const Problem problem{{130}, 2, 64};
      std::vector<std::vector<std::byte>> rows[2];
      for (const bool with_change : {false, true}) {
        AttentionForward forward = forward_of(t, problem, 0.2, {.causal = true});
        forward.qkv = t.filled({130, 192}, [&](std::int64_t i) {
          const double value = 0.1 * double((i * 7919) % 41 - 20);
          return with_change && i / 192 == changed ? 3 - value : value;
        });
        t.ops().run(forward);
        for (const Tensor& tensor : {forward.y, forward.lse}) {
          auto bytes = t.read_bytes(tensor);
          bytes.resize(bytes.size() / 130 * static_cast<std::size_t>(changed));
          rows[with_change].push_back(std::move(bytes));
        }
      }
      CHECK((rows[0] == rows[1]));
    }
  };
  on_every_backend(check);
  on_tensor_cores(check);
}

TEST_CASE("attention_backward holds for scores far below zero", "[attention]") {
  on_every_backend([](TestTensors& t) {
    // Scores of about -250: the exponential of minus lse, which a key of zeros would have, is
    // infinite. The error of a score is relative to it.
    const std::int64_t width = 16, tokens = 17;
    const AttentionForward forward{.y = t.unset({tokens, width}),
                                   .lse = t.wide_unset({tokens, 1}),
                                   .qkv = t.filled({tokens, 3 * width},
                                                   [&](std::int64_t i) {
                                                     const std::int64_t part = i / width % 3;
                                                     if (part == 0) return 8.0;
                                                     if (part == 2) return 0.25 * double(i % 7);
                                                     return i % 5 == 0 ? -7.875 : -8.0;
                                                   }),
                                   .offsets = t.offsets({0, tokens})};
    t.ops().run(forward);
    check_op(t,
             AttentionBackward{.dqkv = t.unset({tokens, 3 * width}),
                               .dy = t.normal({tokens, width}),
                               .qkv_full = forward.qkv,
                               .y_full = forward.y,
                               .lse_full = forward.lse,
                               .offsets = forward.offsets,
                               .offsets_full = forward.offsets},
             {.factor = 1000, .roundings = 2});
  });
}

TEST_CASE("attention_backward has the probabilities of the forward for scores of any size",
          "[attention][tensor_core]") {
  // The largest score of a query is far above its others, so its probability is 1. Other rounding
  // of scores in the backward would show: an ulp of a score of 1e6 is 0.06. The scale of heads of
  // 48 rounds. Gradients are integers, whose sums are exact.
  constexpr std::int64_t kTokens = 9, kWidth = 48;
  const auto check = [&](TestTensors& t) {
    for (const double size : {1e6, 1e10}) {
      INFO("scores of " << size);
      const double spread = std::sqrt(size / std::sqrt(static_cast<double>(kWidth)));
      AttentionForward forward = forward_of(t, {{kTokens}, 1, kWidth}, 0, {});
      forward.qkv = t.normal({kTokens, 3 * kWidth}, spread);
      t.ops().run(forward);
      AttentionBackward backward = backward_of(t, {{kTokens}, 1, kWidth}, forward, {});
      backward.dy = t.integers({kTokens, kWidth});
      t.ops().run(backward);
      const auto qkv = t.read(forward.qkv), dy = t.read(backward.dy), got = t.read(backward.dqkv);
      std::vector<double> want(kTokens * kWidth);  // dV
      for (std::size_t i = 0; i < kTokens; ++i) {
        const auto score = [&](std::size_t j) {
          const double* const query = &qkv[i * 3 * kWidth];
          return std::inner_product(query, query + kWidth, &qkv[(3 * j + 1) * kWidth], 0.0);
        };
        std::size_t best = 0;
        for (std::size_t j = 1; j < kTokens; ++j)
          if (score(j) > score(best)) best = j;
        for (std::size_t c = 0; c < kWidth; ++c) want[best * kWidth + c] += dy[i * kWidth + c];
      }
      double error = 0;
      for (std::size_t i = 0; i < want.size(); ++i)
        error =
            std::max(error, std::abs(got[(i / kWidth * 3 + 2) * kWidth + i % kWidth] - want[i]));
      CHECK(error < 1e-5);
      CHECK(std::ranges::all_of(got, [](double value) { return std::isfinite(value); }));
    }
  };
  on_every_backend(check);
  on_tensor_cores(check);
}

TEST_CASE("heads that need more shared memory than the device has are refused", "[attention]") {
  const std::unique_ptr<Ops> ops = make_ops("emu");
  on_backend("emu", *ops, DType::kF32, [](TestTensors& t) {
    check_backward(t, {{3}, 1, 160}, 0, {});
    const Problem wide{{3}, 1, 240};
    const AttentionForward forward = forward_of(t, wide, 0, {});
    t.ops().run(forward);  // which needs less than the backward
    check_whole_error(
        [&] { t.ops().run(backward_of(t, wide, forward, {})); }, ExitCode::kBadConfig,
        "attention heads of width 240 need 128 KiB of shared memory, device \"emu\" has 99 KiB",
        "give the model more heads (model.heads), which are narrower, or train it on "
        "device=\"cpu\"");
  });
}

TEST_CASE("norms of very small gradients of attention do not underflow", "[attention]") {
  on_every_backend([](TestTensors& t) {
    constexpr std::int64_t kTokens = 17, kWidth = 16;
    AttentionForward forward = forward_of(t, {{kTokens}, 1, kWidth}, 0.2, {});
    t.ops().run(forward);
    AttentionBackward backward = backward_of(t, {{kTokens}, 1, kWidth}, forward, {});
    backward.dy = t.filled({kTokens, kWidth}, [](std::int64_t i) { return 1e-25 * double(i % 7); });
    t.ops().run(backward);
    const auto dqkv = t.read(backward.dqkv), norm = t.read(backward.dqkv_norm);
    for (std::size_t r = 0; r < kTokens; ++r)
      for (const std::size_t of_key : {0, 1}) {
        double squares = 0;
        for (std::size_t c = 0; c < 3 * kWidth; ++c)
          if ((c >= kWidth) == of_key) squares += std::pow(dqkv[r * 3 * kWidth + c], 2);
        const double rounding = t.dtype() == DType::kBF16 ? 1e-2 : 1e-5;
        CHECK(norm[2 * r + of_key] > 0);
        CHECK(std::abs(norm[2 * r + of_key] / std::sqrt(squares) - 1) < rounding);
      }
  });
}

TEST_CASE("attention on tensor cores", "[attention][tensor_core]") {
  on_tensor_cores([](TestTensors& t) {
    for (const Problem& problem : cases_to_run(kOnTensorCores)) {
      const bool in_tf32 = problem.width / problem.heads <= 64;
      if (t.dtype() == DType::kF32 && !in_tf32) continue;
      for (const double dropout : {0.0, 0.2}) check_forward(t, problem, dropout, {}, true);
      check_forward(t, problem, 0.2, {.first = true}, true);
      check_backward(t, problem, 0, {}, true);
      check_backward(t, problem, 0.2, {.narrow = true}, true);
      check_backward(t, problem, 0.2, {.first = true, .narrow = true}, true);
      check_backward(t, problem, 0, {.first = true, .causal = true}, true);
      check_forward(t, problem, 0, {.causal = true}, true);
      check_backward(t, problem, 0.2, {.causal = true}, true);
    }
    const Problem with_empty_item{{17, 0, 65}, 2, 32};
    check_forward(t, with_empty_item, 0.2, {}, true);
    check_backward(t, with_empty_item, 0.2, {}, true);
  });
}

TEST_CASE("attention_forward rounds probabilities for tensor cores", "[attention][tensor_core]") {
  on_tensor_cores([](TestTensors& t) {
    // Two keys, of scores -1 / sqrt(width) and 0. The value of the one is 1, that of the other
    // minus the rounded exponential of its score.
    const bool bf16 = t.dtype() == DType::kBF16;
    for (const std::int64_t width : {8, 16, 64, 80, 128, 144})
      for (const std::int64_t shift : {0, 1}) {  // of qkv, from where 16-byte copies can take it
        INFO("width " << width << ", shift " << shift);
        const double e = std::exp(-1 / std::sqrt(static_cast<double>(width)));
        const double rounded = bf16 ? static_cast<float>(bfloat16(static_cast<float>(e)))
                                    : emu::round_to_tf32(static_cast<float>(e));
        Tensor qkv = t.filled({6 * width + shift}, [&](std::int64_t i) {
          const std::int64_t column = i - shift, part = column / width % 3;
          if (part == 0) return 1.0;
          if (part == 1) return column == width ? -1.0 : 0.0;
          return column < 3 * width ? 1 : -rounded;
        });
        qkv.data = static_cast<char*>(qkv.data) + shift * dtype_bytes(t.dtype());
        qkv.shape = {2, 3 * width};
        const AttentionForward args{.y = t.unset({2, width}),
                                    .lse = t.wide_unset({2, 1}),
                                    .qkv = qkv,
                                    .offsets = t.offsets({0, 2})};
        t.ops().run(args);
        const bool tensor_cores = width % 16 == 0 && width <= (bf16 ? 128 : 64) && shift == 0;
        for (const double y : t.read(args.y)) CHECK((y == 0) == tensor_cores);
      }
  });
}

TEST_CASE("attention rounds its factors to TF32, and does not cut them off",
          "[attention][tensor_core]") {
  constexpr std::int64_t kWidth = 16;
  on_emu_and_cuda(Precision::kTf32, [](TestTensors& t) {
    // A number half way between two of TF32 in query, key or value, all else ones; scores are 4.
    const double between = 1 + 0x1p-11, above = 1 + 0x1p-10;
    for (const std::int64_t part : {0, 1, 2}) {
      INFO("part " << part);
      const AttentionForward args{
          .y = t.unset({1, kWidth}),
          .lse = t.wide_unset({1, 1}),
          .qkv = t.filled({1, 3 * kWidth},
                          [&](std::int64_t i) { return i / kWidth == part ? between : 1; }),
          .offsets = t.offsets({0, 1})};
      t.ops().run(args);
      CHECK(std::abs(t.read(args.lse)[0] - 4 * (part < 2 ? above : 1)) < 1e-5);
      CHECK(std::abs(t.read(args.y)[0] - (part == 2 ? above : 1)) < 1e-5);
    }
  });
}

TEST_CASE("attention on tensor cores has the same bits in any order of threads",
          "[attention][tensor_core]") {
  const Problem problem{{130, 1, 65}, 2, 64};
  const Precision precision = GENERATE(Precision::kTf32, Precision::kBf16);
  const bool causal = GENERATE(false, true);
  std::vector<std::vector<std::byte>> want;
  for (const auto order :
       {emu::ThreadOrder::kForward, emu::ThreadOrder::kReverse, emu::ThreadOrder::kRandom}) {
    const std::unique_ptr<Ops> ops = make_emu_ops(order, precision);
    TestTensors t(*ops, compute_dtype(precision));
    std::vector<std::vector<std::byte>> got;
    const AttentionForward forward = forward_of(t, problem, 0.2, {.causal = causal});
    ops->run(forward);
    const AttentionBackward backward = backward_of(t, problem, forward, {.narrow = true});
    ops->run(backward);
    for (const Tensor& tensor :
         {forward.y, forward.y_norm, forward.lse, backward.dqkv, backward.dqkv_norm})
      got.push_back(t.read_bytes(tensor));
    if (want.empty()) want = got;
    CHECK(got == want);
  }
}
