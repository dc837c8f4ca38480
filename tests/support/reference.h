// The specification of every operation: naive loops in double, written from the formulas of
// kernels/args.h. Every floating point tensor is f64 here (images and targets stay f32, as they are
// everywhere).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/args.h"

namespace vcas::reference {

inline double* f(const Tensor& tensor) { return tensor.ptr<double>(); }
inline std::int32_t* i32(const Tensor& tensor) { return tensor.ptr<std::int32_t>(); }
inline std::int64_t* i64(const Tensor& tensor) { return tensor.ptr<std::int64_t>(); }
// Optional tensors: the identity, and ones.
inline std::int64_t index_at(const Tensor& index, std::int64_t i) {
  return index ? i32(index)[i] : i;
}
inline double factor_at(const Tensor& factor, std::int64_t i) {
  return factor ? f(factor)[i] : 1.0;
}
inline void put(double& out, double value, bool accumulate) {
  out = accumulate ? out + value : value;
}
inline bool kept_by_dropout(const StepKey& key, std::int64_t draw, std::int64_t word, double p) {
  std::uint32_t words[4];
  philox_draw(key.address(), static_cast<std::uint64_t>(draw), words);
  return static_cast<double>(uniform_from_bits(words[word])) >= p;
}

inline void run(const LinearForward& a) {
  const std::int64_t d = a.y.width(), c = a.x.width();
  for (std::int64_t r = 0; r < a.y.rows(); ++r)
    for (std::int64_t o = 0; o < d; ++o) {
      double sum = a.bias ? f(a.bias)[o] : 0;
      for (std::int64_t i = 0; i < c; ++i) sum += f(a.x)[r * c + i] * f(a.weight)[o * c + i];
      f(a.y)[r * d + o] = sum;
    }
}

inline void run(const LinearBackwardInput& a) {
  const std::int64_t d = a.dy.width(), c = a.dx.width();
  for (std::int64_t r = 0; r < a.dx.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i) {
      double sum = 0;
      for (std::int64_t o = 0; o < d; ++o) sum += f(a.dy)[r * d + o] * f(a.weight)[o * c + i];
      put(f(a.dx)[r * c + i], sum, a.accumulate);
    }
}

inline void run(const LinearBackwardWeight& a) {
  const std::int64_t d = a.dy.width(), c = a.x_full.width();
  const std::int64_t count = a.count ? i32(a.count)[0] : a.kept ? a.kept.elements() : a.dy.rows();
  if (!a.accumulate) std::fill_n(f(a.dweight), d * c, 0.0);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t k = index_at(a.kept, i), r = index_at(a.row, k);
    for (std::int64_t o = 0; o < d; ++o)
      for (std::int64_t j = 0; j < c; ++j)
        f(a.dweight)[o * c + j] +=
            factor_at(a.scale, i) * f(a.dy)[k * d + o] * f(a.x_full)[r * c + j];
  }
}

inline void run(const LinearWeightBlock& a) {
  const std::int64_t outs = a.out_index.elements(), ins = a.in_index.elements();
  for (std::int64_t o = 0; o < outs; ++o)
    for (std::int64_t j = 0; j < ins; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < a.dy.rows(); ++k)
        sum += f(a.dy)[k * a.dy.width() + i32(a.out_index)[o]] *
               f(a.x_full)[index_at(a.row, k) * a.x_full.width() + i32(a.in_index)[j]];
      f(a.block)[o * ins + j] = sum;
    }
}

inline void run(const ColumnSum& a) {
  const std::int64_t c = a.x.width();
  if (!a.accumulate) std::fill_n(f(a.sum), c, 0.0);
  for (std::int64_t r = 0; r < a.x.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i) f(a.sum)[i] += f(a.x)[r * c + i];
}

inline double norm_of(const double* x, std::int64_t width) {
  double sum = 0;
  for (std::int64_t i = 0; i < width; ++i) sum += std::pow(x[i], 2);
  return std::sqrt(sum);
}
inline double norm_of_row(const Tensor& x, std::int64_t r) {
  return norm_of(f(x) + r * x.width(), x.width());
}
inline void put_norms(const Tensor& norm, const Tensor& x) {
  for (std::int64_t r = 0; r < norm.elements(); ++r) f(norm)[r] = norm_of_row(x, r);
}

