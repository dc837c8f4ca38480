#include "layers/layer_check.h"

#include "layers/layer_bench.h"

namespace vcas {

namespace {

using namespace layer_bench;

void check_finite_differences(Bench& bench, const Gradients& gradients, const Numbers& dy,
                              bool loss) {
  const auto objective = [&] {
    const Numbers y = bench.forward();
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += (loss ? kLossScale : dy[i]) * y[i];
    return sum;
  };
  const auto differences = [&](Numbers& values) {
    constexpr double kStep = 0x1p-17;
    Numbers out;
    for (double& value : values) {
      const double middle = value;
      value = middle + kStep;
      const double above = objective();
      value = middle - kStep;
      const double below = objective();
      value = middle;
      out.push_back((above - below) / (2 * kStep));
    }
    return out;
  };
  Gradients want;
  for (std::size_t i = 0; i < bench.input_values.size(); ++i)
    want.dx.push_back(bench.differentiable(i) ? differences(bench.input_values[i]) : Numbers{});
  for (Numbers& values : bench.parameter_values) want.parameters.push_back(differences(values));
  bench.expect_close(gradients, want, 1e-7, "finite differences");
}

// The entries of some items of a full tensor, each times its item's scale.
Numbers gather(const Bench& bench, const Numbers& full, const ValueSpec& spec, const Kept& some) {
  Numbers out;
  for (std::size_t k = 0; k < some.items.size(); ++k) {
    std::int64_t first = 0;
    for (std::int64_t i = 0; i < some.items[k]; ++i) first += bench.item_rows(spec.layout, i);
    const std::int64_t rows = bench.item_rows(spec.layout, some.items[k]);
    for (std::int64_t e = first * spec.width; e < (first + rows) * spec.width; ++e)
      out.push_back(full[e] * some.scale[k]);
  }
  return out;
}

// `count` items of a bench, each with a scale of its own.
Kept some_items(const Bench& bench, std::int64_t count) {
  Kept kept;
  for (std::int64_t k = 0; k < count; ++k) {
    kept.items.push_back((k + 1) * bench.items() / count - 1);
    kept.scale.push_back(1.25 + 0.5 * static_cast<double>(k));
  }
  return kept;
}

// dy with the rows of kept items scaled, the others zero.
Numbers zero_dropped(const Bench& bench, Numbers dy, const Kept& kept) {
  const ValueSpec& output = bench.plan().output;
  std::size_t entry = 0;
  for (std::int64_t item = 0; item < bench.items(); ++item) {
    const auto found = std::ranges::find(kept.items, item);
    const double scale = found == kept.items.end() ? 0 : kept.scale[found - kept.items.begin()];
    for (std::int64_t e = bench.item_rows(output.layout, item) * output.width; e > 0; --e)
      dy[entry++] *= scale;
  }
  return dy;
}

// Checks a backward on kept items only against an exact backward.
// The exact one has a dy whose kept rows are scaled and whose other rows are zero.
void check_compact(Bench& bench, const Numbers& dy, double tolerance) {
  const std::int64_t items = bench.items();
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, items / 2, items}) {
    const std::string what = "backward on " + std::to_string(count) + " kept items";
    const Kept kept = some_items(bench, count);
    const Kept unscaled{kept.items, Numbers(kept.items.size(), 1)};
    const Gradients exact = bench.backward({.dy = zero_dropped(bench, dy, kept)});
    Gradients want{.dx = {}, .parameters = exact.parameters};
    for (std::size_t i = 0; i < exact.dx.size(); ++i) {
      if (!bench.differentiable(i)) {
        want.dx.push_back({});
        continue;
      }
      want.dx.push_back(gather(bench, exact.dx[i], bench.spec(i), unscaled));
      double kept_sum = 0, sum = 0;
      for (const double value : want.dx.back()) kept_sum += std::abs(value);
      for (const double value : exact.dx[i]) sum += std::abs(value);
      bench.expect(
          std::abs(sum - kept_sum) <= tolerance * (1 + sum),
          "dx of an item depends on dy of another, but the plan says items are independent");
    }
    BackwardChoice choice{.dy = gather(bench, dy, bench.plan().output, kept), .kept = &kept};
    const Gradients compact = bench.backward(choice);
    bench.expect_close(compact, want, tolerance, what);
    bench.expect_close(bench.backward({.dy = choice.dy, .kept = &kept, .padding = 3}), want,
                       tolerance, what + ", with padding");
    if (bench.plan().gathers_dy)  // a compact dy was rounded once more
      bench.expect_close(bench.backward({.dy = dy, .gathers = true, .kept = &kept}), want,
                         2 * tolerance, what + ", gathered from dy");
    if (bench.plan().writes_gradients)
      bench.expect_close(
          bench.backward({.dy = choice.dy, .kept = &kept, .start = kStart, .replaces = true}), want,
          tolerance, what + ", replacing");
    if (bench.plan().in_place) {
      choice.in_place = true;
      bench.expect(same_bits(bench.backward(choice).dx[0], compact.dx[0]),
                   what + " in place gives other bits");
    }
  }
}

