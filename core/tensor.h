// A non-owning view of a dense, row-major array.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"

namespace vcas {

// Up to four extents. The last one is the width; all before it together are the rows.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) {
    VCAS_CHECK(extents.size() <= extents_.size(), "a shape has at most four extents");
    for (const std::int64_t extent : extents) extents_[rank_++] = extent;
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return extents_[axis]; }
  std::vector<std::int64_t> extents() const { return {extents_.begin(), extents_.begin() + rank_}; }
  std::int64_t elements() const {
    std::int64_t product = 1;
    for (int axis = 0; axis < rank_; ++axis) product *= (*this)[axis];
    return rank_ == 0 ? 0 : product;
  }
  std::int64_t width() const { return rank_ == 0 ? 0 : (*this)[rank_ - 1]; }
  std::int64_t rows() const {
    std::int64_t product = rank_ == 0 ? 0 : 1;
    for (int axis = 0; axis + 1 < rank_; ++axis) product *= (*this)[axis];
    return product;
  }
  bool operator==(const Shape&) const = default;

  // "[3136, 384]"
  std::string text() const {
    std::string out = "[";
    for (int axis = 0; axis < rank_; ++axis)
      out += (axis ? ", " : "") + std::to_string((*this)[axis]);
    return out + "]";
  }

 private:
  std::array<std::int64_t, 4> extents_{};  // 0 behind the rank
  int rank_ = 0;
};

// An empty tensor (no data) stands for "not given" wherever a comment says a tensor is optional.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  explicit operator bool() const { return data != nullptr; }
  std::int64_t elements() const { return shape.elements(); }
  std::int64_t rows() const { return shape.rows(); }
  std::int64_t width() const { return shape.width(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * dtype_bytes(dtype); }

  // Null for an empty tensor. Throws InternalError when T is not the element type.
  template <class T>
  T* ptr() const {
    constexpr DType wanted = DTypeOf<std::remove_cv_t<T>>::value;
    VCAS_CHECK(data == nullptr || dtype == wanted, holds_not(wanted));
    return static_cast<T*>(data);
  }

  // The same memory seen as its first `rows` rows, [rows, width].
  Tensor first_rows(std::int64_t rows) const { return {data, dtype, {rows, width()}}; }

  // Elements [begin, end) of the same memory, [end - begin]; an empty tensor stays empty.
  Tensor range(std::int64_t begin, std::int64_t end) const {
    if (!data) return {};
    return {static_cast<char*>(data) + begin * dtype_bytes(dtype), dtype, {end - begin}};
  }

  // The same memory with another shape of as many elements; an empty tensor stays empty.
  Tensor reshaped(const Shape& other) const {
    if (!data) return {};
    VCAS_CHECK(other.elements() == elements(), shape.text() + " does not hold " + other.text());
    return {data, dtype, other};
  }

 private:
  std::string holds_not(DType wanted) const;
};

// Norms, scores, probabilities and statistics are never narrower than f32.
constexpr DType statistics_dtype(DType compute) {
  return compute == DType::kF64 ? DType::kF64 : DType::kF32;
}

}  // namespace vcas
