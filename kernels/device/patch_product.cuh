// Convolutions, and the gradients of their pixels, as products whose rows are patches that stay
// where they lie.
#pragma once

#include "kernels/device/gathered_mma.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

// y[r, n] = (or +=) bias[n] + sum over taps and channels of x[row of (r, tap), channel]
// weight[n, tap, channel]. Row r is a patch of x. Or it is a pixel, and rows of x are the gradients
// of the patches that have it at the tap.
template <class T>
struct PatchProduct {
  T* y;
  const T* x;
  const T* weight;
  const T* bias;  // null: none
  bool accumulate, of_pixels;
  PatchSizes patches;
  std::int32_t rows, width, channels;  // rows of y, numbers in them, numbers in rows of x

  struct Row {
    RowPlace place;
    std::int32_t number;  // in y; -1: none
  };
  // Pixels that the same taps reach follow each other, whatever the stride.
  __device__ Row row(std::int32_t m) const {
    if (m >= rows) return {{0, 0}, -1};
    if (!of_pixels) return {patches.patch(m), m};
    const std::int32_t stride = patches.stride, items = rows / (patches.height * patches.width);
    for (std::int32_t first = 0;; ++first) {
      const std::int32_t first_y = first / stride, first_x = first % stride;
      const std::int32_t lines = (patches.height - first_y + stride - 1) / stride;
      const std::int32_t across = (patches.width - first_x + stride - 1) / stride;
      if (m >= items * lines * across) {
        m -= items * lines * across;
        continue;
      }
      const std::int32_t item = m / (lines * across), place = m % (lines * across);
      const std::int32_t line = first_y + place / across * stride;
      const std::int32_t column = first_x + place % across * stride;
      return {patches.pixel(item, line, column),
              (item * patches.height + line) * patches.width + column};
    }
  }
  __host__ __device__ int blocks(int tile) const {
    return (rows + tile - 1) / tile * ((width + tile - 1) / tile);
  }
};

// A thread's column of the factors, which goes over those taps that `any` row of the block has.
template <class T>
class TapColumn {
 public:
  __device__ TapColumn(const PatchProduct<T>& of, int first, std::uint32_t any)
      : of_(of), any_(any), channel_(first) {
    find_tap();
  }
  __device__ void advance(int values) {
    channel_ += values;
    if (channel_ >= of_.channels) find_tap();
  }
  // Beyond the last tap no row has it.
  __device__ ColumnPlace in_x() const { return {offset_ + channel_, tap_}; }
  __device__ bool inside() const { return tap_ != kNoTap; }
  __device__ std::int32_t in_weight() const { return number_ * of_.channels + channel_; }

 private:
  __device__ void find_tap() {
    const PatchSizes& patches = of_.patches;
    for (; number_ < patches.kernel * patches.kernel; ++number_) {
      const std::int32_t ky = number_ / patches.kernel, kx = number_ % patches.kernel;
      tap_ = tap_bits(ky, kx);
      if ((tap_ & ~any_) != 0) continue;
      offset_ = (of_.of_pixels ? -(ky / patches.stride * patches.out_width + kx / patches.stride)
                               : ky * patches.width + kx) *
                of_.channels;
      if (channel_ < of_.channels) return;
      channel_ -= of_.channels;
    }
    tap_ = kNoTap;
  }

  const PatchProduct<T>& of_;
  const std::uint32_t any_;
  std::int32_t channel_, number_ = 0, offset_ = 0;
  std::uint32_t tap_ = kNoTap;
};

struct BitOr {
  __device__ std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a | b; }
};

// The rows of a block from `first` on: where those of a thread lie, every `step`th from `own` on,
// and, where it is to write them, the number of each in y. The taps that any of the block's rows
// has.
template <class T, int kRows>
__device__ std::uint32_t find_rows(const PatchProduct<T>& of, std::int32_t first, int own, int step,
                                   RowPlace (&place)[kRows], std::int32_t* numbers) {
  std::uint32_t any = 0;
  VCAS_UNROLL
  for (int n = 0; n < kRows; ++n) {
    const auto row = of.row(first + own + n * step);
    place[n] = row.place;
    if (numbers) numbers[own + n * step] = row.number;
    any |= row.place.taps;
  }
  return block_reduce(any, 0u, BitOr{});
}

