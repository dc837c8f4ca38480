#include <limits>

#include "tests/support/check_op.h"

using namespace vcas;

namespace {

// Empty, single, below, at and above every vector width, and enough for two threads.
const std::int64_t kLengths[] = {0, 1, 7, 16, 33, 1000, 70001};

Tensor one_f64(TestTensors& t, double value) {
  return t.made<double>({1}, [&](std::int64_t) { return value; });
}

// The copy of parameters, where there is one.
Tensor rounded_copy(TestTensors& t, std::int64_t n) {
  return t.dtype() == DType::kBF16 ? t.unset({n}) : Tensor{};
}

template <class P>
void check_forward(TestTensors& t) {
  const auto check = [&](const Tensor& y, const Tensor& x) {
    check_op(t, PointwiseForward<P>{.y = y, .x = x});
  };
  for (const std::int64_t n : kLengths) check(t.unset({1, n}), t.normal({1, n}, 3));
  check(t.unset({5}), t.of({-100, -1e30, 1e30, 0, std::nan("")}));
  for (const std::int64_t width : {1, 7, 64, 1030})
    check_op(
        t,
        PointwiseForward<P>{
            .y = t.unset({9, width}), .y_norm = t.wide_unset({9}), .x = t.normal({9, width}, 3)},
        {.length = width});
}

template <class P>
void check_backward(TestTensors& t) {
  const auto saved = [&](const Shape& shape, double most) {
    const double largest = P::kSlopeOfOutput ? 1 : most;
    return t.filled(shape, [=](std::int64_t i) { return largest * std::cos(double(i)); });
  };
  const auto ones = [&](const Shape& shape) {
    return t.filled(shape, [](std::int64_t) { return 1; });
  };
  check_op(
      t,
      PointwiseBackward<P>{
          .dx = t.unset({1, 24001}), .dy = ones({1, 24001}), .saved_full = saved({1, 24001}, 12)},
      {.factor = 6});
  check_op(t, PointwiseBackward<P>{.dx = t.unset({1, 2}),
                                   .dy = t.of({std::nan(""), 1}),
                                   .saved_full = t.of({1, std::nan("")})});
  for (const std::int64_t full : {1, 40, 900})
    for (const std::int64_t width : {1, 7, 33, 130}) {
      const auto row = t.some_of(full);
      const auto rows = static_cast<std::int64_t>(row.size());
      PointwiseBackward<P> args{.dx = t.unset({rows, width}),
                                .dy = t.normal({rows, width}),
                                .saved_full = saved({full, width}, 4),
                                .row = t.indices(row)};
      check_op(t, args);
      args.dx = args.dy;
      args.dx_norm = t.wide_unset({rows});
      check_op(t, args, {.length = width});
    }
}

}  // namespace

TEST_CASE("operations of one number, forward and backward", "[pointwise]") {
  on_every_backend([](TestTensors& t) {
#define VCAS_CHECK_POINTWISE(_, P) check_forward<P>(t), check_backward<P>(t);
    VCAS_FOR_EACH_POINTWISE(VCAS_CHECK_POINTWISE, )
#undef VCAS_CHECK_POINTWISE
  });
}

TEST_CASE("a slope is that of the value", "[pointwise]") {
  const auto check = []<class P>(P) {
    const auto value = [](double x) { return P::template value<reference::Math>(x); };
    for (double x = -6; x < 6; x += 0.37) {
      INFO(P::kBackward << " at " << x);
      const double h = 1e-5, difference = (value(x + h) - value(x - h)) / (2 * h);
      const double saved = P::kSlopeOfOutput ? value(x) : x;
      CHECK(std::abs(P::template slope<reference::Math>(saved) - difference) < 1e-9);
    }
  };
#define VCAS_CHECK_POINTWISE(_, P) check(P{});
  VCAS_FOR_EACH_POINTWISE(VCAS_CHECK_POINTWISE, )
#undef VCAS_CHECK_POINTWISE
}

