// Between images, tokens and rows: patches, embeddings, pooling.
#pragma once

#include "kernels/device/column_sum.cuh"
#include "kernels/device/math.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/write_row.cuh"

namespace vcas::VCAS_DEVICE {

struct ImageShape {
  int channels, height, width, patch;
};

// A block a patch, or several small ones. With kAligned four neighbours lie side by side in the
// image too. Numbers of 64 bits are not divided: that would be a call.
template <class T, bool kAligned>
__global__ void patch_extract_kernel(T* y, const float* image, const std::int32_t* item,
                                     ImageShape shape, std::int64_t rows) {
  const std::int64_t r = row_of_writer();
  const int own = static_cast<int>(min(r, rows - 1));
  const int patch = shape.patch, across = shape.width / patch;
  const int patches = shape.height / patch * across, width = shape.channels * patch * patch;
  const int n = own / patches, place = own % patches;
  const float* const first = image + at(item, n) * (shape.channels * shape.height) * shape.width +
                             place / across * patch * shape.width + place % across * patch;
  const auto pixel = [&](int c) {
    const int line = c / (patch * patch) * shape.height + c / patch % patch;
    return first + std::int64_t{line} * shape.width + c % patch;
  };
  const auto values = [&](int c) {
    if constexpr (kAligned) {
      return unpack(load_aligned(pixel(c)));
    } else {
      Neighbours<Compute<T>> out{};
      for (int i = 0; i < kNeighbours && c + i < width; ++i) out.value[i] = *pixel(c + i);
      return out;
    }
  };
  write_row<kAligned>(y, nullptr, r, width, values, r < rows);
}

struct TokenShape {
  std::int64_t items, tokens, width, skipped;  // skipped: 1 with a cls row, else 0
};

// One block a token.
template <class T, bool kAligned>
__global__ void patch_tokens_forward_kernel(T* y, const T* patches, const T* cls, const T* position,
                                            int tokens, int skipped, int width) {
  const int n = static_cast<int>(blockIdx.x) / tokens;
  const int place = static_cast<int>(blockIdx.x) % tokens;
  const std::int64_t of_patches = std::int64_t{n} * (tokens - skipped) + place - skipped;
  const T* const x = place < skipped ? cls : patches + of_patches * width;
  write_row<kAligned>(y, nullptr, blockIdx.x, width, [&](int c) {
    auto of = load_neighbours<kAligned>(position + std::int64_t{place} * width, c, width);
    const auto added = load_neighbours<kAligned>(x, c, width);
    for (int i = 0; i < kNeighbours; ++i) of.value[i] += added.value[i];
    return of;
  });
}

// One thread an entry of dposition, which adds up the items in order.
template <class T>
__global__ void patch_tokens_backward_kernel(T* dpatches, Compute<T>* dcls, Compute<T>* dposition,
                                             const T* dy, TokenShape shape) {
  const std::int64_t per_item = shape.tokens * shape.width;
  for_each_element(per_item, [&](std::int64_t place) {
    const std::int64_t of_patches = place - shape.skipped * shape.width;
    Compute<T> sum = 0;
    for (std::int64_t n = 0; n < shape.items; ++n) {
      const T d = dy[n * per_item + place];
      sum += d;
      if (of_patches >= 0) dpatches[n * (per_item - shape.skipped * shape.width) + of_patches] = d;
    }
    if (dposition) dposition[place] += sum;
    if (dcls && of_patches < 0) dcls[place] += sum;
  });
}

// Block rows are items; one thread a column.
template <class T>
__global__ void pool_forward_kernel(T* y, const T* x, const std::int64_t* offsets,
                                    std::int64_t width, bool mean) {
  const std::int64_t n = blockIdx.x, first = offsets[n], rows = mean ? offsets[n + 1] - first : 1;
  for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
    Compute<T> sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) sum += x[(first + r) * width + c];
    y[n * width + c] = static_cast<T>(sum / static_cast<Compute<T>>(rows));
  }
}

// Blocks (item, slice of its rows).
constexpr int kPoolSlices = 8;
template <class T>
__global__ void pool_backward_kernel(T* dx, const T* dy, const std::int64_t* offsets, int width,
                                     bool mean) {
  const std::int64_t n = blockIdx.x, end = offsets[n + 1];
  const std::int64_t first = offsets[n], rows = end - first;
  const int step = static_cast<int>(blockDim.x) * kNeighbours;
  for (int c = static_cast<int>(threadIdx.x) * kNeighbours; c < width; c += step) {
    auto d = load_neighbours(dy + n * width, c, width);
    for (int i = 0; mean && i < kNeighbours; ++i) d.value[i] /= static_cast<Compute<T>>(rows);
    for (std::int64_t r = first + blockIdx.y; r < end; r += kPoolSlices)
      store_neighbours(dx + r * width, c, width, mean || r == first ? d : decltype(d){});
  }
}

