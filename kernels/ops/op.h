// An operation is one struct of its arguments: outputs first, then inputs, then numbers.
// It also has the facts that others need of it (`Operation`), so a new operation lacks none.
//
// T is the compute dtype: f32, f64 or bf16.
// Activations, their gradients, and weights as read have it.
// S is the statistics dtype (core/tensor.h): T itself, but f32 for bf16.
// S is for norms, scores, probabilities, scales and losses. It is also for all that an optimizer
// reads and writes: gradients of parameters, parameters, moments.
// Operations compute in S, sum in S or wider, and round what they store as T.
// The CPU has no operations on bf16.
//
// R and K count rows, C and D are widths, N counts items. Index tensors are i32, offsets i64.
// An "optional" tensor may be empty.
// `row` maps a compact row to a row of the full batch. Empty stands for the identity.
// "+=": the operation adds to what the output holds.
// `y_norm` has the Euclidean norm of each row of y before rounding to T, `dx_norm` that of dx.
// RowScore reads these norms.
// `visit` lists the tensors. Decorators count bytes, compare backends and name outputs by it.
// `check`, where there is one, refuses tensors that do not fit, before a backend runs.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <tuple>

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

// Throws unless both have as many elements: of an operation that goes through them in step.
inline void check_equal(const char* name, const Tensor& y, const Tensor& x) {
  VCAS_CHECK(y.elements() == x.elements(),
             std::string(name) + " of " + x.shape.text() + " to " + y.shape.text());
}

struct HeldTensor {
  const char* name;
  const Tensor& tensor;
};

// Throws unless each tensor that is given holds so many elements, or more.
inline void check_hold(const char* name, std::int64_t elements,
                       std::initializer_list<HeldTensor> tensors) {
  for (const auto& [what, tensor] : tensors)
    VCAS_CHECK(!tensor || tensor.elements() >= elements,
               std::string(name) + ": " + what + " " + tensor.shape.text() + " has fewer than " +
                   std::to_string(elements) + " elements");
}

// How far rounding may take two results apart: a few epsilon * sqrt(length) * magnitude.
// Errors of a sum grow like the square root of the number of its terms.
// They are in proportion to the terms, not to a result in which terms may cancel.
// The magnitude counts if it exceeds the largest result of a row.
// The largest value of an intermediate is estimated.
// By default each result comes from a few numbers without cancellation.
struct Rounding {
  std::int64_t length = 1;
  double magnitude = 0;
  std::int64_t elements = kAll;  // so many of the output are set; the others do not count
};

// A norm is off by as much as a row of `width` elements that are all off.
inline Rounding of_norm(const Rounding& of_element, std::int64_t width) {
  return {std::max(of_element.length, width),
          of_element.magnitude * std::sqrt(static_cast<double>(width))};
}

// `values` of `rounding` tell of the call's tensors.
// top(tensor) is the largest finite absolute value, last(integers) the last one.
// longest_item(offsets) is in rows.
// `sample` makes a realistic call of tensors from Samples (kernels/ops/samples.h).
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

// Operations and groups, its `parts`, of which each reads what those before it write.
// A device runs them in few `launches`.
template <class Args>
concept Chain = requires(const Args& args, SomeSamples& samples) {
  { Args::kName } -> std::convertible_to<const char*>;
  { Args::kFamily } -> std::convertible_to<Family>;
  { Args::sample(samples) } -> std::same_as<Args>;
  args.parts();
  { args.launches() } -> std::same_as<std::int64_t>;
};

// f(operation or group) of each part of a chain, in order.
template <Chain Args, class F>
void for_each_part(const Args& args, const F& f) {
  std::apply([&](const auto&... part) { (f(part), ...); }, args.parts());
}

// f(operation) of an operation, or of each one of a group or chain.
template <class Args, class F>
void for_each_of(const Args& args, const F& f) {
  if constexpr (Chain<Args>)
    for_each_part(args, [&](const auto& part) { for_each_of(part, f); });
  else
    f(args);
}
template <class Args, class F>
void for_each_of(const Group<Args>& group, const F& f) {
  for (const Args& one : group) f(one);
}

// Throws InternalError where tensors do not fit: `check` of an operation or chain, and of its
// parts.
template <class Args>
void check_call(const Args& args) {
  if constexpr (requires { args.check(); }) args.check();
  if constexpr (!Operation<Args>) for_each_of(args, [](const auto& one) { check_call(one); });
}

template <class Args>
constexpr bool kIsOperation = Operation<Args> || Chain<Args>;
template <class Args>
constexpr bool kIsOperation<Group<Args>> = true;

// The key of an operation that draws random numbers, for the backend.
template <class Args>
StepKey step_key(const Args& args) {
  return {args.key, args.step.template ptr<std::int64_t>()};
}

}  // namespace vcas