TEST_CASE("GELU meets erf over the whole range", "[pointwise]") {
  on_every_backend([](TestTensors& t) {
    // From -12 to 12; then the ends of the range.
    const Tensor x = t.filled({24001}, [](std::int64_t i) { return -12 + 1e-3 * double(i); });
    const Tensor y = t.unset({24001});
    t.ops().run(GeluForward{.y = y, .x = x});
    const auto got = t.read(y), at = t.read(x);
    double worst = 0;
    for (std::size_t i = 0; i < at.size(); ++i)
      worst = std::max(worst, std::abs(got[i] - at[i] * reference::Math::normal_cdf(at[i])) /
                                  std::max(1.0, std::abs(at[i])));
    const double rounding = t.dtype() == DType::kBF16 ? kBf16Rounding : 0;
    CHECK(worst < rounding + (t.dtype() == DType::kF64 ? 1e-15 : 5e-7));
    check_op(t, GeluBackward{
                    .dx = t.unset({1, 2}), .dy = t.of({1, 1}), .saved_full = t.of({-1e10, 1e10})});
  });
}

TEST_CASE("dropout draws the mask of its address", "[pointwise]") {
  on_every_backend([](TestTensors& t) {
    const RandomKey key{.seed = 3, .stream = Stream::kDropout, .step = 17, .site = 5};
    for (const std::int64_t full : {1, 200})
      for (const std::int64_t width : {1, 7, 33, 64, 130, 401})
        for (const double p : {0.0, 0.1, 0.999999}) {
          INFO(full << " x " << width << ", p " << p);
          const Tensor x = t.normal({full, width});
          check_op(t, Dropout{.y = t.unset({full, width}), .x = x, .p = p, .key = key});
          check_op(t, Dropout{.y = x, .y_norm = t.wide_unset({full}), .x = x, .p = p, .key = key},
                   {.length = width});
          check_op(t,
                   Dropout{.y = t.unset({full, width}),
                           .y_norm = t.wide_unset({full}),
                           .x = x,
                           .residual = t.normal({full, width}),
                           .p = p,
                           .key = key},
                   {.length = width});
          const auto row = t.some_of(full);
          const auto rows = static_cast<std::int64_t>(row.size());
          check_op(t, Dropout{.y = t.unset({rows, width}),
                              .x = t.normal({rows, width}),
                              .row = t.indices(row),
                              .p = p,
                              .key = key,
                              .step = t.offsets({4})});
        }
  });
}

TEST_CASE("dropout keeps a share of 1 - p", "[pointwise]") {
  on_every_backend([](TestTensors& t) {
    const std::int64_t n = 1 << 16;
    const Tensor y = t.unset({64, n / 64});
    t.ops().run(Dropout{.y = y,
                        .x = t.filled({64, n / 64}, [](std::int64_t) { return 1; }),
                        .p = 0.3,
                        .key = {.seed = 1, .stream = Stream::kDropout}});
    double sum = 0;
    for (const double value : t.read(y)) sum += value;
    // One entry has mean 1 and variance p / (1 - p).
    CHECK(std::abs(sum / n - 1) < 5 * std::sqrt(0.3 / 0.7 / n));
  });
}

TEST_CASE("add, copy, fill, sum_squares", "[pointwise]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t n : kLengths) {
      const Tensor a = t.normal({n}), b = t.normal({n});
      check_op(t, Add{.y = t.unset({n}), .a = a, .b = b});
      check_op(t, Add{.y = a, .a = a, .b = b});
      check_op(t, Copy{.y = t.unset({n}), .x = b}, {.factor = 0});
      check_op(t, Fill{.y = t.unset({n}), .value = 0.25}, {.factor = 0});
      check_op(t, SumSquares{.sum = t.unset(DType::kF64, {1}), .x = t.wide_normal({n})},
               {.length = n});
      check_op(t, SumSquares{.sum = one_f64(t, 5), .x = a, .accumulate = true}, {.length = n});
    }
    for (const std::int64_t first : {0, 2, 5})
      check_op(t, Fill{.y = t.normal({5, 33}), .value = 0.25, .from = t.offsets({first})},
               {.factor = 0});
    const Tensor index = t.indices({3, 1, 2});
    check_op(t, Copy{.y = t.unset(DType::kI32, {3}), .x = index});
    check_op(t, SumSquares{.sum = t.unset(DType::kF64, {1}), .x = t.wide_of({1, std::nan(""), 2})});
    for (const double earlier : {3.0, -0.0, double(INFINITY), std::nan("")})
      check_op(t, SumSquares{.sum = t.unset(DType::kF64, {1}),
                             .x = t.wide_of({1, 2}),
                             .earlier = one_f64(t, earlier)});
    check_op(t,
             Add{.y = t.unset({3}), .a = t.of({1, std::nan(""), 2}), .b = t.of({1, 2, INFINITY})});
    CHECK_THROWS_AS(t.ops().run(Copy{.y = t.unset({3}), .x = t.normal({4})}), InternalError);
  });
}

