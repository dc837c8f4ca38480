// Between images, tokens and rows: patches, embeddings, pooling, the loss.
#pragma once

#include "kernels/device/math.cuh"
#include "kernels/device/neighbours.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

struct ImageShape {
  std::int64_t channels, height, width, patch;
};

// One thread an entry of y.
template <class T>
__global__ void patch_extract_kernel(T* y, const float* image, const std::int32_t* item,
                                     ImageShape shape, std::int64_t n) {
  const std::int64_t patch = shape.patch, across = shape.width / patch;
  const std::int64_t down = shape.height / patch, width = shape.channels * patch * patch;
  for_each_element(n, [&](std::int64_t i) {
    const std::int64_t column = i % width, place = i / width % (down * across);
    const std::int64_t from = at(item, i / width / (down * across));
    const std::int64_t channel = column / (patch * patch);
    const std::int64_t line = place / across * patch + column / patch % patch;
    const std::int64_t pixel = place % across * patch + column % patch;
    y[i] = static_cast<T>(
        image[((from * shape.channels + channel) * shape.height + line) * shape.width + pixel]);
  });
}

struct TokenShape {
  std::int64_t items, tokens, width, skipped;  // skipped: 1 with a cls row, else 0
};

template <class T>
__global__ void patch_tokens_forward_kernel(T* y, const T* patches, const T* cls, const T* position,
                                            TokenShape shape) {
  const std::int64_t per_item = shape.tokens * shape.width;
  for_each_element(shape.items * per_item, [&](std::int64_t i) {
    const std::int64_t n = i / per_item, place = i % per_item;
    const std::int64_t of_patches = place - shape.skipped * shape.width;
    y[i] = static_cast<T>(
        position[place] +
        (of_patches < 0 ? cls[place]
                        : patches[n * (per_item - shape.skipped * shape.width) + of_patches]));
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

template <class T>
__global__ void pool_backward_kernel(T* dx, const T* dy, const std::int64_t* offsets,
                                     std::int64_t width, bool mean) {
  const std::int64_t n = blockIdx.x, first = offsets[n], rows = offsets[n + 1] - first;
  for (std::int64_t i = threadIdx.x; i < rows * width; i += blockDim.x) {
    using C = Compute<T>;
    const C d = dy[n * width + i % width];
    dx[first * width + i] = static_cast<T>(mean ? d / static_cast<C>(rows) : i < width ? d : C(0));
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

// One block an item, whose rows are added to rows of its own; one thread a column, in ascending
// order of rows.
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

// Weights of a loss: null stands for 1.
template <class C>
__device__ C weight_of(const float* weight, std::int64_t n) {
  return weight ? static_cast<C>(weight[n]) : C(1);
}

template <class T>
__global__ void squared_error_forward_kernel(Compute<T>* loss, const T* prediction,
                                             const float* target, const float* weight,
                                             std::int64_t n) {
  using C = Compute<T>;
  for_each_element(n, [&](std::int64_t i) {
    const C error = prediction[i] - static_cast<C>(target[i]);
    loss[i] = weight_of<C>(weight, i) * error * error;
  });
}

template <class T>
__global__ void squared_error_backward_kernel(T* dprediction, const T* prediction,
                                              const float* target, const float* weight,
                                              Compute<T> slope, std::int64_t n) {
  using C = Compute<T>;
  for_each_element(n, [&](std::int64_t i) {
    dprediction[i] = static_cast<T>(slope * weight_of<C>(weight, i) *
                                    (prediction[i] - static_cast<C>(target[i])));
  });
}

template <class T>
struct SoftmaxRow {
  T largest, sum;  // sum of exp(logit - largest)
};

template <class T>
__device__ SoftmaxRow<Compute<T>> softmax_row(const T* x, std::int64_t n) {
  using C = Compute<T>;
  C largest = x[0];
  for (std::int64_t i = lane_of_thread(); i < n; i += kWarp) largest = max(largest, C(x[i]));
  largest = warp_reduce(largest, Maximum{});
  C sum = 0;
  for (std::int64_t i = lane_of_thread(); i < n; i += kWarp) sum += exponential(x[i] - largest);
  return {largest, warp_sum(sum)};
}

// One warp a row of logits.
template <class T>
__global__ void cross_entropy_forward_kernel(Compute<T>* loss, std::int32_t* correct,
                                             const T* logits, const std::int32_t* labels,
                                             const float* weight, Compute<T> smoothing,
                                             std::int64_t rows, std::int64_t classes) {
  using C = Compute<T>;
  const std::int64_t r = row_of_warp();
  if (r >= rows) return;
  const T* x = logits + r * classes;
  const SoftmaxRow<C> softmax = softmax_row(x, classes);
  // -sum q log softmax, with the logits taken relative to the largest: sum q = 1.
  C total = 0;
  std::int64_t best = classes;  // the first of the largest logits
  for (std::int64_t i = lane_of_thread(); i < classes; i += kWarp) {
    total += x[i] - softmax.largest;
    if (x[i] == softmax.largest) best = min(best, i);
  }
  total = warp_sum(total);
  best = -warp_reduce(-best, Maximum{});
  if (lane_of_thread() > 0) return;
  const C chosen = x[labels[r]] - softmax.largest;
  loss[r] = weight_of<C>(weight, r) * (natural_log(softmax.sum) - (C(1) - smoothing) * chosen -
                                       smoothing * (total / static_cast<C>(classes)));
  correct[r] = best == labels[r];
}

template <class T>
__global__ void cross_entropy_backward_kernel(T* dlogits, const T* logits,
                                              const std::int32_t* labels, const float* weight,
                                              Compute<T> smoothing, Compute<T> scale,
                                              std::int64_t rows, std::int64_t classes) {
  using C = Compute<T>;
  const std::int64_t r = row_of_warp();
  if (r >= rows) return;
  const T* x = logits + r * classes;
  const SoftmaxRow<C> softmax = softmax_row(x, classes);
  const C spread = smoothing / static_cast<C>(classes);
  const C slope = scale * weight_of<C>(weight, r);
  for (std::int64_t i = lane_of_thread(); i < classes; i += kWarp) {
    const C target = (i == labels[r] ? C(1) - smoothing : C(0)) + spread;
    dlogits[r * classes + i] =
        static_cast<T>(slope * (exponential(x[i] - softmax.largest) / softmax.sum - target));
  }
}

// ---- host ----

void compute(Context& context, const PatchExtract& args) {
  const ImageShape shape{args.image.shape[1], args.image.shape[2], args.image.shape[3], args.patch};
  const std::int64_t items = args.item ? args.item.elements() : args.image.shape[0];
  const std::int64_t patches = (shape.height / args.patch) * (shape.width / args.patch);
  VCAS_CHECK(args.y.elements() == items * patches * shape.channels * args.patch * args.patch,
             "patches " + args.y.shape.text() + " of images " + args.image.shape.text());
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.y.elements();
    launch(context, grid_over(context, n), patch_extract_kernel<T>, args.y.ptr<T>(),
           args.image.ptr<float>(), args.item.ptr<std::int32_t>(), shape, n);
  });
}

void compute(Context& context, const PatchTokensForward& args) {
  const TokenShape shape{args.y.shape[0], args.y.shape[1], args.y.width(), args.cls ? 1 : 0};
  VCAS_CHECK(shape.tokens == args.patches.shape[1] + shape.skipped,
             "tokens " + args.y.shape.text() + " of patches " + args.patches.shape.text());
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    launch(context, grid_over(context, args.y.elements()), patch_tokens_forward_kernel<T>,
           args.y.ptr<T>(), args.patches.ptr<T>(), args.cls.ptr<T>(), args.position.ptr<T>(),
           shape);
  });
}

void compute(Context& context, const PatchTokensBackward& args) {
  const std::int64_t skipped = args.dy.shape[1] - args.dpatches.shape[1];
  const TokenShape shape{args.dy.shape[0], args.dy.shape[1], args.dy.width(), skipped};
  VCAS_CHECK(skipped == 0 || skipped == 1,
             "patches " + args.dpatches.shape.text() + " of tokens " + args.dy.shape.text());
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
    launch(context, {extent(args.dy.rows()), extent(kThreads)}, pool_backward_kernel<T>,
           args.dx.ptr<T>(), args.dy.ptr<T>(), args.offsets.ptr<std::int64_t>(), args.dx.width(),
           args.pooling == Pooling::kMean);
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

void compute(Context& context, const EmbeddingBackward& args) {
  const std::int64_t rows = args.dy.rows(), width = args.dy.width();
  if (rows == 0) return;
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

void compute(Context& context, const SquaredErrorForward& args) {
  with_type(args.prediction.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.loss.elements();
    launch(context, grid_over(context, n), squared_error_forward_kernel<T>,
           args.loss.ptr<Compute<T>>(), args.prediction.ptr<T>(), args.target.ptr<float>(),
           args.weight.ptr<float>(), n);
  });
}

void compute(Context& context, const SquaredErrorBackward& args) {
  with_type(args.prediction.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.dprediction.elements();
    launch(context, grid_over(context, n), squared_error_backward_kernel<T>,
           args.dprediction.ptr<T>(), args.prediction.ptr<T>(), args.target.ptr<float>(),
           args.weight.ptr<float>(), static_cast<Compute<T>>(2 * args.scale), n);
  });
}

void compute(Context& context, const CrossEntropyForward& args) {
  with_type(args.logits.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.logits.rows();
    launch(context, grid_of_rows(rows), cross_entropy_forward_kernel<T>,
           args.loss.ptr<Compute<T>>(), args.correct.ptr<std::int32_t>(), args.logits.ptr<T>(),
           args.labels.ptr<std::int32_t>(), args.weight.ptr<float>(),
           static_cast<Compute<T>>(args.smoothing), rows, args.logits.width());
  });
}

void compute(Context& context, const CrossEntropyBackward& args) {
  with_type(args.dlogits.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.logits.rows();
    launch(context, grid_of_rows(rows), cross_entropy_backward_kernel<T>, args.dlogits.ptr<T>(),
           args.logits.ptr<T>(), args.labels.ptr<std::int32_t>(), args.weight.ptr<float>(),
           static_cast<Compute<T>>(args.smoothing), static_cast<Compute<T>>(args.scale), rows,
           args.logits.width());
  });
}

}  // namespace vcas::VCAS_DEVICE
