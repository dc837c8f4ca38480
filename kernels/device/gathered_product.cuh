// Products over gathered rows: c[i, j] (+)= sum over k of scale[k] a(k, i) b(k, j).
#pragma once

#include "kernels/device/launch.cuh"

namespace vcas::VCAS_DEVICE {

// One factor of a gathered product: entry (k, c) is data[row(k)][column(c)].
template <class T>
struct Gathered {
  const T* data;
  std::int64_t stride;
  const std::int32_t* kept;    // k -> compact row, null: itself
  const std::int32_t* row;     // compact row -> row of data, null: itself
  const std::int32_t* column;  // c -> column of data, null: itself
  std::int64_t width;          // how many c

  __device__ std::int64_t row_of(std::int64_t k) const { return at(row, at(kept, k)) * stride; }
};

constexpr int kTile = 64, kDepth = 16, kPerThread = 4;
constexpr int kTileThreads = (kTile / kPerThread) * (kTile / kPerThread);

template <class T>
struct Panel {
  T value[kDepth][kTile];
};

// panel[k][c] = scale[k] * entry (first_k + k, first_c + c), zero outside.
template <class T>
__device__ void load_panel(Panel<T>& panel, const Gathered<T>& from, const T* scale,
                           std::int64_t first_k, std::int64_t count, std::int64_t first_c) {
  for (int i = static_cast<int>(threadIdx.x); i < kDepth * kTile; i += kTileThreads) {
    const std::int64_t k = first_k + i / kTile, c = first_c + i % kTile;
    T value = 0;
    if (k < count && c < from.width) {
      value = from.data[from.row_of(k) + at(from.column, c)];
      if (scale) value *= scale[k];
    }
    panel.value[i / kTile][i % kTile] = value;
  }
}

// c[i, j] (+)= sum over k < depth of scale[k] a(k, i) b(k, j): weight gradients of kept rows. Rows
// are gathered, and scaled, on their way into shared memory. A block owns a tile of 64 x 64 entries
// and goes over k from 0 on, 16 rows at a time, so every sum has one order; a thread owns 4 x 4.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    gathered_product_kernel(T* c, Gathered<T> a, Gathered<T> b, const T* scale, std::int64_t depth,
                            bool accumulate) {
  struct Shared {
    Panel<T> a, b;
  };
  VCAS_SHARED(Shared, shared);
  const std::int64_t first_i = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_j = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int own_i = static_cast<int>(threadIdx.x) / (kTile / kPerThread);
  const int own_j = static_cast<int>(threadIdx.x) % (kTile / kPerThread);
  T sum[kPerThread][kPerThread] = {};
  for (std::int64_t k = 0; k < depth; k += kDepth) {
    load_panel(shared.a, a, scale, k, depth, first_i);
    load_panel<T>(shared.b, b, nullptr, k, depth, first_j);
    __syncthreads();
    for (int d = 0; d < kDepth; ++d)
      for (int i = 0; i < kPerThread; ++i)
        for (int j = 0; j < kPerThread; ++j)
          sum[i][j] += shared.a.value[d][own_i + i * (kTile / kPerThread)] *
                       shared.b.value[d][own_j + j * (kTile / kPerThread)];
    __syncthreads();
  }
  for (int i = 0; i < kPerThread; ++i)
    for (int j = 0; j < kPerThread; ++j) {
      const std::int64_t row = first_i + own_i + i * (kTile / kPerThread);
      const std::int64_t column = first_j + own_j + j * (kTile / kPerThread);
      if (row >= a.width || column >= b.width) continue;
      T& out = c[row * b.width + column];
      out = accumulate ? out + sum[i][j] : sum[i][j];
    }
}

// ---- on tensor cores ----

struct alignas(16) Quad {
  float value[4];
};

