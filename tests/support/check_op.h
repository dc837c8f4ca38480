// Runs one operation on a backend and holds it against the specification (reference.h).
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/reference.h"

namespace vcas {

// The rounding of what operations on `dtype` compute in.
inline double epsilon(DType dtype) {
  return dtype == DType::kF64 ? std::numeric_limits<double>::epsilon()
                              : static_cast<double>(std::numeric_limits<float>::epsilon());
}

// The relative error of rounding to bf16, which has 8 bits of precision.
constexpr double kBf16Rounding = 0x1p-8;

// Tensors of one backend, with a band of known bytes on both sides of each.
class TestTensors {
 public:
  TestTensors(Ops& ops, DType dtype) : ops_(ops), dtype_(dtype) {}
  TestTensors(const TestTensors&) = delete;
  TestTensors& operator=(const TestTensors&) = delete;
  ~TestTensors() {
    for (const Block& block : blocks_) ops_.deallocate(block.data, block.bytes + 2 * kBand);
  }

  Ops& ops() const { return ops_; }
  DType dtype() const { return dtype_; }

  // Tensors of the compute dtype; `wide_` ones are of its statistics dtype (kernels/args.h).
  // Standard normal numbers times `spread`.
  Tensor normal(const Shape& shape, double spread = 1) { return normal(dtype_, shape, spread); }
  Tensor wide_normal(const Shape& shape) { return normal(statistics_dtype(dtype_), shape, 1); }
  // Integers from -5 to 5: their products and sums are exact in f32.
  Tensor integers(const Shape& shape) { return integers(dtype_, shape); }
  Tensor wide_integers(const Shape& shape) { return integers(statistics_dtype(dtype_), shape); }
  Tensor filled(const Shape& shape, const std::function<double(std::int64_t)>& value) {
    return filled(dtype_, shape, value);
  }
  Tensor wide_filled(const Shape& shape, const std::function<double(std::int64_t)>& value) {
    return filled(statistics_dtype(dtype_), shape, value);
  }
  Tensor of(const std::vector<double>& values) { return of(dtype_, values); }
  Tensor wide_of(const std::vector<double>& values) { return of(statistics_dtype(dtype_), values); }
  Tensor indices(const std::vector<std::int64_t>& values) {
    return made<std::int32_t>({static_cast<std::int64_t>(values.size())}, from(values));
  }
  Tensor offsets(const std::vector<std::int64_t>& values) {
    return made<std::int64_t>({static_cast<std::int64_t>(values.size())}, from(values));
  }
  // Outputs: bytes that read as NaN or -1 until they are written.
  Tensor unset(const Shape& shape) { return unset(dtype_, shape); }
  Tensor wide_unset(const Shape& shape) { return unset(statistics_dtype(dtype_), shape); }
  Tensor unset(DType dtype, const Shape& shape) {
    Tensor tensor{nullptr, dtype, shape};
    const std::vector<std::byte> bytes(tensor.bytes(), std::byte{0xFF});
    return placed(dtype, shape, bytes.data());
  }
  // Ascending rows of `full`, about half of them.
  std::vector<std::int64_t> some_of(std::int64_t full) {
    std::vector<std::int64_t> rows;
    for (std::int64_t r = 0; r < full; ++r)
      if (random_() % 2 == 0) rows.push_back(r);
    return rows;
  }
  template <class T>
  Tensor made(const Shape& shape, const std::function<double(std::int64_t)>& value) {
    std::vector<T> values;
    for (std::int64_t i = 0; i < shape.elements(); ++i)
      values.push_back(static_cast<T>(static_cast<Compute<T>>(value(i))));
    return placed(DTypeOf<T>::value, shape, values.data());
  }

  std::vector<double> read(const Tensor& tensor) const {
    std::vector<double> out;
    const auto copy = [&]<class T>(T) {
      for (const T value : to_host<T>(ops_, tensor)) out.push_back(static_cast<double>(value));
    };
    if (tensor.dtype == DType::kF64) copy(double{});
    if (tensor.dtype == DType::kF32) copy(float{});
    if (tensor.dtype == DType::kI32) copy(std::int32_t{});
    if (tensor.dtype == DType::kI64) copy(std::int64_t{});
    if (tensor.dtype == DType::kBF16) copy(bfloat16{});
    return out;
  }
  std::vector<std::byte> read_bytes(const Tensor& tensor) const {
    return to_host<std::byte>(ops_, tensor);
  }
  void write_bytes(const Tensor& tensor, const std::vector<std::byte>& bytes) {
    ops_.copy_to_device(tensor.data, bytes.data(), bytes.size());
  }