TEST_CASE("sum_squares accumulates wider than f32", "[pointwise]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    const std::int64_t n = 1 << 21;
    const Tensor sum = t.unset(DType::kF64, {1});
    t.ops().run(SumSquares{.sum = sum, .x = t.filled({n}, [](std::int64_t) { return 0.1; })});
    const double x = t.dtype() == DType::kF32 ? static_cast<double>(0.1f) : 0.1;
    CHECK(std::abs(t.read(sum)[0] / (n * x * x) - 1) < 1e-10);
    t.ops().run(SumSquares{.sum = sum, .x = t.filled({n}, [](std::int64_t) { return 1e-30; })});
    CHECK(std::abs(t.read(sum)[0] / (n * 1e-60) - 1) < 1e-6);
  });
}

TEST_CASE("adam_step, decoupled and not", "[pointwise]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t n : kLengths)
      for (const bool decoupled : {false, true})
        for (const std::int64_t step : {1, 100}) {
          INFO(n << " parameters, decoupled " << decoupled << ", step " << step);
          const auto positive = [&](std::int64_t i) { return 1e-3 * (1 + double(i % 7)); };
          check_op(t,
                   AdamStep{.param = t.wide_normal({n}),
                            .rounded = rounded_copy(t, n),
                            .first_moment = t.wide_normal({n}),
                            .second_moment = t.wide_filled({n}, positive),
                            .grad = t.wide_normal({n}),
                            .clip_factor = one_f64(t, step == 1 ? 0.5 : 1),
                            .learning_rate = 1e-2,
                            .beta1 = 0.9,
                            .beta2 = 0.99,
                            .weight_decay = 0.1,
                            .decayed = step == 1 ? kAll : n / 2,
                            .step = step,
                            .decoupled = decoupled},
                   {.factor = 16});
        }
  });
}

TEST_CASE("adam_step: the first steps have the length of the learning rate", "[pointwise]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    // The same gradient again and again has unbiased moments, whatever beta rounds to.
    const std::int64_t n = 5;
    const auto zero = [](std::int64_t) { return 0; };
    const Tensor param = t.filled({n}, zero), first = t.filled({n}, zero),
                 second = t.filled({n}, zero),
                 grad = t.filled({n}, [](std::int64_t i) { return 0.25 + double(i); });
    for (int step = 1; step <= 4; ++step) {
      t.ops().run(AdamStep{.param = param,
                           .first_moment = first,
                           .second_moment = second,
                           .grad = grad,
                           .clip_factor = one_f64(t, 1),
                           .learning_rate = 1,
                           .step = step});
      for (const double value : t.read(param)) CHECK(std::abs(value / -step - 1) <= 1e-6);
    }
  });
}

TEST_CASE("sgd_step", "[pointwise]") {
  on_every_backend([](TestTensors& t) {
    for (const std::int64_t n : kLengths)
      for (const bool nesterov : {false, true})
        check_op(t, SgdStep{.param = t.wide_normal({n}),
                            .rounded = rounded_copy(t, n),
                            .momentum = t.wide_normal({n}),
                            .grad = t.wide_normal({n}),
                            .clip_factor = one_f64(t, n % 2 ? 0.5 : 1),
                            .learning_rate = 0.1,
                            .mu = 0.9,
                            .weight_decay = 0.01,
                            .decayed = nesterov ? kAll : n / 2,
                            .nesterov = nesterov});
  });
}

