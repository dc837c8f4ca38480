// Operations beside others: Ops::beside and Ops::join.
#include <stdexcept>

#include "kernels/emu/emu_ops.h"
#include "tests/support/check_op.h"

using namespace vcas;

namespace {

constexpr emu::ThreadOrder kOrders[] = {emu::ThreadOrder::kForward, emu::ThreadOrder::kReverse,
                                        emu::ThreadOrder::kRandom};

Fill set(const Tensor& y, double value) { return {.y = y, .value = value}; }

}  // namespace

TEST_CASE("the emulator runs a branch at once, in turns or late", "[beside]") {
  // What the three copies of the branch see of a number that is raised behind it, twice.
  const auto seen = [](emu::ThreadOrder order, bool joins, bool captured) {
    const auto ops = make_emu_ops(order);
    TestTensors t(*ops, DType::kF32);
    const Tensor x = t.unset({1}), y = t.unset({3});
    const auto body = [&] {
      ops->run(set(x, 1));
      const std::int64_t ticket = ops->beside([&] {
        for (std::int64_t i = 0; i < 3; ++i) ops->run(Copy{.y = y.range(i, i + 1), .x = x});
      });
      if (joins) ops->join(ticket);
      ops->run(set(x, 2));
      ops->run(set(x, 3));
      ops->join(Ops::kAllTickets);
    };
    std::unique_ptr<Recording> recording;
    for (int i = 0; i < (captured ? 3 : 1); ++i) ops->repeat(recording, body);
    return t.read(y);
  };
  for (const bool captured : {false, true}) {
    for (const emu::ThreadOrder order : kOrders)
      CHECK(seen(order, true, captured) == std::vector<double>{1, 1, 1});
    CHECK(seen(emu::ThreadOrder::kForward, false, captured) == std::vector<double>{1, 1, 1});
    CHECK(seen(emu::ThreadOrder::kReverse, false, captured) == std::vector<double>{3, 3, 3});
    CHECK(seen(emu::ThreadOrder::kRandom, false, captured) == std::vector<double>{2, 3, 3});
  }
}

TEST_CASE("operations told to join a body come after those before it too", "[beside]") {
  on_every_backend([](TestTensors& t) {
    Ops& ops = t.ops();
    std::vector<Tensor> seen;
    const Tensor x = t.unset({1000}), y = t.unset({1000});
    std::int64_t last = 0;
    for (int i = 0; i < 40; ++i) {  // more than a context has events
      ops.run(set(x, i));
      seen.push_back(t.unset({1000}));
      const std::int64_t ticket = ops.beside([&] {
        ops.run(Copy{.y = y, .x = x});
        ops.run(Copy{.y = seen.back(), .x = y});
        ops.join(Ops::kAllTickets);  // nothing: they come after each other
      });
      if (t.ops().name() != "cpu") CHECK(ticket > last);
      last = ticket;
      ops.join(i % 7 == 0 ? Ops::kAllTickets : ticket);
    }
    for (int i = 0; i < 40; ++i)
      CHECK(t.read(seen[static_cast<std::size_t>(i)]) == std::vector<double>(1000, i));
  });
}

TEST_CASE("branches have a workspace each", "[beside]") {
  on_every_backend([](TestTensors& t) {
    Ops& ops = t.ops();
    const Tensor wide = t.normal({4000, 300}), narrow = t.normal({4000, 200});
    const auto sums = [&](bool beside) {
      const Tensor a = t.wide_filled({300}, [](std::int64_t) { return 0; });
      const Tensor b = t.wide_filled({200}, [](std::int64_t) { return 0; });
      const auto first = [&] { ops.run(ColumnSum{.sum = a, .x = wide}); };
      const auto work = [&] {
        beside ? static_cast<void>(ops.beside(first)) : first();
        ops.run(ColumnSum{.sum = b, .x = narrow});
        ops.join(Ops::kAllTickets);
      };
      std::unique_ptr<Recording> recording;
      for (int i = 0; i < 3; ++i) ops.repeat(recording, work);
      return std::pair{t.read_bytes(a), t.read_bytes(b)};
    };
    CHECK(sums(true) == sums(false));
  });
}

TEST_CASE("what a body that throws has begun is joined", "[beside]") {
  on_every_backend([](TestTensors& t) {
    const Tensor x = t.unset({1}), y = t.unset({1});
    t.ops().run(set(x, 1));
    CHECK_THROWS_WITH(t.ops().beside([&] {
      t.ops().run(Copy{.y = y, .x = x});
      throw std::runtime_error("no more");
    }),
                      "no more");
    t.ops().join(Ops::kAllTickets);
    t.ops().run(set(x, 2));
    CHECK(t.read(y)[0] == 1);
  });
}

TEST_CASE("a graph that does not join its branch is an error that says so", "[beside][repeat]") {
  on_emu_and_cuda(Precision::kF32, [](TestTensors& t) {
    const Tensor y = t.unset({1});
    std::unique_ptr<Recording> recording;
    const auto body = [&] { t.ops().beside([&] { t.ops().run(set(y, 1)); }); };
    t.ops().repeat(recording, body);
    CHECK_THROWS_WITH(t.ops().repeat(recording, body),
                      ContainsSubstring("a graph ends before what runs beside it"));
    t.ops().run(set(y, 2));
    CHECK(t.read(y)[0] == 2);
  });
}

TEST_CASE("a body copies to the host, but not from it", "[beside]") {
  on_emu_and_cuda(Precision::kF32, [](TestTensors& t) {
    const Tensor y = t.unset({1});
    float read = 0;
    const auto write = [&] { t.ops().copy_to_device(y.data, &read, sizeof read); };
    t.ops().beside([&] {
      t.ops().run(set(y, 3));
      t.ops().copy_to_host(&read, y.data, sizeof read);
    });
    CHECK(read == 3);
    CHECK_THROWS_WITH(t.ops().beside(write),
                      ContainsSubstring("a copy from the host in a body beside others"));
    t.ops().join(Ops::kAllTickets);
    read = 4;
    write();
    CHECK(t.read(y)[0] == 4);
  });
}

TEST_CASE("a body in a body is an error that says so", "[beside]") {
  on_emu_and_cuda(Precision::kF32, [](TestTensors& t) {
    CHECK_THROWS_WITH(t.ops().beside([&] { t.ops().beside([] {}); }),
                      ContainsSubstring("a body beside others begins a further one"));
    t.ops().join(Ops::kAllTickets);
  });
}
