#include "kernels/decorators/trace_ops.h"

#include <nlohmann/json.hpp>

#include "tests/core/temporary_folder.h"
#include "tests/decorators/fake_ops.h"
#include "tests/support/check_error.h"

using namespace vcas;

namespace {

// Tests run at the same time, each in a folder of its own.
struct TraceFile {
  TemporaryFolder folder;
  std::filesystem::path path = folder.path() / "trace.json";
};

}  // namespace

TEST_CASE("the trace holds the calls between begin and end", "[trace]") {
  const TraceFile file;
  TraceOps ops(std::make_unique<FakeOps>(), file.path);
  CHECK(ops.name() == "fake");
  {
    TestMemory memory(ops);
    const GeluForward gelu{memory.f32({2, 2}), memory.f32({2, 2})};
    const Fill fill{memory.f32({2, 2}), 1};
    ops.run(gelu);
    ops.begin();
    ops.run(fill);
    ops.enter("block.\"7\"");
    ops.run(gelu);
    ops.end();
    ops.run(gelu);
  }
  ops.close();

  std::ifstream written(file.path);
  const nlohmann::json events = nlohmann::json::parse(written);
  REQUIRE(events.size() == 2);
  CHECK(events[0]["name"] == "fill");
  CHECK(events[1]["name"] == "block.\"7\"/gelu_forward");
  CHECK(events[1]["ph"] == "X");
  CHECK(events[1]["tid"] == 0);
  CHECK(events[1]["dur"] >= 0);
  CHECK(events[1]["ts"] >= events[0]["ts"].get<double>() + events[0]["dur"].get<double>() - 0.002);
}

TEST_CASE("an older trace stays until something is recorded", "[trace]") {
  const TraceFile file;
  std::ofstream(file.path) << "an older trace";
  const auto found = [&] {
    std::ifstream written(file.path);
    return std::string(std::istreambuf_iterator<char>(written), {});
  };
  { TraceOps refused(std::make_unique<FakeOps>(), file.path); }
  CHECK(found() == "an older trace");
  {
    TraceOps ops(std::make_unique<FakeOps>(), file.path);
    ops.begin();
    ops.end();
    ops.begin();
  }
  CHECK(nlohmann::json::parse(found()).empty());  // an empty one is a list too
}

TEST_CASE("a repetition is traced call by call", "[trace]") {
  const TraceFile file;
  TraceOps ops(make_ops("emu"), file.path);
  {
    TestMemory memory(ops);
    const Fill fill{memory.f32({2, 2}), 1};
    std::unique_ptr<Recording> recording;
    int called = 0;
    for (int i = 0; i < 5; ++i) {
      if (i == 3) ops.begin();
      ops.repeat(recording, [&] {
        ++called;
        ops.run(fill);
      });
    }
    CHECK(called == 4);
  }
  ops.close();
  std::ifstream written(file.path);
  CHECK(nlohmann::json::parse(written).size() == 2);
}

TEST_CASE("a trace that cannot be written says so", "[trace]") {
  const Error failure =
      error_of([] { TraceOps(std::make_unique<FakeOps>(), "/nowhere/trace.json"); });
  CHECK(failure.code() == ExitCode::kCannotCreate);
}
