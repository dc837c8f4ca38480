// Losses: cross entropy, squared errors.
#pragma once

#include <limits>

#include "kernels/device/chunks.cuh"
#include "kernels/device/math.cuh"
#include "kernels/device/write_row.cuh"

namespace vcas::VCAS_DEVICE {

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

// body(c, chunk, begin, end) for each chunk of memory that has numbers of a row. The threads of a
// block share the chunks. A chunk is 16 aligned bytes. It begins at column c, which may be
// negative. Its numbers in [begin, end) are the row's.
template <class T, class Body>
__device__ void for_row_chunks(const T* row, int width, const Body& body) {
  constexpr int kSize = Chunk<T>::kSize;
  const int before = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T) % kSize);
  const int step = static_cast<int>(blockDim.x) * kSize;
  for (int c = static_cast<int>(threadIdx.x) * kSize - before; c < width; c += step) {
    if (c >= 0 && c + kSize <= width) {
      body(c, load_chunk(row + c), 0, kSize);
      continue;
    }
    const int begin = max(-c, 0), end = min(width - c, kSize);
    Chunk<T> chunk{};
    VCAS_UNROLL
    for (int i = 0; i < kSize; ++i)
      if (i >= begin && i < end) chunk.value[i] = row[c + i];
    body(c, chunk, begin, end);
  }
}

// What a row's softmax needs, in one pass. Each logit adds exp(logit - the largest so far) to the
// sum. A new largest logit scales the sum down first.
template <class C>
struct Softmax {
  C largest = std::numeric_limits<C>::lowest();
  C sum = 0;

  // Whether x is larger than all before it.
  __device__ bool add(C x) {
    const bool larger = x > largest;
    if (larger) {
      sum *= exponential(largest - x);
      largest = x;
    }
    sum += exponential(x - largest);
    return larger;
  }
  // Over all threads of the block.
  __device__ void join() {
    const C own = largest;
    largest = block_reduce(own, own, Maximum{});
    sum = block_sum(sum * exponential(own - largest));
  }
};

// One block a row of logits.
template <class T>
__global__ void cross_entropy_forward_kernel(Compute<T>* loss, std::int32_t* correct,
                                             const T* logits, const std::int32_t* labels,
                                             const float* weight, Compute<T> smoothing,
                                             int classes) {
  using C = Compute<T>;
  const std::int64_t r = blockIdx.x;
  const T* const x = logits + r * classes;
  const C x_first = x[0];
  Softmax<C> softmax;
  C total = 0;  // of the logits less the first of them, which they may all be close to
  int best = classes;
  for_row_chunks(x, classes, [&](int c, const Chunk<T>& chunk, int begin, int end) {
    VCAS_UNROLL
    for (int i = 0; i < Chunk<T>::kSize; ++i) {
      if (i < begin || i >= end) continue;
      const C value = chunk.value[i];
      if (softmax.add(value)) best = c + i;
      total += value - x_first;
    }
  });
  const C own_largest = softmax.largest;
  softmax.join();
  total = block_sum(total);
  // The first of the largest logits.
  best = -block_reduce(own_largest == softmax.largest ? -best : -classes, -classes, Maximum{});
  if (threadIdx.x > 0) return;
  // None is larger than a first NaN, and none counts where all are NaN or minus infinity.
  if (x_first != x_first || best == classes) best = 0;
  // -sum q log softmax, with the logits taken relative to the largest: sum q = 1.
  const C chosen = x[labels[r]] - softmax.largest;
  const C mean = total / static_cast<C>(classes) + (x_first - softmax.largest);
  loss[r] = weight_of<C>(weight, r) *
            (natural_log(softmax.sum) - (C(1) - smoothing) * chosen - smoothing * mean);
  correct[r] = best == labels[r];
}

// As the forward, a block a row.
template <class T>
__global__ void cross_entropy_backward_kernel(T* dlogits, const T* logits,
                                              const std::int32_t* labels, const float* weight,
                                              Compute<T> smoothing, Compute<T> scale, int classes) {
  using C = Compute<T>;
  constexpr int kSize = Chunk<T>::kSize;
  const std::int64_t r = blockIdx.x;
  const T* const x = logits + r * classes;
  T* const dx = dlogits + r * classes;
  Softmax<C> softmax;
  for_row_chunks(x, classes, [&](int, const Chunk<T>& chunk, int begin, int end) {
    VCAS_UNROLL
    for (int i = 0; i < kSize; ++i)
      if (i >= begin && i < end) softmax.add(chunk.value[i]);
  });
  softmax.join();
  const C slope = scale * weight_of<C>(weight, r);
  const C factor = slope / softmax.sum, spread = slope * (smoothing / static_cast<C>(classes));
  const int label = labels[r];
  for_row_chunks(x, classes, [&](int c, const Chunk<T>& chunk, int begin, int end) {
    C out[kSize];
    VCAS_UNROLL
    for (int i = 0; i < kSize; ++i) {
      out[i] = factor * exponential(chunk.value[i] - softmax.largest) - spread;
      if (c + i == label) out[i] -= slope * (C(1) - smoothing);
    }
    if (end - begin == kSize && lies_on_chunk(dx + c)) {
      *reinterpret_cast<Chunk<T>*>(dx + c) = to_chunk<T>(out);
      return;
    }
    VCAS_UNROLL
    for (int i = 0; i < kSize; ++i)
      if (i >= begin && i < end) dx[c + i] = static_cast<T>(out[i]);
  });
}

// ---- host ----

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
    launch(context, one_block_a_row(args.logits), cross_entropy_forward_kernel<T>,
           args.loss.ptr<Compute<T>>(), args.correct.ptr<std::int32_t>(), args.logits.ptr<T>(),
           args.labels.ptr<std::int32_t>(), args.weight.ptr<float>(),
           static_cast<Compute<T>>(args.smoothing), width_of(args.logits));
  });
}

void compute(Context& context, const CrossEntropyBackward& args) {
  with_type(args.dlogits.dtype, [&](auto type) {
    using T = decltype(type);
    launch(context, one_block_a_row(args.logits), cross_entropy_backward_kernel<T>,
           args.dlogits.ptr<T>(), args.logits.ptr<T>(), args.labels.ptr<std::int32_t>(),
           args.weight.ptr<float>(), static_cast<Compute<T>>(args.smoothing),
           static_cast<Compute<T>>(args.scale), width_of(args.logits));
  });
}

}  // namespace vcas::VCAS_DEVICE