// How many stages of `values` there are.
template <class T>
__device__ int stages_of(const PatchProduct<T>& of, std::uint32_t any, int values) {
  constexpr std::uint32_t kLines = (1u << kFirstAcross) - 1;
  const int taps = __popc(any & kLines) * __popc(any & ~kLines);
  return (taps * of.channels + values - 1) / values;
}

// Without tensor cores. A block owns a tile of 64 x 64 entries and goes over taps and channels, 16
// numbers at a time, so every sum has one order; a thread owns 4 x 4.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    patch_product_kernel(const __grid_constant__ PatchProduct<T> product) {
  using C = Compute<T>;
  struct Shared {
    Panel<C> panel[2];  // of x and weight
    std::int32_t number[kTile];
  };
  VCAS_SHARED(Shared, shared);
  const int across = (product.width + kTile - 1) / kTile, thread = static_cast<int>(threadIdx.x);
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) / across * kTile;
  const std::int32_t first_n = static_cast<std::int32_t>(blockIdx.x) % across * kTile;
  const int own_k = thread % kDepth, own_row = thread / kDepth;
  constexpr int kStep = kTileThreads / kDepth, kRows = kTile / kStep;
  RowPlace place[kRows];
  const std::uint32_t any =
      find_rows(product, first, own_row, kStep, place, own_k == 0 ? shared.number : nullptr);
  TapColumn<T> column(product, own_k, any);
  const std::int64_t depth = product.patches.kernel * product.patches.kernel * product.channels;
  const int own_i = thread / (kTile / kPerThread) * kPerThread;
  const int own_j = thread % (kTile / kPerThread) * kPerThread;
  TileSums<C> sum = {};
  for (int left = stages_of(product, any, kDepth); left > 0; --left) {
    const ColumnPlace in_x = column.in_x();
    for (int n = 0; n < kRows; ++n) {
      const std::int64_t row = place[n].first, out = first_n + own_row + n * kStep;
      shared.panel[0].value[own_k][own_row + n * kStep] =
          in_x.inside(place[n]) ? C(product.x[row * product.channels + in_x.offset]) : C(0);
      shared.panel[1].value[own_k][own_row + n * kStep] =
          column.inside() && out < product.width
              ? C(product.weight[out * depth + column.in_weight()])
              : C(0);
    }
    __syncthreads();
    multiply_panels(sum, shared.panel[0], shared.panel[1], own_i, own_j);
    __syncthreads();
    column.advance(kDepth);
  }
  for (int i = 0; i < kPerThread; ++i)
    for (int j = 0; j < kPerThread; ++j) {
      const std::int64_t row = shared.number[own_i + i], n = first_n + own_j + j;
      if (row < 0 || n >= product.width) continue;
      T& out = product.y[row * product.width + n];
      const C more = product.accumulate ? C(out) : product.bias ? C(product.bias[n]) : C(0);
      out = static_cast<T>(more + sum[i][j]);
    }
}

// ---- on tensor cores ----

// Rows of both factors come 4 chunks at a time. They are longer than that: then the 8 rows that
// ldmatrix reads at once meet in no bank.
template <class T, int kTile>
struct PatchTile {
  static constexpr int kStages = 4, kChunks = 4, kValues = kChunks * Chunk<T>::kSize;
  static constexpr int kColumns = 32, kWarpsJ = kTile / kColumns;
  static constexpr int kThreads = 2 * kWarpsJ * kWarp;
  static constexpr int kStep = kThreads / kChunks, kRows = kTile / kStep;  // of a thread

  struct Stage {
    Chunk<T> value[2][kTile][kChunks + 1];  // of x and weight
  };
  struct Shared {
    union {
      Stage stage[kStages];
      float sum[kTile][kTile + 8];  // no two lanes that write meet in a bank
    };
    std::int32_t number[kTile];
  };
};