inline void run(const RowScore& a) {
  for (std::int64_t i = 0; i < a.score.elements(); ++i) {
    const std::int64_t r = index_at(a.row, i);
    f(a.score)[i] = norm_of_row(a.dy_norm ? a.dy_norm : a.dy, i) *
                    norm_of_row(a.x_norm_full ? a.x_norm_full : a.x_full, r);
  }
}

inline void run(const ItemNorm& a) {
  const std::int64_t c = a.x.width();
  for (std::int64_t n = 0; n < a.norm.elements(); ++n) {
    double sum = 0;
    for (std::int64_t e = i64(a.offsets)[n] * c; e < i64(a.offsets)[n + 1] * c; ++e)
      sum += std::pow(f(a.x)[e], 2);
    f(a.norm)[n] = std::sqrt(sum);
  }
}

// Caps the scores that exceed 1 and shares the rest of the budget among the others, until none
// does.
inline void run(const KeepProbability& a) {
  const std::int64_t n = a.score.elements();
  std::vector<bool> capped(static_cast<std::size_t>(n), false);
  double budget = a.budget, scale = 0;
  for (bool changed = true; changed;) {
    changed = false;
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i)
      if (!capped[static_cast<std::size_t>(i)]) sum += f(a.score)[i];
    scale = sum > 0 ? budget / sum : 0;
    for (std::int64_t i = 0; i < n; ++i)
      if (f(a.score)[i] > 0 && !capped[static_cast<std::size_t>(i)] && scale * f(a.score)[i] >= 1) {
        capped[static_cast<std::size_t>(i)] = changed = true;
        budget -= 1;
      }
  }
  double variance = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = f(a.score)[i];
    const double p = capped[static_cast<std::size_t>(i)] ? 1 : scale * x;
    f(a.prob)[i] = p;
    if (p > 0) variance += (1 - p) / p * x * x;
  }
  if (a.variance) f(a.variance)[0] = variance;
}

inline void run(const Draw& a) {
  run(KeepProbability{.prob = a.prob, .score = a.score, .budget = a.budget});
  const std::int64_t n = a.prob.elements();
  const PhiloxAddress address = step_key(a).address();
  std::vector<std::int64_t> kept;
  const auto scale_of = [&](std::int64_t i) { return 1 / f(a.prob)[i]; };
  std::vector<double> scale(static_cast<std::size_t>(n), 0);
  if (a.selection == Selection::kBernoulli) {
    for (std::int64_t i = 0; i < n; ++i)
      if (philox_uniform(address, static_cast<std::uint64_t>(index_at(a.id, i))) < f(a.prob)[i])
        kept.push_back(i), scale[static_cast<std::size_t>(i)] = scale_of(i);
  } else {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += f(a.prob)[i];
    if (std::abs(sum - std::round(sum)) <= 1e-6 * sum) sum = std::round(sum);
    const auto count = static_cast<std::size_t>(a.kept.elements());
    const double u = philox_uniform(address, 0);
    std::vector<bool> taken(static_cast<std::size_t>(n), false);
    double before = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      double after = before + f(a.prob)[i];
      if (std::abs(after - sum) <= 1e-6 * sum) after = sum;
      for (double integer = 1; integer <= std::ceil(sum) + 1; ++integer)
        if (before + u < integer && integer <= after + u)
          taken[static_cast<std::size_t>(i)] = true,
          scale[static_cast<std::size_t>(i)] = scale_of(i);
      before = after;
    }
    auto drawn = static_cast<std::size_t>(std::count(taken.begin(), taken.end(), true));
    for (std::size_t i = 0; drawn < count; ++i)
      if (!taken[i]) taken[i] = true, ++drawn;
    for (std::int64_t i = 0; i < n; ++i)
      if (taken[static_cast<std::size_t>(i)]) kept.push_back(i);
  }
  for (std::size_t j = 0; j < kept.size(); ++j) {
    i32(a.kept)[j] = static_cast<std::int32_t>(kept[j]);
    f(a.scale)[j] = scale[static_cast<std::size_t>(kept[j])];
  }
  if (a.count) i32(a.count)[0] = static_cast<std::int32_t>(kept.size());
}

