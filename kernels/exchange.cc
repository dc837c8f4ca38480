#include "kernels/exchange.h"

#include <algorithm>

namespace vcas {
namespace {

// `sum`, [count]: of the parts, [ranks][count], in their order.
template <class T>
void add_parts(std::byte* sum, const std::vector<std::byte>& parts, std::int64_t count,
               double factor) {
  T* const to = reinterpret_cast<T*>(sum);
  const T* const from = reinterpret_cast<const T*>(parts.data());
  const std::int64_t all = static_cast<std::int64_t>(parts.size() / sizeof(T));
  std::copy(from, from + count, to);
  for (std::int64_t part = count; part < all; part += count)
    for (std::int64_t i = 0; i < count; ++i) to[i] += from[part + i];
  if (factor == 1) return;
  for (std::int64_t i = 0; i < count; ++i) to[i] *= static_cast<T>(factor);
}

}  // namespace

void HostExchange::sum(const Tensor& x, double factor) {
  const auto [rank, size, local_rank, local_size] = ranks_.place();
  if (size == 1 || x.elements() == 0) return;
  VCAS_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kF64, "a sum over ranks is of f32 or f64");
  const std::int64_t count = (x.elements() + size - 1) / size;  // of a part
  const std::size_t bytes = static_cast<std::size_t>(count) * dtype_bytes(x.dtype);
  mine_.resize(bytes * static_cast<std::size_t>(size));
  parts_.resize(mine_.size());
  ops_.copy_to_host(mine_.data(), x.data, x.bytes());
  ranks_.all_to_all(parts_.data(), mine_.data(), bytes);
  std::byte* const own = mine_.data() + static_cast<std::size_t>(rank) * bytes;
  if (x.dtype == DType::kF32)
    add_parts<float>(own, parts_, count, factor);
  else
    add_parts<double>(own, parts_, count, factor);
  ranks_.all_gather(mine_.data(), bytes);
  ops_.copy_to_device(x.data, mine_.data(), x.bytes());
}

}  // namespace vcas