// One warp a row; entries lie side by side in both.
template <class T>
__global__ void embedding_forward_kernel(T* y, const T* table, const std::int32_t* tokens,
                                         std::int64_t rows, int width) {
  const std::int64_t r = row_of_warp();
  if (r >= rows) return;
  const T* from = table + std::int64_t{tokens[r]} * width;
  for_lane_columns<0>(width, [&](int, int c) {
    store_neighbours(y + r * width, c, width, load_neighbours(from, c, width));
  });
}

// A table of few entries.
template <class T>
struct FewEntries {
  Compute<T>* dtable;
  Compute<T>* part;  // [entry, slices, width]
  unsigned* count;
  const T* dy;
  const std::int32_t* tokens_full;
  const std::int32_t* row;
  std::int64_t rows;
  int width;
};
// dtable[e] += the sum of dy[r] over the rows r of token e. Blocks (128 columns, slice of the rows,
// entry): a warp looks at 32 rows at a time, and adds those of the entry.
template <class T, bool kAligned>
__global__ void few_entries_kernel(FewEntries<T> t) {
  const std::int64_t entry = blockIdx.z, slices = gridDim.y;
  const int c = column_of_thread();
  Neighbours<Compute<T>> own{};
  for (std::int64_t first = (std::int64_t{blockIdx.y} * kRowLanes + threadIdx.y) * kWarp;
       first < t.rows; first += slices * kRowLanes * kWarp) {
    const std::int64_t r = first + lane_of_thread();
    const bool is_of_entry = r < t.rows && t.tokens_full[at(t.row, r)] == entry;
    for (unsigned left = __ballot_sync(kAllLanes, is_of_entry); left != 0;) {
      Packed<T> packed[4] = {};
      VCAS_UNROLL
      for (Packed<T>& of : packed) {
        if (left == 0) continue;
        const T* const from = t.dy + (first + __ffs(static_cast<int>(left)) - 1) * t.width;
        if (c < t.width) of = load_packed<kAligned>(from, c, t.width);
        left &= left - 1;
      }
      add_rows(own, packed);
    }
  }
  sum_over_slices<kAligned>(t.dtable + entry * t.width, t.part + entry * slices * t.width,
                            t.count + entry * gridDim.x + blockIdx.x, sum_of_warps(own), c, t.width,
                            slices, true);
}

// Rows in order of their tokens, those of a token in ascending order: its segment. Blocks (chunk of
// rows, tile of columns) add up segments, one thread a column. What a chunk has of a segment that
// goes beyond it is a part: part[chunk][0] of one that has begun before, part[chunk][1] of one that
// begins in it.
constexpr int kSegmentThreads = 128, kRowsAtOnce = 8;

struct Segments {
  const std::int32_t* token;  // of each row, ascending
  const std::int32_t* row;    // of dy
  std::int64_t rows, chunk;   // chunk: a multiple of kRowsAtOnce

  __device__ bool begins(std::int64_t i) const { return i == 0 || token[i - 1] != token[i]; }
  __device__ bool ends(std::int64_t i) const { return i + 1 == rows || token[i + 1] != token[i]; }
  __device__ std::int64_t chunk_end(std::int64_t index) const {
    return min(rows, (index + 1) * chunk);
  }
};

__global__ void token_keys_kernel(std::int32_t* key, std::int32_t* index,
                                  const std::int32_t* tokens_full, const std::int32_t* row,
                                  std::int64_t rows) {
  for_each_element(rows, [&](std::int64_t r) {
    key[r] = tokens_full[at(row, r)];
    index[r] = static_cast<std::int32_t>(r);
  });
}

template <class T>
__global__ void segment_sum_kernel(Compute<T>* dtable, Compute<T>* part, const T* dy, Segments of,
                                   std::int64_t width) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.y) * kSegmentThreads + threadIdx.x;
  if (c >= width) return;
  const std::int64_t chunk = blockIdx.x, end = of.chunk_end(chunk);
  std::int64_t begin = chunk * of.chunk;  // of the segment, as far as it lies here
  Compute<T> sum = 0;
  for (std::int64_t first = begin; first < end; first += kRowsAtOnce) {
    Compute<T> value[kRowsAtOnce];  // all on their way before the first is added
    for (int j = 0; j < kRowsAtOnce; ++j)
      value[j] = first + j < end ? Compute<T>(dy[of.row[first + j] * width + c]) : 0;
    for (int j = 0; j < kRowsAtOnce && first + j < end; ++j) {
      const std::int64_t i = first + j;
      sum += value[j];
      if (i + 1 < end && !of.ends(i)) continue;
      const bool begins = of.begins(begin);
      if (begins && of.ends(i))
        dtable[of.token[i] * width + c] += sum;
      else
        part[(chunk * 2 + begins) * width + c] = sum;
      begin = i + 1;
      sum = 0;
    }
  }
}