// The same for a layer that mixes items: behind the kept items come echoes, whose dx stands for
// that of all dropped ones. If all of these are echoes, dx is the exact one.
void check_echoes(Bench& bench, const Numbers& dy, double tolerance) {
  const std::int64_t items = bench.items();
  for (const std::int64_t count : {std::int64_t{1}, items / 2, items}) {
    const Kept kept = some_items(bench, count);
    const Gradients exact = bench.backward({.dy = zero_dropped(bench, dy, kept)});
    std::vector<std::int64_t> dropped;
    for (std::int64_t item = items; item-- > 0;)
      if (std::ranges::count(kept.items, item) == 0) dropped.push_back(item);
    for (const std::int64_t echoes : {std::min<std::int64_t>(1, items - count), items - count}) {
      BackwardChoice choice{.dy = gather(bench, dy, bench.plan().output, kept), .kept = &kept};
      choice.echoes.assign(dropped.begin(), dropped.begin() + echoes);
      Kept rows{kept.items, Numbers(kept.items.size(), 1)};
      rows.items.insert(rows.items.end(), choice.echoes.begin(), choice.echoes.end());
      rows.scale.resize(rows.items.size(), echo_scale(items - count, echoes));
      Gradients want{.dx = {}, .parameters = exact.parameters};
      for (std::size_t i = 0; i < exact.dx.size(); ++i)
        want.dx.push_back(bench.differentiable(i) ? gather(bench, exact.dx[i], bench.spec(i), rows)
                                                  : Numbers{});
      bench.expect_close(bench.backward(choice), want, tolerance,
                         fmt::format("backward on {} kept items and {} echoes", count, echoes));
    }
  }
}

void check_calls(Bench& bench, const Numbers& dy, const Gradients& plain, double tolerance) {
  const auto same = [&](const Gradients& other, bool parameters, const std::string& fault) {
    for (std::size_t i = 0; i < plain.dx.size(); ++i)
      if (!other.dx[i].empty()) bench.expect(same_bits(plain.dx[i], other.dx[i]), fault);
    for (std::size_t i = 0; parameters && i < plain.parameters.size(); ++i)
      if (!other.parameters[i].empty())
        bench.expect(same_bits(plain.parameters[i], other.parameters[i]), fault);
  };
  same(bench.backward({.dy = dy}), true, "backward twice gives different bits");
  same(bench.backward({.dy = dy, .parameters = false}), false,
       "dx changes where parameter gradients are not wanted");
  for (std::size_t i = 0; i < plain.dx.size(); ++i)
    same(bench.backward({.dy = dy, .without_dx = static_cast<int>(i)}), true,
         "other gradients change where dx of input " + std::to_string(i) + " is not wanted");
  for (std::size_t i = 0; i < plain.parameters.size(); ++i)
    same(bench.backward({.dy = dy, .without_gradient = static_cast<int>(i)}), true,
         "other gradients change where that of " + bench.plan().parameters[i].name +
             " is not wanted");

  if (bench.plan().writes_gradients)
    same(bench.backward({.dy = dy, .start = kStart, .replaces = true}), true,
         "parameter gradients that are replaced get other bits");
  Gradients raised = plain;
  for (Numbers& values : raised.parameters)
    for (double& value : values) value += kStart;
  bench.expect_close(bench.backward({.dy = dy, .start = kStart}), raised, tolerance,
                     "gradients added to what was there");
  if (bench.plan().accumulates) {
    for (std::size_t i = 0; i < raised.dx.size(); ++i)
      if (!bench.passes_gradient(i))
        for (double& value : raised.dx[i]) value += kStart;
    for (const Added added : {Added::kInPlace, Added::kApart})
      bench.expect_close(bench.backward({.dy = dy, .added = added, .start = kStart}), raised,
                         tolerance,
                         added == Added::kApart ? "gradients added to others"
                                                : "gradients added to what was there");
  }
  if (bench.plan().in_place)
    same(bench.backward({.dy = dy, .in_place = true}), true, "dx in place of dy gives other bits");
}

