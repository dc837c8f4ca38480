// Norms, scores, probabilities and draws.
#pragma once

#include "tests/support/reference/tensors.h"

namespace vcas::reference {

// The scores that count.
template <class Args>
std::int64_t candidates(const Args& a) {
  return a.filled ? i64(a.filled)[0] : a.score.elements();
}

inline void run(const RowScore& a) {
  for (std::int64_t i = 0; i < candidates(a); ++i) {
    const std::int64_t r = index_at(a.row, i);
    const Tensor& x = a.x_norm_full ? a.x_norm_full : a.x_full;
    double squares = 0;
    for (std::int64_t column = 0; column < a.patches.taps() * x.width(); ++column)
      squares += std::pow(value_of(a.patches, x, r, column), 2);
    f(a.score)[i] = norm_of_row(a.dy_norm ? a.dy_norm : a.dy, i) * std::sqrt(squares);
  }
}

inline void run(const ItemNorm& a) {
  const std::int64_t c = a.x.width();
  for (std::int64_t n = 0; n < a.norm.elements(); ++n) {
    double sum = 0;
    for (std::int64_t e = i64(a.offsets)[n] * c; e < i64(a.offsets)[n + 1] * c; ++e)
      sum += std::pow(f(a.x)[e], 2);
    f(a.norm)[n] = std::sqrt(sum);
    if (a.tokens) f(a.norm)[n] /= std::sqrt(i64(a.tokens)[n + 1] - i64(a.tokens)[n]);
  }
}

template <class Args>
double draw_budget(const Args& a, bool whole) {
  if (!a.filled) return a.budget;
  const double budget = a.budget * static_cast<double>(candidates(a));
  return whole ? std::ceil(budget - 1e-9) : budget;
}

// Caps the scores that exceed 1 and shares the rest of the budget among the others, until none
// does.
inline void run(const KeepProbability& a) {
  const std::int64_t n = candidates(a);
  std::vector<bool> capped(static_cast<std::size_t>(n), false);
  double budget = draw_budget(a, a.whole), scale = 0;
  for (bool changed = true; changed;) {
    changed = false;
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i)
      if (!capped[static_cast<std::size_t>(i)]) sum += f(a.score)[i];
    scale = sum > 0 ? budget / sum : 0;
    for (std::int64_t i = 0; i < n; ++i)
      if (f(a.score)[i] > 0 && !capped[static_cast<std::size_t>(i)] && scale * f(a.score)[i] >= 1) {
        capped[static_cast<std::size_t>(i)] = changed = true;
        budget -= 1;
      }
  }
  double variance = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = f(a.score)[i];
    const double p = capped[static_cast<std::size_t>(i)] ? 1 : scale * x;
    f(a.prob)[i] = p;
    if (p > 0) variance += (1 - p) / p * x * x;
  }
  if (a.variance) f(a.variance)[0] = variance;
}

