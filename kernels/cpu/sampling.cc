// Norms, keep probabilities, draws, and the rows they keep.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "kernels/cpu/compute.h"
#include "kernels/ops/patches.h"

namespace vcas {
namespace {

// Scores that count.
template <class Args>
std::int64_t candidates(const Args& args) {
  return args.filled ? *args.filled.template ptr<std::int64_t>() : args.score.elements();
}

// The factor c of p = min(1, c x) with sum p = budget, for values x >= 0 of which more than the
// budget are positive. c = (budget - capped) / (sum of the others); each pass caps what the last c
// takes to 1, until nothing more is capped. Where the capped use up the budget, the others are too
// small to be seen in the sum.
template <class T>
double capped_scale(const Loops<T>& loops, const T* score, std::int64_t n, double unit,
                    double budget) {
  double scale = 0;
  for (double before = -1;;) {
    const CappedSums sums = loops.capped_sums(score, n, unit, scale);
    if (sums.capped <= before || sums.capped >= budget) return scale;  // rounding may uncap one
    before = sums.capped;
    scale = (budget - sums.capped) / sums.others;
  }
}

// The power of two that takes the largest score to about 1: sums hold, and only scores that are
// tiny beside it are rounded.
double unit_of(double largest) {
  constexpr int kLeastExponent = -1000;  // 2^1000 is finite
  return largest > 0 ? std::ldexp(1.0, -std::max(std::ilogb(largest), kLeastExponent)) : 1;
}

// `variance` may be null.
template <class T>
void keep_probability(const Loops<T>& loops, T* prob, double* variance, const T* score,
                      std::int64_t n, double budget) {
  const double unit = unit_of(loops.largest_score(score, n));
  const auto [positive, not_finite] = loops.score_counts(score, n, unit);
  budget = std::max(budget - static_cast<double>(not_finite), 0.0);
  if (budget >= static_cast<double>(positive))
    for (std::int64_t i = 0; i < n; ++i) prob[i] = static_cast<double>(score[i]) * unit > 0;
  else
    loops.capped(prob, score, n, unit, capped_scale(loops, score, n, unit, budget));
  if (variance)
    for (std::int64_t i = 0; i < n; ++i) {
      const double p = static_cast<double>(prob[i]), x = static_cast<double>(score[i]);
      if (p > 0) *variance += (1 - p) / p * x * x;
    }
  if (not_finite == 0) return;
  for (std::int64_t i = 0; i < n; ++i)
    if (!std::isfinite(score[i])) prob[i] = 1;
  if (variance) *variance = std::nan("");
}

// What a draw has for its candidates, and how many it keeps.
template <class Args>
double draw_budget(const Args& args, bool whole) {
  return args.filled ? budget_of(args.budget, candidates(args), whole) : args.budget;
}
std::int64_t systematic_count(const Draw& args) {
  if (!args.filled) return args.kept.elements();
  return std::min(static_cast<std::int64_t>(draw_budget(args, true)), candidates(args));
}

// `u` has room for n numbers.
template <class T>
void draw_bernoulli(const Loops<T>& loops, const Draw& args, float* u) {
  const std::int64_t n = candidates(args);
  const T* prob = args.prob.ptr<T>();
  auto* kept = args.kept.ptr<std::int32_t>();
  T* scale = args.scale.ptr<T>();
  loops.uniforms(u, args.id.ptr<std::int32_t>(), 0, n, step_key(args).address());
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!(static_cast<T>(u[i]) < prob[i])) continue;
    kept[count] = static_cast<std::int32_t>(i);
    scale[count++] = T(1) / prob[i];
  }
  *args.count.ptr<std::int32_t>() = count;
}

// Adds the first other indices to kept[0], ..., kept[drawn - 1], in order, until there are `count`.
// Their probability is 0.
template <class T>
void add_undrawn(std::int32_t* kept, T* prob, std::int64_t drawn, std::int64_t count) {
  std::int32_t other = -1;  // the last that is added
  for (std::int64_t missing = count - drawn, next = 0; missing > 0;) {
    ++other;
    const bool is_drawn = next < drawn && kept[next] == other;
    is_drawn ? ++next : --missing;
  }
  for (std::int64_t to = count - 1; to >= drawn; --to) {
    const bool from_drawn = drawn > 0 && kept[drawn - 1] >= other;
    if (from_drawn && kept[drawn - 1] == other) --other;
    kept[to] = from_drawn ? kept[--drawn] : other--;
    prob[to] = from_drawn ? prob[drawn] : T(0);
  }
}

// A sum that is an integer up to the rounding of the probabilities is made that integer.
double whole_if_near(double sum) {
  const double rounding = 1e-6 * sum, whole = std::ceil(sum - rounding);
  return whole - sum <= rounding ? whole : sum;
}