void check_repeated(Bench& bench, const Numbers& y, const Numbers& dy, const Gradients& plain) {
  bench.repeats = true;
  const bool forward = same_bits(bench.forward(), y);
  bench.poison_unsaved();
  const Gradients repeated = bench.backward({.dy = dy});
  bench.repeats = false;
  const bool backward = std::ranges::equal(repeated.dx, plain.dx, same_bits) &&
                        std::ranges::equal(repeated.parameters, plain.parameters, same_bits);
  bench.expect(forward && backward,
               "a pass that the device repeats gives other bits: the plan of a layer with loops of "
               "its own says computes_on_host");
}

// Sets `one_column`: whether the output is one number a row, as a loss is.
void check_one_layout(const LayerCase& test, std::vector<std::string>& faults, bool& one_column) {
  struct Outcome {
    Numbers y;
    Gradients gradients;
  };
  Outcome want;  // of f64
  std::vector<DType> dtypes = {DType::kF64, DType::kF32};
  if (test.bf16 && test.device != "cpu") dtypes.push_back(DType::kBF16);
  for (const DType dtype : dtypes) {
    Bench bench(test, dtype, faults);
    one_column = bench.plan().output.width == 1;
    const double tolerance = dtype == DType::kF64   ? 200 * std::numeric_limits<double>::epsilon()
                             : dtype == DType::kF32 ? 200 * std::numeric_limits<float>::epsilon()
                                                    : kBf16Rounding;
    Outcome got;
    got.y = bench.forward();
    const Numbers dy = test.loss ? Numbers{} : random_normals(100, std::ssize(got.y), 0, 1);
    if (!bench.plan().computes_on_host)
      bench.expect(!bench.loops_itself(dy),
                   "numbers come from loops of the layer's own: its plan says computes_on_host");
    bench.forward();
    bench.poison_unsaved();
    got.gradients = bench.backward({.dy = dy});
    check_calls(bench, dy, got.gradients, tolerance);
    if (bench.can_repeat()) check_repeated(bench, got.y, dy, got.gradients);
    const RowCoupling coupling = bench.plan().coupling;
    if (!test.loss && !mixes_items(coupling)) check_compact(bench, dy, tolerance);
    if (!test.loss && coupling == RowCoupling::kBatchLinear) check_echoes(bench, dy, tolerance);
    if (!mixes_items(coupling)) {
      Bench padded(test, dtype, faults, 3);
      const std::string what = "with rows of zeros behind the last item";
      padded.expect_close(padded.forward(), got.y, tolerance, "output " + what);
      padded.poison_unsaved();
      padded.expect_close(padded.backward({.dy = dy}), got.gradients, tolerance, what);
      padded.check_guards();
    }
    if (dtype == DType::kF64) {
      if (test.formula)
        bench.expect_close(got.y, test.formula(bench.values()), tolerance,
                           "output against its formula");
      check_finite_differences(bench, got.gradients, dy, test.loss);
      want = got;
    } else {
      bench.expect_close(got.y, want.y, tolerance, "output against f64");
      bench.expect_close(got.gradients, want.gradients, tolerance, "against f64");
    }
    bench.check_forwards();
    bench.check_guards();
  }
}

}  // namespace

std::vector<std::string> layer_faults(const LayerCase& test) {
  const auto is_empty = [](const LayerInput& input) { return input.width < 1; };
  if (test.tokens.empty() || test.inputs.empty() || std::ranges::any_of(test.inputs, is_empty))
    return {"the case has no items or numbers: it needs tokens, and inputs of a width"};
  for (const auto* rows : {&test.tokens, &test.masked})
    if (rows->size() < test.tokens.size() || std::ranges::min(*rows) < 0 ||
        std::ranges::max(*rows) == 0)
      return {
          "tokens and masked have a number of rows for each item: none is below 0, and not "
          "all are 0"};
  std::vector<std::string> faults;
  LayerCase equal_items = test;
  bool differs = false, one_column = false;
  for (LayerInput& input : equal_items.inputs)
    if (input.layout == Layout::tokens()) input.layout = Layout::items(3), differs = true;
  try {
    check_one_layout(test, faults, one_column);
    if (differs) check_one_layout(equal_items, faults, one_column);
  } catch (const std::exception& error) {
    faults.push_back(error.what());
  }
  if (!faults.empty() && one_column && !test.loss) faults.push_back("a loss needs .loss = true");
  return faults;
}

}  // namespace vcas
