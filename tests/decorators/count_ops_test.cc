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

// Repeats without calling, but for the first time.
class RepeatingOps final : public ForwardingOps {
 public:
  RepeatingOps() : ForwardingOps(std::make_unique<FakeOps>()) {}

  std::string name() const override { return "repeating"; }
  void repeat(std::unique_ptr<Recording>& recording, const std::function<void()>& body) override {
    if (recording) return;
    body();
    recording = std::make_unique<Recording>();
  }
};

}  // namespace

TEST_CASE("calls are forwarded and counted by phase, place and operation", "[count]") {
  Counted c;
  CHECK(c.ops.name() == "fake");
  c.ops.enter("block.10");
  CHECK(c.fake->place() == "block.10");
  c.ops.run(c.linear);
  c.ops.run(c.linear);
  c.ops.run(c.gelu);
  c.ops.enter("block.2");
  c.ops.enter_phase(Phase::kEvaluation);
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

TEST_CASE("passes are not repeated while operations are timed", "[count]") {
  CountOps ops(std::make_unique<RepeatingOps>());
  TestMemory memory(ops);
  const GeluForward gelu{memory.f32({7, 5}), memory.f32({7, 5})};
  std::unique_ptr<Recording> recording;
  int calls = 0;
  const auto pass = [&] {
    ++calls;
    ops.run(gelu);
  };
  for (int i = 0; i < 3; ++i) ops.repeat(recording, pass);
  CHECK(calls == 1);
  ops.set_timing(true);
  for (int i = 0; i < 3; ++i) ops.repeat(recording, pass);
  CHECK(calls == 4);
  CHECK(ops.rows()[0].calls == 6);
  CHECK(ops.rows()[0].seconds > 0);
  ops.set_timing(false);
  ops.repeat(recording, pass);
  CHECK(calls == 4);
}

TEST_CASE("what runs at a place of probes counts as probe and is timed", "[count]") {
  Counted c;
  c.ops.enter_phase(Phase::kBackward);
  c.ops.enter("gate/probe");
  for (int i = 0; i < 100; ++i) c.ops.run(c.linear);
  c.ops.enter("gate/backward");
  c.ops.run(c.gelu);
  REQUIRE(c.ops.rows().size() == 2);
  CHECK(c.ops.rows()[0].phase == Phase::kProbe);
  CHECK(c.ops.rows()[0].seconds > 0);
  CHECK(c.ops.look_seconds() == c.ops.rows()[0].seconds);
  CHECK(c.ops.rows()[1].phase == Phase::kBackward);
  CHECK(c.ops.rows()[1].seconds == 0);
  c.ops.enter_phase(Phase::kProbe);  // a probe's own passes are no part of a step's backward
  c.ops.enter("gate/probe");
  c.ops.run(c.linear);
  CHECK(c.ops.look_seconds() < c.ops.rows()[0].seconds);
}

TEST_CASE("a repetition counts as its calls, with their phases and places", "[count]") {
  CountOps ops(std::make_unique<RepeatingOps>());
  TestMemory memory(ops);
  const LinearForward linear{memory.f32({7, 5}), memory.f32({7, 3}), memory.f32({5, 3}), {}};
  const GeluForward gelu{memory.f32({7, 5}), memory.f32({7, 5})};
  std::unique_ptr<Recording> recording;
  int called = 0;
  const auto body = [&] {
    ++called;
    ops.enter_phase(Phase::kForward);
    ops.enter("first");
    ops.run(linear);
    ops.run(linear);
    ops.enter_phase(Phase::kBackward);
    ops.run(linear);
    ops.enter("last");
  };
  const double once = 2 * 7 * 3 * 5;
  for (int i = 0; i < 3; ++i) {
    ops.enter("outside");
    ops.repeat(recording, body);
    ops.run(gelu);  // at the place that the body entered last
  }
  CHECK(called == 1);
  CHECK(ops.flops(Phase::kForward) == 3 * 2 * once);
  CHECK(ops.flops(Phase::kBackward) == 3 * once);
  const std::vector<CostRow> rows = ops.rows();
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].place == "first");
  CHECK(rows[0].calls == 6);
  CHECK(rows[0].launches == 6);
  CHECK(rows[2].place == "last");
  CHECK(rows[2].calls == 3);

  ops.reset();
  ops.repeat(recording, body);
  CHECK(called == 1);
  CHECK(ops.flops(Phase::kForward) == 2 * once);
}

TEST_CASE("a body that throws is counted no further", "[count]") {
  CountOps ops(std::make_unique<RepeatingOps>());
  TestMemory memory(ops);
  const GeluForward gelu{memory.f32({7, 5}), memory.f32({7, 5})};
  std::unique_ptr<Recording> recording;
  CHECK_THROWS_AS(ops.repeat(recording, [] { throw InternalError("no"); }), InternalError);
  ops.run(gelu);
  ops.repeat(recording, [&] { ops.run(gelu); });
  ops.repeat(recording, [] {});
  REQUIRE(ops.rows().size() == 1);
  CHECK(ops.rows()[0].calls == 3);
}