  bool bands_intact() const {
    for (const Block& block : blocks_) {
      std::byte bands[2][kBand];
      ops_.copy_to_host(bands[0], block.data, kBand);
      ops_.copy_to_host(bands[1], block.data + kBand + block.bytes, kBand);
      for (const auto& band : bands)
        for (const std::byte byte : band)
          if (byte != kBandByte) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kBand = 64;
  static constexpr std::byte kBandByte{0x5A};
  struct Block {
    char* data;
    std::size_t bytes;
  };

  Tensor filled(DType dtype, const Shape& shape, const std::function<double(std::int64_t)>& value) {
    if (dtype == DType::kBF16) return made<bfloat16>(shape, value);
    return dtype == DType::kF64 ? made<double>(shape, value) : made<float>(shape, value);
  }
  Tensor normal(DType dtype, const Shape& shape, double spread) {
    std::normal_distribution<double> distribution(0, spread);
    return filled(dtype, shape, [&](std::int64_t) { return distribution(random_); });
  }
  Tensor integers(DType dtype, const Shape& shape) {
    std::uniform_int_distribution<int> distribution(-5, 5);
    return filled(dtype, shape,
                  [&](std::int64_t) { return static_cast<double>(distribution(random_)); });
  }
  Tensor of(DType dtype, const std::vector<double>& values) {
    return filled(dtype, {static_cast<std::int64_t>(values.size())},
                  [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
  }
  static std::function<double(std::int64_t)> from(const std::vector<std::int64_t>& values) {
    return [&values](std::int64_t i) {
      return static_cast<double>(values[static_cast<std::size_t>(i)]);
    };
  }
  Tensor placed(DType dtype, const Shape& shape, const void* values) {
    Tensor tensor{nullptr, dtype, shape};
    const std::size_t bytes = tensor.bytes();
    auto* data = static_cast<char*>(ops_.allocate(bytes + 2 * kBand));
    blocks_.push_back({data, bytes});
    const std::vector<std::byte> band(kBand, kBandByte);
    ops_.copy_to_device(data, band.data(), kBand);
    ops_.copy_to_device(data + kBand + bytes, band.data(), kBand);
    ops_.copy_to_device(data + kBand, values, bytes);
    tensor.data = data + kBand;
    return tensor;
  }

  Ops& ops_;
  DType dtype_;
  std::mt19937_64 random_{20240511};
  std::vector<Block> blocks_;
};

template <class Body>
void on_backend(const std::string& name, Ops& ops, DType dtype, const Body& body) {
  INFO(name << ", " << std::string(dtype_name(dtype)));
  TestTensors tensors(ops, dtype);
  body(tensors);
}

// body(tensors) on the devices that queue their work: the emulated one, and a GPU where there is
// one.
template <class Body>
void on_emu_and_cuda(Precision precision, const Body& body) {
  for (const std::string& device : test_devices())
    if (device != "cpu")
      on_backend(device, *make_ops(device, precision), compute_dtype(precision), body);
}

// body(tensors) for f32 and f64 on every backend that is here: the CPU's instruction sets, the
// emulated device, and a GPU. For operations on statistics alone: in bf16 they are those of f32.
template <class Body>
void on_every_backend_but_bf16(const Body& body) {
  std::vector<std::pair<std::string, std::unique_ptr<Ops>>> backends;
  for (const std::string& device : test_devices()) {
    if (device != "cpu") {
      backends.emplace_back(device, make_ops(device));
      continue;
    }
    for (const auto& [name, level] :
         {std::pair{"cpu, base", CpuLevel::kBase}, std::pair{"cpu, v3", CpuLevel::kV3},
          std::pair{"cpu, v4", CpuLevel::kV4}})
      if (cpu_has(level)) backends.emplace_back(name, make_cpu_ops(level));
  }
  for (const auto& [name, ops] : backends)
    for (const DType dtype : {DType::kF32, DType::kF64}) on_backend(name, *ops, dtype, body);
}

// The same, and for bf16 on the emulated device and a GPU.
template <class Body>
void on_every_backend(const Body& body) {
  on_every_backend_but_bf16(body);
  on_emu_and_cuda(Precision::kBf16, body);
}

// How far an output may be from that of the specification. Integers and NaN agree exactly.
// Other numbers agree within
//   factor * epsilon * sqrt(length) * largest
//   length   how many numbers one result sums
//   largest  the largest number of the output, at least 1
// A factor of 0 asks for equality.
//
// bf16 is computed in f32, from the numbers that the specification reads.
// So this holds for its sums too. An output of bf16 may besides be off by roundings:
//   of itself            kBf16Rounding * |result|
//   of each partial sum  kBf16Rounding * largest, where the operation stores them
// With a factor of 0 an output of bf16 is the result of the specification, rounded.
struct Tolerance {
  double factor = 4;
  std::int64_t length = 1;
  int roundings = 1;  // of an output of bf16
};

namespace check_op_detail {

struct Seen {
  std::string name;
  Tensor* tensor;
  bool output;
  bool accumulate;
};

// The tensors of one copy of Args, so that they can be pointed elsewhere.
struct Collect {
  std::vector<Seen> seen;
  void add(const char* name, const Tensor& tensor, bool output, bool accumulate) {
    if (tensor) seen.push_back({name, const_cast<Tensor*>(&tensor), output, accumulate});
  }
  void out(const char* name, const Tensor& tensor, bool accumulate = false) {
    add(name, tensor, true, accumulate);
  }
  void in(const char* name, const Tensor& tensor) { add(name, tensor, false, false); }
};

inline bool agree(double got, double want, double tolerance) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  return got == want || std::abs(got - want) <= tolerance;
}

}  // namespace check_op_detail

// Runs the operation and its specification from the same inputs, then the operation again: the same
// bits, inputs untouched, nothing written outside the outputs.
template <class Args>
void check_op(TestTensors& tensors, const Args& args, Tolerance tolerance = {}) {
  using namespace check_op_detail;
  INFO(Args::kName);
  Collect device, host;
  args.visit(device);
  Args reference_args = args;
  reference_args.visit(host);
  std::vector<std::vector<std::byte>> before, copies;
  for (std::size_t i = 0; i < device.seen.size(); ++i) {
    const Tensor& tensor = *device.seen[i].tensor;
    before.push_back(tensors.read_bytes(tensor));
    Tensor& copy = *host.seen[i].tensor;
    copies.push_back(before.back());
    const std::string& name = device.seen[i].name;
    if ((tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16) && name != "image" &&
        name != "target") {
      const std::vector<double> wide = tensors.read(tensor);
      copies.back().resize(wide.size() * sizeof(double));
      if (!wide.empty()) std::memcpy(copies.back().data(), wide.data(), copies.back().size());
      copy.dtype = DType::kF64;
    }
    copies.back().resize(copies.back().size() + 1);  // not null when empty
    copy.data = copies.back().data();
  }
  // An input that shares the memory of an output is not visited.
  if constexpr (requires {
                  args.x;
                  args.y;
                }) {
    if (args.x.data == args.y.data) reference_args.x = reference_args.y;
  }
  if constexpr (requires {
                  args.dy;
                  args.dx;
                }) {
    if (args.dy.data == args.dx.data) reference_args.dy = reference_args.dx;
  }
  if constexpr (requires { args.added; }) {
    if (args.added.data == args.dx.data) reference_args.added = reference_args.dx;
  }
  if constexpr (requires {
                  args.a;
                  args.y;
                }) {
    if (args.a.data == args.y.data) reference_args.a = reference_args.y;
  }

  tensors.ops().run(args);
  reference::run(reference_args);
  CHECK(tensors.bands_intact());
  std::vector<std::vector<std::byte>> after;
  for (std::size_t i = 0; i < device.seen.size(); ++i) {
    const Seen& seen = device.seen[i];
    INFO(seen.name << " " << seen.tensor->shape.text());
    after.push_back(tensors.read_bytes(*seen.tensor));
    if (!seen.output) {
      CHECK(after.back() == before[i]);
      continue;
    }
    const std::vector<double> got = tensors.read(*seen.tensor);
    Tensor& copy = *host.seen[i].tensor;
    double largest = 1;
    std::vector<double> want(got.size());
    for (std::size_t e = 0; e < want.size(); ++e) {
      if (copy.dtype == DType::kF64) want[e] = copy.ptr<double>()[e];
      if (copy.dtype == DType::kI32) want[e] = copy.ptr<std::int32_t>()[e];
      if (copy.dtype == DType::kI64) want[e] = static_cast<double>(copy.ptr<std::int64_t>()[e]);
      if (std::abs(want[e]) > largest && std::isfinite(want[e])) largest = std::abs(want[e]);
    }
    const bool real = copy.dtype == DType::kF64;
    const bool rounded = seen.tensor->dtype == DType::kBF16;
    const double sum = real ? tolerance.factor * epsilon(tensors.dtype()) *
                                  std::sqrt(static_cast<double>(tolerance.length)) * largest
                            : 0;
    // Norms are not rounded, but may be of numbers that were.
    const bool norm = tensors.dtype() == DType::kBF16 && seen.name.ends_with("_norm");
    const auto allowed = [&](double result) {
      if (tolerance.factor == 0) return sum;
      const double inner = rounded || norm ? (tolerance.roundings - 1) * largest : 0;
      const double own = rounded ? sum + std::abs(result) : 0;
      return sum + kBf16Rounding * (own + inner);
    };
    std::size_t bad = 0;
    for (double& result : want)
      if (rounded && tolerance.factor == 0) result = bfloat16(static_cast<float>(result));
    while (bad < got.size() && agree(got[bad], want[bad], allowed(want[bad]))) ++bad;
    if (bad < got.size())
      FAIL_CHECK("element " << bad << ": got " << got[bad] << ", want " << want[bad] << " within "
                            << allowed(want[bad]));
  }
  for (std::size_t i = 0; i < device.seen.size(); ++i)
    tensors.write_bytes(*device.seen[i].tensor, before[i]);
  tensors.ops().run(args);
  for (std::size_t i = 0; i < device.seen.size(); ++i) {
    INFO(device.seen[i].name << " the second time");
    CHECK(tensors.read_bytes(*device.seen[i].tensor) == after[i]);
  }
}

}  // namespace vcas
