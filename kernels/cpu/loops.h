// The inner loops of the CPU operations.
// One source (loops.inc) is compiled for several instruction sets and chosen at run time.
// Raw pointers and plain structs only: the linker keeps one copy of a header's inline function.
// The copy of the AVX-512 unit could be that one.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/pointwise.h"

namespace vcas {

// One attention head of one item. Rows are `stride` elements apart; q, k and v point at the head.
// The queries are all tokens of the item, or its first token.
template <class T>
struct AttentionHead {
  const T* q;  // [queries, width], scaled scores: q k^T * scale
  const T* k;  // [tokens, width]
  const T* v;  // [tokens, width]
  std::int64_t q_stride;
  std::int64_t kv_stride;
  std::int64_t queries;
  std::int64_t tokens;
  std::int64_t width;
  T scale;
  bool causal;              // a query attends to no later key
  std::int64_t y_stride;    // of y and dy
  std::int64_t lse_stride;  // heads
  std::uint32_t threshold;  // dropout (dropout_threshold); 0 = none
  T keep_scale;             // 1 / (1 - p)
  PhiloxAddress address;
  std::uint64_t first_draw;   // Philox index of query 0, key 0
  std::uint64_t draw_stride;  // from one query to the next
};

struct ScoreCounts {
  std::int64_t positive, not_finite;
};
struct CappedSums {
  double capped, others;  // how many are capped; the sum of the other values
};

// Where patches lie: line l of patch i is the `run` values from line[l * stride + i] on.
template <class T>
struct PatchLines {
  const T* const* line;
  std::int64_t stride;
  std::int64_t patches;
  std::int64_t lines;
  std::int64_t run;
};

template <class T>
struct PointwiseLoops {
  void (*forward)(T* y, const T* x, std::int64_t n);
  void (*backward)(T* dx, const T* dy, const T* saved, std::int64_t n);
};

// Every function runs on the calling thread. Ranges [begin, end) are of compact rows.
// `row` maps compact rows to full rows. Null: the identity.
template <class T>
struct Loops {
  // y[r] = value
  void (*fill_rows)(T* y, std::int64_t y_stride, const T* value, std::int64_t rows,
                    std::int64_t width);
  // y[r] = scale[r * scale_step] * x[index[r]], y dense; a null scale is 1.
  void (*gather_rows)(T* y, const T* x, std::int64_t x_stride, const std::int32_t* index,
                      const T* scale, std::int64_t scale_step, std::int64_t rows,
                      std::int64_t width);
  // sum += column sums of x
  void (*column_sum)(T* sum, const T* x, std::int64_t x_stride, std::int64_t rows,
                     std::int64_t width);
  // Weights as products of patches read them. Writes values [first, first + count) of `values`:
  // that of output o and value first + v is x[o * output_stride + v * value_stride].
  void (*pack_outputs)(T* packed, const T* x, std::int64_t output_stride, std::int64_t value_stride,
                       std::int64_t first, std::int64_t count, std::int64_t values,
                       std::int64_t outputs);
  // The inverse, for x [outputs, values]: x =, or x +=
  void (*unpack_outputs)(T* x, const T* packed, std::int64_t first, std::int64_t count,
                         std::int64_t values, std::int64_t outputs, bool accumulate);
  // y[i] [outputs] = patch i times the packed weight, or y[i] +=
  void (*patch_product)(T* const* y, const PatchLines<T>& x, const T* weight, std::int64_t outputs,
                        bool accumulate);
  // sum, packed, += patches^T dy [patches, outputs], for values [first, last) of a patch
  void (*patch_outer)(T* sum, const PatchLines<T>& x, std::int64_t first, std::int64_t last,
                      const T* dy, std::int64_t outputs);
  // y[i, b] = the sum over the values c = b, b + buckets, ... of patch i of sign[c] times the value
  void (*patch_fold)(T* y, std::int64_t buckets, const T* sign, const PatchLines<T>& x);
  // norm[place] = the norm of the patch at `place` of an item, whose pixels have these norms.
  // `space` has height * out_width + width + 2 * padding elements.
  void (*patch_norms)(T* norm, double* space, const T* pixel, std::int64_t height,
                      std::int64_t width, std::int64_t out_height, std::int64_t out_width,
                      std::int64_t kernel, std::int64_t stride, std::int64_t padding);
  double (*sum_squares)(const T* x, std::int64_t n);
  // norm[r * norm_stride] = the norm of row r of x. `more` is beside the row, or null.
  void (*row_norms)(T* norm, std::int64_t norm_stride, const T* x, const T* more,
                    std::int64_t stride, std::int64_t rows, std::int64_t width);
  void (*layer_norm_forward)(T* y, T* center, T* rstd, const T* x, const T* gamma, const T* beta,
                             T eps, std::int64_t rows, std::int64_t width);
  // dgamma and dbeta are +=. Null: both of them, dx, or what is added to dx.
  void (*layer_norm_backward)(T* dx, const T* added, T* dgamma, T* dbeta, const T* dy,
                              const std::int32_t* dy_row, const T* dy_scale, const T* x_full,
                              const T* center_full, const T* rstd_full, const T* gamma,
                              const std::int32_t* row, std::int64_t begin, std::int64_t end,
                              std::int64_t width);
  // sum += column sums of x - center, squares += those of its squares
  void (*norm_sums)(double* sum, double* squares, const T* x, const T* center, std::int64_t rows,
                    std::int64_t width);
  // y = (x - center) * factor + shift, column by column
  void (*norm_apply)(T* y, const T* x, const T* center, const T* factor, const T* shift,
                     std::int64_t rows, std::int64_t width);
  // sum += column sums of dy, product += those of dy (x_full[row] - center)
  void (*norm_backward_sums)(double* sum, double* product, const T* dy, const T* x_full,
                             const T* center, const std::int32_t* row, std::int64_t begin,
                             std::int64_t end, std::int64_t width);
  // dx = dy * factor - shift - (x_full[row] - center) * slope + added, column by column. `added`
  // may be null.
  void (*norm_backward_apply)(T* dx, const T* added, const T* dy, const T* x_full, const T* center,
                              const T* factor, const T* shift, const T* slope,
                              const std::int32_t* row, std::int64_t begin, std::int64_t end,
                              std::int64_t width);
#define VCAS_LOOPS(_, P)       \
  PointwiseLoops<T> P##_loops; \
  const PointwiseLoops<T>& of(P) const { return P##_loops; }
  VCAS_FOR_EACH_POINTWISE(VCAS_LOOPS, )
#undef VCAS_LOOPS
  void (*dropout)(T* y, const T* x, const T* residual, const std::int32_t* row, std::int64_t begin,
                  std::int64_t end, std::int64_t width, std::uint32_t threshold, T keep_scale,
                  const PhiloxAddress& address);
  // u[i] = the uniform at index id[i], for [begin, end)
  void (*uniforms)(float* u, const std::int32_t* id, std::int64_t begin, std::int64_t end,
                   const PhiloxAddress& address);
  double (*largest_score)(const T* score, std::int64_t n);  // of those that are finite, or 0
  // Below, the value of a score is unit * score; 0 where it is not finite.
  ScoreCounts (*score_counts)(const T* score, std::int64_t n, double unit);
  // p = min(1, scale * value)
  CappedSums (*capped_sums)(const T* score, std::int64_t n, double unit, double scale);
  void (*capped)(T* p, const T* score, std::int64_t n, double unit, double scale);
  std::int64_t (*attention_scratch)(std::int64_t tokens, std::int64_t width);  // elements
  void (*attention_forward)(T* y, T* lse, const AttentionHead<T>& head, T* scratch);
  // dq, dk, dv have the strides of q, k, v.
  void (*attention_backward)(T* dq, T* dk, T* dv, const T* dy, const T* y, const T* lse,
                             const AttentionHead<T>& head, T* scratch);
  void (*add)(T* y, const T* a, const T* b, std::int64_t n);
  // `weight` may be null: all are 1.
  void (*cross_entropy_forward)(T* loss, std::int32_t* correct, const T* logits,
                                const std::int32_t* labels, const float* weight, T smoothing,
                                std::int64_t rows, std::int64_t classes);
  void (*cross_entropy_backward)(T* dlogits, const T* logits, const std::int32_t* labels,
                                 const float* weight, T smoothing, T scale, std::int64_t rows,
                                 std::int64_t classes);
  void (*adam_step)(T* param, T* first_moment, T* second_moment, const T* grad, std::int64_t n,
                    T grad_scale, const AdamFactors<T>& factors);
  void (*sgd_step)(T* param, T* momentum, const T* grad, std::int64_t n, T learning_rate, T mu,
                   T weight_decay, T grad_scale, bool nesterov);
};

namespace base {
extern const Loops<float> loops_f32;
extern const Loops<double> loops_f64;
}  // namespace base
#if defined(__x86_64__)
namespace v3 {
extern const Loops<float> loops_f32;
extern const Loops<double> loops_f64;
}  // namespace v3
namespace v4 {
extern const Loops<float> loops_f32;
extern const Loops<double> loops_f64;
}  // namespace v4
#endif

}  // namespace vcas
