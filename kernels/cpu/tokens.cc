// Between images, tokens and rows: patches, embeddings, pooling.
#include "kernels/cpu/compute.h"

namespace vcas {
namespace {

template <class T>
void add_to(T* sum, const T* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

template <class T>
void patch_extract(CpuContext& cpu, const PatchExtract& args) {
  const std::int64_t channels = args.image.shape[1], height = args.image.shape[2];
  const std::int64_t image_width = args.image.shape[3], patch = args.patch;
  const std::int64_t down = height / patch, across = image_width / patch;
  const std::int64_t width = channels * patch * patch;
  const std::int64_t items = args.item ? args.item.elements() : args.image.shape[0];
  const auto* item = args.item.ptr<std::int32_t>();
  const float* image = args.image.ptr<float>();
  T* y = args.y.ptr<T>();
  cpu.rows(items * down, across * width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t line = begin; line < end; ++line) {
      const std::int64_t n = line / down, top = line % down * patch;
      const float* from = image + (item ? item[n] : n) * channels * height * image_width;
      for (std::int64_t left = 0; left < across; ++left)
        for (std::int64_t channel = 0; channel < channels; ++channel)
          for (std::int64_t dy = 0; dy < patch; ++dy)
            for (std::int64_t dx = 0; dx < patch; ++dx)
              y[(line * across + left) * width + (channel * patch + dy) * patch + dx] =
                  static_cast<T>(
                      from[(channel * height + top + dy) * image_width + left * patch + dx]);
    }
  });
}

template <class T>
void patch_tokens_forward(CpuContext& cpu, const PatchTokensForward& args) {
  const std::int64_t items = args.y.shape[0], tokens = args.y.shape[1], width = args.y.width();
  const std::int64_t patches = args.patches.shape[1];
  const T* cls = args.cls.ptr<T>();
  const T* position = args.position.ptr<T>();
  T* y = args.y.ptr<T>();
  const T* x = args.patches.ptr<T>();
  cpu.rows(items * tokens, width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t n = r / tokens, t = r % tokens;
      const T* from = cls && t == 0 ? cls : x + (n * patches + t - (cls ? 1 : 0)) * width;
      cpu.loops<T>().add(y + r * width, position + t * width, from, width);
    }
  });
}

// By token, so that each thread sums its own rows of dposition, in the order of the items.
template <class T>
void patch_tokens_backward(CpuContext& cpu, const PatchTokensBackward& args) {
  const std::int64_t items = args.dy.shape[0], tokens = args.dy.shape[1], width = args.dy.width();
  const std::int64_t patches = args.dpatches.shape[1], skipped = tokens - patches;
  T* dpatches = args.dpatches.ptr<T>();
  T* dcls = args.dcls.ptr<T>();
  T* dposition = args.dposition.ptr<T>();
  const T* dy = args.dy.ptr<T>();
  cpu.rows(tokens, items * width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = 0; n < items; ++n)
      for (std::int64_t t = begin; t < end; ++t) {
        const T* from = dy + (n * tokens + t) * width;
        if (t >= skipped) std::copy_n(from, width, dpatches + (n * patches + t - skipped) * width);
        if (t < skipped && dcls) add_to(dcls, from, width);
        if (dposition) add_to(dposition + t * width, from, width);
      }
  });
}

template <class T>
void pool_forward(CpuContext& cpu, const PoolForward& args) {
  const std::int64_t width = args.y.width();
  const auto* offsets = args.offsets.ptr<std::int64_t>();
  T* y = args.y.ptr<T>();
  const T* x = args.x.ptr<T>();
  const bool mean = args.pooling == Pooling::kMean;
  cpu.rows(args.y.rows(),
           (mean ? args.x.elements() / std::max<std::int64_t>(args.y.rows(), 1) : width),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t n = begin; n < end; ++n) {
               const T* from = x + offsets[n] * width;
               T* to = y + n * width;
               if (!mean) {
                 std::copy_n(from, width, to);
                 continue;
               }
               const std::int64_t rows = offsets[n + 1] - offsets[n];
               std::fill_n(to, width, T(0));
               cpu.loops<T>().column_sum(to, from, width, rows, width);
               for (std::int64_t c = 0; c < width; ++c) to[c] /= static_cast<T>(rows);
             }
           });
}