// The block of the chunk where a segment of several chunks begins adds its parts.
template <class T>
__global__ void segment_join_kernel(Compute<T>* dtable, const Compute<T>* part, Segments of,
                                    std::int64_t width) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.y) * kSegmentThreads + threadIdx.x;
  const std::int64_t chunk = blockIdx.x, last = of.chunk_end(chunk) - 1;
  const std::int32_t token = of.token[last];
  const std::int64_t first = chunk * of.chunk;
  if (c >= width || of.ends(last) || (of.token[first] == token && !of.begins(first))) return;
  Compute<T> sum = part[(chunk * 2 + 1) * width + c];
  for (std::int64_t next = chunk + 1;
       next * of.chunk < of.rows && of.token[next * of.chunk] == token; ++next)
    sum += part[next * 2 * width + c];
  dtable[token * width + c] += sum;
}

template <class T>
struct ScatteredRows {
  T* dx;
  const T* dy;
  const std::int32_t* index_full;
  const std::int32_t* row;
  const std::int32_t* item;
  const std::int64_t* dy_offsets;
  const std::int64_t* offsets;
  const std::int64_t* offsets_full;
};

// One block an item: the item's rows of dy are added to its own rows of dx. One thread a column
// adds them in ascending order of rows.
template <class T>
__global__ void scatter_rows_kernel(ScatteredRows<T> t, std::int64_t width) {
  const std::int64_t n = blockIdx.x;
  const std::int64_t shift = t.offsets[n] - t.offsets_full[at(t.item, n)];
  for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
    for (std::int64_t r = t.offsets[n]; r < t.offsets[n + 1]; ++r) t.dx[r * width + c] = T(0);
    for (std::int64_t p = t.dy_offsets[n]; p < t.dy_offsets[n + 1]; ++p) {
      T& out = t.dx[(shift + t.index_full[at(t.row, p)]) * width + c];
      out = static_cast<T>(out + t.dy[p * width + c]);
    }
  }
}

// ---- host ----

void compute(Context& context, const PatchExtract& args) {
  const ImageShape shape{static_cast<int>(args.image.shape[1]),
                         static_cast<int>(args.image.shape[2]),
                         static_cast<int>(args.image.shape[3]), static_cast<int>(args.patch)};
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto aligned) {
      launch(context, grid_of_writers(args.y), patch_extract_kernel<T, aligned>, args.y.ptr<T>(),
             args.image.ptr<float>(), args.item.ptr<std::int32_t>(), shape, args.y.rows());
    };
    if (args.patch % kNeighbours != 0) return run(std::false_type{});
    with_aligned<T>({&args.y, &args.image}, run);
  });
}

void compute(Context& context, const PatchTokensForward& args) {
  const std::int64_t tokens = args.y.shape[1], skipped = args.cls ? 1 : 0;
  const Tensor rows = args.y.reshaped({args.y.shape[0] * tokens, args.y.width()});
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    with_aligned<T>({&args.y, &args.patches, &args.cls, &args.position}, [&](auto aligned) {
      launch(context, one_block_a_row(rows), patch_tokens_forward_kernel<T, aligned>,
             args.y.ptr<T>(), args.patches.ptr<T>(), args.cls.ptr<T>(), args.position.ptr<T>(),
             static_cast<int>(tokens), static_cast<int>(skipped), width_of(rows));
    });
  });
}

void compute(Context& context, const PatchTokensBackward& args) {
  const std::int64_t skipped = args.dy.shape[1] - args.dpatches.shape[1];
  const TokenShape shape{args.dy.shape[0], args.dy.shape[1], args.dy.width(), skipped};
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    launch(context, grid_over(context, shape.tokens * shape.width), patch_tokens_backward_kernel<T>,
           args.dpatches.ptr<T>(), args.dcls.ptr<Compute<T>>(), args.dposition.ptr<Compute<T>>(),
           args.dy.ptr<T>(), shape);
  });
}

void compute(Context& context, const PoolForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    launch(context, {extent(args.y.rows()), extent(kThreads)}, pool_forward_kernel<T>,
           args.y.ptr<T>(), args.x.ptr<T>(), args.offsets.ptr<std::int64_t>(), args.y.width(),
           args.pooling == Pooling::kMean);
  });
}

