// Sums over ranks, in their order, to the bit.
#include "kernels/exchange.h"

#include <cmath>

#include "core/philox.h"
#include "kernels/buffer.h"
#include "tests/kernels/transports.h"

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
  Slab(const Transport& transport, Ranks& ranks, std::int64_t count)
      : ops(transport.make_ops()),
        buffer(*ops, static_cast<std::size_t>(count) * sizeof(T)),
        x(buffer.at(0, DTypeOf<T>::value, {count})),
        exchange(transport.make_exchange(*ops, ranks)) {
    std::vector<T> host;
    for (std::int64_t i = 0; i < count; ++i) host.push_back(number<T>(ranks.place().rank, i));
    put(host);
  }
  void put(const std::vector<T>& host) { ops->copy_to_device(x.data, host.data(), x.bytes()); }
  std::vector<T> read() const { return to_host<T>(*ops, x); }

  std::unique_ptr<Ops> ops;
  Buffer buffer;
  Tensor x;
  std::unique_ptr<Exchange> exchange;
};

// One rank has nobody to exchange with, unless it does by NCCL.
bool unchanged(const Transport& transport, int size) { return size == 1 && !transport.by_nccl; }

template <class T>
void check_sums(const Transport& transport, int size, std::int64_t count, double factor) {
  std::vector<std::vector<T>> got(static_cast<std::size_t>(size));
  on_ranks(size, [&](std::shared_ptr<Ranks> ranks) {
    Slab<T> slab(transport, *ranks, count);
    slab.exchange->sum(slab.x, factor);
    got[static_cast<std::size_t>(ranks->place().rank)] = slab.read();
  });
  for (const std::vector<T>& host : got)
    for (std::int64_t i = 0; i < count; ++i)
      CHECK(host[i] == static_cast<T>(factor) * sum_of<T>(size, i));
}

// Sums of parts, then what they make together.
template <class T, class Wire>
void check_parts(const Transport& transport, int size, std::int64_t each) {
  const std::int64_t count = each * size;
  std::vector<std::vector<T>> parts(static_cast<std::size_t>(size)), whole = parts;
  on_ranks(size, [&](std::shared_ptr<Ranks> ranks) {
    const auto rank = static_cast<std::size_t>(ranks->place().rank);
    Slab<T> slab(transport, *ranks, count);
    slab.exchange->begin_sum_parts(slab.x, DTypeOf<Wire>::value);
    slab.exchange->end();
    parts[rank] = slab.read();
    slab.exchange->begin_gather_parts(slab.x);
    slab.exchange->end();
    whole[rank] = slab.read();
  });
  for (int rank = 0; rank < size; ++rank)
    for (std::int64_t i = 0; i < count; ++i) {
      const T sum = unchanged(transport, size) ? number<T>(0, i) : sum_of<T, Wire>(size, i);
      CHECK(whole[rank][i] == sum);
      CHECK(parts[rank][i] == (i / each == rank ? sum : number<T>(rank, i)));
    }
}

}  // namespace

TEST_CASE("a sum over ranks adds in their order, with the same bits on all", "[ranks][nccl][law]") {
  on_every_transport([](const Transport& transport) {
    for (const int size : {1, 2, 3, 5})
      for (const std::int64_t count : {0, 1, 5, 1000}) {
        if (size > transport.most_ranks) continue;
        CAPTURE(size, count);
        check_sums<float>(transport, size, count, 1);
        check_sums<double>(transport, size, count, 0.25);
      }
  });
}

TEST_CASE("each rank sums its part in the order of ranks, and all gather it",
          "[ranks][nccl][law]") {
  on_every_transport([](const Transport& transport) {
    for (const int size : {1, 2, 3, 4, 5})
      for (const std::int64_t each : {0, 16, 160}) {
        if (size > transport.most_ranks) continue;
        CAPTURE(size, each);
        check_parts<float, float>(transport, size, each);
        check_parts<double, double>(transport, size, each);
        check_parts<float, bfloat16>(transport, size, each);
      }
  });
}

TEST_CASE("sums of bf16 terms are off by one rounding of each", "[ranks][law]") {
  const Transport host = host_transport("cpu");
  for (const int size : {2, 8})
    on_thread_ranks(size, [&](std::shared_ptr<Ranks> ranks) {
      const std::int64_t each = 64;
      const int rank = ranks->place().rank;
      Slab<float> slab(host, *ranks, each * size);
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

TEST_CASE("several exchanges are on the way at a time", "[ranks][nccl]") {
  on_every_transport([](const Transport& transport) {
    const std::int64_t half = 64;
    const int size = std::min(2, transport.most_ranks);
    std::vector<std::vector<float>> got(static_cast<std::size_t>(size));
    on_ranks(size, [&](std::shared_ptr<Ranks> ranks) {
      Slab<float> slab(transport, *ranks, 2 * half);
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
      for (std::int64_t i = 0; i < 2 * half; ++i) CHECK(host[i] == sum_of<float>(size, i));
  });
}

TEST_CASE("what a repeated body begins is done in each repetition", "[ranks][nccl]") {
  on_every_transport([](const Transport& transport) {
    const std::int64_t count = 64;
    const int size = std::min(2, transport.most_ranks);
    std::vector<std::vector<float>> got(static_cast<std::size_t>(size));
    on_ranks(size, [&](std::shared_ptr<Ranks> ranks) {
      const int rank = ranks->place().rank;
      Slab<float> slab(transport, *ranks, count);
      const Buffer from(*slab.ops, slab.x.bytes());
      const Tensor source = from.at(0, DType::kF32, {count});
      std::unique_ptr<Recording> recording;
      for (int turn = 0; turn < 4; ++turn) {
        const std::vector<float> host(count, static_cast<float>(10 * turn + rank));
        slab.ops->copy_to_device(source.data, host.data(), source.bytes());
        slab.ops->repeat(recording, [&] {
          slab.ops->run(Copy{.y = slab.x, .x = source});
          slab.exchange->begin_sum_parts(slab.x, DType::kF32);
          slab.ops->run(Fill{.y = source, .value = -1});  // beside it
        });
        slab.exchange->end();
        const std::vector<float> all = slab.read();
        got[static_cast<std::size_t>(rank)].push_back(all[static_cast<std::size_t>(32 * rank)]);
      }
    });
    for (const std::vector<float>& sums : got)
      CHECK(sums ==
            (size == 1 ? std::vector<float>{0, 10, 20, 30} : std::vector<float>{1, 21, 41, 61}));
  });
}

TEST_CASE("exchanges that cannot be are mistakes of the program", "[ranks][nccl]") {
  on_every_transport([](const Transport& transport) {
    const auto ranks = one_rank();
    Slab<float> slab(transport, *ranks, 40);
    CHECK_THROWS_AS(slab.exchange->begin_gather_parts(slab.x), InternalError);
    Slab<double> wide(transport, *ranks, 16);
    CHECK_THROWS_AS(wide.exchange->begin_sum_parts(wide.x, DType::kBF16), InternalError);
  });
}
