#include "kernels/op_cost.h"

#include "tests/decorators/fake_ops.h"
#include "tests/support/catch.h"

using namespace vcas;

TEST_CASE("a linear layer costs 2 R C D in each of its three products", "[op_cost]") {
  FakeOps ops;
  TestMemory memory(ops);
  const std::int64_t rows = 7, in = 3, out = 5;
  const Tensor x = memory.f32({rows, in}), y = memory.f32({rows, out});
  const Tensor weight = memory.f32({out, in}), bias = memory.f32({out});

  CHECK(op_cost(LinearForward{y, x, weight, bias}).flops == 2 * 7 * 3 * 5);
  CHECK(op_cost(LinearForward{y, x, weight, bias}).bytes == 4 * (7 * 5 + 7 * 3 + 5 * 3 + 5));
  CHECK(op_cost(LinearForward{y, x, weight, {}}).bytes == 4 * (7 * 5 + 7 * 3 + 5 * 3));
  CHECK(op_cost(LinearBackwardInput{x, y, weight}).flops == 2 * 7 * 3 * 5);
  CHECK(op_cost(LinearBackwardWeight{weight, y, x, {}, {}, {}}).flops == 2 * 7 * 3 * 5);
}

TEST_CASE("an output that is added to is read and written", "[op_cost]") {
  FakeOps ops;
  TestMemory memory(ops);
  const Tensor x = memory.f32({7, 3}), y = memory.f32({7, 5}), weight = memory.f32({5, 3});
  const double once = op_cost(LinearBackwardInput{x, y, weight}).bytes;
  CHECK(
      op_cost(LinearBackwardInput{.dx = x, .dy = y, .weight = weight, .accumulate = true}).bytes ==
      once + 4 * 7 * 3);
  CHECK(op_cost(GeluBackward{y, y, memory.f32({7, 5}), {}}).bytes == 4 * 3 * 7 * 5);
}

TEST_CASE("a sampled weight gradient costs its drawn rows only", "[op_cost]") {
  FakeOps ops;
  TestMemory memory(ops);
  LinearBackwardWeight args{.dweight = memory.f32({5, 3}),
                            .dy = memory.f32({7, 5}),
                            .x_full = memory.f32({9, 3}),
                            .row = memory.tensor(DType::kI32, {7}),
                            .accumulate = true};
  CHECK(op_cost(args).flops == 2 * 7 * 3 * 5);
  CHECK(op_cost(args).bytes == 4 * (2 * 5 * 3 + 7 * 5 + 7 * 3 + 7));
  args.kept = memory.holding<std::int32_t>({1, 4});
  args.scale = memory.f32({2});
  CHECK(op_cost(args).flops == 2 * 2 * 3 * 5);
  CHECK(op_cost(args).bytes == 4 * (2 * 5 * 3 + 2 * 5 + 2 * 3 + 7 + 2 + 2));
  args.count = memory.holding<std::int32_t>({2});
  args.expected = 0.9;
  CHECK(op_cost(args).flops == 2 * 1 * 3 * 5);
  CHECK(op_cost(args).bytes == 4 * (2 * 5 * 3 + 1 * 5 + 1 * 3 + 7 + 2 + 2 + 1));
}

