// Attention on the CPU: one task per item and head. Tasks write disjoint outputs. A result does not
// depend on the thread that computes it. So threads take tasks as they become free: items differ in
// length.
#include <cmath>

#include "kernels/cpu/compute.h"

namespace vcas {
namespace {

std::int64_t longest(const std::int64_t* offsets, std::int64_t items) {
  std::int64_t tokens = 0;
  for (std::int64_t n = 0; n < items; ++n) tokens = std::max(tokens, offsets[n + 1] - offsets[n]);
  return tokens;
}

// body(item, head, scratch)
template <class T, class Body>
void for_heads(CpuContext& cpu, const std::int64_t* offsets, std::int64_t items, std::int64_t heads,
               std::int64_t head_width, const Body& body) {
  const std::int64_t tokens = longest(offsets, items);
  const std::int64_t tasks = items * heads;
  const int threads = cpu.slices_for(tasks, tasks * tokens * head_width);
  const std::int64_t space = cpu.loops<T>().attention_scratch(tokens, head_width);
  T* scratch = cpu.scratch<T>(threads * space);
  // The heads of one item side by side: its rows come from memory once.
  const std::int64_t grain = items >= 4 * threads ? heads : 1;
  cpu.tasks(threads, tasks, grain, [&](std::int64_t task, int thread) {
    if (offsets[task / heads] < offsets[task / heads + 1])
      body(task / heads, task % heads, scratch + thread * space);
  });
}

// The columns of the input that one head of an item reads, or of its gradient. T may be const.
template <class T>
struct HeadColumns {
  T *q, *k, *v;
  std::int64_t q_stride, kv_stride;
};

// `query` is null where qkv [R, 3C] has the queries of all rows; else it is [N, C], and qkv is
// [R, 2C].
template <class T>
HeadColumns<T> columns_of(T* query, T* qkv, std::int64_t width, std::int64_t item,
                          std::int64_t first_row, std::int64_t first_column) {
  const std::int64_t stride = (query ? 2 : 3) * width;
  T* row = qkv + first_row * stride + first_column;
  T* k = query ? row : row + width;
  return {.q = query ? query + item * width + first_column : row,
          .k = k,
          .v = k + width,
          .q_stride = query ? width : stride,
          .kv_stride = stride};
}

// The head of the full batch's item that starts at `first_row`.
template <class T>
AttentionHead<T> head_of(const HeadColumns<const T>& in, std::int64_t width, std::int64_t first_row,
                         std::int64_t queries, std::int64_t tokens, std::int64_t head,
                         std::int64_t heads, bool causal, double dropout,
                         const PhiloxAddress& address) {
  const std::int64_t head_width = width / heads;
  return {.q = in.q,
          .k = in.k,
          .v = in.v,
          .q_stride = in.q_stride,
          .kv_stride = in.kv_stride,
          .queries = queries,
          .tokens = tokens,
          .width = head_width,
          .scale = static_cast<T>(1 / std::sqrt(static_cast<double>(head_width))),
          .causal = causal,
          .y_stride = width,
          .lse_stride = heads,
          .threshold = dropout_threshold(dropout),
          .keep_scale = static_cast<T>(dropout_scale(dropout)),
          .address = address,
          .first_draw = static_cast<std::uint64_t>(first_row * heads + head) * kDrawsPerQuery,
          .draw_stride = static_cast<std::uint64_t>(heads) * kDrawsPerQuery};
}

}  // namespace

void compute(CpuContext& cpu, const AttentionForward& args) {
  with_type(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.y.width(), heads = args.heads, head_width = width / heads;
    const auto* offsets = args.offsets.ptr<std::int64_t>();
    const PhiloxAddress address = step_key(args).address();
    for_heads<T>(cpu, offsets, args.offsets.elements() - 1, heads, head_width,
                 [&](std::int64_t n, std::int64_t h, T* scratch) {
                   const std::int64_t first = offsets[n], tokens = offsets[n + 1] - first;
                   const std::int64_t y_row = args.query ? n : first;
                   const auto in = columns_of<const T>(args.query.ptr<T>(), args.qkv.ptr<T>(),
                                                       width, n, first, h * head_width);
                   const std::int64_t queries = args.query ? 1 : tokens;
                   T* const y = args.y.ptr<T>() + y_row * width + h * head_width;
                   cpu.loops<T>().attention_forward(
                       y, args.lse.ptr<T>() + y_row * heads + h,
                       head_of(in, width, first, queries, tokens, h, heads, args.causal,
                               args.dropout, address),
                       scratch);
                   if (T* const norm = args.y_norm.ptr<T>())
                     cpu.loops<T>().row_norms(norm + y_row * heads + h, heads, y, nullptr, width,
                                              queries, head_width);
                 });
  });
}

void compute(CpuContext& cpu, const AttentionBackward& args) {
  with_type(args.dqkv.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = args.dy.width(), heads = args.heads, head_width = width / heads;
    const auto* offsets = args.offsets.ptr<std::int64_t>();
    const auto* offsets_full = args.offsets_full.ptr<std::int64_t>();
    const auto* item = args.item.ptr<std::int32_t>();
    const PhiloxAddress address = step_key(args).address();
    for_heads<T>(
        cpu, offsets, args.offsets.elements() - 1, heads, head_width,
        [&](std::int64_t n, std::int64_t h, T* scratch) {
          const std::int64_t n_full = item ? item[n] : n, full = offsets_full[n_full];
          const std::int64_t tokens = offsets[n + 1] - offsets[n];
          const bool first_only = static_cast<bool>(args.query_full);
          const std::int64_t y_row = first_only ? n_full : full;
          const auto in = columns_of<const T>(args.query_full.ptr<T>(), args.qkv_full.ptr<T>(),
                                              width, n_full, full, h * head_width);
          const auto out = columns_of<T>(args.dquery.ptr<T>(), args.dqkv.ptr<T>(), width, n,
                                         offsets[n], h * head_width);
          cpu.loops<T>().attention_backward(
              out.q, out.k, out.v,
              args.dy.ptr<T>() + (first_only ? n : offsets[n]) * width + h * head_width,
              args.y_full.ptr<T>() + y_row * width + h * head_width,
              args.lse_full.ptr<T>() + y_row * heads + h,
              head_of(in, width, full, first_only ? 1 : tokens, tokens, h, heads, args.causal,
                      args.dropout, address),
              scratch);
          if (!args.dqkv_norm) return;
          T* const norm = args.dqkv_norm.ptr<T>() + (offsets[n] * heads + h) * 2;
          const auto norms = [&](T* of, const T* x, const T* more) {
            cpu.loops<T>().row_norms(of, 2 * heads, x, more, out.kv_stride, tokens, head_width);
          };
          norms(norm, out.q, nullptr);
          norms(norm + 1, out.k, out.v);
        });
  });
}

}  // namespace vcas