inline void run(const NarrowRows& a) {
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < a.kept.elements(); ++i) {
    const std::int64_t old = i32(a.kept)[i];
    i32(a.item)[i] = static_cast<std::int32_t>(index_at(a.old_item, old));
    f(a.scale)[i] = f(a.kept_scale)[i] * factor_at(a.old_scale, old);
    i64(a.offsets)[i] = next;
    for (std::int64_t r = i64(a.old_offsets)[old]; r < i64(a.old_offsets)[old + 1]; ++r) {
      i32(a.source_row)[next] = static_cast<std::int32_t>(r);
      i32(a.row)[next++] = static_cast<std::int32_t>(index_at(a.old_row, r));
    }
  }
  i64(a.offsets)[a.kept.elements()] = next;
}

inline void run(const GatherScaledRows& a) {
  const std::int64_t c = a.y.width();
  for (std::int64_t n = 0; n < a.scale.elements(); ++n)
    for (std::int64_t r = i64(a.offsets)[n]; r < i64(a.offsets)[n + 1]; ++r)
      for (std::int64_t i = 0; i < c; ++i)
        f(a.y)[r * c + i] = f(a.scale)[n] * f(a.x)[i32(a.source_row)[r] * c + i];
  put_norms(a.y_norm, a.y);
}

inline void run(const LayerNormForward& a) {
  const std::int64_t c = a.y.width();
  for (std::int64_t r = 0; r < a.y.rows(); ++r) {
    const double* x = f(a.x) + r * c;
    double mean = 0, variance = 0;
    for (std::int64_t i = 0; i < c; ++i) mean += x[i] / static_cast<double>(c);
    for (std::int64_t i = 0; i < c; ++i)
      variance += std::pow(x[i] - mean, 2) / static_cast<double>(c);
    f(a.center)[r] = mean - x[0];
    f(a.rstd)[r] = 1 / std::sqrt(variance + a.eps);
    for (std::int64_t i = 0; i < c; ++i)
      f(a.y)[r * c + i] = (x[i] - mean) * f(a.rstd)[r] * f(a.gamma)[i] + f(a.beta)[i];
  }
  put_norms(a.y_norm, a.y);
}

inline void run(const LayerNormBackward& a) {
  const std::int64_t c = a.dy.width();
  for (const Tensor& sum : {a.dgamma, a.dbeta})
    if (sum && !a.accumulate_parameters) std::fill_n(f(sum), c, 0.0);
  for (std::int64_t r = 0; r < a.dy.rows(); ++r) {
    const std::int64_t full = index_at(a.row, r);
    const double rstd = f(a.rstd_full)[full];
    const double mean = f(a.x_full)[full * c] + f(a.center_full)[full];
    const double* dy = f(a.dy) + r * c;
    std::vector<double> normal(static_cast<std::size_t>(c));
    double mean_g = 0, mean_gh = 0;
    for (std::int64_t i = 0; i < c; ++i) {
      double& h = normal[static_cast<std::size_t>(i)];
      h = (f(a.x_full)[full * c + i] - mean) * rstd;
      mean_g += dy[i] * f(a.gamma)[i] / static_cast<double>(c);
      mean_gh += dy[i] * f(a.gamma)[i] * h / static_cast<double>(c);
      if (a.dgamma) {
        f(a.dgamma)[i] += dy[i] * h;
        f(a.dbeta)[i] += dy[i];
      }
    }
    for (std::int64_t i = 0; a.dx && i < c; ++i)
      f(a.dx)[r * c + i] =
          (a.added ? f(a.added)[r * c + i] : 0) +
          rstd * (dy[i] * f(a.gamma)[i] - mean_g - normal[static_cast<std::size_t>(i)] * mean_gh);
  }
  put_norms(a.dx_norm, a.dx);
}

inline double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

inline void run(const GeluForward& a) {
  for (std::int64_t i = 0; i < a.y.elements(); ++i) f(a.y)[i] = f(a.x)[i] * normal_cdf(f(a.x)[i]);
  put_norms(a.y_norm, a.y);
}