// The uniform number is the one at index 0. A fractional sum draws its floor or its ceiling of
// indices.
template <class T>
void draw_systematic(const Draw& args) {
  const std::int64_t count = systematic_count(args);
  if (args.count) *args.count.ptr<std::int32_t>() = static_cast<std::int32_t>(count);
  const T* prob = args.prob.ptr<T>();
  auto* kept = args.kept.ptr<std::int32_t>();
  T* scale = args.scale.ptr<T>();
  const double u = static_cast<double>(philox_uniform(step_key(args).address(), 0));
  std::int64_t n = candidates(args);  // up to the last index that can be drawn
  while (n > 0 && !(prob[n - 1] > 0)) --n;

  // An index is drawn where the sums pass an integer: no branch that would be guessed wrong.
  std::int64_t drawn = 0, passed = 0;
  const auto draw = [&](std::int64_t i, double sum) {
    const auto now = static_cast<std::int64_t>(sum + u);
    kept[drawn] = static_cast<std::int32_t>(i);
    scale[drawn] = prob[i];
    drawn += now > passed;
    passed = now;
  };
  constexpr std::int64_t kBeside = 4;  // sums that need not wait for each other
  double sum = 0;
  std::int64_t i = 0;
  for (; i + kBeside < n && drawn + kBeside <= count; i += kBeside) {
    double more = 0;
    for (std::int64_t k = 0; k < kBeside; ++k) {
      more += static_cast<double>(prob[i + k]);
      draw(i + k, sum + more);
    }
    sum += more;
  }
  for (; i < n && drawn < count; ++i) {
    sum += static_cast<double>(prob[i]);
    draw(i, i == n - 1 ? whole_if_near(sum) : sum);
  }
  if (drawn < count) add_undrawn(kept, scale, drawn, count);
  for (std::int64_t k = 0; k < count; ++k) scale[k] = scale[k] > 0 ? T(1) / scale[k] : T(0);
}

template <class T>
void narrow_rows(const NarrowRows& args) {
  const std::int64_t n = args.kept.elements(), echoes = args.echo.elements();
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
  T* row_scale = args.row_scale.ptr<T>();
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
      row_scale[next] = kept_scale[i];
      row[next] = old_row ? old_row[r] : static_cast<std::int32_t>(r);
    }
  }
  const std::int64_t length = echoes > 0 ? old_offsets[1] - old_offsets[0] : 0;
  VCAS_CHECK(next + echoes * length <= args.row.elements(),
             "rows of echoes exceed the capacity " + std::to_string(args.row.elements()));
  for (std::int64_t i = 0; i < echoes; ++i) {
    item[n + i] = args.echo.ptr<std::int32_t>()[i];
    scale[n + i] = 1;
    offsets[n + i] = next;
    for (std::int64_t r = 0; r < length; ++r)
      row[next++] = static_cast<std::int32_t>(item[n + i] * length + r);
  }
  offsets[n + echoes] = next;
  const std::int64_t capacity = args.row.elements();
  std::fill(row + next, row + capacity, 0);
  std::fill(source_row + next, source_row + capacity, 0);
  std::fill(row_scale + next, row_scale + capacity, T(0));
}

template <class T>
void row_score(CpuContext& cpu, const RowScore& args) {
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
  const auto x_norm_of = [&](std::int64_t r) {
    return x_norm ? whole(x_norm + r * x_parts, x_parts) : cpu.norm(x + r * c, c);
  };
  const auto dy_norm_of = [&](std::int64_t i) {
    return dy_norm ? whole(dy_norm + i * dy_parts, dy_parts) : cpu.norm(dy + i * d, d);
  };
  const std::int64_t work = (dy_norm ? dy_parts : d) + (x_norm ? x_parts : c) * args.patches.taps();
  if (!args.patches) {
    cpu.rows(candidates(args), work, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        score[i] = dy_norm_of(i) * x_norm_of(row ? row[i] : i);
    });
    return;
  }
  const Patches& patches = args.patches;
  const int slices = cpu.slices_for(candidates(args), candidates(args) * work);
  const std::int64_t in = patches.in_rows(), out = patches.out_rows();
  const std::int64_t sums =
      patches.height * patches.out_width() + patches.width + 2 * patches.padding;
  const std::int64_t space = sums + in + out;  // each as large as a double
  double* scratch = cpu.scratch<double>(slices * space);
  cpu.slices(slices, candidates(args), 1, [&](std::int64_t begin, std::int64_t end, int slice) {
    double* line_sums = scratch + slice * space;
    T* pixel_norms = reinterpret_cast<T*>(line_sums + sums);
    T* norms = pixel_norms + in;
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t item = (row ? row[i] : i) / out, first = item * out;
      const T* pixel = x_parts == 1 && x_norm ? x_norm + item * in : pixel_norms;
      if (pixel == pixel_norms)
        for (std::int64_t p = 0; p < in; ++p) pixel_norms[p] = x_norm_of(item * in + p);
      cpu.loops<T>().patch_norms(norms, line_sums, pixel, patches.height, patches.width,
                                 patches.out_height(), patches.out_width(), patches.kernel,
                                 patches.stride, patches.padding);
      for (; i < end; ++i) {
        const std::int64_t place = (row ? row[i] : i) - first;
        if (place < 0 || place >= out) break;
        score[i] = dy_norm_of(i) * norms[place];
      }
    }
  });
}

