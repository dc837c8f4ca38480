#include "tests/support/check_op.h"

using namespace vcas;

// Small copies and large ones, some to the same memory, more than a device takes at a time: each
// comes between the operations that were called before and after it, whatever becomes of its
// source.
TEST_CASE("copies to a device come in the order of calls", "[copy]") {
  on_every_backend([](TestTensors& t) {
    constexpr std::int64_t kRows = 9, kBytes = std::int64_t{4} << 20;
    constexpr std::size_t kSmall = 68;
    const Shape shape{kBytes / static_cast<std::int64_t>(dtype_bytes(t.dtype()))};
    const Tensor y = t.unset(shape);
    std::vector<Tensor> seen;
    std::vector<std::byte> host(y.bytes());
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::size_t bytes = r % 3 == 1 ? kSmall : y.bytes();
      for (const int value : {static_cast<int>(r), 0x7f}) {
        std::fill(host.begin(), host.end(), std::byte(value));
        t.ops().copy_to_device(y.data, host.data(), bytes);
        std::fill(host.begin(), host.end(), std::byte(0));
        if (value != 0x7f) t.ops().run(Copy{.y = seen.emplace_back(t.unset(shape)), .x = y});
      }
    }
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::vector<std::byte> got = t.read_bytes(seen[static_cast<std::size_t>(r)]);
      const auto of_small = [&](std::size_t i) { return r % 3 == 1 && i >= kSmall; };
      std::size_t i = 0;
      while (i < got.size() && got[i] == std::byte(of_small(i) ? 0x7f : static_cast<int>(r))) ++i;
      CHECK(i == got.size());
    }
  });
}

TEST_CASE("a timeline has the seconds between its marks", "[copy]") {
  on_every_backend([](TestTensors& t) {
    const std::unique_ptr<Timeline> timeline = t.ops().make_timeline();
    CHECK(timeline->take_seconds().empty());
    const Tensor y = t.unset({1000, 100});
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 3; ++i) {
        timeline->mark();
        t.ops().run(Fill{.y = y, .value = 1});
      }
      const std::vector<double> seconds = timeline->take_seconds();
      REQUIRE(seconds.size() == 2);
      CHECK(seconds[0] > 0);
      CHECK(seconds[1] > 0);
    }
  });
}
