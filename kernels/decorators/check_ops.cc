#include "kernels/decorators/check_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/decorators/each_tensor.h"

namespace vcas {
namespace {

template <class F>
void with_element_type(DType dtype, F&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kF64:
      return body(double{});
    case DType::kI32:
      return body(std::int32_t{});
    case DType::kI64:
      return body(std::int64_t{});
    case DType::kU8:
      return body(std::uint8_t{});
    case DType::kBF16:
      VCAS_CHECK(false, "bf16 is not compared");
  }
}

// The largest finite absolute value.
template <class T>
double largest(const T* values, std::int64_t count) {
  double most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double size = std::abs(static_cast<double>(values[i]));
    if (size > most && std::isfinite(size)) most = size;
  }
  return most;
}

// The tensors of one operation on backend `a`, copied to the host and to backend `b`.
class Mirrors {
 public:
  Mirrors(Ops& a, Ops& b) : a_(a), b_(b) {}
  Mirrors(const Mirrors&) = delete;
  Mirrors& operator=(const Mirrors&) = delete;
  ~Mirrors() {
    for (const Mirror& mirror : mirrors_) b_.deallocate(mirror.copy, mirror.capacity);
  }

  // Forgets the tensors and keeps the memory for the next operation.
  void clear() { used_ = 0; }

  void add(const Tensor& tensor) {
    Mirror* mirror = find(tensor.data);
    if (mirror == nullptr) {
      if (used_ == mirrors_.size()) mirrors_.emplace_back();
      mirror = &mirrors_[used_++];
      mirror->data = tensor.data;
      mirror->bytes = 0;
      mirror->top_before = 0;
    }
    mirror->bytes = std::max(mirror->bytes, tensor.bytes());
  }

  void copy_to_b() {
    for (std::size_t i = 0; i < used_; ++i) {
      Mirror& mirror = mirrors_[i];
      if (mirror.capacity < mirror.bytes) {
        b_.deallocate(mirror.copy, mirror.capacity);
        mirror.copy = nullptr;
        mirror.capacity = 0;
        mirror.copy = b_.allocate(mirror.bytes);
        mirror.capacity = mirror.bytes;
      }
      mirror.host.resize(mirror.bytes);
      a_.copy_to_host(mirror.host.data(), mirror.data, mirror.bytes);
      b_.copy_to_device(mirror.copy, mirror.host.data(), mirror.bytes);
    }
  }

  void* copy_of(const Tensor& tensor) const { return find(tensor.data)->copy; }

  // What the operation reads, before it may write there.
  void read(const Tensor& tensor) {
    Mirror* mirror = find(tensor.data);
    mirror->top_before = std::max(mirror->top_before, top(tensor));
  }

  // From here on the host sees what b computed.
  void fetch_from_b(const Tensor& tensor) {
    Mirror* mirror = find(tensor.data);
    b_.copy_to_host(mirror->host.data(), mirror->copy, mirror->bytes);
  }

  template <class T>
  const T* host(const Tensor& tensor) const {
    return reinterpret_cast<const T*>(find(tensor.data)->host.data());
  }

  // The largest finite absolute value, now or as it was read; 0 for a tensor not given.
  double top(const Tensor& tensor) const {
    if (!tensor) return 0;
    double most = find(tensor.data)->top_before;
    with_element_type(tensor.dtype, [&]<class T>(T) {
      most = std::max(most, largest(host<T>(tensor), tensor.elements()));
    });
    return most;
  }

  std::int64_t last(const Tensor& integers) const {
    const std::int64_t at = integers.elements() - 1;
    if (integers.dtype == DType::kI32) return host<std::int32_t>(integers)[at];
    VCAS_CHECK(integers.dtype == DType::kI64, "a count that is no integer");
    return host<std::int64_t>(integers)[at];
  }

  std::int64_t longest_item(const Tensor& offsets) const {
    const auto* offset = host<std::int64_t>(offsets);
    std::int64_t longest = 1;
    for (std::int64_t n = 0; n + 1 < offsets.elements(); ++n)
      longest = std::max(longest, offset[n + 1] - offset[n]);
    return longest;
  }

 private:
  struct Mirror {
    const void* data = nullptr;  // of a
    std::size_t bytes = 0;
    void* copy = nullptr;  // of b
    std::size_t capacity = 0;
    std::vector<std::byte> host;
    double top_before = 0;  // of what was read there
  };

  const Mirror* find(const void* data) const {
    for (std::size_t i = 0; i < used_; ++i)
      if (mirrors_[i].data == data) return &mirrors_[i];
    return nullptr;
  }
  Mirror* find(const void* data) {
    return const_cast<Mirror*>(static_cast<const Mirrors*>(this)->find(data));
  }

  Ops& a_;
  Ops& b_;
  std::vector<Mirror> mirrors_;
  std::size_t used_ = 0;
};

// Points the tensors of an operation at their copies on `b`, and looks at those that it reads.
struct MoveToB {
  Mirrors& mirrors;