void compute(Context& context, const PoolBackward& args) {
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    Grid grid = one_block_a_row(args.dy);
    grid.blocks.y = kPoolSlices;
    launch(context, grid, pool_backward_kernel<T>, args.dx.ptr<T>(), args.dy.ptr<T>(),
           args.offsets.ptr<std::int64_t>(), width_of(args.dx), args.pooling == Pooling::kMean);
  });
}

void compute(Context& context, const EmbeddingForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.y.rows();
    launch(context, grid_of_rows(rows), embedding_forward_kernel<T>, args.y.ptr<T>(),
           args.table.ptr<T>(), args.tokens.ptr<std::int32_t>(), rows, width_of(args.y));
  });
}

void add_to_few_entries(Context& context, const EmbeddingBackward& args) {
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr std::int64_t kBlocks = 2048;
    const std::int64_t rows = args.dy.rows(), entries = args.dtable.rows();
    const int width = width_of(args.dy);
    const std::int64_t tiles = ceil_div(width, kColumnTile);
    const std::int64_t slices =
        std::clamp<std::int64_t>(kBlocks / (tiles * entries), 1, ceil_div(rows, kRowLanes * kWarp));
    with_aligned<T>({&args.dtable, &args.dy}, [&](auto aligned) {
      launch(context, {extent(tiles, slices, entries), extent(kColumnThreads, kRowLanes)},
             few_entries_kernel<T, aligned>,
             FewEntries<T>{args.dtable.ptr<Compute<T>>(),
                           scratch<Compute<T>>(context, entries * slices * width),
                           context.counts(static_cast<std::size_t>(tiles * entries)),
                           args.dy.ptr<T>(), args.tokens_full.ptr<std::int32_t>(),
                           args.row.ptr<std::int32_t>(), rows, width});
    });
  });
}

void compute(Context& context, const EmbeddingBackward& args) {
  const std::int64_t rows = args.dy.rows(), width = args.dy.width();
  if (rows == 0 || width == 0) return;
  if (args.has_few_entries()) return add_to_few_entries(context, args);
  // As many chunks as rows in one, so that no thread adds up many more than it must.
  const std::int64_t chunk =
      ceil_div(static_cast<std::int64_t>(std::sqrt(static_cast<double>(rows))), kRowsAtOnce) *
      kRowsAtOnce;
  const std::int64_t chunks = ceil_div(rows, chunk);
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    const std::size_t row_bytes = static_cast<std::size_t>(rows) * sizeof(std::int32_t);
    const std::size_t part_bytes =
        static_cast<std::size_t>(2 * chunks * width) * sizeof(Compute<T>);
    char* const space = scratch<char>(
        context, static_cast<std::int64_t>(part_bytes + 4 * row_bytes + context.sort_bytes(rows)));
    auto* const part = reinterpret_cast<Compute<T>*>(space);
    auto* const key = reinterpret_cast<std::int32_t*>(space + part_bytes);
    std::int32_t *const index = key + rows, *const token = index + rows, *const row = token + rows;
    launch(context, grid_over(context, rows), token_keys_kernel, key, index,
           args.tokens_full.ptr<std::int32_t>(), args.row.ptr<std::int32_t>(), rows);
    context.sort({token, row}, {key, index}, rows, static_cast<std::int32_t>(args.dtable.rows()),
                 row + rows);
    const Segments segments{token, row, rows, chunk};
    const Grid grid{extent(chunks, ceil_div(width, kSegmentThreads)), extent(kSegmentThreads)};
    launch(context, grid, segment_sum_kernel<T>, args.dtable.ptr<Compute<T>>(), part,
           args.dy.ptr<T>(), segments, width);
    launch(context, grid, segment_join_kernel<T>, args.dtable.ptr<Compute<T>>(), part, segments,
           width);
  });
}

void compute(Context& context, const ScatterRows& args) {
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    launch(context, {extent(args.offsets.elements() - 1), extent(kThreads)}, scatter_rows_kernel<T>,
           ScatteredRows<T>{args.dx.ptr<T>(), args.dy.ptr<T>(), args.index_full.ptr<std::int32_t>(),
                            args.row.ptr<std::int32_t>(), args.item.ptr<std::int32_t>(),
                            args.dy_offsets.ptr<std::int64_t>(), args.offsets.ptr<std::int64_t>(),
                            args.offsets_full.ptr<std::int64_t>()},
           args.dx.width());
  });
}

}  // namespace vcas::VCAS_DEVICE