// sum += the product of a stage, in f32, with f32 rounded to TF32. 16 bytes of a row are eight k of
// bf16 or four of TF32: fragments of both lie alike.
template <class T, int kTile>
__device__ void multiply_rows(Sums<kTile>& sum, const typename PatchTile<T, kTile>::Stage& stage,
                              int warp_i, int warp_j) {
  constexpr int kFragments = kTile / 32;
  const int lane = lane_of_thread();
  const auto load = [&](std::uint32_t(&part)[4], int factor, int row, int chunk) {
    load_blocks(part, &stage.value[factor][row][chunk]);
    if constexpr (std::is_same_v<T, float>)
      for (std::uint32_t& bits : part) bits = to_tf32(float_of(bits));
  };
  for (int step = 0; step < PatchTile<T, kTile>::kChunks; step += 2) {
    std::uint32_t a_part[kFragments][4], b_part[4][2];
    for (int i = 0; i < kFragments; ++i)
      load(a_part[i], 0, warp_i * (kTile / 2) + i * 16 + lane % 16, step + lane / 16);
    for (int j = 0; j < 4; j += 2) {
      std::uint32_t pair[4];
      load(pair, 1, warp_j * 32 + j * 8 + lane / 16 * 8 + lane % 8, step + lane / 8 % 2);
      for (int i = 0; i < 4; ++i) b_part[j + i / 2][i % 2] = pair[i];
    }
    for (int i = 0; i < kFragments; ++i)
      for (int j = 0; j < 4; ++j) {
        if constexpr (std::is_same_v<T, float>)
          mma_tf32(sum[i][j], a_part[i], b_part[j]);
        else
          mma_bf16(sum[i][j], a_part[i], b_part[j]);
      }
  }
}

// y = the sums of a block, whose columns begin at first_n. They go through shared memory, so that
// rows are written 16 bytes a thread.
template <class T, int kTile>
__device__ void store_rows(const PatchProduct<T>& to, const Sums<kTile>& sum,
                           typename PatchTile<T, kTile>::Shared& shared, std::int32_t first_n,
                           int warp_i, int warp_j) {
  const int lane = lane_of_thread(), thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // no warp reads a stage any more
  for (int i = 0; i < kTile / 32; ++i)
    for (int j = 0; j < 4; ++j)
      for (int of = 0; of < 4; ++of)
        shared.sum[warp_i * (kTile / 2) + i * 16 + of / 2 * 8 + lane / 4]
                  [warp_j * 32 + j * 8 + lane % 4 * 2 + of % 2] = sum[i][j][of];
  __syncthreads();
  constexpr int kSize = Chunk<T>::kSize, kChunks = kTile / kSize;
  const int own = thread % kChunks * kSize, n = first_n + own;
  if (n >= to.width) return;
  const Chunk<T> bias = to.bias ? *reinterpret_cast<const Chunk<T>*>(to.bias + n) : Chunk<T>{};
  for (int m = thread / kChunks; m < kTile; m += PatchTile<T, kTile>::kThreads / kChunks) {
    if (shared.number[m] < 0) continue;
    auto& out = *reinterpret_cast<Chunk<T>*>(to.y + std::int64_t{shared.number[m]} * to.width + n);
    Chunk<T> result = to.accumulate ? out : bias;
    for (int i = 0; i < kSize; ++i)
      result.value[i] = static_cast<T>(float(result.value[i]) + shared.sum[m][own + i]);
    out = result;
  }
}

// By mma.sync. A block owns a tile of kTile x kTile entries, a warp of it kTile / 2 x 32. A thread
// copies the same rows of both factors in all stages, 16 bytes of each.
template <class T, int kTile>
__global__ void __launch_bounds__(PatchTile<T, kTile>::kThreads, 2)
    patch_product_mma_kernel(const __grid_constant__ PatchProduct<T> product) {
  using Tile = PatchTile<T, kTile>;
  using Shared = typename Tile::Shared;
  VCAS_DYNAMIC_SHARED(Shared, shared);
  const int across = (product.width + kTile - 1) / kTile, thread = static_cast<int>(threadIdx.x);
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) / across * kTile;
  const std::int32_t first_n = static_cast<std::int32_t>(blockIdx.x) % across * kTile;
  const int warp_i = warp_of_thread() / Tile::kWarpsJ, warp_j = warp_of_thread() % Tile::kWarpsJ;
  const int own_chunk = thread % Tile::kChunks, own_row = thread / Tile::kChunks;
  RowPlace place[Tile::kRows];
  const std::uint32_t any = find_rows(product, first, own_row, Tile::kStep, place,
                                      own_chunk == 0 ? shared->number : nullptr);
  TapColumn<T> column(product, own_chunk * Chunk<T>::kSize, any);
  const std::int64_t depth = product.patches.kernel * product.patches.kernel * product.channels;
  const T* const weight = product.weight + (first_n + own_row) * depth;
  const auto start = [&](int stage, bool more) {
    if (more) {
      const ColumnPlace in_x = column.in_x();
      auto& to = shared->stage[stage].value;
      VCAS_UNROLL
      for (int n = 0; n < Tile::kRows; ++n) {
        const T* const x =
            product.x + (std::int64_t{place[n].first} * product.channels + in_x.offset);
        copy_async(&to[0][own_row + n * Tile::kStep][own_chunk],
                   reinterpret_cast<const Chunk<T>*>(x), in_x.inside(place[n]));
        const bool inside = column.inside() && first_n + own_row + n * Tile::kStep < product.width;
        copy_async(&to[1][own_row + n * Tile::kStep][own_chunk],
                   reinterpret_cast<const Chunk<T>*>(weight + n * Tile::kStep * depth +
                                                     column.in_weight()),
                   inside);
      }
      column.advance(Tile::kValues);
    }
    copy_async_commit();
  };
  const int stages = stages_of(product, any, Tile::kValues);
  for (int stage = 0; stage < Tile::kStages - 1; ++stage) start(stage, stage < stages);
  Sums<kTile> sum = {};
  int stage = 0;
  for (int left = stages; left > 0; --left) {
    copy_async_wait<Tile::kStages - 2>();
    __syncthreads();
    start(place_before<Tile::kStages>(stage), left >= Tile::kStages);
    multiply_rows<T, kTile>(sum, shared->stage[stage], warp_i, warp_j);
    stage = place_after<Tile::kStages>(stage);
  }
  store_rows<T, kTile>(product, sum, *shared, first_n, warp_i, warp_j);
}