// A block owns a tile of kTile x kTile entries, a warp of it kTile / 2 x 32, and rows come 16 at a
// time, kStages of them on their way.
template <int kTile>
struct Tf32 {
  static constexpr int kRows = kWarp / 2, kStages = 4, kColumns = 32;
  static constexpr int kQuads = kTile / 4;
  static constexpr int kWarpsJ = kTile / kColumns;
  static constexpr int kThreads = 2 * kWarpsJ * kWarp;
  // Rows are two quads longer than the tile: then no two lanes of a load meet in a bank.
  struct Panel {
    Quad value[kRows][kQuads + 2];
  };
  struct Shared {
    struct Stage {
      Panel panel[2];  // of a and b
      float scale[kRows];
    } stage[kStages];
    std::int32_t row[kStages][2][kRows];  // of data, -1: none; in turn, as the stages
  };
};

// c[i, j] += the gathered product of f32, with factors rounded to TF32, scale[k] a(k, i) after
// scaling; sums are f32, and each has one order. Widths are multiples of 4, `data` and c lie on 16
// bytes, and columns are not gathered.
//
// Copies of gathered rows into shared memory run kStages - 1 ahead of the tensor cores. Which rows
// those are is found one stage earlier still, by the first warp: lane l looks at row l % 16 of
// factor l / 16, and its two reads, of which the second needs the first, are a stage apart.
//
// Lane 4g + t of a warp reads entries 4g .. 4g+3 of 32 columns of a panel at once: as rows g and
// g+8 of two fragments of a, as column g of four fragments of b. So fragments take every fourth
// column, and a lane's sums lie together: 8 columns of rows 4g .. 4g+3.
template <int kTile>
__global__ void __launch_bounds__(Tf32<kTile>::kThreads, 2)
    gathered_product_tf32_kernel(float* c, Gathered<float> a, Gathered<float> b, const float* scale,
                                 std::int64_t depth) {
  using Tile = Tf32<kTile>;
  using Shared = typename Tile::Shared;
  constexpr int kRows = Tile::kRows, kStages = Tile::kStages, kQuads = Tile::kQuads;
  constexpr int kRowQuads = kTile / 64;
  VCAS_DYNAMIC_SHARED(Shared, shared);
  const int thread = static_cast<int>(threadIdx.x), lane = lane_of_thread();
  const int warp_i = warp_of_thread() / Tile::kWarpsJ, warp_j = warp_of_thread() % Tile::kWarpsJ;
  const std::int64_t first_i = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_j = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const std::int64_t stages = (depth + kRows - 1) / kRows;

  // What thread `own` of the first warp, or one like it, looks at.
  const auto index_of = [&](std::int64_t stage, int own) {
    const std::int64_t k = stage * kRows + own % kRows;
    return k < depth ? static_cast<std::int32_t>(at(own % kWarp < kRows ? a.kept : b.kept, k)) : -1;
  };
  const auto row_of = [&](std::int32_t index, int own) {
    return index < 0 ? -1
                     : static_cast<std::int32_t>(at(own % kWarp < kRows ? a.row : b.row, index));
  };
  const auto start_copies = [&](std::int64_t stage) {
    auto& to = shared->stage[stage % kStages];
    const auto& rows = shared->row[stage % kStages];
    for (int factor = 0; factor < 2; ++factor) {
      const Gathered<float>& from = factor == 0 ? a : b;
      const int quad = thread % kQuads;
      const std::int64_t column = (factor == 0 ? first_i : first_j) + quad * 4;
      for (int k = thread / kQuads; k < kRows; k += Tile::kThreads / kQuads) {
        const std::int32_t row = rows[factor][k];
        const bool inside = row >= 0 && column < from.width;
        const float* data = from.data + (inside ? row * from.stride + column : 0);
        copy_async(&to.panel[factor].value[k][quad], reinterpret_cast<const Quad*>(data), inside);
      }
    }
    const std::int64_t k = stage * kRows + thread;
    if (scale && thread < kRows)
      copy_async(&to.scale[thread], scale + min(k, depth - 1), k < depth);
  };

  if (!scale)
    for (int k = thread; k < kStages * kRows; k += Tile::kThreads)
      shared->stage[k / kRows].scale[k % kRows] = 1;
  for (int own = thread; own < kStages * kWarp; own += Tile::kThreads)
    shared->row[own / kWarp][own / kRows % 2][own % kRows] =
        row_of(index_of(own / kWarp, own), own);
  std::int32_t index = index_of(kStages, lane);
  __syncthreads();
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < stages) start_copies(stage);
    copy_async_commit();
  }

  float sum[2 * kRowQuads][4][4] = {};
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    if (stage + kStages - 1 < stages) start_copies(stage + kStages - 1);
    copy_async_commit();
    std::int32_t row = -1;
    if (thread < kWarp) {
      row = row_of(index, lane);
      index = index_of(stage + kStages + 1, lane);
    }
    const auto& own = shared->stage[stage % kStages];
    for (int step = 0; step < kRows; step += 8) {
      std::uint32_t a_part[2 * kRowQuads][4], b_part[4][2];
      for (int half = 0; half < 2; ++half) {
        const int k = step + 4 * half + lane % 4;
        const float factor = own.scale[k];
        for (int q = 0; q < kRowQuads; ++q) {
          const Quad quad = own.panel[0].value[k][(warp_i * kRowQuads + q) * 8 + lane / 4];
          for (int i = 0; i < 4; ++i)
            a_part[2 * q + i / 2][2 * half + i % 2] = to_tf32(factor * quad.value[i]);
        }
        const Quad quad = own.panel[1].value[k][warp_j * 8 + lane / 4];
        for (int j = 0; j < 4; ++j) b_part[j][half] = to_tf32(quad.value[j]);
      }
      for (int i = 0; i < 2 * kRowQuads; ++i)
        for (int j = 0; j < 4; ++j) mma_tf32(sum[i][j], a_part[i], b_part[j]);
    }
    if (thread < kWarp) shared->row[stage % kStages][lane / kRows][lane % kRows] = row;
  }

  for (int i = 0; i < 4 * kRowQuads; ++i)
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = first_i + ((warp_i * kRowQuads + i / 4) * 8 + lane / 4) * 4 + i % 4;
      const std::int64_t column = first_j + warp_j * 32 + lane % 4 * 8 + half * 4;
      if (row >= a.width || column >= b.width) continue;
      Quad& out = *reinterpret_cast<Quad*>(c + row * b.width + column);
      Quad result = out;
      for (int j = 0; j < 4; ++j) result.value[j] += sum[i / 2][j][i % 2 * 2 + half];
      out = result;
    }
}

