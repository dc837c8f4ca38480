#include "kernels/exchange.h"

#include <algorithm>
#include <vector>

#include "core/ranks.h"
#include "kernels/ops.h"

namespace vcas {
namespace {

// `sum`, [count]: of the parts, [ranks][count], in their order.
template <class T, class Wire>
void add_parts(T* sum, const Wire* parts, std::int64_t count, int ranks, T factor) {
  for (std::int64_t i = 0; i < count; ++i) {
    T total = static_cast<T>(parts[i]);
    for (int rank = 1; rank < ranks; ++rank) total += static_cast<T>(parts[rank * count + i]);
    sum[i] = factor * total;
  }
}

void add_parts(const Tensor& sum, DType wire, const std::byte* parts, int ranks, double factor) {
  const auto add = [&]<class T, class Wire>(T, Wire) {
    add_parts(sum.ptr<T>(), reinterpret_cast<const Wire*>(parts), sum.elements(), ranks,
              static_cast<T>(factor));
  };
  if (wire == DType::kBF16) return add(float{}, bfloat16{});
  sum.dtype == DType::kF32 ? add(float{}, float{}) : add(double{}, double{});
}

// By way of the host. What has begun is done in `end`.
class HostExchange final : public Exchange {
 public:
  HostExchange(Ops& ops, Ranks& ranks) : ops_(ops), ranks_(ranks), place_(ranks.place()) {}

  void begin_sum_parts(const Tensor& x, DType wire) override {
    check_terms(x, wire);
    begin({x, true, wire});
  }
  void begin_gather_parts(const Tensor& x) override { begin({.x = x}); }
  void end() override {
    for (const Begun& work : begun_)
      work.sums ? sum_parts(work.x, work.wire) : gather_parts(work.x);
    begun_.clear();
  }
  void sum(const Tensor& numbers, double factor) override {
    VCAS_CHECK(begun_.empty(), "a sum over ranks while others run");
    check_terms(numbers, numbers.dtype);
    if (numbers.elements() == 0 || (place_.size == 1 && factor == 1)) return;
    const std::size_t bytes = numbers.bytes();
    parts_.resize(bytes * place_.size);
    ops_.copy_to_host(parts_.data() + bytes * place_.rank, numbers.data, bytes);
    ranks_.all_gather(parts_.data(), bytes);
    put_sum(numbers, numbers.dtype, factor);
  }

 private:
  struct Begun {
    Tensor x;
    bool sums = false;
    DType wire = {};
  };

  void begin(const Begun& work) {
    check_parts(work.x, place_.size);
    if (place_.size > 1 && work.x.elements() > 0) begun_.push_back(work);
  }
  Tensor own_part(const Tensor& x) const { return part_of(x, place_.rank, place_.size); }
  void sum_parts(const Tensor& x, DType wire) {
    mine_.resize(x.bytes());
    ops_.copy_to_host(mine_.data(), x.data, x.bytes());
    if (wire != x.dtype) round_mine();
    parts_.resize(mine_.size());
    ranks_.all_to_all(parts_.data(), mine_.data(), mine_.size() / place_.size);
    put_sum(own_part(x), wire, 1);
  }
  void gather_parts(const Tensor& x) {
    const Tensor own = own_part(x);
    mine_.resize(x.bytes());
    ops_.copy_to_host(mine_.data() + own.bytes() * place_.rank, own.data, own.bytes());
    ranks_.all_gather(mine_.data(), own.bytes());
    ops_.copy_to_device(x.data, mine_.data(), x.bytes());
  }
  void round_mine() {
    const std::size_t count = mine_.size() / sizeof(float);
    parts_.resize(count * sizeof(bfloat16));
    const auto* const from = reinterpret_cast<const float*>(mine_.data());
    std::transform(from, from + count, reinterpret_cast<bfloat16*>(parts_.data()),
                   [](float x) { return bfloat16(x); });
    mine_.swap(parts_);
  }
  // `to`: the sum of `parts_`.
  void put_sum(const Tensor& to, DType wire, double factor) {
    mine_.resize(to.bytes());
    add_parts({mine_.data(), to.dtype, to.shape}, wire, parts_.data(), place_.size, factor);
    ops_.copy_to_device(to.data, mine_.data(), to.bytes());
  }

  Ops& ops_;
  Ranks& ranks_;
  Place place_;
  std::vector<Begun> begun_;
  std::vector<std::byte> mine_, parts_;
};

}  // namespace

std::unique_ptr<Exchange> Ops::make_exchange(Ranks& ranks) {
  return std::make_unique<HostExchange>(*this, ranks);
}

}  // namespace vcas
