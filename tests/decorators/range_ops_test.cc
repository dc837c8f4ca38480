#include "kernels/decorators/range_ops.h"

#include "tests/decorators/fake_ops.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

// Writes down what it is told.
class Notes final : public Profiler {
 public:
  explicit Notes(std::string& to) : to_(to) {}
  void push(const std::string& name) override { to_ += "(" + name; }
  void pop() override { to_ += ")"; }
  void start() override { to_ += "<"; }
  void stop() override { to_ += ">"; }

 private:
  std::string& to_;
};

}  // namespace

TEST_CASE("a place is a range until the next one, within the step", "[range]") {
  std::string told;
  auto* fake = new FakeOps;
  RangeOps ops(std::unique_ptr<Ops>(fake), std::make_unique<Notes>(told));
  CHECK(ops.name() == "fake");
  ops.start();
  ops.begin("step");
  ops.enter("block.0/ffn_in/forward");
  CHECK(fake->place() == "block.0/ffn_in/forward");
  ops.enter("block.0/ffn_in/backward");
  ops.enter("optimizer");
  ops.end();
  ops.begin("eval");
  ops.end();
  ops.stop();
  CHECK(told == "<(step(forward/block.0/ffn_in)(backward/block.0/ffn_in)(optimizer))(eval)>");
}

TEST_CASE("operations are passed on", "[range]") {
  std::string told;
  auto* fake = new FakeOps;
  RangeOps ops(std::unique_ptr<Ops>(fake), std::make_unique<Notes>(told));
  TestMemory memory(ops);
  ops.run(GeluForward{.y = memory.f32({7, 5}), .x = memory.f32({7, 5})});
  CHECK(fake->calls() == 1);
  CHECK(told.empty());
}

TEST_CASE("while the profiler records, each place is entered each time", "[range]") {
  std::string told;
  RangeOps ops(make_ops("emu"), std::make_unique<Notes>(told));
  std::unique_ptr<Recording> recording;
  const auto repeat = [&] { ops.repeat(recording, [&] { ops.enter("a/forward"); }); };
  for (int i = 0; i < 4; ++i) repeat();  // called, captured, and twice repeated
  CHECK(told == "(forward/a)(forward/a");
  ops.start();
  repeat();
  repeat();
  ops.stop();
  repeat();
  CHECK(told == "(forward/a)(forward/a<)(forward/a)(forward/a>");
}

TEST_CASE("only a GPU has a profiler", "[range]") {
  CHECK(make_profiler("cpu") == nullptr);
  CHECK(make_profiler("emu") == nullptr);
}