  void in(const char*, const Tensor& tensor) { move(tensor, true); }
  void out(const char*, const Tensor& tensor, bool accumulate = false) { move(tensor, accumulate); }
  void move(const Tensor& tensor, bool reads) {
    if (!tensor) return;
    if (reads) mirrors.read(tensor);
    const_cast<Tensor&>(tensor).data = mirrors.copy_of(tensor);
  }
};

// Two results may differ by kSafety times what rounding alone may do (Rounding).
constexpr double kSafety = 8;

double machine_epsilon(DType dtype) {
  if (dtype == DType::kF32) return std::numeric_limits<float>::epsilon();
  if (dtype == DType::kF64) return std::numeric_limits<double>::epsilon();
  return 0;
}

class CheckOps final : public Ops {
 public:
  CheckOps(std::unique_ptr<Ops> a, std::unique_ptr<Ops> b, double tolerance_scale)
      : a_(std::move(a)), b_(std::move(b)), mirrors_(*a_, *b_), scale_(tolerance_scale) {}

  std::string name() const override { return "check:" + a_->name() + "," + b_->name(); }
  void* allocate(std::size_t bytes) override { return a_->allocate(bytes); }
  void deallocate(void* data, std::size_t bytes) override { a_->deallocate(data, bytes); }
  void copy_to_device(void* device, const void* host, std::size_t bytes) override {
    a_->copy_to_device(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, std::size_t bytes) override {
    a_->copy_to_host(host, device, bytes);
  }
  bool queues() const override { return a_->queues(); }  // it repeats nothing, but has those sizes
  void enter(const std::string& place) override {
    place_ = place;
    a_->enter(place);
    b_->enter(place);
  }

#define VCAS_OP(Args) \
  void run(const Args& args) override { check(args); }
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

 private:
  // Part by part: a draw by scores that differ in their last digit would keep others.
  template <Chain Args>
  void check(const Args& args) {
    for_each_part(args, [&](const auto& part) { check(part); });
  }
  template <class Args>
  void check(const Args& args) {
    mirrors_.clear();
    double epsilon = 0;
    args.visit(EachTensor{[&](const char*, const Tensor& tensor, bool) {
      mirrors_.add(tensor);
      epsilon = std::max(epsilon, machine_epsilon(tensor.dtype));
    }});
    mirrors_.copy_to_b();

    // `visit` passes over an input that shares an output's memory, until that output has moved to
    // its copy: then the input comes, and moves to the same copy.
    Args copy = args;
    copy.visit(MoveToB{mirrors_});
    a_->run(args);
    b_->run(copy);

    args.visit(EachTensor{[&](const char*, const Tensor& tensor, bool is_output) {
      if (is_output) mirrors_.fetch_from_b(tensor);
    }});
    for_each_of(args, [&](const auto& one) {
      one.visit(EachTensor{[&](const char* output, const Tensor& tensor, bool is_output) {
        if (!is_output) return;
        const Rounding limit = one.rounding(output, mirrors_);
        const double relative =
            scale_ * kSafety * epsilon *
            std::sqrt(static_cast<double>(std::max<std::int64_t>(limit.length, 1)));
        const std::int64_t count = std::clamp<std::int64_t>(limit.elements, 0, tensor.elements());
        with_element_type(tensor.dtype, [&]<class T>(T) {
          compare<T>(Args::kName, output, tensor, count, relative, limit.magnitude);
        });
      }});
    });
  }

  template <class T>
  void compare(const char* op, const char* output, const Tensor& tensor, std::int64_t count,
               double relative, double magnitude) {
    got_.resize(tensor.bytes());
    a_->copy_to_host(got_.data(), tensor.data, tensor.bytes());
    const T* got = reinterpret_cast<const T*>(got_.data());
    const T* want = mirrors_.host<T>(tensor);
    const std::int64_t width = tensor.shape.rank() == 1 ? 1 : tensor.width();

    std::int64_t bad = 0, first_bad = 0;
    double limit = 0, limit_there = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      if (i % width == 0 && std::is_floating_point_v<T>)
        limit = relative * std::max(magnitude, largest(want + i, std::min(width, count - i)));
      // Equal infinities, or NaN on both sides, is what the computation says, not a difference.
      if (got[i] == want[i] || (got[i] != got[i] && want[i] != want[i])) continue;
      const double difference =
          std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
      if (std::is_floating_point_v<T> && difference <= limit) continue;
      if (bad++ == 0) first_bad = i, limit_there = limit;
    }
    if (bad == 0) return;
    throw InternalError(fmt::format(
        "{} at '{}': {}[{}] of {} is {} on {} and {} on {}, more than {:.3g} apart; {} of {} "
        "elements differ",
        op, place_, output, index_text(tensor.shape, first_bad), tensor.shape.text(),
        got[first_bad], a_->name(), want[first_bad], b_->name(), limit_there, bad, count));
  }

  std::unique_ptr<Ops> a_, b_;
  Mirrors mirrors_;
  double scale_;
  std::string place_;
  std::vector<std::byte> got_;
};

}  // namespace

std::unique_ptr<Ops> make_check_ops(std::unique_ptr<Ops> a, std::unique_ptr<Ops> b,
                                    double tolerance_scale) {
  return std::make_unique<CheckOps>(std::move(a), std::move(b), tolerance_scale);
}

}  // namespace vcas