inline void run(const Draw& a) {
  const std::int64_t n = candidates(a);
  const double budget = draw_budget(a, a.selection == Selection::kSystematic);
  run(KeepProbability{.prob = {a.prob.data, a.prob.dtype, {n}},
                      .score = {a.score.data, a.score.dtype, {n}},
                      .budget = budget});
  const PhiloxAddress address = step_key(a).address();
  std::vector<std::int64_t> kept;
  const auto scale_of = [&](std::int64_t i) { return 1 / f(a.prob)[i]; };
  std::vector<double> scale(static_cast<std::size_t>(n), 0);
  if (a.selection == Selection::kBernoulli) {
    for (std::int64_t i = 0; i < n; ++i)
      if (philox_uniform(address, static_cast<std::uint64_t>(index_at(a.id, i))) < f(a.prob)[i])
        kept.push_back(i), scale[static_cast<std::size_t>(i)] = scale_of(i);
  } else {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += f(a.prob)[i];
    if (std::abs(sum - std::round(sum)) <= 1e-6 * sum) sum = std::round(sum);
    const auto count = static_cast<std::size_t>(a.filled ? std::min(budget, static_cast<double>(n))
                                                         : double(a.kept.elements()));
    const double u = philox_uniform(address, 0);
    std::vector<bool> taken(static_cast<std::size_t>(n), false);
    double before = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      double after = before + f(a.prob)[i];
      if (std::abs(after - sum) <= 1e-6 * sum) after = sum;
      for (double integer = 1; integer <= std::ceil(sum) + 1; ++integer)
        if (before + u < integer && integer <= after + u)
          taken[static_cast<std::size_t>(i)] = true,
          scale[static_cast<std::size_t>(i)] = scale_of(i);
      before = after;
    }
    auto drawn = static_cast<std::size_t>(std::count(taken.begin(), taken.end(), true));
    for (std::size_t i = 0; drawn < count; ++i)
      if (!taken[i]) taken[i] = true, ++drawn;
    for (std::int64_t i = 0; i < n; ++i)
      if (taken[static_cast<std::size_t>(i)]) kept.push_back(i);
  }
  for (std::size_t j = 0; j < kept.size(); ++j) {
    i32(a.kept)[j] = static_cast<std::int32_t>(kept[j]);
    f(a.scale)[j] = scale[static_cast<std::size_t>(kept[j])];
  }
  if (a.count) i32(a.count)[0] = static_cast<std::int32_t>(kept.size());
}

inline void run(const DrawEcho& a) {
  std::vector<std::pair<std::uint64_t, std::int32_t>> others;
  for (std::int64_t i = 0; i < a.items; ++i) {
    bool kept = false;
    for (std::int64_t j = 0; j < a.kept.elements(); ++j)
      kept |= index_at(a.id, i32(a.kept)[j]) == i;
    std::uint32_t word[4];
    philox_draw(step_key(a).address(), static_cast<std::uint64_t>(i), word);
    if (!kept)
      others.emplace_back(std::uint64_t{word[0]} << 32 | word[1], static_cast<std::int32_t>(i));
  }
  std::sort(others.begin(), others.end());
  for (std::size_t e = 0; e < static_cast<std::size_t>(a.item.elements()); ++e)
    i32(a.item)[e] = others[e].second;
}

inline void run(const NarrowRows& a) {
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < a.kept.elements(); ++i) {
    const std::int64_t old = i32(a.kept)[i];
    i32(a.item)[i] = static_cast<std::int32_t>(index_at(a.old_item, old));
    f(a.scale)[i] = f(a.kept_scale)[i] * factor_at(a.old_scale, old);
    i64(a.offsets)[i] = next;
    for (std::int64_t r = i64(a.old_offsets)[old]; r < i64(a.old_offsets)[old + 1]; ++r) {
      i32(a.source_row)[next] = static_cast<std::int32_t>(r);
      f(a.row_scale)[next] = f(a.kept_scale)[i];
      i32(a.row)[next++] = static_cast<std::int32_t>(index_at(a.old_row, r));
    }
  }
  for (std::int64_t e = 0; e < a.echo.elements(); ++e) {
    const std::int64_t i = a.kept.elements() + e, length = i64(a.old_offsets)[1];
    i32(a.item)[i] = i32(a.echo)[e];
    f(a.scale)[i] = 1;
    i64(a.offsets)[i] = next;
    for (std::int64_t r = 0; r < length; ++r)
      i32(a.row)[next++] = static_cast<std::int32_t>(i32(a.echo)[e] * length + r);
  }
  i64(a.offsets)[a.item.elements()] = next;
  for (; next < a.row.elements(); ++next)
    i32(a.row)[next] = i32(a.source_row)[next] = 0, f(a.row_scale)[next] = 0;
}

inline void run(const GatherScaledRows& a) {
  const std::int64_t c = a.y.width();
  for (std::int64_t r = 0; r < a.y.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i)
      f(a.y)[r * c + i] = f(a.row_scale)[r] * f(a.x)[i32(a.source_row)[r] * c + i];
  put_norms(a.y_norm, a.y);
}

}  // namespace vcas::reference
