#include "layers/parameters.h"

#include "core/arena.h"

namespace vcas {

Parameters::Parameters(Ops& ops, DType dtype, std::vector<Parameter> list)
    : list_(std::move(list)) {
  const std::size_t element = dtype_bytes(dtype);
  std::vector<std::size_t> offsets(list_.size());
  std::size_t total = 0;
  for (const bool decay : {true, false}) {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      if (list_[i].decay != decay) continue;
      offsets[i] = total;
      total += Arena::round_up(static_cast<std::size_t>(list_[i].shape.elements()) * element);
    }
    if (decay) decayed_ = static_cast<std::int64_t>(total / element);
  }
  value_buffer_ = Buffer(ops, total);
  gradient_buffer_ = Buffer(ops, total);
  const Shape slab{static_cast<std::int64_t>(total / element)};
  values_ = value_buffer_.at(0, dtype, slab);
  gradients_ = gradient_buffer_.at(0, dtype, slab);
  for (std::size_t i = 0; i < list_.size(); ++i) {
    list_[i].value = value_buffer_.at(offsets[i], dtype, list_[i].shape);
    list_[i].gradient = gradient_buffer_.at(offsets[i], dtype, list_[i].shape);
  }
}

std::int64_t Parameters::count() const {
  std::int64_t sum = 0;
  for (const Parameter& parameter : list_) sum += parameter.shape.elements();
  return sum;
}

namespace {

template <class T>
void fill_initial(Ops& ops, const Parameter& parameter, const RandomKey& key) {
  const PhiloxAddress address = philox_address(key);
  std::vector<T> host(static_cast<std::size_t>(parameter.shape.elements()),
                      static_cast<T>(parameter.init.value));
  if (parameter.init.kind == Initializer::Kind::kNormal)
    for (std::size_t i = 0; i < host.size(); ++i)
      host[i] = static_cast<T>(parameter.init.value * philox_normal(address, i));
  ops.copy_to_device(parameter.value.data, host.data(), host.size() * sizeof(T));
}

}  // namespace

void Parameters::initialize(Ops& ops, std::uint64_t seed) {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const RandomKey key{seed, Stream::kInit, 0, static_cast<std::uint32_t>(i), 0};
    if (list_[i].value.dtype == DType::kF64)
      fill_initial<double>(ops, list_[i], key);
    else
      fill_initial<float>(ops, list_[i], key);
  }
}

}  // namespace vcas
