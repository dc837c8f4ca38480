// Scores, keep probabilities, draws, and the rows they keep.
#pragma once

#include <climits>

#include "kernels/device/draws.cuh"
#include "kernels/device/scores.cuh"
#include "kernels/device/write_row.cuh"

namespace vcas::VCAS_DEVICE {

template <class T>
struct NarrowedRows {
  std::int32_t* item;
  T* scale;
  std::int64_t* offsets;
  std::int32_t* row;
  std::int32_t* source_row;
  T* row_scale;
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

// The items and where each begins, by a scan of their lengths. Echoes have as many rows as the
// first item.
template <class T>
__device__ void narrow_items(const Narrowing<T>& work) {
  const auto& out = work.out;
  const auto& old = work.old;
  const auto *kept = work.kept, *echo = work.echo;
  const int n = work.kept_items, echoes = work.echoes;
  std::int64_t rows = 0;
  in_rounds(n, [&](int i, bool inside) {
    std::int64_t length = 0;
    if (inside) {
      const std::int32_t from = kept[i];
      length = old.offsets[from + 1] - old.offsets[from];
      out.item[i] = old.item ? old.item[from] : from;
      out.scale[i] = old.scale ? work.kept_scale[i] * old.scale[from] : work.kept_scale[i];
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
}

// Rows [begin, end) of the result are those from `first` on: with kOld of the old rows, which
// count `scale` times, else of the full batch. By warp `own` of `warps`.
template <bool kOld, class T>
__device__ void narrow_rows_of_item(const Narrowing<T>& work, std::int64_t begin, std::int64_t end,
                                    std::int64_t first, T scale, unsigned own, unsigned warps) {
  constexpr int kAtOnce = 4;  // on their way together
  const std::int64_t step = std::int64_t{warps} * kWarp;
  for (std::int64_t r = begin + own * kWarp + lane_of_thread(); r < end; r += kAtOnce * step) {
    std::int32_t row[kAtOnce] = {};
    VCAS_UNROLL
    for (int n = 0; n < kAtOnce; ++n)
      if (const std::int64_t from = first + r + n * step - begin; r + n * step < end)
        row[n] = static_cast<std::int32_t>(kOld ? at(work.old.row, from) : from);
    VCAS_UNROLL
    for (int n = 0; n < kAtOnce; ++n) {
      const std::int64_t to = r + n * step;
      if (to >= end) continue;
      work.out.row[to] = row[n];
      if (!kOld) continue;
      work.out.source_row[to] = static_cast<std::int32_t>(first + to - begin);
      work.out.row_scale[to] = scale;
    }
  }
}
// The rows behind the last item are zeros.
template <class T>
__device__ void clear_rows(const NarrowedRows<T>& out, std::int64_t begin, unsigned own,
                           unsigned warps) {
  const std::int64_t step = std::int64_t{warps} * kWarp;
  for (std::int64_t r = begin + own * kWarp + lane_of_thread(); r < out.capacity; r += step) {
    out.row[r] = out.source_row[r] = 0;
    out.row_scale[r] = 0;
  }
}

// The rows of those items, by warp `own` of `warps`: a warp an item, or several in turn.
template <class T>
__device__ void narrow_rows(const Narrowing<T>& work, unsigned own, unsigned warps) {
  const auto& out = work.out;
  const auto& old = work.old;
  const int n = work.kept_items, echoes = work.echoes;
  const unsigned items = static_cast<unsigned>(n + echoes) + 1;
  const unsigned slices = max(warps / items, 1u);
  const std::int64_t length = echoes > 0 ? old.offsets[1] - old.offsets[0] : 0;
  for (; own < items * slices; own += warps) {
    const auto i = static_cast<int>(own / slices);
    const unsigned slice = own % slices;
    const std::int64_t begin = out.offsets[i];
    if (i == n + echoes)
      clear_rows(out, begin, slice, slices);
    else if (i < n)
      narrow_rows_of_item<true>(work, begin, out.offsets[i + 1], old.offsets[work.kept[i]],
                                work.kept_scale[i], slice, slices);
    else
      narrow_rows_of_item<false>(work, begin, out.offsets[i + 1], work.echo[i - n] * length, T(1),
                                 slice, slices);
  }
}

// Items without echoes, and `with_rows` their rows, by warp `own` of `warps`. Each finds by itself
// where the items begin, so that none waits for another.
template <class T>
__device__ void narrow_few(const Narrowing<T>& work, const FewCandidates<T>& few, bool with_rows,
                           unsigned own, unsigned warps) {
  const auto& out = work.out;
  const auto& old = work.old;
  std::int32_t rows = 0;
  VCAS_NO_UNROLL
  for (int first = 0; first < work.kept_items; first += kWarp) {
    const int i = first + lane_of_thread();
    const bool inside = i < work.kept_items;
    std::int32_t source = 0, length = 0;
    if (inside) {
      const std::int32_t from = few.kept[i];
      source = static_cast<std::int32_t>(old.offsets[from]);
      length = static_cast<std::int32_t>(old.offsets[from + 1]) - source;
      if (own == 0) {
        out.item[i] = old.item ? old.item[from] : from;
        out.scale[i] = old.scale ? few.scale[i] * old.scale[from] : few.scale[i];
      }
    }
    const Scan<std::int32_t> place = WarpTeam::scan(length, 0, Plus{});
    const std::int32_t begin = rows + place.exclusive;
    if (inside && own == 0) out.offsets[i] = begin;
    rows += place.total;
    VCAS_KERNEL_CHECK(rows <= out.capacity, "kept rows exceed the capacity");
    if (!with_rows) continue;
    const auto items = static_cast<unsigned>(min(work.kept_items - first, kWarp));
    const unsigned slices = max(warps / items, 1u);
    for (unsigned item = own / slices; item < items; item += warps) {
      const auto of_item = [&](std::int32_t value) {
        return __shfl_sync(kAllLanes, value, static_cast<int>(item));
      };
      const std::int32_t to = of_item(begin), end = to + of_item(length);
      narrow_rows_of_item<true>(work, to, end, of_item(source),
                                few.scale[first + static_cast<int>(item)], own % slices, slices);
    }
  }
  if (own == 0 && lane_of_thread() == 0) out.offsets[work.kept_items] = rows;
  if (with_rows) clear_rows(out, rows, own, warps);
}

// ---- kernels ----

template <class T>
__global__ void row_score_kernel(const __grid_constant__ Several<ScoredRows<T>> group) {
  const ScoredRows<T>& of = group.each[blockIdx.y];
  if (of.has_norms())
    score_row_by_norms(of, blockIdx.x * std::int64_t{kThreads} + threadIdx.x);
  else
    score_row(of, row_of_warp());
}

// Blocks (slices of items): the last one of an item adds them up.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kMostInBlock)
    item_norm_kernel(ScoredItems<T> of, unsigned* count) {
  square_slice<kAligned>(of);
  const unsigned n = blockIdx.x / of.slices;
  if (ends_last(count + n, of.slices) && threadIdx.x == 0) norm_of_slices(of, n);
}

template <class T>
__global__ void __launch_bounds__(kMostInBlock)
    keep_probability_kernel(T* prob, double* variance, const T* score, Candidates of) {
  const double own_variance =
      keep_probability<BlockTeam>(prob, score, of.count(), of.budget_of_all());
  if (!variance) return;
  const double sum = block_sum(own_variance);
  if (threadIdx.x == 0) *variance = sum;
}

template <class T, Selection kSelection>
__global__ void __launch_bounds__(kMostInBlock, 1)
    draw_kernel(const __grid_constant__ Several<Drawing<T>> group) {
  draw_by<kSelection>(group.each[blockIdx.x]);
}

template <class T>
__global__ void __launch_bounds__(kMostInBlock)
    narrow_items_kernel(const __grid_constant__ Several<Narrowing<T>> group) {
  narrow_items(group.each[blockIdx.x]);
}

// Blocks (some rows, one of the group).
template <class T>
__global__ void narrow_rows_kernel(const __grid_constant__ Several<Narrowing<T>> group) {
  const unsigned in_block = kThreads / kWarp;
  narrow_rows(group.each[blockIdx.y],
              blockIdx.x * in_block + static_cast<unsigned>(warp_of_thread()),
              gridDim.x * in_block);
}

// Blocks (some rows at a time, one of the group): the last one to end draws. A block fills a
// multiprocessor, so it takes as many rows as there are for it.
template <class T, Selection kSelection>
__global__ void __launch_bounds__(kMostInBlock, 1)
    draw_rows_kernel(const __grid_constant__ Several<ScoredRows<T>> scores,
                     const __grid_constant__ Several<Drawing<Compute<T>>> draws, unsigned* count) {
  const ScoredRows<T>& of = scores.each[blockIdx.y];
  constexpr std::int64_t kRows = kMostInBlock / kWarp;
  if (of.has_norms())
    for_each_element(of.rows, [&](std::int64_t r) { score_row_by_norms(of, r); });
  else
    for (std::int64_t r = blockIdx.x * kRows + warp_of_thread(); r < of.rows;
         r += gridDim.x * kRows)
      score_row(of, r);
  if (ends_last(count + blockIdx.y, gridDim.x)) draw_by<kSelection>(draws.each[blockIdx.y]);
}

// Blocks (slices of items). The last to end draws and makes the row sets, without their rows if
// these are many. One warp draws from few items.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kMostInBlock)
    draw_items_kernel(ScoredItems<T> items, Drawing<Compute<T>> draw,
                      const __grid_constant__ Several<Narrowing<Compute<T>>> layouts,
                      bool many_rows, unsigned* count) {
  square_slice<kAligned>(items);
  if (!ends_last(count, gridDim.x)) return;
  VCAS_SHARED(FewCandidates<Compute<T>>, few);
  VCAS_SHARED(float, drawn);
  const int n = static_cast<int>(gridDim.x / items.slices);
  const bool of_warp = n <= kMostOfWarp;
  for_each_candidate(n, [&](int i) {
    const Compute<T> score = norm_of_slices(items, i);
    if (of_warp) few.score[i] = score;
  });
  // The last warp has the fewest items.
  if (threadIdx.x == blockDim.x - 1) drawn = uniform_of(draw.key.address());
  __syncthreads();  // scores are written
  const auto uniform = [&] { return drawn; };
  if (!of_warp)
    draw_systematic_by<BlockTeam>(draw, uniform);
  else if (threadIdx.x < kWarp)
    draw_few(draw, few, uniform);
  __syncthreads();  // what was kept is
  // Warps share the layouts.
  const unsigned warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const unsigned each = max(warps / max(layouts.size, 1u), 1u);
  const auto for_each_layout = [&](const auto& f) {
    VCAS_NO_UNROLL
    for (unsigned i = warp / each; i < layouts.size; i += warps / each)
      f(layouts.each[i], warp % each);
  };
  if (of_warp)
    return for_each_layout([&](const Narrowing<Compute<T>>& work, unsigned own) {
      narrow_few(work, few, !many_rows, own, each);
    });
  VCAS_NO_UNROLL
  for (unsigned i = 0; i < layouts.size; ++i) narrow_items(layouts.each[i]);
  if (many_rows) return;
  __syncthreads();  // offsets are
  for_each_layout(
      [&](const Narrowing<Compute<T>>& work, unsigned own) { narrow_rows(work, own, each); });
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

template <class T, bool kAligned>
__global__ void gather_scaled_rows_kernel(T* y, Compute<T>* y_norm, const T* x,
                                          const std::int32_t* source_row,
                                          const Compute<T>* row_scale, std::int64_t rows,
                                          int width) {
  const std::int64_t r = row_of_writer();
  const bool inside = r < rows;
  const T* const source = x + (inside ? std::int64_t{source_row[r]} * width : 0);
  const Compute<T> scale = inside ? row_scale[r] : Compute<T>(0);
  const auto values = [&](int c) {
    auto of = load_neighbours<kAligned>(source, c, width);
    for (Compute<T>& value : of.value) value = scale * value;
    return of;
  };
  write_row<kAligned>(y, y_norm, r, width, values, inside);
}

// ---- host ----

// How many candidates there are; their indices are i32.
inline int count_of(const Tensor& tensor) {
  VCAS_CHECK(tensor.elements() <= INT_MAX - kMostInBlock,
             "a draw from " + std::to_string(tensor.elements()) + " candidates");
  return static_cast<int>(tensor.elements());
}

template <class T>
ScoredRows<T> scored_rows(const RowScore& args) {
  return {
      args.score.ptr<Compute<T>>(),
      {args.dy.ptr<T>(), width_of(args.dy), args.dy_norm.ptr<Compute<T>>(), width_of(args.dy_norm)},
      {args.x_full.ptr<T>(), width_of(args.x_full), args.x_norm_full.ptr<Compute<T>>(),
       width_of(args.x_norm_full)},
      args.row.ptr<std::int32_t>(),
      args.filled.ptr<std::int64_t>(),
      args.score.elements(),
      args.patches};
}

// Slices of items depend on shapes alone, as they decide the bits of norms. There may be few items.
inline unsigned slices_of_items(const ItemNorm& args) {
  constexpr std::int64_t kOfSlice = 4 * kNeighbours * kMostInBlock, kMostSlices = 32;
  const std::int64_t items = std::max<std::int64_t>(args.norm.elements(), 1);
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(ceil_div(args.x.elements(), items * kOfSlice), 1, kMostSlices));
}

template <class T>
ScoredItems<T> scored_items(Context& context, const ItemNorm& args) {
  const unsigned slices = slices_of_items(args);
  return {args.norm.ptr<Compute<T>>(),
          args.x.ptr<T>(),
          args.offsets.ptr<std::int64_t>(),
          args.tokens.ptr<std::int64_t>(),
          args.x.width(),
          slices,
          scratch<double>(context, args.norm.elements() * slices)};
}

inline Grid grid_of_items(const ItemNorm& args) {
  const std::int64_t blocks = args.norm.elements() * slices_of_items(args);
  Grid grid =
      one_block(ceil_div(args.x.elements(), kNeighbours * std::max<std::int64_t>(blocks, 1)));
  grid.blocks.x = static_cast<unsigned>(blocks);
  return grid;
}

// f(whether the rows lie on packs), as a constant.
template <class F>
void with_packs(const Tensor& x, const F& f) {
  if (lie_on_packs(x.data, x.width(), x.width())) return f(std::true_type{});
  f(std::false_type{});
}

template <class T>
Drawing<T> drawing(const Draw& args) {
  return {{args.kept.ptr<std::int32_t>(), args.scale.ptr<T>(), args.count.ptr<std::int32_t>()},
          count_of(args.kept),
          args.prob.ptr<T>(),
          args.score.ptr<T>(),
          args.id.ptr<std::int32_t>(),
          {args.filled.ptr<std::int64_t>(), count_of(args.score), args.budget,
           args.selection == Selection::kSystematic},
          step_key(args)};
}

// All of a group, by one selection.
template <class T>
Several<Drawing<T>> drawings(const Group<Draw>& group) {
  Several<Drawing<T>> each;
  for (const Draw& args : group) {
    VCAS_CHECK(args.selection == group[0].selection, "draws of one group by two selections");
    each.add(drawing<T>(args));
  }
  return each;
}

// f(the selection of a group), as a constant.
template <class F>
void with_selection(const Group<Draw>& group, const F& f) {
  if (group[0].selection == Selection::kBernoulli)
    return f(std::integral_constant<Selection, Selection::kBernoulli>{});
  f(std::integral_constant<Selection, Selection::kSystematic>{});
}

template <class T>
Several<Narrowing<T>> narrowings(const Group<NarrowRows>& group) {
  Several<Narrowing<T>> each;
  for (const NarrowRows& args : group)
    each.add({{args.item.ptr<std::int32_t>(), args.scale.ptr<T>(), args.offsets.ptr<std::int64_t>(),
               args.row.ptr<std::int32_t>(), args.source_row.ptr<std::int32_t>(),
               args.row_scale.ptr<T>(), args.row.elements()},
              args.kept.ptr<std::int32_t>(),
              args.kept_scale.ptr<T>(),
              args.echo.ptr<std::int32_t>(),
              {args.old_item.ptr<std::int32_t>(), args.old_scale.ptr<T>(),
               args.old_offsets.ptr<std::int64_t>(), args.old_row.ptr<std::int32_t>()},
              count_of(args.kept),
              count_of(args.echo)});
  return each;
}

// `size` of the largest of a group.
template <class Args, class Size>
std::int64_t largest_of(const Group<Args>& group, const Size& size) {
  std::int64_t most = 0;
  for (const Args& args : group) most = std::max<std::int64_t>(most, size(args));
  return most;
}
inline std::int64_t most_rows(const Group<RowScore>& group) {
  return largest_of(group, [](const RowScore& args) { return args.score.elements(); });
}

// How many rows a block of so many threads scores at once.
template <class T>
std::int64_t rows_at_once(const Several<ScoredRows<T>>& group, int threads) {
  const bool by_threads = std::all_of(group.each, group.each + group.size,
                                      [](const ScoredRows<T>& of) { return of.has_norms(); });
  return by_threads ? threads : threads / kWarp;
}

inline std::int64_t most_rows(const Group<NarrowRows>& group) {
  return largest_of(group, [](const NarrowRows& args) { return args.row.elements(); });
}

template <class T>
void fill_narrowed(Context& context, const Group<NarrowRows>& group) {
  const Several<Narrowing<T>> each = narrowings<T>(group);
  Grid grid = grid_over(context, most_rows(group));
  grid.blocks.y = each.size;
  launch(context, grid, narrow_rows_kernel<T>, each);
}

void compute(Context& context, const Group<RowScore>& group) {
  with_type(group[0].dy.dtype, [&](auto type) {
    using T = decltype(type);
    Several<ScoredRows<T>> each;
    for (const RowScore& args : group) each.add(scored_rows<T>(args));
    const std::int64_t blocks = ceil_div(most_rows(group), rows_at_once(each, kThreads));
    launch(context, {extent(blocks, each.size), extent(kThreads)}, row_score_kernel<T>, each);
  });
}

void compute(Context& context, const ItemNorm& args) {
  with_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_packs(args.x, [&](auto aligned) {
      launch(context, grid_of_items(args), item_norm_kernel<T, aligned>,
             scored_items<T>(context, args),
             context.counts(static_cast<std::size_t>(args.norm.elements())));
    });
  });
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
    const Several<Drawing<T>> each = drawings<T>(group);
    Grid grid =
        one_block(largest_of(group, [](const Draw& args) { return args.score.elements(); }));
    grid.blocks.x = each.size;
    with_selection(group,
                   [&](auto selection) { launch(context, grid, draw_kernel<T, selection>, each); });
  });
}

void compute(Context& context, const DrawRows& args) {
  with_type(args.scores[0].dy.dtype, [&](auto type) {
    using T = decltype(type);
    Several<ScoredRows<T>> scores;
    for (const RowScore& score : args.scores) scores.add(scored_rows<T>(score));
    const std::int64_t blocks = std::clamp<std::int64_t>(
        ceil_div(most_rows(args.scores), rows_at_once(scores, kMostInBlock)), 1,
        context.multiprocessors());
    with_selection(args.draws, [&](auto selection) {
      launch(context, {extent(blocks, scores.size), extent(kMostInBlock)},
             draw_rows_kernel<T, selection>, scores, drawings<Compute<T>>(args.draws),
             context.counts(scores.size));
    });
  });
}

void compute(Context& context, const DrawItems& args) {
  with_type(args.norm.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_packs(args.norm.x, [&](auto aligned) {
      launch(context, grid_of_items(args.norm), draw_items_kernel<T, aligned>,
             scored_items<T>(context, args.norm), drawing<Compute<T>>(args.draw),
             narrowings<Compute<T>>(args.rows), args.many_rows(), context.counts(1));
    });
    if (args.many_rows()) fill_narrowed<Compute<T>>(context, args.rows);
  });
}

