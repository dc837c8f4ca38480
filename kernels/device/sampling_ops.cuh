// Keep probabilities, draws, and the rows they keep. One block each: scores and probabilities are a
// few thousand numbers, and a second launch would cost more than a second multiprocessor saves.
#pragma once

#include <climits>

#include "kernels/device/math.cuh"
#include "kernels/device/write_row.cuh"

namespace vcas::VCAS_DEVICE {

// body(i) for this thread's share of [0, n), in one block.
template <class Body>
__device__ inline void for_each_candidate(int n, const Body& body) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) body(i);
}

// body(i, inside) for every i of [0, n) rounded up to whole rounds of the block, so that all
// threads meet in each round.
template <class Body>
__device__ inline void in_rounds(int n, const Body& body) {
  const int step = static_cast<int>(blockDim.x);
  for (int first = 0; first < n; first += step) {
    const int i = first + static_cast<int>(threadIdx.x);
    body(i, i < n);
  }
}

// p = min(1, c score) with the sum `budget`: starting from c = budget / (sum of all), scores with
// c score >= 1 are capped and c is found again for the others, until none is new. Each round caps
// more, and typically there are three to six. Sums are in double, of scores relative to the
// largest. Returns the thread's share of the variance. A thread sets prob[i] for the i that
// `in_rounds` gives it.
template <class T>
__device__ double keep_probability(T* prob, const T* score, int n, double budget) {
  double own = 0;
  for_each_candidate(n, [&](int i) {
    if (isfinite(score[i])) own = max(own, static_cast<double>(score[i]));
  });
  const double largest = block_reduce(own, 0.0, Maximum{});
  const auto relative = [&](int i) {
    return isfinite(score[i]) && score[i] > 0 ? static_cast<double>(score[i]) / largest : 0.0;
  };
  int own_nonzero = 0, own_not_finite = 0;
  for_each_candidate(n, [&](int i) {
    own_nonzero += relative(i) > 0;
    own_not_finite += !isfinite(score[i]);
  });
  budget = max(budget - block_sum(own_not_finite), 0.0);
  const bool all = budget >= static_cast<double>(block_sum(own_nonzero));

  double scale = 0;
  int capped = -1;
  for (bool changed = !all; changed;) {
    double own_sum = 0;
    int own_capped = 0;
    for_each_candidate(n, [&](int i) {
      const double x = relative(i);
      if (capped >= 0 && scale * x >= 1)
        ++own_capped;
      else
        own_sum += x;
    });
    const int now_capped = block_sum(own_capped);
    const double sum = block_sum(own_sum);
    // Where the capped use up the budget, the others are too small to be seen in the sum.
    changed = now_capped > capped && now_capped < budget;
    if (!changed) break;
    capped = now_capped;
    scale = (budget - capped) / sum;
  }

  double own_variance = 0;
  for_each_candidate(n, [&](int i) {
    double p = all && relative(i) > 0 ? 1 : min(1.0, scale * relative(i));
    if (!isfinite(score[i])) p = 1;
    prob[i] = static_cast<T>(p);
    const double x = static_cast<double>(score[i]);
    if (p > 0) own_variance += (1 - p) / p * x * x;
  });
  return own_variance;
}

// Scores that only the device can count: the first *filled of them, each with its budget.
struct Candidates {
  const std::int64_t* filled;
  int n;
  double budget;
  bool whole;

  __device__ int count() const { return filled ? static_cast<int>(*filled) : n; }
  __device__ double budget_of_all() const {
    return filled ? budget_of(budget, *filled, whole) : budget;
  }
};

template <class T>
__global__ void __launch_bounds__(kMostInBlock)
    keep_probability_kernel(T* prob, double* variance, const T* score, Candidates of) {
  const double own_variance = keep_probability(prob, score, of.count(), of.budget_of_all());
  if (!variance) return;
  const double sum = block_sum(own_variance);
  if (threadIdx.x == 0) *variance = sum;
}

template <class T>
struct Kept {
  std::int32_t* index;
  T* scale;
  std::int32_t* count;
};
template <class T>
struct Drawing {
  Kept<T> kept;
  int count;  // of a systematic draw, at most
  T* prob;
  const T* score;
  const std::int32_t* id;
  Candidates of;
  StepKey key;
};

