// The tensors of sample calls, for benchmarks and for comparing backends.
#pragma once

#include <cmath>
#include <deque>
#include <utility>
#include <vector>

#include "kernels/buffer.h"
#include "kernels/ops/patches.h"

namespace vcas {

struct SampleSize {
  std::int64_t items = 1;
  std::int64_t tokens = 1;  // per item, a square number
  std::int64_t width = 1;   // C
  std::int64_t hidden = 1;  // D
  std::int64_t heads = 1;
  std::int64_t patch = 1;
  std::int64_t classes = 10;
  std::int64_t vocabulary = 100;
  bool convolution = false;  // linear maps read patches of the tokens as pixels
  std::int64_t keep = 1;  // gradients hold one of `keep` items; weight gradients half of their rows
  Selection selection = Selection::kSystematic;
};

// Owns the tensors of the calls that are made of it, in f32 or bf16.
class Samples {
 public:
  Samples(Ops& ops, const SampleSize& sizes, DType dtype = DType::kF32)
      : size(sizes), ops_(ops), dtype_(dtype) {
    for (std::int64_t item = 0; item < size.items; item += size.keep) {
      items.push_back(static_cast<std::int32_t>(item));
      for (std::int64_t t = 0; t < size.tokens; ++t)
        item_rows.push_back(static_cast<std::int32_t>(item * size.tokens + t));
    }
  }

  template <class Args>
  Args make() {
    return Args::sample(*this);
  }
  // Runs a call that another one needs.
  template <class Args>
  void run(const Args& args) {
    ops_.run(args);
  }

  const SampleSize size;
  std::vector<std::int32_t> items, item_rows;  // that a compact gradient holds

  std::int64_t rows() const { return size.items * size.tokens; }
  std::int64_t kept_items() const { return static_cast<std::int64_t>(items.size()); }
  std::int64_t kept_rows() const { return static_cast<std::int64_t>(item_rows.size()); }
  std::int64_t patches_across() const {
    return std::llround(std::sqrt(static_cast<double>(size.tokens)));
  }
  // A 3 x 3 convolution over the tokens of an item as pixels.
  Patches patches() const {
    const auto side = static_cast<std::int32_t>(patches_across());
    return {.height = side, .width = side, .kernel = 3, .padding = 1};
  }
  // No, yes, no, yes: one of two in a group.
  bool every_other_time() { return std::exchange(other_, !other_); }

  // `empty` has the compute dtype, `wide` its statistics dtype.
  Tensor empty(const Shape& shape) { return empty(shape, dtype_); }
  Tensor wide(const Shape& shape) { return empty(shape, statistics_dtype(dtype_)); }
  Tensor empty(const Shape& shape, DType dtype) {
    const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * dtype_bytes(dtype);
    return buffers_.emplace_back(ops_, bytes).at(0, dtype, shape);
  }
  // The second copy that parameters have in bf16.
  Tensor rounded(const Shape& shape) { return dtype_ == DType::kBF16 ? empty(shape) : Tensor{}; }

  template <class T>
  Tensor holding(const std::vector<T>& values, const Shape& shape) {
    const Tensor tensor = empty(shape, DTypeOf<T>::value);
    ops_.copy_to_device(tensor.data, values.data(), tensor.bytes());
    return tensor;
  }
  template <class T>
  Tensor holding(const std::vector<T>& values) {
    return holding(values, {static_cast<std::int64_t>(values.size())});
  }

  // Mean 0, variance 1.
  Tensor wide_random(const Shape& shape) { return holding(centred(shape.elements()), shape); }
  Tensor random(const Shape& shape) {
    if (dtype_ == DType::kF32) return wide_random(shape);
    const std::vector<float> values = centred(shape.elements());
    return holding(std::vector<bfloat16>(values.begin(), values.end()), shape);
  }
  Tensor positive(std::int64_t count) { return holding(uniforms(count)); }
  Tensor below(std::int64_t count, std::int64_t limit) {
    std::vector<std::int32_t> values;
    for (const float value : uniforms(count))
      values.push_back(static_cast<std::int32_t>(value * static_cast<float>(limit)));
    return holding(values);
  }

  // 0, step, 2 step ...
  Tensor first(std::int64_t count, std::int64_t step = 1) {
    return multiples<std::int32_t>(count, step);
  }
  Tensor every_other_row() { return first(kept_rows() / 2, 2); }
  Tensor offsets(std::int64_t count, std::int64_t rows) {
    return multiples<std::int64_t>(count + 1, rows);
  }
  Tensor offsets(std::int64_t count) { return offsets(count, size.tokens); }
  Tensor row() { return size.keep == 1 ? Tensor{} : holding(item_rows); }
  Tensor item() { return size.keep == 1 ? Tensor{} : holding(items); }

 private:
  template <class T>
  Tensor multiples(std::int64_t count, std::int64_t step) {
    std::vector<T> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<T>(i * step));
    return holding(values);
  }
  // Uniform in (0, 1). Each tensor has numbers of its own.
  // Many repeat after a while: drawing all would take longer than their use.
  std::vector<float> uniforms(std::int64_t count) {
    constexpr std::size_t kDrawn = 65537;
    const PhiloxAddress address = philox_address({.seed = 1, .site = site_++});
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = i < kDrawn ? philox_uniform(address, i) : values[i - kDrawn];
    return values;
  }
  std::vector<float> centred(std::int64_t count) {
    std::vector<float> values = uniforms(count);
    for (float& value : values) value = std::sqrt(12.0f) * (value - 0.5f);
    return values;
  }

  Ops& ops_;
  DType dtype_;
  std::deque<Buffer> buffers_;
  std::uint32_t site_ = 0;
  bool other_ = false;
};

}  // namespace vcas