// ---- host ----

inline bool lies_on_quad(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(Quad) == 0;
}

template <int kTile>
void gathered_product_tf32(Context& context, float* c, const Gathered<float>& a,
                           const Gathered<float>& b, const float* scale, std::int64_t depth) {
  launch(context,
         {extent(ceil_div(b.width, kTile), ceil_div(a.width, kTile)), extent(Tf32<kTile>::kThreads),
          sizeof(typename Tf32<kTile>::Shared)},
         gathered_product_tf32_kernel<kTile>, c, a, b, scale, depth);
}

inline bool fits_tf32(const Gathered<float>& from) {
  return from.width % 4 == 0 && from.stride % 4 == 0 && !from.column && lies_on_quad(from.data);
}

template <class T>
void gathered_product(Context& context, T* c, const Gathered<T>& a, const Gathered<T>& b,
                      const T* scale, std::int64_t depth, bool accumulate) {
  if constexpr (std::is_same_v<T, float>) {
    if (context.precision() == Precision::kTf32 && accumulate && fits_tf32(a) && fits_tf32(b) &&
        lies_on_quad(c)) {
      constexpr int kSmall = 64, kLarge = 128;
      const bool enough = ceil_div(a.width, kLarge) * ceil_div(b.width, kLarge) >=
                          static_cast<std::int64_t>(context.multiprocessors());
      return (enough ? gathered_product_tf32<kLarge>
                     : gathered_product_tf32<kSmall>)(context, c, a, b, scale, depth);
    }
  }
  launch(context,
         {extent(ceil_div(b.width, kTile), ceil_div(a.width, kTile)), extent(kTileThreads)},
         gathered_product_kernel<T>, c, a, b, scale, depth, accumulate);
}

}  // namespace vcas::VCAS_DEVICE
