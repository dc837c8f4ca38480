// Activations: operations of one number. All that there is of one stands here.
// Its value and slope serve the CPU's loops, devices and the specification of the tests.
//
// M computes for float and double, in its own way: exp_negative(x) = exp(x) for x <= 0, tanh(x),
// normal_cdf(x) = Phi(x), gelu_slope(x) = Phi(x) + x Phi'(x).
// M belongs to one unit, and so do the functions that it instantiates.
// Two levels of the CPU share none of them.
#pragma once

#include "core/host_device.h"
#include "kernels/ops/op.h"

namespace vcas {

// y = x Phi(x), Phi the standard normal distribution function (the erf form).
struct Gelu {
  static constexpr const char* kLayer = "gelu";
  static constexpr const char* kForward = "gelu_forward";
  static constexpr const char* kBackward = "gelu_backward";
  static constexpr Family kFamily = Family::kGelu;
  static constexpr bool kSlopeOfOutput = false;
  static constexpr bool kCancels = true;  // a value far below x may be a small difference
  template <class M, class T>
  VCAS_HOST_DEVICE static T value(T x) {
    return x * M::normal_cdf(x);
  }
  template <class M, class T>
  VCAS_HOST_DEVICE static T slope(T x) {
    return M::gelu_slope(x);
  }
};

// y = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form of GELU, of GPT-2
// (Hendrycks, Gimpel 2016).
struct GeluTanh {
  static constexpr const char* kLayer = "gelu_tanh";
  static constexpr const char* kForward = "gelu_tanh_forward";
  static constexpr const char* kBackward = "gelu_tanh_backward";
  static constexpr Family kFamily = Family::kGelu;
  static constexpr bool kSlopeOfOutput = false;
  static constexpr bool kCancels = true;
  template <class M, class T>
  VCAS_HOST_DEVICE static T value(T x) {
    const T e = tail<M>(x);
    return x * (x < T(0) ? e : T(1)) / (T(1) + e);
  }
  template <class M, class T>
  VCAS_HOST_DEVICE static T slope(T x) {
    const T e = tail<M>(x), part = T(1) / (T(1) + e);
    return part * ((x < T(0) ? e : T(1)) +
                   T(2) * e * part * x * kScale<T> * (T(1) + 3 * kCube<T> * x * x));
  }

 private:
  template <class T>
  static constexpr T kScale = T(0.79788456080286535588);
  template <class T>
  static constexpr T kCube = T(0.044715);
  // exp(-2 |u|)
  template <class M, class T>
  VCAS_HOST_DEVICE static T tail(T x) {
    const T u = x * (kScale<T> + kScale<T> * kCube<T> * x * x);
    return M::exp_negative(u < T(0) ? 2 * u : -2 * u);
  }
};

// y = tanh(x)
struct Tanh {
  static constexpr const char* kLayer = "tanh";
  static constexpr const char* kForward = "tanh_forward";
  static constexpr const char* kBackward = "tanh_backward";
  static constexpr Family kFamily = Family::kRest;
  static constexpr bool kSlopeOfOutput = true;
  static constexpr bool kCancels = false;
  template <class M, class T>
  VCAS_HOST_DEVICE static T value(T x) {
    return M::tanh(x);
  }
  template <class M, class T>
  VCAS_HOST_DEVICE static T slope(T y) {
    return T(1) - y * y;
  }
};

// y = max(x, 0), and NaN of NaN
struct Relu {
  static constexpr const char* kLayer = "relu";
  static constexpr const char* kForward = "relu_forward";
  static constexpr const char* kBackward = "relu_backward";
  static constexpr Family kFamily = Family::kRest;
  static constexpr bool kSlopeOfOutput = true;
  static constexpr bool kCancels = false;
  template <class M, class T>
  VCAS_HOST_DEVICE static T value(T x) {
    return x < T(0) ? T(0) : x;
  }
  template <class M, class T>
  VCAS_HOST_DEVICE static T slope(T y) {
    return y > T(0) ? T(1) : T(0);
  }
};

// F(X, P) of each.
#define VCAS_FOR_EACH_POINTWISE(F, X) F(X, Gelu) F(X, GeluTanh) F(X, Tanh) F(X, Relu)

// y = value(x)
template <class P>
struct PointwiseForward {
  static constexpr const char* kName = P::kForward;
  static constexpr Family kFamily = P::kFamily;
  Tensor y;       // T [R, C]
  Tensor y_norm;  // S [R], optional
  Tensor x;       // T [R, C]
  template <class V>
  void visit(V&& v) const {
    v.out("y", y), v.out("y_norm", y_norm), v.in("x", x);
  }

  void check() const { check_equal(kName, y, x); }
  Work work() const { return {}; }
  Rounding rounding(std::string_view output, const auto& values) const {
    const Rounding of_y{1, P::kCancels ? values.top(x) : 0};
    return output == "y_norm" ? of_norm(of_y, y.width()) : of_y;
  }
  static PointwiseForward sample(auto& s) {
    return {.y = s.empty({s.rows(), s.size.hidden}),
            .y_norm = s.wide({s.rows()}),
            .x = s.random({s.rows(), s.size.hidden})};
  }
};

// dx = dy slope(saved_full[row])
template <class P>
struct PointwiseBackward {
  static constexpr const char* kName = P::kBackward;
  static constexpr Family kFamily = P::kFamily;
  Tensor dx;          // T [K, C]; may be the same memory as dy
  Tensor dx_norm;     // S [K], optional
  Tensor dy;          // T [K, C]
  Tensor saved_full;  // T [R, C]: x, or y with P::kSlopeOfOutput
  Tensor row;         // i32 [K], optional
  template <class V>
  void visit(V&& v) const {
    v.out("dx", dx, dy.data == dx.data), v.out("dx_norm", dx_norm);
    v.in("saved_full", saved_full), v.in("row", row);
    if (dy.data != dx.data) v.in("dy", dy);
  }

  void check() const {
    check_equal(kName, dx, dy);
    VCAS_CHECK(saved_full.width() == dx.width(), std::string(kName) + " of " + dx.shape.text() +
                                                     " by rows of " + saved_full.shape.text());
  }
  Work work() const { return {.rows_read = rows_named(row)}; }
  // A slope may be a small difference.
  Rounding rounding(std::string_view output, const auto& values) const {
    const Rounding of_dx{1, values.top(dy)};
    return output == "dx_norm" ? of_norm(of_dx, dx.width()) : of_dx;
  }
  static PointwiseBackward sample(auto& s) {
    return {.dx = s.empty({s.kept_rows(), s.size.hidden}),
            .dx_norm = s.wide({s.kept_rows()}),
            .dy = s.random({s.kept_rows(), s.size.hidden}),
            .saved_full = s.random({s.rows(), s.size.hidden}),
            .row = s.row()};
  }
};

#define VCAS_NAMED(_, P)                  \
  using P##Forward = PointwiseForward<P>; \
  using P##Backward = PointwiseBackward<P>;
VCAS_FOR_EACH_POINTWISE(VCAS_NAMED, )
#undef VCAS_NAMED

}  // namespace vcas

#define VCAS_FORWARD_AND_BACKWARD(X, P) X(P##Forward) X(P##Backward)
#define VCAS_POINTWISE_OPS(X) VCAS_FOR_EACH_POINTWISE(VCAS_FORWARD_AND_BACKWARD, X)
