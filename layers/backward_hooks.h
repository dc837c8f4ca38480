// What one backward pass leaves to the method of training: the items and rows that it computes.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "kernels/args.h"
#include "layers/exec.h"
#include "layers/row_sets.h"

namespace vcas {

// A gradient with the norms of its rows. Empty norms are not known.
// With `row` and `scale` its row r is scale[r] times row row[r] of dy. Without them it is dy.
struct Gradient {
  Tensor dy;                    // T [rows, width]
  Tensor norm;                  // S [rows, parts]
  Tensor row = {}, scale = {};  // i32 and S [rows]
};

// A gate of the graph (Graph::gate) that backward has reached.
struct GateSite {
  int number;                // from input to output
  Layout layout;             // of the gradient here
  std::int64_t batch_items;  // of the whole batch
  int mixing;                // layers of kBatchLinear on a way to the next gate, at most
  // Memory for a narrower gradient: as many rows as a batch can have.
  // Its norms are empty if nobody reads them.
  Gradient kept;
  bool gathers = false;  // its rows may stay where they are: Gradient::row
  // Where costs are counted: of what backward computes, and of what it only looks at.
  const std::string& sample_place;
  const std::string& probe_place;
};

// The gradients of a linear map y = x W^T + b: dW = dy^T x and db, the sum of the rows of dy.
struct WeightUse {
  int site;                    // number among the linear maps that may be sampled, -1: none
  Tensor dweight, dbias;       // S [D, C] and [D]; empty: not wanted
  bool accumulate;             // adds to what they hold, else replaces it
  Tensor dy, dy_norm;          // T [rows, D], S [rows, parts]; empty norms are not known
  Tensor x_full, x_norm_full;  // T [full rows, C], S [full rows, parts], or empty
  const RowSet& rows;          // that dy holds
  Patches patches = {};        // of x, for a convolution
};

// As they stand the hooks compute the exact gradient. A method overrides what it changes.
class BackwardHooks {
 public:
  virtual ~BackwardHooks() = default;

  // Starts a backward. Forgets what one that threw has left.
  virtual void begin(Exec& exec);
  // Whether weight_gradient reads norms. They are there only if forward has kept norms too.
  virtual bool reads_norms() const { return false; }
  // `gradient` has the rows `rows`. May narrow it; returns the rows that are left.
  // If it drops items, the rows behind each mixing layer follow: these and echoes behind them.
  // All stay valid to the end of the backward.
  virtual std::span<const RowSets> at_gate(Exec& exec, const GateSite& site, Gradient& gradient,
                                           const RowSets& rows);
  // Computes the gradients now, by Ops::beside, or at the next flush.
  // dy, x and norms stay as they are until the flush after that one.
  // A site without number has them computed now, and not beside.
  virtual void weight_gradient(Exec& exec, const WeightUse& use);
  // Computes what waits. It is called within Ops::beside: its scratch is Exec::scratch_beside.
  virtual void flush(Exec& exec);
  virtual bool waits() const { return biases_.size() > 0; }

  // Bytes of Exec::scratch_beside for one weight gradient that waits, of at most `max_rows` rows.
  // A flush may take as much for each. A row has three doubles and an index.
  static std::size_t scratch_bytes(std::int64_t max_rows);

 protected:
  void bias_gradient(Exec& exec, const WeightUse& use);

 private:
  Group<ColumnSum> biases_;  // that wait, for a device to sum several at once
};

// Where a backward leaves the gradients of parameters.
struct ParameterGradients {
  std::span<const Tensor> tensors;  // S, by parameter; an empty one is not wanted
  bool adds = true;                 // to what they hold, else replaces it

  std::size_t size() const { return tensors.size(); }
  const Tensor& operator[](std::size_t parameter) const { return tensors[parameter]; }
};

// Elements [begin, end) of the slab of gradients. Behind the backward of `node`, and what it
// flushes, nothing adds to them.
struct GradientBucket {
  std::int64_t begin = 0, end = 0;
  int node = 0;
};

struct BackwardContext {
  ParameterGradients gradients;    // one a parameter, as parameters().gradient_list() has them
  double loss_scale = 1;           // multiplies the sum of the item losses: 1 / items of the step
  BackwardHooks* hooks = nullptr;  // null: exact
  // From Graph::gradient_buckets. Each is told of once, in order, when its gradients are there:
  // in every kind of pass, and if nothing is kept. Empty: nobody asks.
  std::span<const GradientBucket> buckets = {};
  std::function<void(const GradientBucket&)> on_bucket = {};
};

}  // namespace vcas