// out[c, tap, d] = weight[d, tap, c]: what the gradient of a pixel is a product with. One thread an
// entry.
template <class T>
__global__ void turn_weight_kernel(T* out, const T* weight, std::int64_t d, std::int64_t taps,
                                   std::int64_t channels) {
  for_each_element(d * taps * channels, [&](std::int64_t i) {
    const std::int64_t row = i % d, tap = i / d % taps, channel = i / d / taps;
    out[i] = weight[(row * taps + tap) * channels + channel];
  });
}

// ---- host ----

template <class T>
void patch_product(Context& context, const PatchProduct<T>& product) {
  if constexpr (!std::is_same_v<T, double>) {
    const bool tensor_cores = !std::is_same_v<T, float> || context.precision() == Precision::kTf32;
    const auto launch_tiles = [&]<int kTile>(Constant<kTile>) {
      using Tile = PatchTile<T, kTile>;
      launch(context,
             {extent(product.blocks(kTile)), extent(Tile::kThreads), sizeof(typename Tile::Shared)},
             patch_product_mma_kernel<T, kTile>, product);
    };
    constexpr int kSmall = 64, kLarge = 128;
    const bool large = product.width > kSmall &&
                       product.blocks(kLarge) >= static_cast<int>(context.multiprocessors());
    if (tensor_cores && lies_on_chunk(product.x) && lies_on_chunk(product.weight) &&
        lies_on_chunk(product.y) && lies_on_chunk(product.bias))
      return large ? launch_tiles(Constant<kLarge>{}) : launch_tiles(Constant<kSmall>{});
  }
  launch(context, {extent(product.blocks(kTile)), extent(kTileThreads)}, patch_product_kernel<T>,
         product);
}

template <class T>
void direct_forward(Context& context, const LinearForward& args) {
  patch_product(context, PatchProduct<T>{args.y.ptr<T>(), args.x.ptr<T>(), args.weight.ptr<T>(),
                                         args.bias.ptr<T>(), false, false, PatchSizes(args.patches),
                                         static_cast<std::int32_t>(args.y.rows()),
                                         static_cast<std::int32_t>(args.y.width()),
                                         static_cast<std::int32_t>(args.x.width())});
}

template <class T>
void direct_backward(Context& context, const LinearBackwardInput& args) {
  T* turned = scratch<T>(context, args.weight.elements());
  launch(context, grid_over(context, args.weight.elements()), turn_weight_kernel<T>, turned,
         args.weight.ptr<T>(), args.dy.width(), args.patches.taps(), args.dx.width());
  patch_product(context, PatchProduct<T>{args.dx.ptr<T>(), args.dy.ptr<T>(), turned, nullptr,
                                         args.accumulate, true, PatchSizes(args.patches),
                                         static_cast<std::int32_t>(args.dx.rows()),
                                         static_cast<std::int32_t>(args.dx.width()),
                                         static_cast<std::int32_t>(args.dy.width())});
}

}  // namespace vcas::VCAS_DEVICE
