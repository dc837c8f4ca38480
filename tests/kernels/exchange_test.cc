// Sums over ranks, in their order, to the bit.
#include "kernels/exchange.h"

#include <cmath>

#include "core/philox.h"
#include "kernels/buffer.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/thread_ranks.h"

using namespace vcas;

namespace {

// Number i of a rank: such that sums depend on their order.
template <class T>
T number(int rank, std::int64_t i) {
  const PhiloxAddress address =
      philox_address({5, Stream::kData, static_cast<std::uint64_t>(rank), 0, 0});
  return static_cast<T>(philox_normal(address, static_cast<std::uint64_t>(i)) *
                        std::pow(10.0, i % 7 - 3));
}

// `Wire`: what each term is rounded to.
template <class T, class Wire = T>
T sum_of(int ranks, std::int64_t i) {
  const auto term = [&](int rank) { return static_cast<T>(static_cast<Wire>(number<T>(rank, i))); };
  T sum = term(0);
  for (int rank = 1; rank < ranks; ++rank) sum += term(rank);
  return sum;
}

// The slab of one rank, which begins with `number`.
template <class T>
struct Slab {
  Slab(const std::string& device, Ranks& ranks, std::int64_t count)
      : ops(make_ops(device)),
        buffer(*ops, static_cast<std::size_t>(count) * sizeof(T)),
        x(buffer.at(0, DTypeOf<T>::value, {count})),
        exchange(ops->make_exchange(ranks)) {
    std::vector<T> host;
    for (std::int64_t i = 0; i < count; ++i) host.push_back(number<T>(ranks.place().rank, i));
    put(host);
  }
  void put(const std::vector<T>& host) { ops->copy_to_device(x.data, host.data(), x.bytes()); }
  std::vector<T> read() const {
    std::vector<T> host(static_cast<std::size_t>(x.elements()));
    ops->copy_to_host(host.data(), x.data, x.bytes());
    return host;
  }

  std::unique_ptr<Ops> ops;
  Buffer buffer;
  Tensor x;
  std::unique_ptr<Exchange> exchange;
};

// `body(ranks)` on so many threads, or on none.
void on_ranks(int size, const std::function<void(std::shared_ptr<Ranks>)>& body) {
  size == 1 ? body(one_rank()) : on_thread_ranks(size, body);
}

template <class T>
void check_sums(const std::string& device, int size, std::int64_t count, double factor) {
  std::vector<std::vector<T>> got(static_cast<std::size_t>(size));
  on_ranks(size, [&](std::shared_ptr<Ranks> ranks) {
    Slab<T> slab(device, *ranks, count);
    slab.exchange->sum(slab.x, factor);
    got[static_cast<std::size_t>(ranks->place().rank)] = slab.read();
  });
  for (const std::vector<T>& host : got)
    for (std::int64_t i = 0; i < count; ++i) {
      const T sum = sum_of<T>(size, i);
      CHECK(host[i] == (size == 1 ? sum : static_cast<T>(factor) * sum));
    }
}

// Sums of parts, then what they make together.
template <class T, class Wire>
void check_parts(const std::string& device, int size, std::int64_t each) {
  const std::int64_t count = each * size;
  std::vector<std::vector<T>> parts(static_cast<std::size_t>(size)), whole = parts;
  on_ranks(size, [&](std::shared_ptr<Ranks> ranks) {
    const auto rank = static_cast<std::size_t>(ranks->place().rank);
    Slab<T> slab(device, *ranks, count);
    slab.exchange->begin_sum_parts(slab.x, DTypeOf<Wire>::value);
    slab.exchange->end();
    parts[rank] = slab.read();
    slab.exchange->begin_gather_parts(slab.x);
    slab.exchange->end();
    whole[rank] = slab.read();
  });
  for (int rank = 0; rank < size; ++rank)
    for (std::int64_t i = 0; i < count; ++i) {
      const T sum = size == 1 ? number<T>(0, i) : sum_of<T, Wire>(size, i);
      CHECK(whole[rank][i] == sum);
      CHECK(parts[rank][i] == (i / each == rank ? sum : number<T>(rank, i)));
    }
}

}  // namespace

TEST_CASE("a sum over ranks adds in their order, with the same bits on all", "[ranks][law]") {
  for (const std::string& device : test_devices())
    for (const int size : {1, 2, 3, 5})
      for (const std::int64_t count : {0, 1, 5, 1000}) {
        CAPTURE(device, size, count);
        check_sums<float>(device, size, count, 1);
        check_sums<double>(device, size, count, 0.25);
      }
}

