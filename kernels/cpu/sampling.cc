// Norms, keep probabilities, draws, and the rows they keep.
#include <cmath>
#include <functional>

#include "kernels/cpu/compute.h"

namespace vcas {
namespace {

// The factor c of p = min(1, c x) with sum p = budget, for positive values in any order
// (reordered). With the values sorted from the largest, x_m is capped exactly when the m before it
// are and (budget - m) x_m >= sum over i >= m of x_i; the first m where that fails is found by
// bisection, each step partitioning half of what the last one left: O(n).
double capped_scale(double* value, std::int64_t n, double budget) {
  std::int64_t begin = 0, end = n;  // before begin: capped; from end on: not, with sum `tail`
  double tail = 0;
  while (begin < end) {
    const std::int64_t middle = begin + (end - begin) / 2;
    std::nth_element(value + begin, value + middle, value + end, std::greater<>());
    double sum = tail;
    for (std::int64_t i = end - 1; i >= middle; --i) sum += value[i];
    if ((budget - static_cast<double>(middle)) * value[middle] >= sum) {
      begin = middle + 1;
    } else {
      end = middle;
      tail = sum;
    }
  }
  return (budget - static_cast<double>(begin)) / tail;
}

// Returns the variance.
template <class T>
double keep_probability(CpuContext& cpu, T* prob, const T* score, std::int64_t n, double budget) {
  double largest = 0;
  for (std::int64_t i = 0; i < n; ++i)
    if (std::isfinite(score[i])) largest = std::max(largest, static_cast<double>(score[i]));
  double* value = cpu.scratch<double>(n);
  std::int64_t nonzero = 0, not_finite = 0;
  for (std::int64_t i = 0; i < n; ++i)
    if (!std::isfinite(score[i]))
      ++not_finite;
    else if (score[i] > 0)
      value[nonzero++] = score[i] / largest;
  budget = std::max(budget - static_cast<double>(not_finite), 0.0);
  const bool all = budget >= static_cast<double>(nonzero);
  const double scale = all ? 0 : capped_scale(value, nonzero, budget);
  double variance = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    double p = 0;
    if (!std::isfinite(score[i])) {
      p = 1;
    } else if (score[i] > 0) {
      p = all ? 1 : std::min(1.0, scale * (score[i] / largest));
    }
    prob[i] = static_cast<T>(p);
    const double x = static_cast<double>(score[i]);
    if (p > 0) variance += (1 - p) / p * x * x;
  }
  return variance;
}

template <class T>
void draw_bernoulli(CpuContext& cpu, const Draw& args) {
  const std::int64_t n = args.prob.elements();
  const T* prob = args.prob.ptr<T>();
  auto* kept = args.kept.ptr<std::int32_t>();
  T* scale = args.scale.ptr<T>();
  float* u = cpu.scratch<float>(n);
  cpu.loops<T>().uniforms(u, args.id.ptr<std::int32_t>(), 0, n, step_key(args).address());
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!(static_cast<T>(u[i]) < prob[i])) continue;
    kept[count] = static_cast<std::int32_t>(i);
    scale[count++] = T(1) / prob[i];
  }
  *args.count.ptr<std::int32_t>() = count;
}

// The uniform number is the one at index 0. A sum that is an integer up to the rounding of the
// probabilities is made that integer. A fractional sum draws its floor or its ceiling of indices.
template <class T>
void draw_systematic(const Draw& args) {
  const std::int64_t n = args.prob.elements(), count = args.kept.elements();
  VCAS_CHECK(count <= n, std::to_string(count) + " of " + std::to_string(n) + " indices");
  const T* prob = args.prob.ptr<T>();
  auto* kept = args.kept.ptr<std::int32_t>();
  T* scale = args.scale.ptr<T>();
  double sum = 0;
  std::int64_t last = -1;  // the last index that can be drawn
  for (std::int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(prob[i]);
    if (prob[i] > 0) last = i;
  }
  VCAS_CHECK(sum >= 0 && sum < static_cast<double>(n) + 1,
             std::to_string(n) + " probabilities sum to " + std::to_string(sum));
  const double rounding = 1e-6 * sum;
  const double whole = std::ceil(sum - rounding);
  const double total = whole - sum <= rounding ? whole : sum;
  const double u = static_cast<double>(philox_uniform(step_key(args).address(), 0));

  // Calls take(i) for each index drawn, ascending.
  const auto walk = [&](const auto& take) {
    double running = 0, before = 0;  // floor(u) = 0
    for (std::int64_t i = 0; i <= last; ++i) {
      running = i == last ? total : running + static_cast<double>(prob[i]);
      const double after = std::floor(running + u);
      take(i, prob[i] > 0 && after > before);
      before = after;
    }
    for (std::int64_t i = last + 1; i < n; ++i) take(i, false);
  };
  std::int64_t free = count;
  walk([&](std::int64_t, bool drawn) { free -= drawn; });
  std::int64_t next = 0;
  walk([&](std::int64_t i, bool drawn) {
    if (!drawn && free-- <= 0) return;
    if (next == count) return;
    kept[next] = static_cast<std::int32_t>(i);
    scale[next++] = drawn ? T(1) / prob[i] : T(0);
  });
}

