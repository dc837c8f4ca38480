// Products over gathered rows: c[i, j] (+)= sum over k of scale[k] a(k, i) b(k, j).
#pragma once

#include "kernels/device/chunks.cuh"
#include "kernels/device/places.cuh"

namespace vcas::VCAS_DEVICE {

// One factor of a gathered product: entry (k, c) is data[row(k)][c], or value c of patch row(k).
template <class T>
struct Gathered {
  const T* data;
  std::int64_t stride;
  const std::int32_t* kept;  // k -> compact row, null: itself
  const std::int32_t* row;   // compact row -> row of data or patch, null: itself
  std::int64_t width;        // how many c
  PatchSizes patches = {};

  // Compact row k < end, its row of data or patch, and where that lies. Others are -1, and nowhere.
  __device__ std::int32_t compact_row(std::int32_t k, std::int32_t end) const {
    if (k >= end) return -1;
    return kept ? kept[k] : k;
  }
  __device__ std::int32_t full_row(std::int32_t compact) const {
    return row && compact >= 0 ? row[compact] : compact;
  }
  __device__ RowPlace place(std::int32_t full) const {
    return full < 0 ? RowPlace{0, 0} : patches.patch(full);
  }
  // The same, counted in chunks.
  __device__ RowPlace chunk_place(std::int32_t full) const {
    const RowPlace of = place(full);
    return {of.first * static_cast<std::int32_t>(stride / Chunk<T>::kSize), of.taps};
  }
  __device__ ColumnPlace column(std::int64_t c) const {
    if (c >= width) return {0, kNoTap};
    return patches.column(static_cast<std::int32_t>(c), static_cast<std::int32_t>(stride));
  }
};

// How many entries of c a block has: rows, as the columns of a, and columns, as those of b.
struct TileSize {
  int i, j;
};

// c[i, j] (+)= sum over k < depth of scale[k] a(k, i) b(k, j), k < count[0] where there is one
template <class T>
struct GatheredProduct {
  Compute<T>* c;
  Gathered<T> a, b;
  const Compute<T>* scale;  // null: all ones
  std::int64_t depth;
  const std::int32_t* count;  // null: of all `depth`
  bool accumulate;            // c += instead of c =
  bool few_chunks;            // in the factors (has_few_chunks)
  std::int64_t first = 0;     // so many of `count` come before these
  // A long sum of few entries goes in pieces, which are added up afterwards.
  std::int64_t pieces = 1;
  Compute<T>* parts = nullptr;  // [pieces, a.width, b.width], of more than one

  __device__ std::int64_t rows() const {
    return count ? max(min(*count - first, depth), std::int64_t{0}) : depth;
  }

