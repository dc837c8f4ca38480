// Which rows of the full batch a compact gradient holds.
#pragma once

#include <string>

#include "core/row_bound.h"
#include "core/tensor.h"

namespace vcas {

// A batch is N items of T_i rows, packed without padding.
// A layout says how many rows an item has in a value of the graph.
class Layout {
 public:
  static constexpr Layout items(std::int64_t rows) { return {Kind::kItems, rows}; }  // so many
  static constexpr Layout tokens() { return {Kind::kTokens, 0}; }  // as many as its tokens
  static constexpr Layout masked() { return {Kind::kMasked, 0}; }  // as its masked positions
  bool operator==(const Layout&) const = default;

  // The same number in all batches.
  constexpr bool fixed() const { return kind_ == Kind::kItems; }
  // For so many items, which have so many tokens and masked positions.
  template <class T>
  constexpr T rows(T items, T tokens, T masked) const {
    if (kind_ == Kind::kMasked) return masked;
    return kind_ == Kind::kTokens ? tokens : items * static_cast<T>(rows_);
  }
  // In messages: "tokens", "masked" or the number.
  std::string text() const {
    if (kind_ == Kind::kMasked) return "masked";
    return kind_ == Kind::kTokens ? "tokens" : std::to_string(rows_);
  }

 private:
  enum class Kind { kItems, kTokens, kMasked };
  constexpr Layout(Kind kind, std::int64_t rows) : kind_(kind), rows_(rows) {}

  Kind kind_;
  std::int64_t rows_;
};

// Rows of one layout. An empty index tensor is the identity: exact training runs the same code.
struct RowSet {
  std::int64_t items = 0;    // K
  std::int64_t rows = 0;     // R, the rows of all K items, and padding behind them
  std::int64_t length = 0;   // rows of every item; 0 where they differ
  std::int64_t squares = 0;  // sum over the items of their rows squared, or its mean over draws
  Tensor item;               // i32 [K] kept item -> item of the full batch, ascending; or empty
  Tensor scale;              // statistics dtype [K]: product of 1/p so far; or empty (all ones)
  Tensor offsets;            // i64 [K + 1]: rows of kept items in the compact tensor
  Tensor row;                // i32 [R] compact row -> row of the full batch; or empty
  const std::int64_t* host_offsets = nullptr;  // `offsets` on the host; null where length is not 0
                                               // or only the device knows them
  // What rows there are is then known from the numbers of items: rows behind offsets[K] are
  // padding. Their gradients are zero, and their entries of `row` are 0. Null: there is none.
  const RowBound* bound = nullptr;

  // i64 [1]: the rows that are not padding; empty: all.
  Tensor filled() const {
    return bound ? Tensor{offsets.ptr<std::int64_t>() + items, DType::kI64, {1}} : Tensor{};
  }

  std::int64_t rows_before(std::int64_t kept_item) const {
    return host_offsets ? host_offsets[kept_item] : kept_item * length;
  }
};

}  // namespace vcas