// One block a draw of the group, here and in the next kernel.
template <class T>
__global__ void __launch_bounds__(kMostInBlock)
    draw_bernoulli_kernel(const __grid_constant__ Several<Drawing<T>> group) {
  const Drawing<T>& draw = group.each[blockIdx.x];
  const Kept<T>& kept = draw.kept;
  const PhiloxAddress address = draw.key.address();
  const int n = draw.of.count();
  keep_probability(draw.prob, draw.score, n, draw.of.budget_of_all());
  const T* prob = draw.prob;
  int count = 0;
  in_rounds(n, [&](int i, bool inside) {
    bool keep = false;
    if (inside) {
      const Words words = philox_words(address, static_cast<std::uint64_t>(at(draw.id, i)));
      keep = static_cast<T>(uniform_from_bits(words.word[0])) < prob[i];
    }
    const Scan<int> place = block_scan<int>(keep, 0, Plus{});
    if (keep) {
      kept.index[count + place.exclusive] = i;
      kept.scale[count + place.exclusive] = T(1) / prob[i];
    }
    count += place.total;
  });
  if (threadIdx.x == 0) *kept.count = count;
}

// With S the running sum, index i is drawn where floor(S + u) rises; the running sum of the last
// index that can be drawn is `total`, an integer where the sum is one up to rounding. A fractional
// sum draws its floor or its ceiling of indices. The first free ones fill the count up.
template <class T>
__global__ void __launch_bounds__(kMostInBlock)
    draw_systematic_kernel(const __grid_constant__ Several<Drawing<T>> group) {
  const Drawing<T>& draw = group.each[blockIdx.x];
  const Kept<T>& kept = draw.kept;
  const PhiloxAddress address = draw.key.address();
  const int n = draw.of.count();
  const double budget = draw.of.budget_of_all();
  const int count = draw.of.filled ? min(static_cast<int>(budget), n) : draw.count;
  if (kept.count && threadIdx.x == 0) *kept.count = count;
  keep_probability(draw.prob, draw.score, n, budget);
  const T* prob = draw.prob;
  double own = 0;
  int own_last = -1;
  for_each_candidate(n, [&](int i) {
    own += static_cast<double>(prob[i]);
    if (prob[i] > 0) own_last = i;
  });
  const double sum = block_sum(own);
  const int last = block_reduce(own_last, -1, Maximum{});
  VCAS_KERNEL_CHECK(sum >= 0 && sum < n + 1.0, "probabilities out of range");
  const double rounding = 1e-6 * sum, whole = ceil(sum - rounding);
  const double total = whole - sum <= rounding ? whole : sum;
  const double u = static_cast<double>(uniform_from_bits(philox_words(address, 0).word[0]));

  // take(i, drawn, drawn before i). The sum over the block adds in another order at each index, so
  // it may fall by a rounding error; its running maximum does not.
  const auto walk = [&](const auto& take) {
    double running = 0, highest = 0;
    int drawn_before = 0;
    in_rounds(n, [&](int i, bool inside) {
      const Scan<double> added =
          block_scan(inside ? static_cast<double>(prob[i]) : 0.0, 0.0, Plus{});
      double reached = running + added.inclusive;
      if (i >= last) reached = total;
      const Scan<double> risen = block_scan(reached, 0.0, Maximum{});
      const double before = i == 0 ? 0 : floor(max(highest, risen.exclusive) + u);
      const double after = floor(max(highest, risen.inclusive) + u);
      const bool drawn = inside && i <= last && prob[i] > 0 && after > before;
      const Scan<int> place = block_scan<int>(drawn, 0, Plus{});
      if (inside) take(i, drawn, drawn_before + place.exclusive);
      running += added.total;
      highest = max(highest, risen.total);
      drawn_before += place.total;
    });
    return drawn_before;
  };
  const int free = max(count - walk([](int, bool, int) {}), 0);
  walk([&](int i, bool drawn, int before) {
    const int others = i - before;  // not drawn before i: the first `free` of them fill up
    const int place = before + min(others, free);
    if ((!drawn && others >= free) || place >= count) return;
    kept.index[place] = i;
    kept.scale[place] = drawn ? T(1) / prob[i] : T(0);
  });
}

// One block. The rank of an item that was not kept, among those, is its place in the draw.
__global__ void __launch_bounds__(kMostInBlock)
    draw_echo_kernel(std::int32_t* item, int echoes, std::uint64_t* number, int items,
                     const std::int32_t* kept, int kept_items, const std::int32_t* id,
                     StepKey key) {
  constexpr std::uint64_t kKept = ~std::uint64_t{0};
  const PhiloxAddress address = key.address();
  for_each_candidate(items, [&](int i) {
    const Words words = philox_words(address, static_cast<std::uint64_t>(i));
    number[i] = std::uint64_t{words.word[0]} << 32 | words.word[1];
  });
  __syncthreads();
  for_each_candidate(kept_items, [&](int i) { number[at(id, kept[i])] = kKept; });
  __syncthreads();
  for_each_candidate(items, [&](int i) {
    const std::uint64_t own = number[i];
    int rank = own == kKept ? echoes : 0;
    for (int other = 0; other < items && rank < echoes; ++other)
      rank += number[other] < own || (number[other] == own && other < i);
    if (rank < echoes) item[rank] = i;
  });
}