inline void run(const GeluBackward& a) {
  const std::int64_t c = a.dx.width();
  const double pi = std::acos(-1.0);
  for (std::int64_t r = 0; r < a.dx.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i) {
      const double x = f(a.x_full)[index_at(a.row, r) * c + i];
      const double slope = normal_cdf(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * pi);
      f(a.dx)[r * c + i] = f(a.dy)[r * c + i] * slope;
    }
  put_norms(a.dx_norm, a.dx);
}

inline void run(const TanhForward& a) {
  for (std::int64_t i = 0; i < a.y.elements(); ++i) f(a.y)[i] = std::tanh(f(a.x)[i]);
}

inline void run(const TanhBackward& a) {
  const std::int64_t c = a.dx.width();
  for (std::int64_t r = 0; r < a.dx.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i)
      f(a.dx)[r * c + i] =
          f(a.dy)[r * c + i] * (1 - std::pow(f(a.y_full)[index_at(a.row, r) * c + i], 2));
}

inline void run(const Dropout& a) {
  const std::int64_t c = a.y.width();
  for (std::int64_t r = 0; r < a.y.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i) {
      const std::int64_t draw = index_at(a.row, r) * ((c + 3) / 4) + i / 4;
      const double mask = kept_by_dropout(step_key(a), draw, i % 4, a.p) ? 1 / (1 - a.p) : 0;
      f(a.y)[r * c + i] = f(a.x)[r * c + i] * mask + (a.residual ? f(a.residual)[r * c + i] : 0);
    }
  put_norms(a.y_norm, a.y);
}

// Where query i of item n and key j of the item that begins at row `first` lie, column 0.
struct AttentionRows {
  const double *query, *qkv;
  std::int64_t c, item, first;
  std::int64_t stride() const { return (query ? 2 : 3) * c; }
  const double* q(std::int64_t i) const {
    return query ? query + item * c : qkv + (first + i) * stride();
  }
  const double* k(std::int64_t j) const { return qkv + (first + j) * stride() + (query ? 0 : c); }
  const double* v(std::int64_t j) const { return k(j) + c; }
};

// Scaled scores of one query against the keys of its item.
inline std::vector<double> attention_scores(const AttentionRows& rows, std::int64_t heads,
                                            std::int64_t tokens, std::int64_t query,
                                            std::int64_t head) {
  const std::int64_t width = rows.c / heads;
  std::vector<double> scores;
  for (std::int64_t j = 0; j < tokens; ++j) {
    double sum = 0;
    for (std::int64_t e = head * width; e < (head + 1) * width; ++e)
      sum += rows.q(query)[e] * rows.k(j)[e];
    scores.push_back(sum / std::sqrt(static_cast<double>(width)));
  }
  return scores;
}

inline double attention_mask(const StepKey& key, double p, std::int64_t heads, std::int64_t row,
                             std::int64_t head, std::int64_t j) {
  const std::int64_t draw = (row * heads + head) * (1 << 20) + j / 4;
  return kept_by_dropout(key, draw, j % 4, p) ? 1 / (1 - p) : 0;
}

inline void run(const AttentionForward& a) {
  const std::int64_t c = a.y.width(), width = c / a.heads;
  for (std::int64_t n = 0; n + 1 < a.offsets.elements(); ++n)
    for (std::int64_t head = 0; head < a.heads; ++head) {
      const std::int64_t first = i64(a.offsets)[n], tokens = i64(a.offsets)[n + 1] - first;
      const AttentionRows rows{f(a.query), f(a.qkv), c, n, first};
      for (std::int64_t i = 0; i < (a.query ? 1 : tokens); ++i) {
        const auto scores = attention_scores(rows, a.heads, tokens, i, head);
        const double largest = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (const double s : scores) sum += std::exp(s - largest);
        const double lse = largest + std::log(sum);
        const std::int64_t out = a.query ? n : first + i;
        f(a.lse)[out * a.heads + head] = lse;
        for (std::int64_t e = head * width; e < (head + 1) * width; ++e) {
          double y = 0;
          for (std::int64_t j = 0; j < tokens; ++j)
            y += std::exp(scores[static_cast<std::size_t>(j)] - lse) *
                 attention_mask(step_key(a), a.dropout, a.heads, first + i, head, j) * rows.v(j)[e];
          f(a.y)[out * c + e] = y;
        }
        if (a.y_norm)
          f(a.y_norm)[out * a.heads + head] = norm_of(f(a.y) + out * c + head * width, width);
      }
    }
}