template <Chain Args>
void in_order(CpuContext& cpu, const Args& args) {
  for_each_part(args, [&](const auto& part) { compute(cpu, part); });
}

}  // namespace

void compute(CpuContext& cpu, const DrawRows& args) { in_order(cpu, args); }
void compute(CpuContext& cpu, const DrawItems& args) { in_order(cpu, args); }

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
    const auto* tokens = args.tokens.ptr<std::int64_t>();
    T* norm = args.norm.ptr<T>();
    cpu.grains(items, 1, args.x.elements(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        norm[n] = cpu.norm(x + offsets[n] * width, (offsets[n + 1] - offsets[n]) * width);
        if (tokens) norm[n] /= std::sqrt(static_cast<T>(tokens[n + 1] - tokens[n]));
      }
    });
  });
}

void compute(CpuContext& cpu, const KeepProbability& args) {
  with_type(args.score.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = candidates(args);
    auto* variance = args.variance.ptr<double>();
    if (variance) *variance = 0;
    keep_probability<T>(cpu.loops<T>(), args.prob.ptr<T>(), variance, args.score.ptr<T>(), n,
                        draw_budget(args, args.whole));
  });
}

// Each draw is one thread's: its sums run over all scores.
void compute(CpuContext& cpu, const Group<Draw>& group) {
  constexpr std::int64_t kCostOfScore = 32;  // in elements copied
  std::int64_t scores = 0, longest = 0;
  for (const Draw& args : group) {
    const std::int64_t n = args.prob.elements();
    scores += n;
    longest = std::max(longest, n);
  }
  const auto draws = static_cast<std::int64_t>(group.size());
  const int threads = cpu.slices_for(draws, kCostOfScore * scores);
  auto* uniforms = cpu.scratch<float>(threads * longest);
  cpu.tasks(threads, draws, 1, [&](std::int64_t number, int thread) {
    const Draw& args = group[number];
    with_type(args.prob.dtype, [&](auto type) {
      using T = decltype(type);
      const bool systematic = args.selection == Selection::kSystematic;
      keep_probability<T>(cpu.loops<T>(), args.prob.ptr<T>(), nullptr, args.score.ptr<T>(),
                          candidates(args), draw_budget(args, systematic));
      if (systematic)
        draw_systematic<T>(args);
      else
        draw_bernoulli<T>(cpu.loops<T>(), args, uniforms + thread * longest);
    });
  });
}

void compute(CpuContext& cpu, const DrawEcho& args) {
  struct Candidate {
    std::uint64_t number;
    std::int32_t item;  // -1: it was kept
    bool operator<(const Candidate& other) const {
      return std::tie(number, item) < std::tie(other.number, other.item);
    }
  };
  const std::int64_t kept = args.kept.elements(), drawn = args.item.elements();
  auto* all = cpu.scratch<Candidate>(args.items);
  const PhiloxAddress address = step_key(args).address();
  for (std::int64_t i = 0; i < args.items; ++i) {
    std::uint32_t word[4];
    philox_draw(address, static_cast<std::uint64_t>(i), word);
    all[i] = {std::uint64_t{word[0]} << 32 | word[1], static_cast<std::int32_t>(i)};
  }
  const auto* id = args.id.ptr<std::int32_t>();
  for (std::int64_t i = 0; i < kept; ++i) {
    const std::int32_t index = args.kept.ptr<std::int32_t>()[i];
    all[id ? id[index] : index].item = -1;
  }
  Candidate* end = std::remove_if(all, all + args.items,
                                  [](const Candidate& candidate) { return candidate.item < 0; });
  std::partial_sort(all, all + drawn, end);
  for (std::int64_t i = 0; i < drawn; ++i) args.item.ptr<std::int32_t>()[i] = all[i].item;
}

void compute(CpuContext&, const Group<NarrowRows>& group) {
  for (const NarrowRows& args : group)
    with_type(args.kept_scale.dtype, [&](auto type) { narrow_rows<decltype(type)>(args); });
}

void compute(CpuContext& cpu, const GatherScaledRows& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.y.width();
    cpu.write_rows<T>(args.y, args.y_norm, width, [&](std::int64_t begin, std::int64_t end) {
      cpu.loops<T>().gather_rows(args.y.ptr<T>() + begin * width, args.x.ptr<T>(), width,
                                 args.source_row.ptr<std::int32_t>() + begin,
                                 args.row_scale.ptr<T>() + begin, 1, end - begin, width);
    });
  });
}

}  // namespace vcas