TEST_CASE("each rank sums its part in the order of ranks, and all gather it", "[ranks][law]") {
  for (const std::string& device : test_devices())
    for (const int size : {1, 2, 3, 4, 5})
      for (const std::int64_t each : {0, 16, 160}) {
        CAPTURE(device, size, each);
        check_parts<float, float>(device, size, each);
        check_parts<double, double>(device, size, each);
        check_parts<float, bfloat16>(device, size, each);
      }
}

TEST_CASE("sums of bf16 terms are off by one rounding of each", "[ranks][law]") {
  for (const int size : {2, 8})
    on_thread_ranks(size, [&](std::shared_ptr<Ranks> ranks) {
      const std::int64_t each = 64;
      const int rank = ranks->place().rank;
      Slab<float> slab("cpu", *ranks, each * size);
      slab.exchange->begin_sum_parts(slab.x, DType::kBF16);
      slab.exchange->end();
      const std::vector<float> got = slab.read();
      for (std::int64_t i = rank * each; i < (rank + 1) * each; ++i) {
        double sum = 0, sizes = 0;
        for (int r = 0; r < size; ++r) {
          sum += static_cast<double>(number<float>(r, i));
          sizes += std::abs(static_cast<double>(number<float>(r, i)));
        }
        // Half a unit of 7 bits of mantissa a term; sums in f32 add little to it.
        if (std::abs(static_cast<double>(got[i]) - sum) > 0x1.01p-8 * sizes)
          throw InternalError("the sum of number " + std::to_string(i) + " is too far away");
      }
    });
}

TEST_CASE("several exchanges are on the way at a time", "[ranks]") {
  for (const std::string& device : test_devices()) {
    CAPTURE(device);
    const std::int64_t half = 64;
    std::vector<std::vector<float>> got(2);
    on_thread_ranks(2, [&](std::shared_ptr<Ranks> ranks) {
      Slab<float> slab(device, *ranks, 2 * half);
      const auto part = [&](std::int64_t begin) { return slab.x.range(begin, begin + half); };
      slab.exchange->begin_sum_parts(part(half), DType::kF32);
      slab.exchange->begin_sum_parts(part(0), DType::kF32);
      slab.exchange->end();
      slab.exchange->begin_gather_parts(part(0));
      slab.exchange->begin_gather_parts(part(half));
      slab.exchange->end();
      got[static_cast<std::size_t>(ranks->place().rank)] = slab.read();
    });
    for (const std::vector<float>& host : got)
      for (std::int64_t i = 0; i < 2 * half; ++i) CHECK(host[i] == sum_of<float>(2, i));
  }
}

TEST_CASE("what a repeated body begins is done in each repetition", "[ranks]") {
  for (const std::string& device : test_devices()) {
    CAPTURE(device);
    const std::int64_t count = 64;
    std::vector<std::vector<float>> got(2);
    on_thread_ranks(2, [&](std::shared_ptr<Ranks> ranks) {
      const int rank = ranks->place().rank;
      Slab<float> slab(device, *ranks, count);
      const Buffer from(*slab.ops, slab.x.bytes());
      const Tensor source = from.at(0, DType::kF32, {count});
      std::unique_ptr<Recording> recording;
      for (int turn = 0; turn < 4; ++turn) {
        const std::vector<float> host(count, static_cast<float>(10 * turn + rank));
        slab.ops->copy_to_device(source.data, host.data(), source.bytes());
        slab.ops->repeat(recording, [&] {
          slab.ops->run(Copy{.y = slab.x, .x = source});
          slab.exchange->begin_sum_parts(slab.x, DType::kF32);
        });
        slab.exchange->end();
        const std::vector<float> all = slab.read();
        got[static_cast<std::size_t>(rank)].push_back(all[static_cast<std::size_t>(32 * rank)]);
      }
    });
    for (const std::vector<float>& sums : got) CHECK(sums == std::vector<float>{1, 21, 41, 61});
  }
}

TEST_CASE("exchanges that cannot be are mistakes of the program", "[ranks]") {
  const auto ranks = one_rank();
  Slab<float> slab("cpu", *ranks, 40);
  CHECK_THROWS_AS(slab.exchange->begin_gather_parts(slab.x), InternalError);
  Slab<double> wide("cpu", *ranks, 16);
  CHECK_THROWS_AS(wide.exchange->begin_sum_parts(wide.x, DType::kBF16), InternalError);
}