// By the chain rule. The sum over keys of P dP is dy y, of the y that forward stored: in bf16 its
// rounding matters.
inline void run(const AttentionBackward& a) {
  const std::int64_t c = a.dy.width(), width = c / a.heads;
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  std::fill_n(f(a.dqkv), a.dqkv.elements(), 0.0);
  if (a.dquery) std::fill_n(f(a.dquery), a.dquery.elements(), 0.0);
  for (std::int64_t n = 0; n + 1 < a.offsets.elements(); ++n)
    for (std::int64_t head = 0; head < a.heads; ++head) {
      const std::int64_t first = i64(a.offsets)[n], tokens = i64(a.offsets)[n + 1] - first;
      const std::int64_t item = index_at(a.item, n), full = i64(a.offsets_full)[item];
      const AttentionRows rows{f(a.query_full), f(a.qkv_full), c, item, full};
      const AttentionRows gradients{f(a.dquery), f(a.dqkv), c, n, first};
      const auto add = [](const double* place, double value) {
        *const_cast<double*>(place) += value;
      };
      for (std::int64_t i = 0; i < (a.query_full ? 1 : tokens); ++i) {
        const auto scores = attention_scores(rows, a.heads, tokens, i, head);
        const std::int64_t row = a.query_full ? item : full + i;
        const double* dy = f(a.dy) + (a.query_full ? n : first + i) * c;
        std::vector<double> p, dp;
        double weighted = 0;
        for (std::int64_t j = 0; j < tokens; ++j) {
          const double mask = attention_mask(step_key(a), a.dropout, a.heads, full + i, head, j);
          p.push_back(
              std::exp(scores[static_cast<std::size_t>(j)] - f(a.lse_full)[row * a.heads + head]));
          double sum = 0;
          for (std::int64_t e = head * width; e < (head + 1) * width; ++e) {
            add(gradients.v(j) + e, p.back() * mask * dy[e]);
            sum += dy[e] * rows.v(j)[e];
          }
          dp.push_back(sum * mask);
        }
        for (std::int64_t e = head * width; e < (head + 1) * width; ++e)
          weighted += dy[e] * f(a.y_full)[row * c + e];
        for (std::int64_t j = 0; j < tokens; ++j) {
          const double ds =
              p[static_cast<std::size_t>(j)] * (dp[static_cast<std::size_t>(j)] - weighted) * scale;
          for (std::int64_t e = head * width; e < (head + 1) * width; ++e) {
            add(gradients.q(i) + e, ds * rows.k(j)[e]);
            add(gradients.k(j) + e, ds * rows.q(i)[e]);
          }
        }
      }
      for (std::int64_t i = 0; a.dqkv_norm && i < tokens; ++i) {
        const auto part = [&](const double* row) { return norm_of(row + head * width, width); };
        double* norm = f(a.dqkv_norm) + ((first + i) * a.heads + head) * 2;
        norm[0] = part(gradients.q(i));
        norm[1] = std::hypot(part(gradients.k(i)), part(gradients.v(i)));
      }
    }
}

inline void run(const Add& a) {
  for (std::int64_t i = 0; i < a.y.elements(); ++i) f(a.y)[i] = f(a.a)[i] + f(a.b)[i];
}

inline void run(const Copy& a) {
  const auto* from = static_cast<const char*>(a.x.data);
  std::copy_n(from, a.x.bytes(), static_cast<char*>(a.y.data));
}

inline void run(const Fill& a) { std::fill_n(f(a.y), a.y.elements(), a.value); }

