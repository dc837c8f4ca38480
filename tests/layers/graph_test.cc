#include "layers/graph.h"

#include "layers/memory_plan.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

// A batch-coupled layer: what BatchNorm will declare.
class BatchCoupled final : public Layer {
 public:
  NodePlan plan(const PlanInput& in) const override {
    return {.output = in.inputs[0], .coupling = RowCoupling::kBatch, .in_place = true};
  }
  void forward(Exec&, const ForwardIo&) const override {}
  void backward(Exec&, const BackwardIo&) const override {}
};

struct TwoLayers {
  Graph graph{DType::kF32};
  Value x, hidden, out;

  TwoLayers() {
    x = graph.input("x", {4, 1, DType::kF32});
    const Value labels = graph.input("labels", {1, 1, DType::kI32});
    hidden = graph.add("hidden", make_layer("linear", {{"width", 4}}), {x});
    middle = graph.add("middle", make_layer("linear", {{"width", 4}}), {hidden});
    out = graph.add("out", make_layer("add"), {hidden, middle});
    graph.add("loss", make_layer("softmax_cross_entropy"), {out, labels});
  }
  Value middle;
};

}  // namespace

TEST_CASE("a gate that another path goes round is refused", "[graph]") {
  auto ops = make_ops("cpu");
  TwoLayers net;
  net.graph.gate(net.middle);
  CHECK_THROWS_WITH(net.graph.finish(*ops, {.max_items = 2}),
                    ContainsSubstring("not a cut edge") && ContainsSubstring("hidden"));
}

TEST_CASE("a gate above a batch-coupled layer is refused", "[graph]") {
  auto ops = make_ops("cpu");
  Graph graph(DType::kF32);
  const Value x = graph.input("x", {4, 1, DType::kF32});
  const Value labels = graph.input("labels", {1, 1, DType::kI32});
  Value y = graph.add("linear", make_layer("linear", {{"width", 4}}), {x});
  y = graph.add("norm", std::make_unique<BatchCoupled>(), {y});
  y = graph.add("top", make_layer("linear", {{"width", 4}}), {y});
  graph.gate(y);
  graph.add("loss", make_layer("softmax_cross_entropy"), {y, labels});
  CHECK_THROWS_WITH(graph.finish(*ops, {.max_items = 2}),
                    ContainsSubstring("norm") && ContainsSubstring("mixes the items of a batch"));
}

TEST_CASE("a gate where no gradient flows is refused", "[graph]") {
  auto ops = make_ops("cpu");
  TwoLayers net;
  net.graph.gate(net.x);
  CHECK_THROWS_WITH(net.graph.finish(*ops, {.max_items = 2}),
                    ContainsSubstring("no gradient flows"));
}

TEST_CASE("memory blocks alive at the same time never overlap", "[graph]") {
  std::vector<PlannedBlock> blocks = {{100, 0, 3}, {200, 1, 2}, {50, 2, 5},
                                      {300, 4, 6}, {64, 0, 9},  {1, 3, 3}};
  const std::size_t total = plan_memory(blocks);
  std::size_t sum = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    sum += Arena::round_up(blocks[i].bytes);
    CHECK(blocks[i].offset % Arena::kAlignment == 0);
    CHECK(blocks[i].offset + blocks[i].bytes <= total);
    for (std::size_t j = 0; j < i; ++j) {
      const bool together = blocks[i].begin <= blocks[j].end && blocks[j].begin <= blocks[i].end;
      const bool apart = blocks[i].offset + blocks[i].bytes <= blocks[j].offset ||
                         blocks[j].offset + blocks[j].bytes <= blocks[i].offset;
      CHECK((!together || apart));
    }
  }
  CHECK(total < sum);
}
