// Ranges of the slab of gradients: each is told of when nothing adds to it any more.
#include <algorithm>

#include "kernels/emu/emu_ops.h"
#include "kernels/exchange.h"
#include "tests/support/catch.h"
#include "tests/support/model_fixture.h"

using namespace vcas;

namespace {

constexpr std::int64_t kClasses = 3, kItems = 8;

struct TestModel {
  std::string name;
  ModelOptions options;
  std::vector<std::int64_t> item_shape;
};

std::vector<TestModel> test_models() {
  const std::vector<std::string> bert = {"type=bert",     "width=16",    "depth=2",
                                         "heads=2",       "ffn_ratio=2", "max_positions=8",
                                         "vocabulary=40", "dropout=0.1"};
  std::vector<std::string> tied = bert;
  tied.push_back("head=mlm");
  return {{"vit",
           read_model_options({"type=vit", "width=16", "depth=3", "heads=2", "patch=4",
                               "ffn_ratio=2", "dropout=0.1"}),
           {1, 8, 8}},
          {"bert", read_model_options(bert), {}},
          {"bert, tied", read_model_options(tied), {}},
          {"resnet",
           read_model_options(
               {"type=resnet", "stem=cifar", "stages=[1, 2]", "widths=[8,12]", "group_width=4"}),
           {2, 6, 6}},
          {"mlp", read_model_options({"type=mlp", "width=24", "depth=3"}), {7}}};
}

// Backwards of one kind, the second of which adds to the first.
void check_passes(ModelFixture& f, const PassSettings& settings,
                  const std::vector<GradientBucket>& buckets) {
  const Tensor& slab = f.model->graph.parameters().gradients();
  for (const bool adds : {false, true}) {
    std::vector<float> told(static_cast<std::size_t>(slab.elements()));
    std::vector<const GradientBucket*> order;
    BackwardContext context = f.use(settings);
    context.gradients.adds = adds;
    context.buckets = buckets;
    context.on_bucket = [&](const GradientBucket& bucket) {
      order.push_back(&bucket);
      std::copy(slab.ptr<float>() + bucket.begin, slab.ptr<float>() + bucket.end,
                told.begin() + bucket.begin);
    };
    Exec exec = f.exec(7);
    exec.keeps_norms = settings.mode != SamplingMode::kExact;
    f.model->graph.forward(exec);
    f.model->graph.backward(exec, context);
    REQUIRE(order.size() == buckets.size());
    for (std::size_t i = 0; i < order.size(); ++i) CHECK(order[i] == &buckets[i]);
    CHECK(std::equal(told.begin(), told.end(), slab.ptr<float>()));
  }
}

}  // namespace

TEST_CASE("nothing adds to a bucket of gradients that was told of", "[model][ranks][law]") {
  for (const TestModel& model : test_models()) {
    CAPTURE(model.name);
    ModelFixture f(model.options, model.item_shape, kClasses, kItems);
    for (const std::int64_t elements : {1, 500, 1 << 20}) {
      CAPTURE(elements);
      const auto buckets = f.model->graph.gradient_buckets(elements);
      check_passes(f, f.context(SamplingMode::kExact, 1, 1), buckets);
      // With a ratio of 1e-6 a draw keeps nothing, and the backward ends at its gate.
      for (const double ratio : {0.5, 1e-6})
        for (const Selection selection : {Selection::kSystematic, Selection::kBernoulli})
          check_passes(f, f.context(SamplingMode::kItemsAndRows, ratio, 0.5, selection), buckets);
    }
  }
}

TEST_CASE("a bucket waits for what runs beside", "[model][ranks][beside]") {
  for (const TestModel& model : test_models()) {
    CAPTURE(model.name);
    ModelFixture f(model.options, model.item_shape, kClasses, kItems, DType::kF32,
                   make_emu_ops(emu::ThreadOrder::kReverse));
    const auto buckets = f.model->graph.gradient_buckets(500);
    check_passes(f, f.context(SamplingMode::kExact, 1, 1), buckets);
    check_passes(f, f.context(SamplingMode::kItemsAndRows, 0.5, 0.5, Selection::kSystematic),
                 buckets);
  }
}

TEST_CASE("buckets cover the slab once, in parts for all ranks", "[model][ranks]") {
  for (const TestModel& model : test_models())
    for (const int ranks : {1, 2, 3, 8}) {
      CAPTURE(model.name, ranks);
      const auto ops = make_ops("cpu");
      const auto built = build_model(model.options, model.item_shape, kClasses, 0.0);
      Graph& graph = built->graph;
      graph.finish(*ops, {.max_items = kItems, .max_tokens = 64, .max_masked = 64, .ranks = ranks});
      const std::int64_t all = graph.parameters().gradients().elements();
      CHECK(all - graph.parameters().elements() < kPartElements * ranks);
      CHECK((ranks > 1 || all == graph.parameters().elements()));
      for (const std::int64_t elements : {1, 500, 1 << 20}) {
        auto buckets = graph.gradient_buckets(elements);
        CHECK(std::ranges::is_sorted(buckets, std::greater{}, &GradientBucket::node));
        std::ranges::sort(buckets, {}, &GradientBucket::begin);
        std::int64_t end = 0;
        for (const GradientBucket& bucket : buckets) {
          CHECK(bucket.begin == end);
          CHECK((bucket.end - bucket.begin) % (kPartElements * ranks) == 0);
          end = bucket.end;
        }
        CHECK(end == all);
      }
    }
}

// The first gradients are there long before the last ones.
TEST_CASE("buckets follow the backward", "[model][ranks]") {
  ModelFixture f(test_models()[0].options, {1, 8, 8}, kClasses, kItems);
  const auto buckets = f.model->graph.gradient_buckets(500);
  REQUIRE(buckets.size() > 8);
  const int nodes = static_cast<int>(f.model->graph.plan().nodes.size());
  CHECK(buckets[1].node > nodes / 2);
  CHECK(buckets[buckets.size() / 2].node > nodes / 4);
}