inline void run(const PatchExtract& a) {
  const std::int64_t channels = a.image.shape[1], height = a.image.shape[2], w = a.image.shape[3];
  const std::int64_t down = height / a.patch, across = w / a.patch;
  const std::int64_t items = a.item ? a.item.elements() : a.image.shape[0];
  const float* image = a.image.ptr<float>();
  double* y = f(a.y);
  for (std::int64_t n = 0; n < items; ++n)
    for (std::int64_t py = 0; py < down; ++py)
      for (std::int64_t px = 0; px < across; ++px)
        for (std::int64_t channel = 0; channel < channels; ++channel)
          for (std::int64_t dy = 0; dy < a.patch; ++dy)
            for (std::int64_t dx = 0; dx < a.patch; ++dx)
              *y++ = static_cast<double>(
                  image[((index_at(a.item, n) * channels + channel) * height + py * a.patch + dy) *
                            w +
                        px * a.patch + dx]);
}

inline void run(const PatchTokensForward& a) {
  const std::int64_t tokens = a.y.shape[1], c = a.y.width(), skipped = a.cls ? 1 : 0;
  for (std::int64_t n = 0; n < a.y.shape[0]; ++n)
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < c; ++i)
        f(a.y)[(n * tokens + t) * c + i] =
            f(a.position)[t * c + i] +
            (t < skipped ? f(a.cls)[i]
                         : f(a.patches)[(n * (tokens - skipped) + t - skipped) * c + i]);
}

inline void run(const PatchTokensBackward& a) {
  const std::int64_t tokens = a.dy.shape[1], patches = a.dpatches.shape[1], c = a.dy.width();
  for (std::int64_t n = 0; n < a.dy.shape[0]; ++n)
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < c; ++i) {
        const double dy = f(a.dy)[(n * tokens + t) * c + i];
        const std::int64_t j = t - (tokens - patches);
        if (j >= 0) f(a.dpatches)[(n * patches + j) * c + i] = dy;
        if (j < 0 && a.dcls) f(a.dcls)[i] += dy;
        if (a.dposition) f(a.dposition)[t * c + i] += dy;
      }
}

inline void run(const PoolForward& a) {
  const std::int64_t c = a.y.width();
  for (std::int64_t n = 0; n < a.y.rows(); ++n)
    for (std::int64_t i = 0; i < c; ++i) {
      const std::int64_t begin = i64(a.offsets)[n], end = i64(a.offsets)[n + 1];
      double sum = 0;
      for (std::int64_t r = begin; r < end; ++r) sum += f(a.x)[r * c + i];
      f(a.y)[n * c + i] = a.pooling == Pooling::kFirst ? f(a.x)[begin * c + i]
                                                       : sum / static_cast<double>(end - begin);
    }
}

inline void run(const PoolBackward& a) {
  const std::int64_t c = a.dy.width();
  for (std::int64_t n = 0; n < a.dy.rows(); ++n) {
    const std::int64_t begin = i64(a.offsets)[n], end = i64(a.offsets)[n + 1];
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t i = 0; i < c; ++i) {
        const double first = r == begin ? f(a.dy)[n * c + i] : 0;
        f(a.dx)[r * c + i] = a.pooling == Pooling::kFirst
                                 ? first
                                 : f(a.dy)[n * c + i] / static_cast<double>(end - begin);
      }
  }
}

inline std::vector<double> log_softmax(const double* x, std::int64_t n) {
  const double largest = *std::max_element(x, x + n);
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - largest);
  std::vector<double> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(x[i] - largest - std::log(sum));
  return out;
}

