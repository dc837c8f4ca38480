// InfoBatch: which items it leaves out, and when. item_selection_test.cc has what all methods hold.
#include <cmath>

#include "optim/methods/item_memory.h"
#include "tests/optim/forward_fixture.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

const std::string kMethod = R"("type": "infobatch")";

ItemMemory& memory_of(ForwardFixture& f) {
  return dynamic_cast<ItemMemory&>(*f.trainer->chooser());
}

// Losses of 24 items; every sixth was never seen. The mean of the others is that of 0, 1, 2, 3, 4.
std::vector<float> some_losses() {
  std::vector<float> losses;
  for (std::int64_t i = 0; i < 24; ++i) losses.push_back(static_cast<float>(i % 6) - 1);
  return losses;
}

}  // namespace

TEST_CASE("InfoBatch drops half of the items whose loss is below the mean", "[forward]") {
  constexpr int kDraws = 2000;
  ForwardFixture f({.items = 24, .batch = 24, .total_steps = 100000, .method = kMethod});
  const std::vector<float> losses = some_losses();
  std::ranges::copy(losses, memory_of(f).item_memory().begin());
  std::vector<double> kept(24);
  const std::vector<std::int64_t> rows(24, 1);
  for (std::int64_t step = 100; step < 100 + kDraws; ++step) {
    const ItemChoice choice = memory_of(f).choose(step, numbers_to(24), rows);
    REQUIRE(choice.kept.size() == 20);  // 8 losses, 0 and 1, are below the mean of 2
    for (std::size_t k = 0; k < choice.kept.size(); ++k) {
      const auto item = static_cast<std::size_t>(choice.kept[k]);
      ++kept[item];
      const bool below = losses[item] == 0 || losses[item] == 1;
      REQUIRE(choice.weights[k] == (below ? 2 : 1));
    }
  }
  for (std::size_t i = 0; i < 24; ++i) {
    CAPTURE(i);
    if (losses[i] == 0 || losses[i] == 1)
      CHECK(std::abs(kept[i] / kDraws - 0.5) < 5 * std::sqrt(0.25 / kDraws));
    else
      CHECK(kept[i] == kDraws);
  }
}

TEST_CASE("InfoBatch takes the mean loss once an epoch", "[forward]") {
  ForwardFixture f({.items = 24, .batch = 8, .total_steps = 1000, .method = kMethod});
  const std::vector<std::int64_t> rows(8, 1);
  const auto dropped = [&](std::int64_t step) {
    return 8 - std::ssize(memory_of(f).choose(step, numbers_to(8), rows).kept);
  };
  std::ranges::copy(some_losses(), memory_of(f).item_memory().begin());
  CHECK(dropped(30) == 1);  // 3 of 8 losses are below 2: 1.5 are kept, rounded up
  std::ranges::fill(memory_of(f).item_memory(), 1.5f);
  CHECK(dropped(32) == 4);
  CHECK(dropped(33) == 0);  // the next epoch: no loss is below the mean
}

TEST_CASE("InfoBatch keeps all items in the first epoch and the last eighth of the run",
          "[forward]") {
  const std::string device = GENERATE("cpu", "emu");
  ForwardFixture f({.total_steps = 40, .learning_rate = 1e-3, .device = device, .method = kMethod});
  f.run(40);
  std::int64_t dropped = 0;
  for (const StepReport& report : f.reports) {
    CAPTURE(report.step);
    CHECK(report.items + report.dropped == 8);
    if (report.step <= 6 || report.step > 35) CHECK(report.dropped == 0);
    if (report.step > 12 && report.step <= 35) dropped += report.dropped;
  }
  CHECK(dropped > 23);  // about two of eight
  CHECK(dropped < 4 * 23);
}

TEST_CASE("InfoBatch remembers losses without their weights", "[forward]") {
  const std::int64_t micro_batch = GENERATE(0, 5);
  ForwardFixture f(fixed_gradient(Content::kTexts, micro_batch, "cpu", kMethod));
  f.run(4);
  const std::vector<float> exact(memory_of(f).item_memory().begin(),
                                 memory_of(f).item_memory().end());
  double mean = 0;
  for (const float loss : exact) mean += static_cast<double>(loss) / 16;
  CHECK_THAT(mean, WithinRel(f.reports.front().loss, 1e-5));
  f.run(40);
  CHECK(f.reports.back().dropped > 0);
  for (std::size_t i = 0; i < exact.size(); ++i)
    CHECK_THAT(memory_of(f).item_memory()[i], WithinRel(exact[i], 1e-4f));
}

TEST_CASE("InfoBatch in a run of one epoch is told that it drops nothing", "[forward]") {
  ForwardFixture one({.total_steps = 6, .method = kMethod});
  CHECK_THAT(one.trainer->method().complaint().message,
             ContainsSubstring("method.type=infobatch drops nothing in one epoch"));
  one.run(1);
  CHECK(one.trainer->method().complaint().message.empty());
  ForwardFixture two({.total_steps = 7, .method = kMethod});
  CHECK(two.trainer->method().complaint().message.empty());
  ForwardFixture early({.total_steps = 12, .method = kMethod + R"(, "prune_until": 0.5)"});
  CHECK_FALSE(early.trainer->method().complaint().message.empty());
}
