// Sums over ranks, in their order, to the bit.
#include "kernels/exchange.h"

#include "kernels/buffer.h"
#include "tests/support/catch.h"
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

template <class T>
void check_sums(const std::string& device, int size, std::int64_t count, double factor) {
  std::vector<T> want;
  for (std::int64_t i = 0; i < count; ++i) {
    T sum = number<T>(0, i);
    for (int rank = 1; rank < size; ++rank) sum += number<T>(rank, i);
    want.push_back(size == 1 ? sum : static_cast<T>(sum * static_cast<T>(factor)));
  }
  std::vector<std::vector<T>> got(static_cast<std::size_t>(size));
  const auto body = [&](std::shared_ptr<Ranks> ranks) {
    const auto ops = make_ops(device);
    const int rank = ranks->place().rank;
    std::vector<T> host;
    for (std::int64_t i = 0; i < count; ++i) host.push_back(number<T>(rank, i));
    const DType dtype = sizeof(T) == 4 ? DType::kF32 : DType::kF64;
    const Buffer buffer(*ops, host.size() * sizeof(T));
    const Tensor x = buffer.at(0, dtype, {count});
    HostExchange exchange(*ops, *ranks);
    for (int turn = 0; turn < 2; ++turn) {
      ops->copy_to_device(x.data, host.data(), x.bytes());
      exchange.sum(x, factor);
    }
    ops->copy_to_host(host.data(), x.data, x.bytes());
    got[static_cast<std::size_t>(rank)] = host;
  };
  if (size == 1)
    body(one_rank());
  else
    on_thread_ranks(size, body);
  for (const std::vector<T>& host : got) CHECK(host == want);
}

}  // namespace

TEST_CASE("a sum over ranks adds in their order, with the same bits on all", "[ranks][law]") {
  const std::string device = GENERATE("cpu", "emu");
  const int size = GENERATE(1, 2, 3, 5);
  const std::int64_t count = GENERATE(0, 1, 5, 1000);
  const double factor = GENERATE(1.0, 0.25);
  CAPTURE(device, size, count, factor);
  check_sums<float>(device, size, count, factor);
  check_sums<double>(device, size, count, factor);
}