void compute(Context& context, const DrawEcho& args) {
  launch(context, one_block(args.items), draw_echo_kernel, args.item.ptr<std::int32_t>(),
         count_of(args.item), scratch<std::uint64_t>(context, args.items), args.items,
         args.kept.ptr<std::int32_t>(), count_of(args.kept), args.id.ptr<std::int32_t>(),
         step_key(args));
}

void compute(Context& context, const Group<NarrowRows>& group) {
  with_statistics_type(group[0].kept_scale.dtype, [&](auto type) {
    using T = decltype(type);
    const Several<Narrowing<T>> each = narrowings<T>(group);
    Grid grid =
        one_block(largest_of(group, [](const NarrowRows& args) { return args.kept.elements(); }));
    grid.blocks.x = each.size;
    launch(context, grid, narrow_items_kernel<T>, each);
    fill_narrowed<T>(context, group);
  });
}

void compute(Context& context, const GatherScaledRows& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    with_aligned<T>({&args.y, &args.x}, [&](auto aligned) {
      launch(context, grid_of_writers(args.y), gather_scaled_rows_kernel<T, aligned>,
             args.y.ptr<T>(), args.y_norm.ptr<Compute<T>>(), args.x.ptr<T>(),
             args.source_row.ptr<std::int32_t>(), args.row_scale.ptr<Compute<T>>(), args.y.rows(),
             width_of(args.y));
    });
  });
}

}  // namespace vcas::VCAS_DEVICE
