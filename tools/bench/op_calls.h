// One realistic call of every operation, for benchmarks and for comparing backends.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <vector>

#include "kernels/buffer.h"

namespace vcas {

struct OpSize {
  std::int64_t items = 1;
  std::int64_t tokens = 1;  // per item, a square number
  std::int64_t width = 1;   // C
  std::int64_t hidden = 1;  // D
  std::int64_t heads = 1;
  std::int64_t patch = 1;
  std::int64_t classes = 10;
  std::int64_t vocabulary = 100;
  std::int64_t keep = 1;  // gradients hold one of `keep` items; weight gradients half of their rows
  Selection selection = Selection::kSystematic;
};

// Owns the tensors of the calls it makes, in f32 or bf16. There is one `fill` for each operation: a
// new operation without one does not compile.
class OpCalls {
 public:
  OpCalls(Ops& ops, const OpSize& size, DType dtype = DType::kF32)
      : ops_(ops), size_(size), dtype_(dtype) {
    for (std::int64_t item = 0; item < size.items; item += size.keep) {
      items_.push_back(static_cast<std::int32_t>(item));
      for (std::int64_t t = 0; t < size.tokens; ++t)
        rows_.push_back(static_cast<std::int32_t>(item * size.tokens + t));
    }
  }

  template <class Args>
  Args make() {
    Args args;
    fill(args);
    return args;
  }