template <class T>
void pool_backward(CpuContext& cpu, const PoolBackward& args) {
  const std::int64_t width = args.dx.width();
  const auto* offsets = args.offsets.ptr<std::int64_t>();
  T* dx = args.dx.ptr<T>();
  const T* dy = args.dy.ptr<T>();
  const bool mean = args.pooling == Pooling::kMean;
  const std::int64_t items = args.dy.rows();
  cpu.rows(items, args.dx.elements() / std::max<std::int64_t>(items, 1),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t n = begin; n < end; ++n) {
               const std::int64_t rows = offsets[n + 1] - offsets[n];
               const T* from = dy + n * width;
               for (std::int64_t r = 0; r < rows; ++r) {
                 T* to = dx + (offsets[n] + r) * width;
                 if (mean)
                   for (std::int64_t c = 0; c < width; ++c) to[c] = from[c] / static_cast<T>(rows);
                 else if (r == 0)
                   std::copy_n(from, width, to);
                 else
                   std::fill_n(to, width, T(0));
               }
             }
           });
}

}  // namespace

void compute(CpuContext& cpu, const PatchExtract& args) {
  with_type(args.y.dtype, [&](auto type) { patch_extract<decltype(type)>(cpu, args); });
}
void compute(CpuContext& cpu, const PatchTokensForward& args) {
  with_type(args.y.dtype, [&](auto type) { patch_tokens_forward<decltype(type)>(cpu, args); });
}
void compute(CpuContext& cpu, const PatchTokensBackward& args) {
  with_type(args.dy.dtype, [&](auto type) { patch_tokens_backward<decltype(type)>(cpu, args); });
}
void compute(CpuContext& cpu, const PoolForward& args) {
  with_type(args.y.dtype, [&](auto type) { pool_forward<decltype(type)>(cpu, args); });
}
void compute(CpuContext& cpu, const PoolBackward& args) {
  with_type(args.dx.dtype, [&](auto type) { pool_backward<decltype(type)>(cpu, args); });
}

void compute(CpuContext& cpu, const EmbeddingForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.y.width();
    const auto* tokens = args.tokens.ptr<std::int32_t>();
    T* y = args.y.ptr<T>();
    cpu.rows(args.y.rows(), width, [&](std::int64_t begin, std::int64_t end) {
      cpu.loops<T>().gather_rows(y + begin * width, args.table.ptr<T>(), width, tokens + begin,
                                 nullptr, 0, end - begin, width);
    });
  });
}

// By columns: every thread adds all rows, in ascending order, to its part of each entry.
void compute(CpuContext& cpu, const EmbeddingBackward& args) {
  with_type(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t rows = args.dy.rows(), width = args.dy.width();
    const auto* tokens = args.tokens_full.ptr<std::int32_t>();
    const auto* row = args.row.ptr<std::int32_t>();
    T* dtable = args.dtable.ptr<T>();
    const T* dy = args.dy.ptr<T>();
    cpu.grains(width, 16, rows * width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = 0; r < rows; ++r)
        add_to(dtable + tokens[row ? row[r] : r] * width + begin, dy + r * width + begin,
               end - begin);
    });
  });
}

// By items: the rows that one item's rows are added to are its own.
void compute(CpuContext& cpu, const ScatterRows& args) {
  with_type(args.dx.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.dx.width(), items = args.offsets.elements() - 1;
    const auto* index = args.index_full.ptr<std::int32_t>();
    const auto* row = args.row.ptr<std::int32_t>();
    const auto* item = args.item.ptr<std::int32_t>();
    const auto* dy_offsets = args.dy_offsets.ptr<std::int64_t>();
    const auto* offsets = args.offsets.ptr<std::int64_t>();
    const auto* offsets_full = args.offsets_full.ptr<std::int64_t>();
    T* dx = args.dx.ptr<T>();
    const T* dy = args.dy.ptr<T>();
    cpu.rows(items, args.dx.elements() / std::max<std::int64_t>(items, 1),
             [&](std::int64_t begin, std::int64_t end) {
               std::fill(dx + offsets[begin] * width, dx + offsets[end] * width, T(0));
               for (std::int64_t n = begin; n < end; ++n) {
                 const std::int64_t shift = offsets[n] - offsets_full[item ? item[n] : n];
                 for (std::int64_t p = dy_offsets[n]; p < dy_offsets[n + 1]; ++p)
                   add_to(dx + (shift + index[row ? row[p] : p]) * width, dy + p * width, width);
               }
             });
  });
}

}  // namespace vcas