TEST_CASE("clip_factor, by the gradient's own norm and by those before it", "[pointwise]") {
  on_every_backend([](TestTensors& t) {
    const auto factor = [&](const Tensor& predicted, double squared_norm, double max_norm) {
      INFO("squared norm " << squared_norm << ", at most " << max_norm);
      const Tensor to = t.unset(DType::kF64, {1});
      check_op(t, ClipFactor{.factor = to,
                             .predicted = predicted,
                             .squared_norm = one_f64(t, squared_norm),
                             .max_norm = max_norm});
      return t.read(to)[0];
    };
    for (const double squared_norm : {0.0, 1e-30, 2.25, 4.0, 16.0, 1e6, double(INFINITY)})
      for (const double max_norm : {0.0, 1.0, 2.0, 300.0}) {
        factor({}, squared_norm, max_norm);
        for (const double predicted : {0.0, 1e-20, 1.0, 9.0, 1e6})
          factor(one_f64(t, predicted), squared_norm, max_norm);
      }
    // Ordinary gradients share a factor. One that explodes is no longer than ten of them.
    CHECK(factor(one_f64(t, 16), 4, 2) == 0.5);
    CHECK(factor(one_f64(t, 16), 100, 2) == 0.5);
    CHECK(factor(one_f64(t, 16), 1e4, 2) == 0.2);
    CHECK(factor(one_f64(t, 1), 4, 2) == 1);
    CHECK(factor(one_f64(t, 1e-4), 4, 2) == 1);  // not too long, however unusual
    // Nothing is learnt from one that is not finite.
    const Tensor predicted = one_f64(t, 16);
    CHECK(std::isnan(factor(predicted, std::nan(""), 2)));
    CHECK(t.read(predicted)[0] == 16);
  });
}

TEST_CASE("a factor that is not finite changes nothing", "[pointwise]") {
  on_every_backend_but_bf16([](TestTensors& t) {
    for (const double factor : {std::nan(""), double(INFINITY)}) {
      const Tensor param = t.normal({9}), first = t.normal({9}), second = t.normal({9});
      const auto before = t.read(param), before_first = t.read(first),
                 before_second = t.read(second);
      const Tensor clip_factor = one_f64(t, factor);
      t.ops().run(AdamStep{.param = param,
                           .first_moment = first,
                           .second_moment = second,
                           .grad = t.normal({9}),
                           .clip_factor = clip_factor,
                           .learning_rate = 0.1});
      t.ops().run(SgdStep{.param = param,
                          .momentum = first,
                          .grad = t.normal({9}),
                          .clip_factor = clip_factor,
                          .learning_rate = 0.1});
      CHECK(t.read(param) == before);
      CHECK(t.read(first) == before_first);
      CHECK(t.read(second) == before_second);
    }
  });
}

TEST_CASE("optimizers write the parameters, and the same rounded once", "[pointwise]") {
  on_emu_and_cuda(Precision::kBf16, [](TestTensors& t) {
    const std::int64_t n = 1000;
    const Tensor param = t.wide_normal({n});
    const Tensor rounded = t.unset({n}), grad = t.wide_normal({n});
    const auto check = [&](const auto& step) {
      const auto before = t.read(param);
      for (int i = 0; i < 3; ++i) t.ops().run(step);
      const auto after = t.read(param), copy = t.read(rounded);
      std::size_t moved = 0, wrong = 0;
      for (std::size_t i = 0; i < after.size(); ++i) {
        moved += after[i] != before[i];
        wrong += copy[i] != static_cast<float>(bfloat16(static_cast<float>(after[i])));
      }
      CHECK(moved > after.size() / 2);
      CHECK(wrong == 0);
    };
    check(AdamStep{.param = param,
                   .rounded = rounded,
                   .first_moment = t.wide_normal({n}),
                   .second_moment = t.wide_filled({n}, [](std::int64_t) { return 1; }),
                   .grad = grad,
                   .clip_factor = one_f64(t, 1),
                   .learning_rate = 1e-3});
    check(SgdStep{.param = param,
                  .rounded = rounded,
                  .momentum = t.wide_normal({n}),
                  .grad = grad,
                  .clip_factor = one_f64(t, 1),
                  .learning_rate = 1e-3});
  });
}

