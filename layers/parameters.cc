#include "layers/parameters.h"

#include "core/arena.h"
#include "kernels/exchange.h"

namespace vcas {

Parameters::Parameters(Ops& ops, DType dtype, std::vector<Parameter> list,
                       std::vector<Parameter> state, int ranks)
    : list_(std::move(list)), state_(std::move(state)) {
  const DType wide = statistics_dtype(dtype);
  const std::size_t narrowest = dtype_bytes(dtype);
  std::vector<std::size_t> first(list_.size());  // element
  std::size_t total = 0;
  for (const bool decay : {true, false}) {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      if (list_[i].decay != decay) continue;
      first[i] = total;
      total += Arena::round_up(list_[i].shape.elements() * narrowest) / narrowest;
    }
    if (decay) decayed_ = static_cast<std::int64_t>(total);
  }
  elements_ = static_cast<std::int64_t>(total);
  if (ranks > 1) {
    const auto shared = static_cast<std::size_t>(kPartElements * ranks);
    total = (total + shared - 1) / shared * shared;
  }
  value_buffer_ = Buffer(ops, total * dtype_bytes(dtype));
  gradient_buffer_ = Buffer(ops, total * dtype_bytes(wide));
  if (wide != dtype) master_buffer_ = Buffer(ops, total * dtype_bytes(wide));
  const Buffer& masters = wide == dtype ? value_buffer_ : master_buffer_;
  const Shape slab{static_cast<std::int64_t>(total)};
  values_ = value_buffer_.at(0, dtype, slab);
  masters_ = masters.at(0, wide, slab);
  gradients_ = gradient_buffer_.at(0, wide, slab);
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const std::size_t offset = first[i] * dtype_bytes(wide);
    list_[i].value = value_buffer_.at(first[i] * dtype_bytes(dtype), dtype, list_[i].shape);
    list_[i].master = masters.at(offset, wide, list_[i].shape);
    list_[i].gradient = gradient_buffer_.at(offset, wide, list_[i].shape);
  }
  std::vector<Tensor*> tensors;
  for (Parameter& entry : state_) {
    entry.master = {nullptr, wide, entry.shape};
    tensors.push_back(&entry.master);
  }
  state_buffer_ = Buffer(ops, tensors);
  for (Parameter& entry : state_) entry.value = entry.master;
}

std::size_t Parameters::bytes() const {
  return value_buffer_.bytes() + master_buffer_.bytes() + gradient_buffer_.bytes() +
         state_buffer_.bytes();
}

Tensor Parameters::state_values() const {
  const DType wide = masters_.dtype;
  return state_buffer_.at(0, wide,
                          {static_cast<std::int64_t>(state_buffer_.bytes() / dtype_bytes(wide))});
}

std::vector<Parameter> Parameters::stored() const {
  std::vector<Parameter> all = list_;
  all.insert(all.end(), state_.begin(), state_.end());
  return all;
}

void Parameters::round_values(Ops& ops) {
  are_set_ = true;
  if (values_.dtype != DType::kBF16) return;
  const auto host = to_host<float>(ops, masters_);
  const std::vector<bfloat16> rounded(host.begin(), host.end());
  ops.copy_to_device(values_.data, rounded.data(), values_.bytes());
}

SlabRange Parameters::range(const Parameter& parameter) const {
  const auto bytes =
      static_cast<const char*>(parameter.gradient.data) - static_cast<const char*>(gradients_.data);
  const auto begin = bytes / static_cast<std::int64_t>(dtype_bytes(gradients_.dtype));
  return {begin, begin + parameter.gradient.elements()};
}

std::vector<Tensor> Parameters::gradient_list() const {
  std::vector<Tensor> list;
  for (const Parameter& parameter : list_) list.push_back(parameter.gradient);
  return list;
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
  const std::int64_t count = parameter.shape.elements();
  std::vector<T> host(static_cast<std::size_t>(count), static_cast<T>(parameter.init.value));
  T* const to = host.data();
  if (parameter.init.kind == Initializer::Kind::kNormal) {
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count; ++i)
      to[i] = static_cast<T>(parameter.init.value * philox_normal(address, i));
  }
  ops.copy_to_device(parameter.master.data, host.data(), host.size() * sizeof(T));
}

}  // namespace

void Parameters::initialize(Ops& ops, std::uint64_t seed) {
  if (list_.empty())
    throw Error(ExitCode::kBadConfig, "Parameters::initialize of no parameters",
                "call it after Graph::finish, of a graph whose layers have parameters");
  RandomKey key{.seed = seed, .stream = Stream::kInit};
  for (const Parameter& parameter : stored()) {
    if (parameter.master.dtype == DType::kF64)
      fill_initial<double>(ops, parameter, key);
    else
      fill_initial<float>(ops, parameter, key);
    ++key.site;
  }
  round_values(ops);
}

}  // namespace vcas