 private:
  template <class Args>
  void fill(Group<Args>& group) {
    for (int i = 0; i < 2; ++i) group.add(make<Args>());
  }
  void fill(LinearForward& a) {
    a.y = empty({rows(), size_.hidden});
    a.x = random({rows(), size_.width});
    a.weight = random({size_.hidden, size_.width});
    a.bias = random({size_.hidden});
  }
  void fill(LinearBackwardInput& a) {
    a.dx = empty({kept_rows(), size_.width});
    a.dy = random({kept_rows(), size_.hidden});
    a.weight = random({size_.hidden, size_.width});
  }
  void fill(LinearBackwardWeight& a) {
    a.dweight = wide({size_.hidden, size_.width});
    a.dy = random({kept_rows(), size_.hidden});
    a.x_full = random({rows(), size_.width});
    a.row = row();
    if (size_.keep == 1) return;
    std::vector<std::int32_t> kept(rows_.size() / 2);
    for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = static_cast<std::int32_t>(2 * i);
    a.kept = holding(kept);
    a.scale = positive(static_cast<std::int64_t>(kept.size()));
  }
  void fill(LinearWeightBlock& a) {
    std::vector<std::int32_t> index(32);
    for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int32_t>(i);
    a.block = wide({32, 32});
    a.dy = random({kept_rows(), size_.hidden});
    a.x_full = random({rows(), size_.width});
    a.row = row();
    a.out_index = holding(index);
    a.in_index = holding(index);
  }
  void fill(ColumnSum& a) {
    a.sum = wide({size_.hidden});
    a.x = random({kept_rows(), size_.hidden});
  }
  void fill(RowScore& a) {
    a.score = wide({kept_rows()});
    a.dy = random({kept_rows(), size_.hidden});
    a.x_full = random({rows(), size_.width});
    a.row = row();
    // Of two in a group one has norms.
    if (score_has_norms_) {
      a.dy_norm = positive(kept_rows()).reshaped({kept_rows(), 1});
      a.x_norm_full = positive(rows()).reshaped({rows(), 1});
    }
    score_has_norms_ = !score_has_norms_;
  }
  void fill(ItemNorm& a) {
    a.norm = wide({kept_items()});
    a.x = random({kept_rows(), size_.width});
    a.offsets = offsets(kept_items());
  }
  void fill(KeepProbability& a) {
    a.prob = wide({rows()});
    a.variance = empty({1}, DType::kF64);
    a.score = positive(rows());
    a.budget = static_cast<double>(rows()) / 3;
  }
  void fill(Draw& a) {
    const std::int64_t budget = std::max<std::int64_t>(rows() / 3, 1);
    const bool systematic = size_.selection == Selection::kSystematic;
    const std::int64_t most = systematic ? budget : rows();
    a.kept = empty({most}, DType::kI32);
    a.scale = wide({most});
    if (!systematic) a.count = empty({1}, DType::kI32);
    a.prob = wide({rows()});
    a.score = positive(rows());
    a.budget = static_cast<double>(budget);
    a.selection = size_.selection;
  }
  void fill(NarrowRows& a) {
    a.item = empty({kept_items()}, DType::kI32);
    a.scale = wide({kept_items()});
    a.offsets = empty({kept_items() + 1}, DType::kI64);
    a.row = empty({rows()}, DType::kI32);
    a.source_row = empty({rows()}, DType::kI32);
    a.kept = holding(items_);
    a.kept_scale = positive(kept_items());
    a.old_offsets = offsets(size_.items);
  }
  void fill(GatherScaledRows& a) {
    a.y = empty({kept_rows(), size_.width});
    a.y_norm = wide({kept_rows()});
    a.x = random({rows(), size_.width});
    a.source_row = holding(rows_);
    a.offsets = offsets(kept_items());
    a.scale = positive(kept_items());
  }
  void fill(LayerNormForward& a) {
    a.y = empty({rows(), size_.width});
    a.y_norm = wide({rows()});
    a.center = wide({rows()});
    a.rstd = wide({rows()});
    a.x = random({rows(), size_.width});
    a.gamma = random({size_.width});
    a.beta = random({size_.width});
  }
  void fill(LayerNormBackward& a) {
    const auto forward = make<LayerNormForward>();
    ops_.run(forward);
    a.dx = empty({kept_rows(), size_.width});
    a.dx_norm = wide({kept_rows()});
    a.dgamma = wide({size_.width});
    a.dbeta = wide({size_.width});
    a.dy = random({kept_rows(), size_.width});
    a.x_full = forward.x;
    a.center_full = forward.center;
    a.rstd_full = forward.rstd;
    a.gamma = forward.gamma;
    a.row = row();
  }
  void fill(GeluForward& a) {
    a.y = empty({rows(), size_.hidden});
    a.y_norm = wide({rows()});
    a.x = random({rows(), size_.hidden});
  }
  void fill(GeluBackward& a) {
    a.dx = empty({kept_rows(), size_.hidden});
    a.dx_norm = wide({kept_rows()});
    a.dy = random({kept_rows(), size_.hidden});
    a.x_full = random({rows(), size_.hidden});
    a.row = row();
  }
  void fill(TanhForward& a) {
    a.y = empty({size_.items, size_.width});
    a.x = random({size_.items, size_.width});
  }
  void fill(TanhBackward& a) {
    a.dx = empty({kept_items(), size_.width});
    a.dy = random({kept_items(), size_.width});
    a.y_full = random({size_.items, size_.width});
    if (size_.keep > 1) a.row = holding(items_);
  }
  void fill(Dropout& a) {
    a.y = empty({kept_rows(), size_.width});
    a.y_norm = wide({kept_rows()});
    a.x = random({kept_rows(), size_.width});
    a.residual = random({kept_rows(), size_.width});
    a.row = row();
    a.p = 0.1;
  }
  void fill(AttentionForward& a) {
    a.y = empty({rows(), size_.width});
    a.y_norm = wide({rows(), size_.heads});
    a.lse = wide({rows(), size_.heads});
    a.qkv = random({rows(), 3 * size_.width});
    a.offsets = offsets(size_.items);
    a.heads = size_.heads;
    a.pairs = rows() * size_.tokens;
  }
  void fill(AttentionBackward& a) {
    const auto forward = make<AttentionForward>();
    ops_.run(forward);
    a.dqkv = empty({kept_rows(), 3 * size_.width});
    a.dqkv_norm = wide({kept_rows(), size_.heads, 2});
    a.dy = random({kept_rows(), size_.width});
    a.qkv_full = forward.qkv;
    a.y_full = forward.y;
    a.lse_full = forward.lse;
    a.offsets = offsets(kept_items());
    a.offsets_full = forward.offsets;
    if (size_.keep > 1) a.item = holding(items_);
    a.heads = size_.heads;
    a.pairs = kept_rows() * size_.tokens;
  }
  void fill(Add& a) {
    a.y = empty({rows(), size_.width});
    a.a = random({rows(), size_.width});
    a.b = random({rows(), size_.width});
  }
  void fill(Copy& a) {
    a.y = empty({rows(), size_.width});
    a.x = random({rows(), size_.width});
  }
  void fill(Fill& a) {
    a.y = empty({rows(), size_.width});
    a.value = 0.5;
  }
  void fill(PatchExtract& a) {
    const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(size_.tokens)));
    a.y = empty({kept_rows(), 3 * size_.patch * size_.patch});
    a.image = wide_random({size_.items, 3, side * size_.patch, side * size_.patch});
    if (size_.keep > 1) a.item = holding(items_);
    a.patch = size_.patch;
  }
  void fill(PatchTokensForward& a) {
    a.y = empty({size_.items, size_.tokens, size_.width});
    a.patches = random({size_.items, size_.tokens - 1, size_.width});
    a.cls = random({size_.width});
    a.position = random({size_.tokens, size_.width});
  }
  void fill(PatchTokensBackward& a) {
    a.dpatches = empty({kept_items(), size_.tokens - 1, size_.width});
    a.dcls = wide({size_.width});
    a.dposition = wide({size_.tokens, size_.width});
    a.dy = random({kept_items(), size_.tokens, size_.width});
  }
  void fill(PoolForward& a) {
    a.y = empty({size_.items, size_.width});
    a.x = random({rows(), size_.width});
    a.offsets = offsets(size_.items);
    a.pooling = Pooling::kMean;
  }
  void fill(PoolBackward& a) {
    a.dx = empty({kept_rows(), size_.width});
    a.dy = random({kept_items(), size_.width});
    a.offsets = offsets(kept_items());
    a.pooling = Pooling::kMean;
  }
  void fill(CrossEntropyForward& a) {
    a.loss = wide({size_.items});
    a.correct = empty({size_.items}, DType::kI32);
    a.logits = random({size_.items, size_.classes});
    a.labels = below(size_.items, size_.classes);
    a.smoothing = 0.1;
  }
  void fill(CrossEntropyBackward& a) {
    a.dlogits = empty({size_.items, size_.classes});
    a.logits = random({size_.items, size_.classes});
    a.labels = below(size_.items, size_.classes);
    a.smoothing = 0.1;
    a.scale = 1 / static_cast<double>(size_.items);
  }
  void fill(EmbeddingForward& a) {
    a.y = empty({rows(), size_.width});
    a.table = random({size_.vocabulary, size_.width});
    a.tokens = below(rows(), size_.vocabulary);
  }
  void fill(EmbeddingBackward& a) {
    a.dtable = wide({size_.vocabulary, size_.width});
    a.dy = random({kept_rows(), size_.width});
    a.tokens_full = below(rows(), size_.vocabulary);
    a.row = row();
  }
  void fill(SquaredErrorForward& a) {
    a.loss = wide({size_.items});
    a.prediction = random({size_.items});
    a.target = wide_random({size_.items});
  }
  void fill(SquaredErrorBackward& a) {
    a.dprediction = empty({size_.items});
    a.prediction = random({size_.items});
    a.target = wide_random({size_.items});
    a.scale = 1 / static_cast<double>(size_.items);
  }
  // The first row of each item.
  void fill(ScatterRows& a) {
    std::vector<std::int32_t> first;
    for (std::int64_t n = 0; n < size_.items; ++n)
      first.push_back(static_cast<std::int32_t>(n * size_.tokens));
    std::vector<std::int64_t> dy_offsets;
    for (std::int64_t n = 0; n <= kept_items(); ++n) dy_offsets.push_back(n);
    a.dx = empty({kept_rows(), size_.width});
    a.dy = random({kept_items(), size_.width});
    a.index_full = holding(first);
    if (size_.keep > 1) a.row = a.item = holding(items_);
    a.dy_offsets = holding(dy_offsets);
    a.offsets = offsets(kept_items());
    a.offsets_full = offsets(size_.items);
  }
  void fill(AdamStep& a) {
    const std::int64_t parameters = size_.hidden * size_.width;
    a.param = wide_random({parameters});
    if (dtype_ == DType::kBF16) a.rounded = empty({parameters});
    a.first_moment = wide_random({parameters});
    a.second_moment = positive(parameters);
    a.grad = wide_random({parameters});
    a.squared_norm = holding(std::vector{4.0});
    a.learning_rate = 1e-3;
    a.weight_decay = 0.01;
    a.max_norm = 1;
    a.step = 10;
  }
  void fill(SgdStep& a) {
    const std::int64_t parameters = size_.hidden * size_.width;
    a.param = wide_random({parameters});
    if (dtype_ == DType::kBF16) a.rounded = empty({parameters});
    a.momentum = wide_random({parameters});
    a.grad = wide_random({parameters});
    a.squared_norm = holding(std::vector{4.0});
    a.learning_rate = 1e-3;
    a.weight_decay = 0.01;
    a.max_norm = 1;
  }
  void fill(SumSquares& a) {
    a.sum = empty({1}, DType::kF64);
    a.x = wide_random({rows(), size_.hidden});
  }

  std::int64_t rows() const { return size_.items * size_.tokens; }
  std::int64_t kept_items() const { return static_cast<std::int64_t>(items_.size()); }
  std::int64_t kept_rows() const { return static_cast<std::int64_t>(rows_.size()); }

  Tensor empty(const Shape& shape) { return empty(shape, dtype_); }
  Tensor wide(const Shape& shape) { return empty(shape, statistics_dtype(dtype_)); }
  Tensor empty(const Shape& shape, DType dtype) {
    const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * dtype_bytes(dtype);
    return buffers_.emplace_back(ops_, bytes).at(0, dtype, shape);
  }
  template <class T>
  Tensor holding(const std::vector<T>& values, const Shape& shape) {
    const Tensor tensor = empty(shape, DTypeOf<T>::value);
    ops_.copy_to_device(tensor.data, values.data(), tensor.bytes());
    return tensor;
  }
  template <class T>
  Tensor holding(const std::vector<T>& values) {
    return holding(values, {static_cast<std::int64_t>(values.size())});
  }

  // Uniform in (0, 1), the next tensor's numbers differing from the last one's. Many repeat after a
  // while: drawing them would take longer than what they are for.
  std::vector<float> uniforms(std::int64_t count) {
    constexpr std::size_t kDrawn = 65537;
    const PhiloxAddress address = philox_address({.seed = 1, .site = site_++});
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = i < kDrawn ? philox_uniform(address, i) : values[i - kDrawn];
    return values;
  }
  Tensor positive(std::int64_t count) { return holding(uniforms(count)); }
  // Mean 0, variance 1.
  std::vector<float> centred(std::int64_t count) {
    std::vector<float> values = uniforms(count);
    for (float& value : values) value = std::sqrt(12.0f) * (value - 0.5f);
    return values;
  }
  Tensor wide_random(const Shape& shape) { return holding(centred(shape.elements()), shape); }
  Tensor random(const Shape& shape) {
    if (dtype_ == DType::kF32) return wide_random(shape);
    const std::vector<float> values = centred(shape.elements());
    return holding(std::vector<bfloat16>(values.begin(), values.end()), shape);
  }
  Tensor below(std::int64_t count, std::int64_t limit) {
    std::vector<std::int32_t> values;
    for (const float value : uniforms(count))
      values.push_back(static_cast<std::int32_t>(value * static_cast<float>(limit)));
    return holding(values);
  }
  Tensor offsets(std::int64_t items) {
    std::vector<std::int64_t> values;
    for (std::int64_t n = 0; n <= items; ++n) values.push_back(n * size_.tokens);
    return holding(values);
  }
  Tensor row() { return size_.keep == 1 ? Tensor{} : holding(rows_); }

  Ops& ops_;
  OpSize size_;
  DType dtype_;
  std::vector<std::int32_t> items_, rows_;  // that a compact gradient holds
  std::deque<Buffer> buffers_;
  std::uint32_t site_ = 0;
  bool score_has_norms_ = false;
};

}  // namespace vcas
