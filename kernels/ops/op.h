// What every operation is: one struct of its arguments (outputs first, then inputs, then numbers)
// with the facts that others need of it, so that a new operation lacks none (`Operation`).
//
// T is the compute dtype, f32, f64 or bf16: of activations, of their gradients, and of weights as
// operations read them. S is the statistics dtype (core/tensor.h), T itself but for bf16, where it
// is f32: of norms, scores, probabilities, scales, losses, and of all that an optimizer reads and
// writes: gradients of parameters, the parameters themselves, its moments. Operations compute in S,
// sum in S or wider, and round what they store as T. The CPU has no operations on bf16.
// Index tensors are i32, offsets i64. "optional" tensors may be empty. R, K count rows, C and D
// widths, N items.
// `row` always maps a compact row to a row of the full batch, empty = identity. "+=" means the
// operation adds to what the output holds. `y_norm` is the Euclidean norm of each row of y before y
// is rounded to T, and `dx_norm` that of dx: for RowScore. Each struct lists its tensors in
// `visit`, which decorators use to count bytes, compare backends and name outputs.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <limits>
#include <string_view>

#include "core/error.h"
#include "core/philox.h"
#include "core/tensor.h"

namespace vcas {

// What a step's time is told apart by (tools/step_bench.cc), in the order of its table.
enum class Family { kProducts, kAttention, kNorms, kGelu, kSampling, kOptimizer, kRest };
constexpr const char* kFamilyNames[] = {"gemm",     "attention", "norms", "gelu",
                                        "sampling", "optimizer", "rest"};

constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

// What a call costs, besides the bytes of its tensors (kernels/op_cost.h).
struct Work {
  double flops = 0;
  std::int64_t rows_read = kAll;    // of x, dy and tensors of full batches
  std::int64_t launches = 1;        // of each operation of a group
  std::int64_t group_launches = 0;  // of the group as a whole
};

inline double product(std::int64_t a, std::int64_t b, std::int64_t c) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}
inline std::int64_t rows_named(const Tensor& row) { return row ? row.elements() : kAll; }

// How far rounding may take two results apart: by a few epsilon * sqrt(length) * magnitude. Errors
// of a sum grow like the square root of the number of its terms, in proportion to the terms and not
// to a result in which they may cancel. The magnitude counts where it is more than the largest
// result of a row; the largest value of an intermediate is estimated. By default each result comes
// from a few numbers without cancellation.
struct Rounding {
  std::int64_t length = 1;
  double magnitude = 0;
  std::int64_t elements = kAll;  // so many of the output are set; the others do not count
};

// A norm is off by as much as the row of `width` whose elements all are.
inline Rounding of_norm(const Rounding& of_element, std::int64_t width) {
  return {std::max(of_element.length, width),
          of_element.magnitude * std::sqrt(static_cast<double>(width))};
}

// `values` of `rounding` are those of the call's tensors: top(tensor) is the largest finite
// absolute value, last(integers) their last, longest_item(offsets) in rows. `sample` makes a
// realistic call of tensors that Samples has (kernels/ops/samples.h).
class SomeValues;
class SomeSamples;
template <class Args>
concept Operation = requires(const Args& args, std::string_view output, SomeValues& values,
                             SomeSamples& samples) {
  { Args::kName } -> std::convertible_to<const char*>;
  { Args::kFamily } -> std::convertible_to<Family>;
  { args.work() } -> std::same_as<Work>;
  { args.rounding(output, values) } -> std::same_as<Rounding>;
  { Args::sample(samples) } -> std::same_as<Args>;
};

constexpr std::size_t kMostInGroup = 8;

// Operations of one kind and dtype that do not wait for each other: none reads or writes what
// another writes. A device runs them as one.
template <Operation Args>
class Group {
 public:
  static constexpr const char* kName = Args::kName;
  static constexpr Family kFamily = Args::kFamily;

  Group() = default;
  Group(const Args& one) { add(one); }  // NOLINT: every operation is a group of one
  void add(const Args& one) {
    VCAS_CHECK(size_ < kMostInGroup, std::string("a group of too many: ") + kName);
    each_[size_++] = one;
  }
  std::size_t size() const { return size_; }
  const Args* begin() const { return each_.data(); }
  const Args* end() const { return begin() + size_; }
  const Args& operator[](std::size_t i) const { return each_[i]; }

  template <class V>
  void visit(V&& v) const {
    for (const Args& one : *this) one.visit(v);
  }
  static Group sample(auto& s) {
    Group group;
    for (int i = 0; i < 2; ++i) group.add(Args::sample(s));
    return group;
  }

 private:
  std::array<Args, kMostInGroup> each_;
  std::size_t size_ = 0;
};

// f(operation) of an operation, or of each one of a group.
template <class Args, class F>
void for_each_of(const Args& args, const F& f) {
  f(args);
}
template <class Args, class F>
void for_each_of(const Group<Args>& group, const F& f) {
  for (const Args& one : group) f(one);
}

template <class Args>
constexpr bool kIsOperation = Operation<Args>;
template <class Args>
constexpr bool kIsOperation<Group<Args>> = true;

// The key of an operation that draws random numbers, for the backend.
template <class Args>
StepKey step_key(const Args& args) {
  return {args.key, args.step.template ptr<std::int64_t>()};
}

}  // namespace vcas