template <class T>
struct NarrowedRows {
  std::int32_t* item;
  T* scale;
  std::int64_t* offsets;
  std::int32_t* row;
  std::int32_t* source_row;
  std::int64_t capacity;
};
template <class T>
struct ItemRows {
  const std::int32_t* item;
  const T* scale;
  const std::int64_t* offsets;
  const std::int32_t* row;
};
template <class T>
struct Narrowing {
  NarrowedRows<T> out;
  const std::int32_t* kept;
  const T* kept_scale;
  const std::int32_t* echo;
  ItemRows<T> old;
  int kept_items, echoes;
};

// One block for each of the group: offsets by a scan of the lengths; then one warp an item. Echoes
// have as many rows as the first item.
template <class T>
__global__ void __launch_bounds__(kMostInBlock)
    narrow_rows_kernel(const __grid_constant__ Several<Narrowing<T>> group) {
  const Narrowing<T>& work = group.each[blockIdx.x];
  const auto& out = work.out;
  const auto& old = work.old;
  const auto *kept = work.kept, *echo = work.echo;
  const T* kept_scale = work.kept_scale;
  const int n = work.kept_items, echoes = work.echoes;
  std::int64_t rows = 0;
  in_rounds(n, [&](int i, bool inside) {
    std::int64_t length = 0;
    if (inside) {
      const std::int32_t from = kept[i];
      length = old.offsets[from + 1] - old.offsets[from];
      out.item[i] = old.item ? old.item[from] : from;
      out.scale[i] = old.scale ? kept_scale[i] * old.scale[from] : kept_scale[i];
    }
    const Scan<std::int64_t> place = block_scan<std::int64_t>(length, 0, Plus{});
    if (inside) out.offsets[i] = rows + place.exclusive;
    rows += place.total;
  });
  const std::int64_t length = echoes > 0 ? old.offsets[1] - old.offsets[0] : 0;
  for_each_candidate(echoes, [&](int i) {
    out.item[n + i] = echo[i];
    out.scale[n + i] = T(1);
    out.offsets[n + i] = rows + i * length;
  });
  if (threadIdx.x == 0) out.offsets[n + echoes] = rows + echoes * length;
  VCAS_KERNEL_CHECK(rows + echoes * length <= out.capacity, "kept rows exceed the capacity");
  __syncthreads();
  for (std::int64_t i = warp_of_thread(); i < n; i += blockDim.x / kWarp) {
    const std::int64_t first = old.offsets[kept[i]], to = out.offsets[i];
    for (std::int64_t r = lane_of_thread(); r < out.offsets[i + 1] - to; r += kWarp) {
      out.source_row[to + r] = static_cast<std::int32_t>(first + r);
      out.row[to + r] = static_cast<std::int32_t>(at(old.row, first + r));
    }
  }
  for_each_candidate(static_cast<int>(echoes * length), [&](int i) {
    out.row[rows + i] = static_cast<std::int32_t>(echo[i / length] * length + i % length);
  });
  const std::int64_t filled = rows + echoes * length;
  for_each_candidate(static_cast<int>(out.capacity - filled),
                     [&](int i) { out.row[filled + i] = 0; });
}

// Blocks (item, slice of its rows), threads along the row. The last item is what lies behind them.
template <class T, bool kAligned>
__global__ void gather_scaled_rows_kernel(T* y, Compute<T>* y_norm, const T* x,
                                          const std::int32_t* source_row,
                                          const std::int64_t* offsets, const Compute<T>* scale,
                                          std::int64_t rows, int width) {
  const std::int64_t n = blockIdx.x;
  const bool behind = n + 1 == gridDim.x;
  const Compute<T> factor = behind ? Compute<T>(0) : scale[n];
  const std::int64_t end = behind ? rows : offsets[n + 1];
  for (std::int64_t r = offsets[n] + blockIdx.y; r < end; r += gridDim.y)
    write_row<kAligned>(y, y_norm, r, width, [&](int c) {
      if (behind) return Neighbours<Compute<T>>{};
      auto of = load_neighbours<kAligned>(x + std::int64_t{source_row[r]} * width, c, width);
      for (Compute<T>& value : of.value) value = factor * value;
      return of;
    });
}