  // How many tiles c has, and how many side by side.
  __host__ __device__ int tiles_across(TileSize tile) const {
    return static_cast<int>((b.width + tile.j - 1) / tile.j);
  }
  __host__ __device__ int tiles(TileSize tile) const {
    return static_cast<int>((a.width + tile.i - 1) / tile.i) * tiles_across(tile);
  }
  __host__ __device__ int blocks(TileSize tile) const {
    return tiles(tile) * static_cast<int>(pieces);
  }
};

// What a block has of a product: a tile that begins at (i, j), its sum over [begin, end).
template <class T>
struct TilePlace {
  const GatheredProduct<T>* product;
  std::int64_t i, j;
  std::int32_t begin, end;
  Compute<T>* c;
  bool accumulate;
};

// Blocks go over the tiles of the first piece of the first product. Its next pieces follow, then
// the next product.
template <class T>
__device__ TilePlace<T> tile_of_block(const Several<GatheredProduct<T>>& group, TileSize size) {
  int block = static_cast<int>(blockIdx.x), n = 0;
  for (; block >= group.each[n].blocks(size); ++n) block -= group.each[n].blocks(size);
  const GatheredProduct<T>& product = group.each[n];
  const int across = product.tiles_across(size), piece = block / product.tiles(size);
  const int tile = block % product.tiles(size);
  const auto pieces = static_cast<std::uint32_t>(product.pieces);  // 64 bits would be a call
  const std::int64_t each = (static_cast<std::uint32_t>(product.depth) + pieces - 1) / pieces;
  const std::int64_t begin = each * piece, end = min(begin + each, product.rows());
  const bool whole = product.pieces == 1;
  return {&product,
          std::int64_t{tile / across} * size.i,
          std::int64_t{tile % across} * size.j,
          static_cast<std::int32_t>(begin),
          static_cast<std::int32_t>(max(begin, end)),
          whole ? product.c : product.parts + piece * product.a.width * product.b.width,
          product.accumulate && whole};
}

constexpr int kPlainTile = 64, kDepth = 16, kPerThread = 4;
constexpr int kPlainThreads = (kPlainTile / kPerThread) * (kPlainTile / kPerThread);

// Rows are longer than the tile: then lanes that write a column meet in few banks.
template <class T>
struct Panel {
  T value[kDepth][kPlainTile + kPerThread];
};

template <class C>
using TileSums = C[kPerThread][kPerThread];  // of one thread

// sum[i][j] += the entries (i, j) of a thread, which lie side by side.
template <class C>
__device__ void multiply_panels(TileSums<C>& sum, const Panel<C>& a, const Panel<C>& b, int own_i,
                                int own_j) {
  for (int d = 0; d < kDepth; ++d)
    for (int i = 0; i < kPerThread; ++i)
      for (int j = 0; j < kPerThread; ++j)
        sum[i][j] += a.value[d][own_i + i] * b.value[d][own_j + j];
}

// The products of a group: weight gradients of kept rows. Rows are gathered, and scaled, on their
// way into shared memory. A block owns a tile of 64 x 64 entries, a thread 4 x 4 of them. The block
// goes over k in ascending order, 16 rows at a time. So every sum has one order. Each warp finds
// the rows of both factors, one a lane.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    gathered_product_kernel(const __grid_constant__ Several<GatheredProduct<T>> group) {
  using C = Compute<T>;
  struct Shared {
    Panel<C> panel[2];  // of a and b
  };
  VCAS_SHARED(Shared, shared);
  const TilePlace<T> own = tile_of_block(group, {kPlainTile, kPlainTile});
  const GatheredProduct<T>& product = *own.product;
  const int thread = static_cast<int>(threadIdx.x), lane = lane_of_thread();
  const int own_i = thread / (kPlainTile / kPerThread) * kPerThread;
  const int own_j = thread % (kPlainTile / kPerThread) * kPerThread;
  const ColumnPlace column[2] = {product.a.column(own.i + thread % kPlainTile),
                                 product.b.column(own.j + thread % kPlainTile)};
  TileSums<C> sum = {};
  for (std::int32_t first = own.begin; first < own.end; first += kDepth) {
    const std::int32_t looked_up = first + lane % kDepth;
    const Gathered<T>& looked_at = lane < kDepth ? product.a : product.b;
    const RowPlace place =
        looked_at.place(looked_at.full_row(looked_at.compact_row(looked_up, own.end)));
    VCAS_UNROLL
    for (int factor = 0; factor < 2; ++factor)
      for (int d = thread / kPlainTile; d < kDepth; d += kPlainThreads / kPlainTile) {
        const int from = factor * kDepth + d;
        const RowPlace row{__shfl_sync(kAllLanes, place.first, from),
                           __shfl_sync(kAllLanes, place.taps, from)};
        const Gathered<T>& source = factor == 0 ? product.a : product.b;
        C value = 0;
        if (column[factor].inside(row)) {
          value = source.data[row.first * source.stride + column[factor].offset];
          if (factor == 0 && product.scale) value *= product.scale[first + d];
        }
        shared.panel[factor].value[d][thread % kPlainTile] = value;
      }
    __syncthreads();
    multiply_panels(sum, shared.panel[0], shared.panel[1], own_i, own_j);
    __syncthreads();
  }
  for (int i = 0; i < kPerThread; ++i)
    for (int j = 0; j < kPerThread; ++j) {
      const std::int64_t row = own.i + own_i + i, across = own.j + own_j + j;
      if (row >= product.a.width || across >= product.b.width) continue;
      C& out = own.c[row * product.b.width + across];
      out = own.accumulate ? out + sum[i][j] : sum[i][j];
    }
}

// c (+)= the pieces of each product, by ascending rows. Blocks (entries, product).
template <class T>
__global__ void add_pieces_kernel(const __grid_constant__ Several<GatheredProduct<T>> group) {
  const GatheredProduct<T>& product = group.each[blockIdx.y];
  const std::int64_t n = product.a.width * product.b.width;
  for_each_element(n, [&](std::int64_t i) {
    Compute<T> sum = product.accumulate ? product.c[i] : Compute<T>(0);
    for (std::int64_t piece = 0; piece < product.pieces; ++piece)
      sum += product.parts[piece * n + i];
    product.c[i] = sum;
  });
}

}  // namespace vcas::VCAS_DEVICE
