#include "kernels/decorators/count_ops.h"

#include "tests/decorators/fake_ops.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

struct Counted {
  FakeOps* fake = new FakeOps;
  CountOps ops{std::unique_ptr<Ops>(fake)};
  TestMemory memory{ops};
  LinearForward linear{memory.f32({7, 5}), memory.f32({7, 3}), memory.f32({5, 3}), {}};
  GeluForward gelu{memory.f32({7, 5}), memory.f32({7, 5})};
};

}  // namespace

TEST_CASE("calls are forwarded and counted by phase, place and operation", "[count]") {
  Counted c;
  CHECK(c.ops.name() == "count(fake)");
  c.ops.enter("block.10");
  CHECK(c.fake->place() == "block.10");
  c.ops.run(c.linear);
  c.ops.run(c.linear);
  c.ops.run(c.gelu);
  c.ops.enter("block.2");
  c.ops.set_phase(Phase::kEvaluation);
  c.ops.run(c.linear);
  c.ops.enter("block.10");
  c.ops.run(c.linear);
  CHECK(c.fake->calls() == 5);

  const double once = 2 * 7 * 3 * 5;
  CHECK(c.ops.flops(Phase::kForward) == 2 * once);
  CHECK(c.ops.flops(Phase::kEvaluation) == 2 * once);
  CHECK(c.ops.flops(Phase::kBackward) == 0);

  const std::vector<CostRow> rows = c.ops.rows();
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].place == "block.10");
  CHECK(rows[0].phase == Phase::kForward);
  CHECK(rows[0].op == std::string("linear_forward"));
  CHECK(rows[0].calls == 2);
  CHECK(rows[0].flops == 2 * once);
  CHECK(rows[0].bytes == 2 * 4 * (35 + 21 + 15));
  CHECK(rows[1].op == std::string("gelu_forward"));
  CHECK(rows[2].phase == Phase::kEvaluation);
  CHECK(rows[2].calls == 1);
  CHECK(rows[3].place == "block.2");
  for (const CostRow& row : rows) CHECK(row.seconds == 0);

  c.ops.reset();
  CHECK(c.ops.rows().empty());
  CHECK(c.ops.flops(Phase::kForward) == 0);
}

TEST_CASE("calls before any place belong to the empty one", "[count]") {
  Counted c;
  c.ops.run(c.gelu);
  REQUIRE(c.ops.rows().size() == 1);
  CHECK(c.ops.rows()[0].place.empty());
}

TEST_CASE("time is measured while it is asked for", "[count]") {
  Counted c;
  c.ops.set_timing(true);
  for (int i = 0; i < 100; ++i) c.ops.run(c.linear);
  const double seconds = c.ops.rows()[0].seconds;
  CHECK(seconds > 0);
  c.ops.set_timing(false);
  c.ops.run(c.linear);
  CHECK(c.ops.rows()[0].seconds == seconds);
}