// ---- host ----

// Of candidates; their indices are i32.
inline int count_of(const Tensor& tensor) {
  VCAS_CHECK(tensor.elements() <= INT_MAX - kMostInBlock,
             "a draw from " + std::to_string(tensor.elements()) + " candidates");
  return static_cast<int>(tensor.elements());
}

void compute(Context& context, const KeepProbability& args) {
  with_statistics_type(args.score.dtype, [&](auto type) {
    using T = decltype(type);
    const int n = count_of(args.score);
    launch(context, one_block(n), keep_probability_kernel<T>, args.prob.ptr<T>(),
           args.variance.ptr<double>(), args.score.ptr<T>(),
           Candidates{args.filled.ptr<std::int64_t>(), n, args.budget, args.whole});
  });
}

void compute(Context& context, const Group<Draw>& group) {
  with_statistics_type(group[0].prob.dtype, [&](auto type) {
    using T = decltype(type);
    Several<Drawing<T>> each;
    int most = 0;
    for (const Draw& args : group) {
      VCAS_CHECK(args.selection == group[0].selection, "draws of one group by two selections");
      const int n = count_of(args.score);
      each.add(
          {{args.kept.ptr<std::int32_t>(), args.scale.ptr<T>(), args.count.ptr<std::int32_t>()},
           count_of(args.kept),
           args.prob.ptr<T>(),
           args.score.ptr<T>(),
           args.id.ptr<std::int32_t>(),
           {args.filled.ptr<std::int64_t>(), n, args.budget,
            args.selection == Selection::kSystematic},
           step_key(args)});
      most = std::max(most, n);
    }
    Grid grid = one_block(most);
    grid.blocks.x = each.size;
    launch(context, grid,
           group[0].selection == Selection::kBernoulli ? draw_bernoulli_kernel<T>
                                                       : draw_systematic_kernel<T>,
           each);
  });
}

void compute(Context& context, const DrawEcho& args) {
  VCAS_CHECK(args.kept.elements() + args.item.elements() <= args.items,
             std::to_string(args.item.elements()) + " echoes of " +
                 std::to_string(args.items - args.kept.elements()) + " items");
  launch(context, one_block(args.items), draw_echo_kernel, args.item.ptr<std::int32_t>(),
         count_of(args.item), scratch<std::uint64_t>(context, args.items), args.items,
         args.kept.ptr<std::int32_t>(), count_of(args.kept), args.id.ptr<std::int32_t>(),
         step_key(args));
}

void compute(Context& context, const Group<NarrowRows>& group) {
  with_statistics_type(group[0].kept_scale.dtype, [&](auto type) {
    using T = decltype(type);
    Several<Narrowing<T>> each;
    int most = 0;
    for (const NarrowRows& args : group) {
      const int n = count_of(args.kept);
      each.add(
          {{args.item.ptr<std::int32_t>(), args.scale.ptr<T>(), args.offsets.ptr<std::int64_t>(),
            args.row.ptr<std::int32_t>(), args.source_row.ptr<std::int32_t>(), args.row.elements()},
           args.kept.ptr<std::int32_t>(),
           args.kept_scale.ptr<T>(),
           args.echo.ptr<std::int32_t>(),
           {args.old_item.ptr<std::int32_t>(), args.old_scale.ptr<T>(),
            args.old_offsets.ptr<std::int64_t>(), args.old_row.ptr<std::int32_t>()},
           n,
           count_of(args.echo)});
      most = std::max(most, n);
    }
    Grid grid = one_block(std::int64_t{kWarp} * most);
    grid.blocks.x = each.size;
    launch(context, grid, narrow_rows_kernel<T>, each);
  });
}

void compute(Context& context, const GatherScaledRows& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr std::int64_t kSlices = 16;
    with_aligned<T>({&args.y, &args.x}, [&](auto aligned) {
      launch(context, {extent(args.scale.elements() + 1, kSlices), extent(kThreads)},
             gather_scaled_rows_kernel<T, aligned>, args.y.ptr<T>(), args.y_norm.ptr<Compute<T>>(),
             args.x.ptr<T>(), args.source_row.ptr<std::int32_t>(), args.offsets.ptr<std::int64_t>(),
             args.scale.ptr<Compute<T>>(), args.y.rows(), width_of(args.y));
    });
  });
}

}  // namespace vcas::VCAS_DEVICE
