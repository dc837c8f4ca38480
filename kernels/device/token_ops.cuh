// Between images, tokens and rows: patches, embeddings, pooling, the loss.
#pragma once

#include "kernels/device/math.cuh"
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
                                         std::int64_t rows, std::int64_t width) {
  const std::int64_t r = row_of_warp();
  if (r >= rows) return;
  const T* from = table + tokens[r] * width;
  for (std::int64_t c = lane_of_thread(); c < width; c += kWarp) y[r * width + c] = from[c];
}

constexpr int kEmbeddingThreads = 128;

// Blocks (row, tile of columns). The block of a token's first row adds all its rows, in ascending
// order, to the entry; every other block ends as soon as it finds an earlier row. Reads rows^2
// tokens at most, in all: small beside the gradients up to ten thousand rows.
template <class T>
__global__ void embedding_backward_kernel(Compute<T>* dtable, const T* dy,
                                          const std::int32_t* tokens_full, const std::int32_t* row,
                                          std::int64_t rows, std::int64_t width) {
  struct Shared {
    unsigned same[kEmbeddingThreads / kWarp];  // one bit a row of the round
  };
  VCAS_SHARED(Shared, shared);
  const std::int64_t own = blockIdx.x;
  const std::int32_t token = tokens_full[at(row, own)];
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.y) * kEmbeddingThreads + threadIdx.x;
  Compute<T> sum = 0;
  for (std::int64_t first = 0; first < rows; first += kEmbeddingThreads) {
    const std::int64_t r = first + threadIdx.x;
    const unsigned same = __ballot_sync(kAllLanes, r < rows && tokens_full[at(row, r)] == token);
    __syncthreads();  // the last round's bits have been read
    if (lane_of_thread() == 0) shared.same[warp_of_thread()] = same;
    __syncthreads();
    for (int warp = 0; warp < kEmbeddingThreads / kWarp; ++warp)
      for (unsigned bits = shared.same[warp]; bits != 0; bits &= bits - 1) {
        const std::int64_t match = first + warp * kWarp + __ffs(static_cast<int>(bits)) - 1;
        if (match < own) return;  // all threads see the same bits
        if (c < width) sum += dy[match * width + c];
      }
  }
  if (c < width) dtable[token * width + c] += sum;
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

template <class T>
__global__ void squared_error_forward_kernel(Compute<T>* loss, const T* prediction,
                                             const float* target, std::int64_t n) {
  for_each_element(n, [&](std::int64_t i) {
    const Compute<T> error = prediction[i] - static_cast<Compute<T>>(target[i]);
    loss[i] = error * error;
  });
}

template <class T>
__global__ void squared_error_backward_kernel(T* dprediction, const T* prediction,
                                              const float* target, Compute<T> slope,
                                              std::int64_t n) {
  for_each_element(n, [&](std::int64_t i) {
    dprediction[i] = static_cast<T>(slope * (prediction[i] - static_cast<Compute<T>>(target[i])));
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
                                             Compute<T> smoothing, std::int64_t rows,
                                             std::int64_t classes) {
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
  loss[r] = natural_log(softmax.sum) - (C(1) - smoothing) * chosen -
            smoothing * (total / static_cast<C>(classes));
  correct[r] = best == labels[r];
}

template <class T>
__global__ void cross_entropy_backward_kernel(T* dlogits, const T* logits,
                                              const std::int32_t* labels, Compute<T> smoothing,
                                              Compute<T> scale, std::int64_t rows,
                                              std::int64_t classes) {
  using C = Compute<T>;
  const std::int64_t r = row_of_warp();
  if (r >= rows) return;
  const T* x = logits + r * classes;
  const SoftmaxRow<C> softmax = softmax_row(x, classes);
  const C spread = smoothing / static_cast<C>(classes);
  for (std::int64_t i = lane_of_thread(); i < classes; i += kWarp) {
    const C target = (i == labels[r] ? C(1) - smoothing : C(0)) + spread;
    dlogits[r * classes + i] =
        static_cast<T>(scale * (exponential(x[i] - softmax.largest) / softmax.sum - target));
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
           args.table.ptr<T>(), args.tokens.ptr<std::int32_t>(), rows, args.y.width());
  });
}

void compute(Context& context, const EmbeddingBackward& args) {
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.dy.rows(), width = args.dy.width();
    launch(context, {extent(rows, ceil_div(width, kEmbeddingThreads)), extent(kEmbeddingThreads)},
           embedding_backward_kernel<T>, args.dtable.ptr<Compute<T>>(), args.dy.ptr<T>(),
           args.tokens_full.ptr<std::int32_t>(), args.row.ptr<std::int32_t>(), rows, width);
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
           args.loss.ptr<Compute<T>>(), args.prediction.ptr<T>(), args.target.ptr<float>(), n);
  });
}

void compute(Context& context, const SquaredErrorBackward& args) {
  with_type(args.prediction.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t n = args.dprediction.elements();
    launch(context, grid_over(context, n), squared_error_backward_kernel<T>,
           args.dprediction.ptr<T>(), args.prediction.ptr<T>(), args.target.ptr<float>(),
           static_cast<Compute<T>>(2 * args.scale), n);
  });
}

void compute(Context& context, const CrossEntropyForward& args) {
  with_type(args.logits.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.logits.rows();
    launch(context, grid_of_rows(rows), cross_entropy_forward_kernel<T>,
           args.loss.ptr<Compute<T>>(), args.correct.ptr<std::int32_t>(), args.logits.ptr<T>(),
           args.labels.ptr<std::int32_t>(), static_cast<Compute<T>>(args.smoothing), rows,
           args.logits.width());
  });
}

void compute(Context& context, const CrossEntropyBackward& args) {
  with_type(args.dlogits.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.logits.rows();
    launch(context, grid_of_rows(rows), cross_entropy_backward_kernel<T>, args.dlogits.ptr<T>(),
           args.logits.ptr<T>(), args.labels.ptr<std::int32_t>(),
           static_cast<Compute<T>>(args.smoothing), static_cast<Compute<T>>(args.scale), rows,
           args.logits.width());
  });
}

}  // namespace vcas::VCAS_DEVICE