TEST_CASE("moments on the CPU are normal numbers or zero", "[pointwise]") {
  constexpr std::int64_t kCount = 43;  // more than a vector, and a rest
  constexpr float kSmallest = std::numeric_limits<float>::min();
  for (const CpuLevel level : {CpuLevel::kBase, CpuLevel::kV3, CpuLevel::kV4}) {
    if (!cpu_has(level)) continue;
    on_backend("cpu", *make_cpu_ops(level), DType::kF32, [&](TestTensors& t) {
      const auto small = [&] {
        return t.filled({kCount}, [](std::int64_t i) {
          return static_cast<double>(i % 3 - 1) * kSmallest * (i % 2 ? 1 : 4);
        });
      };
      const Tensor zero = t.filled({kCount}, [](std::int64_t) { return 0; });
      const AdamStep adam{
          .param = t.normal({kCount}),
          .first_moment = small(),
          .second_moment = t.filled({kCount}, [](std::int64_t) { return kSmallest; }),
          .grad = zero,
          .clip_factor = one_f64(t, 1)};
      t.ops().run(adam);
      const std::vector<double> first = t.read(adam.first_moment),
                                second = t.read(adam.second_moment);
      for (std::size_t i = 0; i < first.size(); ++i) CHECK((second[i] == 0) == (first[i] == 0));
      const auto check = [&](const Tensor& moment) {
        const std::vector<double> left = t.read(moment);
        for (std::size_t i = 0; i < left.size(); ++i) {
          INFO(i << ": " << left[i]);
          CHECK((left[i] != 0) == (i % 3 != 1 && i % 2 == 0));
          CHECK((left[i] == 0 || std::abs(left[i]) >= kSmallest));
        }
      };
      check(adam.first_moment);
      for (const bool nesterov : {false, true}) {
        const SgdStep sgd{.param = t.normal({kCount}),
                          .momentum = small(),
                          .grad = zero,
                          .clip_factor = one_f64(t, 1),
                          .nesterov = nesterov};
        t.ops().run(sgd);
        check(sgd.momentum);
      }
    });
  }
}

TEST_CASE("norms of rows that no sum of squares in their type holds", "[pointwise]") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // Row r has this number in all columns. More rows than vectors have lanes, and a rest.
  const double values[] = {1, 0, 1e-25, 1e25, kInfinity, 3, 1e-30, 0, 2, 1e30, 5};
  constexpr std::int64_t kRows = 43;
  const std::int64_t width = GENERATE(8, 16, 21, 32);  // one vector, two, and others
  const auto value = [&](std::int64_t row) { return values[row % std::ssize(values)]; };
  for (const CpuLevel level : {CpuLevel::kBase, CpuLevel::kV3, CpuLevel::kV4}) {
    if (!cpu_has(level)) continue;
    on_backend("cpu", *make_cpu_ops(level), DType::kF32, [&](TestTensors& t) {
      const Tensor x = t.filled({kRows, width}, [&](std::int64_t i) { return value(i / width); });
      const PointwiseForward<Relu> relu{
          .y = t.unset(x.shape), .y_norm = t.unset({kRows, 1}), .x = x};
      t.ops().run(relu);
      const std::vector<double> norm = t.read(relu.y_norm);
      for (std::int64_t r = 0; r < kRows; ++r) {
        const double want = value(r) * std::sqrt(static_cast<double>(width));
        INFO(r << ": " << norm[static_cast<std::size_t>(r)] << ", want " << want);
        CHECK((norm[static_cast<std::size_t>(r)] == want ||
               std::abs(norm[static_cast<std::size_t>(r)] / want - 1) < 1e-6));
      }
    });
  }
}