template <class T>
void narrow_rows(const NarrowRows& args) {
  const std::int64_t n = args.kept.elements();
  const auto* kept = args.kept.ptr<std::int32_t>();
  const auto* old_item = args.old_item.ptr<std::int32_t>();
  const auto* old_row = args.old_row.ptr<std::int32_t>();
  const auto* old_offsets = args.old_offsets.ptr<std::int64_t>();
  const T* kept_scale = args.kept_scale.ptr<T>();
  const T* old_scale = args.old_scale.ptr<T>();
  auto* item = args.item.ptr<std::int32_t>();
  auto* offsets = args.offsets.ptr<std::int64_t>();
  auto* row = args.row.ptr<std::int32_t>();
  auto* source_row = args.source_row.ptr<std::int32_t>();
  T* scale = args.scale.ptr<T>();
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t from = kept[i];
    item[i] = old_item ? old_item[from] : from;
    scale[i] = old_scale ? kept_scale[i] * old_scale[from] : kept_scale[i];
    offsets[i] = next;
    VCAS_CHECK(next + old_offsets[from + 1] - old_offsets[from] <= args.row.elements(),
               "kept rows exceed the capacity " + std::to_string(args.row.elements()));
    for (std::int64_t r = old_offsets[from]; r < old_offsets[from + 1]; ++r, ++next) {
      source_row[next] = static_cast<std::int32_t>(r);
      row[next] = old_row ? old_row[r] : static_cast<std::int32_t>(r);
    }
  }
  offsets[n] = next;
}

template <class T>
void row_score(CpuContext& cpu, const RowScore& args) {
  check_norms(args);
  const std::int64_t c = args.x_full.width(), d = args.dy.width();
  const auto* row = args.row.ptr<std::int32_t>();
  const T* dy = args.dy.ptr<T>();
  const T* x = args.x_full.ptr<T>();
  T* score = args.score.ptr<T>();
  const T* dy_norm = args.dy_norm.ptr<T>();
  const T* x_norm = args.x_norm_full.ptr<T>();
  const std::int64_t dy_parts = args.dy_norm.width(), x_parts = args.x_norm_full.width();
  const auto whole = [&](const T* parts, std::int64_t count) {
    return count == 1 ? *parts : cpu.norm(parts, count);
  };
  const std::int64_t work = (dy_norm ? dy_parts : d) + (x_norm ? x_parts : c);
  cpu.rows(args.score.elements(), work, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t r = row ? row[i] : i;
      score[i] = (dy_norm ? whole(dy_norm + i * dy_parts, dy_parts) : cpu.norm(dy + i * d, d)) *
                 (x_norm ? whole(x_norm + r * x_parts, x_parts) : cpu.norm(x + r * c, c));
    }
  });
}

}  // namespace

void compute(CpuContext& cpu, const Group<RowScore>& group) {
  for (const RowScore& args : group)
    with_type(args.dy.dtype, [&](auto type) { row_score<decltype(type)>(cpu, args); });
}

void compute(CpuContext& cpu, const ItemNorm& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t items = args.norm.elements(), width = args.x.width();
    const auto* offsets = args.offsets.ptr<std::int64_t>();
    const T* x = args.x.ptr<T>();
    T* norm = args.norm.ptr<T>();
    cpu.slices(cpu.slices_for(items, args.x.elements()), items, 1,
               [&](std::int64_t begin, std::int64_t end, int) {
                 for (std::int64_t n = begin; n < end; ++n)
                   norm[n] =
                       cpu.norm(x + offsets[n] * width, (offsets[n + 1] - offsets[n]) * width);
               });
  });
}

void compute(CpuContext& cpu, const KeepProbability& args) {
  with_type(args.score.dtype, [&](auto type) {
    using T = decltype(type);
    const double variance = keep_probability<T>(cpu, args.prob.ptr<T>(), args.score.ptr<T>(),
                                                args.score.elements(), args.budget);
    if (args.variance) *args.variance.ptr<double>() = variance;
  });
}

void compute(CpuContext& cpu, const Group<Draw>& group) {
  for (const Draw& args : group)
    with_type(args.prob.dtype, [&](auto type) {
      using T = decltype(type);
      keep_probability<T>(cpu, args.prob.ptr<T>(), args.score.ptr<T>(), args.score.elements(),
                          args.budget);
      if (args.selection == Selection::kBernoulli)
        draw_bernoulli<T>(cpu, args);
      else
        draw_systematic<T>(args);
    });
}

void compute(CpuContext&, const Group<NarrowRows>& group) {
  for (const NarrowRows& args : group)
    with_type(args.kept_scale.dtype, [&](auto type) { narrow_rows<decltype(type)>(args); });
}

void compute(CpuContext& cpu, const GatherScaledRows& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.y.width(), items = args.scale.elements();
    const auto* offsets = args.offsets.ptr<std::int64_t>();
    const auto* source_row = args.source_row.ptr<std::int32_t>();
    const T* scale = args.scale.ptr<T>();
    T* y = args.y.ptr<T>();
    const T* x = args.x.ptr<T>();
    cpu.slices(cpu.slices_for(items, args.y.elements()), items, 1,
               [&](std::int64_t begin, std::int64_t end, int) {
                 for (std::int64_t n = begin; n < end; ++n)
                   cpu.write_rows<T>(args.y, args.y_norm, offsets[n], offsets[n + 1],
                                     [&](std::int64_t first, std::int64_t last) {
                                       cpu.loops<T>().gather_rows(y + first * width, x, width,
                                                                  source_row + first, scale + n, 0,
                                                                  last - first, width);
                                     });
               });
  });
}

}  // namespace vcas