inline double target(double smoothing, std::int64_t classes, bool is_label) {
  return (is_label ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
}

inline void run(const CrossEntropyForward& a) {
  const std::int64_t classes = a.logits.width();
  for (std::int64_t n = 0; n < a.logits.rows(); ++n) {
    const double* x = f(a.logits) + n * classes;
    const auto log_p = log_softmax(x, classes);
    double loss = 0;
    for (std::int64_t i = 0; i < classes; ++i)
      loss -=
          target(a.smoothing, classes, i == i32(a.labels)[n]) * log_p[static_cast<std::size_t>(i)];
    f(a.loss)[n] = loss;
    i32(a.correct)[n] = std::max_element(x, x + classes) - x == i32(a.labels)[n];
  }
}

inline void run(const CrossEntropyBackward& a) {
  const std::int64_t classes = a.logits.width();
  for (std::int64_t n = 0; n < a.logits.rows(); ++n) {
    const auto log_p = log_softmax(f(a.logits) + n * classes, classes);
    for (std::int64_t i = 0; i < classes; ++i)
      f(a.dlogits)[n * classes + i] =
          a.scale * (std::exp(log_p[static_cast<std::size_t>(i)]) -
                     target(a.smoothing, classes, i == i32(a.labels)[n]));
  }
}

inline void run(const EmbeddingForward& a) {
  const std::int64_t c = a.y.width();
  for (std::int64_t r = 0; r < a.y.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i) f(a.y)[r * c + i] = f(a.table)[i32(a.tokens)[r] * c + i];
}

inline void run(const EmbeddingBackward& a) {
  const std::int64_t c = a.dy.width();
  for (std::int64_t r = 0; r < a.dy.rows(); ++r)
    for (std::int64_t i = 0; i < c; ++i)
      f(a.dtable)[i32(a.tokens_full)[index_at(a.row, r)] * c + i] += f(a.dy)[r * c + i];
}

inline void run(const SquaredErrorForward& a) {
  for (std::int64_t n = 0; n < a.loss.elements(); ++n)
    f(a.loss)[n] = std::pow(f(a.prediction)[n] - static_cast<double>(a.target.ptr<float>()[n]), 2);
}

inline void run(const SquaredErrorBackward& a) {
  for (std::int64_t n = 0; n < a.dprediction.elements(); ++n)
    f(a.dprediction)[n] =
        a.scale * 2 * (f(a.prediction)[n] - static_cast<double>(a.target.ptr<float>()[n]));
}

inline void run(const ScatterRows& a) {
  const std::int64_t c = a.dx.width();
  std::fill_n(f(a.dx), a.dx.elements(), 0.0);
  for (std::int64_t n = 0; n + 1 < a.offsets.elements(); ++n)
    for (std::int64_t p = i64(a.dy_offsets)[n]; p < i64(a.dy_offsets)[n + 1]; ++p) {
      const std::int64_t in_item =
          i32(a.index_full)[index_at(a.row, p)] - i64(a.offsets_full)[index_at(a.item, n)];
      for (std::int64_t i = 0; i < c; ++i)
        f(a.dx)[(i64(a.offsets)[n] + in_item) * c + i] += f(a.dy)[p * c + i];
    }
}

template <class Args>
double clipping(const Args& a) {
  const double norm = std::sqrt(f(a.squared_norm)[0]);
  return a.max_norm > 0 ? std::min(1.0, a.max_norm / norm) : 1;
}

inline void run(const AdamStep& a) {
  if (!std::isfinite(f(a.squared_norm)[0])) return;
  const double steps = static_cast<double>(a.step);
  for (std::int64_t i = 0; i < a.param.elements(); ++i) {
    double& param = f(a.param)[i];
    double& m = f(a.first_moment)[i];
    double& v = f(a.second_moment)[i];
    double g = f(a.grad)[i] * clipping(a);
    if (!a.decoupled) g += a.weight_decay * param;
    m = a.beta1 * m + (1 - a.beta1) * g;
    v = a.beta2 * v + (1 - a.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(a.beta1, steps));
    const double v_hat = v / (1 - std::pow(a.beta2, steps));
    if (a.decoupled) param -= a.learning_rate * a.weight_decay * param;
    param -= a.learning_rate * m_hat / (std::sqrt(v_hat) + a.eps);
    if (a.rounded) f(a.rounded)[i] = param;
  }
}

inline void run(const SgdStep& a) {
  if (!std::isfinite(f(a.squared_norm)[0])) return;
  for (std::int64_t i = 0; i < a.param.elements(); ++i) {
    double& m = f(a.momentum)[i];
    m = a.mu * m + (f(a.grad)[i] * clipping(a) + a.weight_decay * f(a.param)[i]);
    f(a.param)[i] -= a.learning_rate * m;
    if (a.rounded) f(a.rounded)[i] = f(a.param)[i];
  }
}

inline void run(const SumSquares& a) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.x.elements(); ++i) sum += f(a.x)[i] * f(a.x)[i];
  if (a.earlier && !std::isfinite(f(a.earlier)[0])) sum = std::nan("");
  f(a.sum)[0] = sum;
}

template <class Args>
void run(const Group<Args>& group) {
  for (const Args& one : group) run(one);
}

}  // namespace vcas::reference
