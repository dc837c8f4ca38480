#include "kernels/emu/emu_ops.h"
#include "tests/support/check_op.h"

using namespace vcas;

namespace {

// Operations of every kind that a device is given: kernels, with and without scratch, a product, a
// copy, random numbers.
struct Body {
  explicit Body(TestTensors& tensors)
      : t(tensors),
        x(t.normal({40, 8})),
        weight(t.normal({6, 8})),
        step(t.offsets({0})),
        dropped(t.unset({40, 8})),
        y(t.unset({40, 6})),
        copy(t.unset({40, 6})),
        sum(t.wide_filled({6}, [](std::int64_t) { return 0; })) {}

  void operator()() const {
    ++calls;
    t.ops().run(Dropout{.y = dropped,
                        .x = x,
                        .p = 0.4,
                        .key = {.seed = 1, .stream = Stream::kDropout},
                        .step = step});
    t.ops().run(LinearForward{.y = y, .x = dropped, .weight = weight});
    t.ops().run(Copy{.y = copy, .x = y});
    t.ops().run(ColumnSum{.sum = sum, .x = copy, .accumulate = true});
  }

  // Other numbers in the same memory, as the next batch brings them.
  void next(std::int64_t number) const {
    const Tensor other = t.filled(
        {40, 8}, [&](std::int64_t i) { return std::sin(static_cast<double>(i * number)); });
    t.write_bytes(x, t.read_bytes(other));
    t.write_bytes(step, t.read_bytes(t.offsets({number})));
  }

  TestTensors& t;
  Tensor x, weight, step, dropped, y, copy, sum;
  mutable int calls = 0;
};

}  // namespace

TEST_CASE("a repetition computes from what the memory holds then", "[repeat]") {
  on_every_backend([](TestTensors& t) {
    const Body called(t), repeated(t);
    t.write_bytes(repeated.weight, t.read_bytes(called.weight));
    std::unique_ptr<Recording> recording;
    for (std::int64_t i = 1; i <= 5; ++i) {
      called.next(i);
      repeated.next(i);
      called();
      t.ops().repeat(recording, std::ref(repeated));
      CHECK(t.read_bytes(repeated.sum) == t.read_bytes(called.sum));
      CHECK(t.read_bytes(repeated.dropped) == t.read_bytes(called.dropped));
    }
    CHECK(t.bands_intact());
    const bool on_a_device = t.ops().name() == "emu" || t.ops().name() == "cuda";
    CHECK(repeated.calls == (on_a_device ? 2 : 5));
  });
}

TEST_CASE("a repetition is one launch, and has the arguments of its capture", "[repeat]") {
  const auto ops = make_emu_ops();
  TestTensors t(*ops, DType::kF32);
  const Tensor y = t.unset({1});
  double value = 0;
  std::unique_ptr<Recording> recording;
  std::vector<double> filled;
  std::vector<std::int64_t> launches;
  for (value = 1; value <= 4; ++value) {
    const std::int64_t before = emu_launches(*ops);
    ops->repeat(recording, [&] {
      for (int i = 0; i < 3; ++i) ops->run(Fill{.y = y, .value = value});
    });
    launches.push_back(emu_launches(*ops) - before);
    filled.push_back(t.read(y)[0]);
  }
  CHECK(launches == std::vector<std::int64_t>{3, 1, 1, 1});
  CHECK(filled == std::vector<double>{1, 2, 2, 2});
}

TEST_CASE("a workspace that has moved is captured anew", "[repeat]") {
  on_every_backend([](TestTensors& t) {
    const Body work(t);
    std::unique_ptr<Recording> recording;
    for (int i = 0; i < 3; ++i) t.ops().repeat(recording, std::ref(work));
    const int before = work.calls;
    const Tensor wide = t.filled({4000, 300}, [](std::int64_t) { return 1; });
    const Tensor sum = t.wide_filled({300}, [](std::int64_t) { return 0; });
    t.ops().run(ColumnSum{.sum = sum, .x = wide});
    t.ops().repeat(recording, std::ref(work));
    CHECK(work.calls == before + 1);
    const auto got = t.read_bytes(work.sum);
    const Body called(t);
    t.write_bytes(called.x, t.read_bytes(work.x));
    t.write_bytes(called.weight, t.read_bytes(work.weight));
    for (int i = 0; i < 4; ++i) called();
    CHECK(got == t.read_bytes(called.sum));
  });
}

TEST_CASE("a host copy while a graph is captured is an error that says so", "[repeat]") {
  on_emu_and_cuda(Precision::kF32, [](TestTensors& t) {
    const Tensor y = t.normal({3});
    const auto refused = [&](const std::function<void()>& body) {
      std::unique_ptr<Recording> recording;
      t.ops().repeat(recording, body);
      CHECK_THROWS_WITH(t.ops().repeat(recording, body),
                        ContainsSubstring("while a graph is captured"));
      t.ops().run(Fill{.y = y, .value = 2});
      CHECK(t.read(y) == std::vector<double>{2, 2, 2});
    };
    float host = 0;
    refused([&] { t.ops().copy_to_host(&host, y.data, sizeof host); });
    refused([&] { t.ops().copy_to_device(y.data, &host, sizeof host); });
    refused([&] { t.ops().deallocate(t.ops().allocate(8), 8); });
  });
}
