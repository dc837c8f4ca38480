// Attention.
#pragma once

#include "tests/support/reference/tensors.h"

namespace vcas::reference {

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

// Scaled scores of one query against those keys of its item that it may attend to.
// These are the item's first keys: up to the query's own if `causal`, else all.
inline std::vector<double> attention_scores(const AttentionRows& rows, std::int64_t heads,
                                            std::int64_t tokens, std::int64_t query,
                                            std::int64_t head, bool causal) {
  const std::int64_t width = rows.c / heads;
  std::vector<double> scores;
  for (std::int64_t j = 0; j < tokens && (!causal || j <= query); ++j) {
    double sum = 0;
    for (std::int64_t e = head * width; e < (head + 1) * width; ++e)
      sum += rows.q(query)[e] * rows.k(j)[e];
    scores.push_back(sum / std::sqrt(static_cast<double>(width)));
  }
  return scores;
}

// The mask of query i and key j of the item that begins at row `first`.
inline double attention_mask(const StepKey& key, double p, std::int64_t heads, std::int64_t first,
                             std::int64_t i, std::int64_t head, std::int64_t j) {
  const bool high = i % 16 >= 8;
  const std::int64_t row = first + (high ? i - 8 : i);
  return dropout_mask(key, (row * heads + head) * (1 << 20) + j / 4, j % 4 + (high ? 4 : 0), p);
}

inline void run(const AttentionForward& a) {
  const std::int64_t c = a.y.width(), width = c / a.heads;
  for (std::int64_t n = 0; n + 1 < a.offsets.elements(); ++n)
    for (std::int64_t head = 0; head < a.heads; ++head) {
      const std::int64_t first = i64(a.offsets)[n], tokens = i64(a.offsets)[n + 1] - first;
      const AttentionRows rows{f(a.query), f(a.qkv), c, n, first};
      for (std::int64_t i = 0; i < (a.query ? 1 : tokens); ++i) {
        const auto scores = attention_scores(rows, a.heads, tokens, i, head, a.causal);
        const auto keys = static_cast<std::int64_t>(scores.size());
        const double largest = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (const double s : scores) sum += std::exp(s - largest);
        const double lse = largest + std::log(sum);
        const std::int64_t out = a.query ? n : first + i;
        f(a.lse)[out * a.heads + head] = lse;
        for (std::int64_t e = head * width; e < (head + 1) * width; ++e) {
          double y = 0;
          for (std::int64_t j = 0; j < keys; ++j)
            y += std::exp(scores[static_cast<std::size_t>(j)] - lse) *
                 attention_mask(step_key(a), a.dropout, a.heads, first, i, head, j) * rows.v(j)[e];
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
        const auto scores = attention_scores(rows, a.heads, tokens, i, head, a.causal);
        const std::int64_t row = a.query_full ? item : full + i;
        const double* dy = f(a.dy) + (a.query_full ? n : first + i) * c;
        const auto keys = static_cast<std::int64_t>(scores.size());
        std::vector<double> p, dp;
        double weighted = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          const double mask = attention_mask(step_key(a), a.dropout, a.heads, full, i, head, j);
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
        for (std::int64_t j = 0; j < keys; ++j) {
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

}  // namespace vcas::reference