TEST_CASE("a device copies the rows of a large sampled weight gradient", "[op_cost]") {
  FakeOps ops;
  TestMemory memory(ops);
  const auto indices = [&](std::int64_t rows) { return memory.tensor(DType::kI32, {rows}); };
  const auto gradient = [&](DType dtype, std::int64_t rows) {
    return LinearBackwardWeight{.dweight = {nullptr, DType::kF32, {1024, 2048}},
                                .dy = {nullptr, dtype, {4096, 1024}},
                                .x_full = {nullptr, dtype, {4096, 2048}},
                                .row = indices(4096),
                                .kept = indices(rows)};
  };
  CHECK_FALSE(gradient(DType::kF32, 63).copies_rows());
  CHECK(gradient(DType::kF32, 64).copies_rows());
  CHECK_FALSE(gradient(DType::kBF16, 1023).copies_rows());
  LinearBackwardWeight args = gradient(DType::kBF16, 1024);
  CHECK(args.copies_rows());
  CHECK(op_cost(args).launches == 2);
  args.copies = false;
  CHECK_FALSE(args.copies_rows());
  CHECK(op_cost(args).launches == 1);
  args.copies = true;
  args.kept = indices(1).range(0, 0);
  CHECK_FALSE(args.copies_rows());

  // A draw may have room for all rows, and draw few.
  args = gradient(DType::kBF16, 4096);
  args.count = indices(1);
  args.expected = 2048;
  CHECK(args.copies_rows());
  args.expected = 2047;
  CHECK_FALSE(args.copies_rows());

  args = gradient(DType::kBF16, 4096);
  args.row = args.kept = {};
  CHECK_FALSE(args.copies_rows());  // they lie side by side
}

TEST_CASE("a convolution costs a linear layer of its patches at each place", "[op_cost]") {
  FakeOps ops;
  TestMemory memory(ops);
  const Patches patches{.height = 6, .width = 4, .kernel = 3, .stride = 2, .padding = 1};
  const Tensor x = memory.f32({2 * 24, 5}), y = memory.f32({2 * 6, 7});
  const Tensor weight = memory.f32({7, 45});
  const double flops = 2 * 12 * 45 * 7;
  CHECK(op_cost(LinearForward{.y = y, .x = x, .weight = weight, .patches = patches}).flops ==
        flops);
  CHECK(
      op_cost(LinearBackwardInput{.dx = x, .dy = y, .weight = weight, .patches = patches}).flops ==
      flops);
  LinearBackwardWeight gradient{.dweight = weight, .dy = y, .x_full = x, .patches = patches};
  CHECK(op_cost(gradient).flops == flops);
  gradient.kept = memory.holding<std::int32_t>({1, 4, 9});
  CHECK(op_cost(gradient).flops == flops / 4);
}

TEST_CASE("a sketch costs a small product", "[op_cost]") {
  FakeOps ops;
  TestMemory memory(ops);
  const ItemSketch args{.sketch = memory.f32({3, 8}),
                        .dy = memory.f32({7, 5}),
                        .x_full = memory.f32({7, 6}),
                        .out_buckets = 2};
  CHECK(op_cost(args).flops == 2 * 7 * 2 * 4);
  ItemSketch draw = args;
  draw.kept = memory.holding<std::int32_t>({1, 4, 6});
  CHECK(op_cost(draw).flops == 2 * 3 * 2 * 4);
}

TEST_CASE("attention costs two products forward and five backward", "[op_cost]") {
  FakeOps ops;
  TestMemory memory(ops);
  const std::int64_t width = 8;
  AttentionForward forward;
  forward.y = memory.f32({8, width});
  forward.qkv = memory.f32({8, 3 * width});
  forward.pairs = 3 * 3 + 5 * 5;
  CHECK(op_cost(forward).flops == 4 * (3 * 3 + 5 * 5) * 8);

  AttentionBackward backward;
  backward.dy = memory.f32({5, width});
  backward.qkv_full = forward.qkv;
  backward.dqkv = memory.f32({5, 3 * width});
  backward.pairs = 5 * 5;
  CHECK(op_cost(backward).flops == 10 * 5 * 5 * 8);
  // It reads those rows of the full batch that are the items left.
  CHECK(op_cost(backward).bytes == 4 * (5 * 8 + 2 * 5 * 24));
}

TEST_CASE("elementwise operations and embeddings count no FLOPs", "[op_cost]") {
  FakeOps ops;
  TestMemory memory(ops);
  const Tensor x = memory.f32({4, 4});
  CHECK(op_cost(GeluForward{.y = x, .x = x}).flops == 0);
  CHECK(op_cost(EmbeddingForward{x, x, memory.holding<std::int32_t>({0, 1, 2, 3})}).flops == 0);
  CHECK(op_cost(EmbeddingForward{x, x, memory.holding<std::int32_t>({0, 1, 2, 3})}).bytes == 144);
}
