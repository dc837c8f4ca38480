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
  // How many tiles of so many rows and columns y has.
  __host__ __device__ int tiles(int tile_rows, int columns) const {
    return (rows + tile_rows - 1) / tile_rows * ((width + columns - 1) / columns);
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

// Finds the rows of a block from `first` on, one a thread. Returns the taps that any of them has.
// All threads then see the rows.
template <class T, int kRows>
__device__ std::uint32_t find_rows(const PatchProduct<T>& of, std::int32_t first,
                                   typename PatchProduct<T>::Row (&rows)[kRows]) {
  const int own = static_cast<int>(threadIdx.x);
  std::uint32_t any = 0;
  if (own < kRows) {
    rows[own] = of.row(first + own);
    any = rows[own].place.taps;
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

// Without tensor cores. A block owns a tile of 64 x 64 entries, a thread 4 x 4 of them. The block
// goes over taps and channels, 16 numbers at a time. So every sum has one order.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    patch_product_kernel(const __grid_constant__ PatchProduct<T> product) {
  using C = Compute<T>;
  struct Shared {
    Panel<C> panel[2];  // of x and weight
    typename PatchProduct<T>::Row row[kPlainTile];
  };
  VCAS_SHARED(Shared, shared);
  const int across = (product.width + kPlainTile - 1) / kPlainTile,
            thread = static_cast<int>(threadIdx.x);
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) / across * kPlainTile;
  const std::int32_t first_n = static_cast<std::int32_t>(blockIdx.x) % across * kPlainTile;
  const int own_k = thread % kDepth, own_row = thread / kDepth;
  constexpr int kStep = kPlainThreads / kDepth, kRows = kPlainTile / kStep;
  const std::uint32_t any = find_rows(product, first, shared.row);
  TapColumn<T> column(product, own_k, any);
  const std::int64_t depth = product.patches.kernel * product.patches.kernel * product.channels;
  const int own_i = thread / (kPlainTile / kPerThread) * kPerThread;
  const int own_j = thread % (kPlainTile / kPerThread) * kPerThread;
  TileSums<C> sum = {};
  for (int left = stages_of(product, any, kDepth); left > 0; --left) {
    const ColumnPlace in_x = column.in_x();
    for (int n = 0; n < kRows; ++n) {
      const RowPlace place = shared.row[own_row + n * kStep].place;
      const std::int64_t row = place.first, out = first_n + own_row + n * kStep;
      shared.panel[0].value[own_k][own_row + n * kStep] =
          in_x.inside(place) ? C(product.x[row * product.channels + in_x.offset]) : C(0);
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
      const std::int64_t row = shared.row[own_i + i].number, n = first_n + own_j + j;
      if (row < 0 || n >= product.width) continue;
      T& out = product.y[row * product.width + n];
      const C more = product.accumulate ? C(out) : product.bias ? C(product.bias[n]) : C(0);
      out = static_cast<T>(more + sum[i][j]);
    }
}

// ---- on tensor cores ----

// What a block has in shared memory: stages of the sum, and then its sums. The latter's rows are
// longer than a tile: then no two lanes that write meet in a bank.
template <class Tile>
struct PatchShared {
  union {
    typename Tile::Stage stage[Tile::kStages];
    float sum[Tile::kRows][Tile::kColumns + 8];
  };
  typename PatchProduct<typename Tile::Number>::Row row[Tile::kRows];
};

// A block's rows of x and of the weight, as one of its threads brings them into shared memory: the
// same rows in all stages, 16 bytes of each.
template <class Tile>
class PatchCopies {
  using T = typename Tile::Number;
  static constexpr int kStages = Tile::kStages, kChunks = Tile::kChunks;
  static constexpr int kValues = kChunks * Chunk<T>::kSize;
  static constexpr int kStep = Tile::kThreads / kChunks;

 public:
  __device__ PatchCopies(const PatchProduct<T>& of, PatchShared<Tile>& shared)
      : of_(of),
        shared_(shared),
        first_n_(static_cast<std::int32_t>(blockIdx.x) % across(of) * Tile::kColumns),
        any_(find_rows(of, static_cast<std::int32_t>(blockIdx.x) / across(of) * Tile::kRows,
                       shared.row)),
        column_(of, own_chunk_ * Chunk<T>::kSize, any_),
        depth_(of.patches.kernel * of.patches.kernel * of.channels),
        weight_(of.weight + std::int64_t{first_n_ + own_row_} * depth_) {
    VCAS_UNROLL
    for (int n = 0; n < Tile::kRows / kStep; ++n) {
      place_[n] = shared.row[own_row_ + n * kStep].place;
      place_[n].first *= of.channels / Chunk<T>::kSize;
    }
    for (int stage = 0; stage < kStages - 1; ++stage) start(stage, stage < stages());
  }

  __device__ int stages() const { return stages_of(of_, any_, kValues); }
  __device__ std::int32_t first_n() const { return first_n_; }

  // Starts the copies of the next stage, if there is `any`, into a place.
  __device__ void start(int place, bool any) {
    if (any) {
      typename Tile::Stage& to = shared_.stage[place];
      const ColumnPlace in_x = column_.in_x();
      const auto* const x = reinterpret_cast<const Chunk<T>*>(of_.x + in_x.offset);
      VCAS_UNROLL
      for (int n = 0; n < Tile::kRows / kStep; ++n)
        copy_async(&to.x(own_row_ + n * kStep, own_chunk_), x + place_[n].first,
                   in_x.inside(place_[n]));
      const T* weight = weight_ + column_.in_weight();
      VCAS_UNROLL
      for (int n = 0; n < Tile::kColumns / kStep; ++n, weight += kStep * depth_)
        copy_async(&to.weight(own_row_ + n * kStep, own_chunk_),
                   reinterpret_cast<const Chunk<T>*>(weight),
                   column_.inside() && first_n_ + own_row_ + n * kStep < of_.width);
      column_.advance(kValues);
    }
    copy_async_commit();
  }

 private:
  __device__ static int across(const PatchProduct<T>& of) {
    return (of.width + Tile::kColumns - 1) / Tile::kColumns;
  }

  const PatchProduct<T>& of_;
  PatchShared<Tile>& shared_;
  const int own_chunk_ = static_cast<int>(threadIdx.x) % kChunks;
  const int own_row_ = static_cast<int>(threadIdx.x) / kChunks;
  const std::int32_t first_n_;
  const std::uint32_t any_;
  RowPlace place_[Tile::kRows / kStep];  // counted in chunks
  TapColumn<T> column_;
  const std::int32_t depth_;
  const T* const weight_;
};

// A thread's sums of a fragment of 16 x 8 entries, on their way to rows of y.
template <class Tile>
__device__ void keep_sums(PatchShared<Tile>& shared, int row, int column, const float (&sum)[4]) {
  const int lane = lane_of_thread();
  for (int of = 0; of < 4; ++of)
    shared.sum[row + of / 2 * 8 + lane / 4][column + lane % 4 * 2 + of % 2] = sum[of];
}

// y = the sums of a block, whose columns begin at first_n, 16 bytes a thread.
template <class Tile, class T>
__device__ void store_rows(const PatchProduct<T>& to, const PatchShared<Tile>& shared,
                           std::int32_t first_n) {
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kSize = Chunk<T>::kSize, kChunks = Tile::kColumns / kSize;
  const int own = thread % kChunks * kSize, n = first_n + own;
  if (n >= to.width) return;
  const Chunk<T> bias = to.bias ? *reinterpret_cast<const Chunk<T>*>(to.bias + n) : Chunk<T>{};
  for (int m = thread / kChunks; m < Tile::kRows; m += Tile::kThreads / kChunks) {
    const std::int64_t row = shared.row[m].number;
    if (row < 0) continue;
    auto& out = *reinterpret_cast<Chunk<T>*>(to.y + row * to.width + n);
    Chunk<T> result = to.accumulate ? out : bias;
    for (int i = 0; i < kSize; ++i)
      result.value[i] = static_cast<T>(float(result.value[i]) + shared.sum[m][own + i]);
    out = result;
  }
}

// A block owns a tile of kTile x kTile entries, a warp of it kTile / 2 x 32. Rows of both factors
// come 4 chunks at a time. They are longer than that: then the 8 rows that ldmatrix reads at once
// meet in no bank.
template <class T, int kTile>
struct PatchMmaTile {
  using Number = T;
  static constexpr int kRows = kTile, kColumns = kTile, kStages = 4, kChunks = 4;
  static constexpr int kWarpsJ = kTile / 32;
  static constexpr int kThreads = 2 * kWarpsJ * kWarp;

  struct Stage {
    Chunk<T> value[2][kTile][kChunks + 1];
    __device__ Chunk<T>& x(int row, int c) { return value[0][row][c]; }
    __device__ Chunk<T>& weight(int row, int c) { return value[1][row][c]; }
  };
};

// sum += the product of a stage, in f32, with f32 rounded to TF32. 16 bytes of a row are eight k of
// bf16 or four of TF32: fragments of both lie alike.
template <class T, int kTile>
__device__ void multiply_rows(Sums<kTile>& sum, typename PatchMmaTile<T, kTile>::Stage& stage,
                              int warp_i, int warp_j) {
  constexpr int kFragments = kTile / 32;
  const int lane = lane_of_thread();
  const auto load = [&](std::uint32_t(&part)[4], const Chunk<T>& chunk) {
    load_blocks(part, &chunk);
    if constexpr (std::is_same_v<T, float>)
      for (std::uint32_t& bits : part) bits = to_tf32(float_of(bits));
  };
  for (int step = 0; step < PatchMmaTile<T, kTile>::kChunks; step += 2) {
    std::uint32_t a_part[kFragments][4], b_part[4][2];
    for (int i = 0; i < kFragments; ++i)
      load(a_part[i], stage.x(warp_i * (kTile / 2) + i * 16 + lane % 16, step + lane / 16));
    for (int j = 0; j < 4; j += 2) {
      std::uint32_t pair[4];
      load(pair, stage.weight(warp_j * 32 + j * 8 + lane / 16 * 8 + lane % 8, step + lane / 8 % 2));
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

// By mma.sync.
template <class T, int kTile>
__global__ void __launch_bounds__(PatchMmaTile<T, kTile>::kThreads, 2)
    patch_product_mma_kernel(const __grid_constant__ PatchProduct<T> product) {
  using Tile = PatchMmaTile<T, kTile>;
  using Shared = PatchShared<Tile>;
  VCAS_DYNAMIC_SHARED(Shared, shared);
  const int warp_i = warp_of_thread() / Tile::kWarpsJ, warp_j = warp_of_thread() % Tile::kWarpsJ;
  PatchCopies<Tile> copies(product, *shared);
  Sums<kTile> sum = {};
  int place = 0;
  for (int left = copies.stages(); left > 0; --left) {
    copy_async_wait<Tile::kStages - 2>();
    __syncthreads();
    copies.start(place_before<Tile::kStages>(place), left >= Tile::kStages);
    multiply_rows<T, kTile>(sum, shared->stage[place], warp_i, warp_j);
    place = place_after<Tile::kStages>(place);
  }
  __syncthreads();  // no warp reads a stage any more
  for (int i = 0; i < kTile / 32; ++i)
    for (int j = 0; j < 4; ++j)
      keep_sums(*shared, warp_i * (kTile / 2) + i * 16, warp_j * 32 + j * 8, sum[i][j]);
  __syncthreads();
  store_rows(product, *shared, copies.first_n());
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

}  // namespace vcas::VCAS_DEVICE
