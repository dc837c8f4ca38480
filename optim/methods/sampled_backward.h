// Backwards that sample: items at gates (SampleA), rows of weight gradients (SampleW).
// docs/sampling.md has both.
#pragma once

#include "optim/methods/device_clock.h"
#include "optim/methods/gradient_sketch.h"
#include "optim/methods/sample_gate.h"

namespace vcas {

// The keep ratios of a graph, each above 0 and at most 1.
struct KeepRatios {
  // rho [Graph::gates()], from input to output: a share of the batch's items.
  std::vector<double> act;
  // nu [Graph::sampled_weights().size()]: a share of the rows that are left.
  std::vector<double> weight;
};

// One ratio for all gates, and one for all sampled linears.
KeepRatios equal_ratios(const GraphPlan& plan, double act, double weight);

// Whether one of the ratios is below 1.
bool drops_some(const std::vector<double>& ratios);

// What sampling took in a backward. Empty: it is not timed.
struct SampleTimes {
  std::vector<double> gate;         // [gate]: seconds of scores, draw and compaction
  std::vector<double> linear;       // [linear]: seconds of scores, draw and product
  std::vector<double> linear_rows;  // [linear]: rows that were there

  SampleTimes() = default;
  SampleTimes(std::size_t gates, std::size_t linears)
      : gate(gates), linear(linears), linear_rows(linears) {}
};

// The sampled weight gradients of a graph wait for each other.
// A device then scores, draws and multiplies for several at once.
class SampledBackward final : public BackwardHooks {
 public:
  // What the next backwards do.
  struct Pass {
    KeepRatios ratios;  // at first all are 1
    Selection selection = Selection::kSystematic;
    bool scores_per_token = false;  // of items: the norm over the root of the tokens
    std::int64_t echoes = 0;        // at each layer that mixes items; 0: as of echoes()
    bool samples_rows = true;       // else SampleA only
    std::uint32_t repeat = 0;       // Monte-Carlo repeat; 0 = training
    bool moves_thresholds = true;   // else they follow each draw and are as before again
    Tensor weight_variance;  // f64 [sampled linear]: at their ratios (Eq. 3); empty = not wanted
  };
  Pass pass;
  GradientSketches sketches;  // wanted of the next backwards
  // Times of the next backward, if not empty. Linears then do not wait for each other.
  SampleTimes times;
  // [gate]: how many items each batch keeps. Empty: all batches keep as many.
  std::vector<ItemThreshold> thresholds;

  // Has memory for the gates of a finished graph.
  SampledBackward(Ops& ops, const GraphPlan& plan);

  // Throws Error(kBadConfig) for ratios that are not those of the graph, or out of range.
  void begin(Exec& exec) override;
  bool reads_norms() const override { return true; }
  // A gate draws if its ratio is below that of all gates above. Else it passes everything on.
  // Above layers that mix items it passes everything on if two conditions hold instead:
  // all items are there, and kept items and echoes would be at least as many.
  // Below a gate that drops items it draws, since echoes have joined the kept ones.
  std::span<const RowSets> at_gate(Exec& exec, const GateSite& site, Gradient& gradient,
                                   const RowSets& rows) override;
  // All rows count now, or a sample of them at the next flush.
  // The flush also computes the closed form of the variance.
  void weight_gradient(Exec& exec, const WeightUse& use) override;
  // The host waits for nothing.
  // Only the device knows how many rows an independent draw keeps. Costs count the expected number.
  void flush(Exec& exec) override;
  bool waits() const override {
    return BackwardHooks::waits() || !waiting_.empty() || sketches.waits();
  }

  std::size_t bytes() const;  // of the gates

 private:
  struct Waiting {
    Tensor dweight;  // empty: only the variance is wanted
    bool accumulate;
    RowScore score;  // without memory for it
    std::size_t site;
  };

  bool passes(const GateSite& site, double ratio, const RowSets& rows) const;
  // pass.echoes, or where that is 0 a share of the batch, rounded up:
  //   a 32nd   below gates whose items have as many rows as at the last gate
  //   a 128th  below others
  // There a gradient is a sum over more rows, and its means are a smaller part.
  std::int64_t echoes(const GateSite& site) const;
  void flush_timed(Exec& exec);
  void flush_rows(Exec& exec);

  std::vector<SampleGate> gates_;
  std::size_t linears_;                    // that are sampled
  Layout last_layout_ = Layout::tokens();  // of the last gate
  double ratio_above_ = 1;
  std::vector<Waiting> waiting_;
  DeviceClock clock_;
};

}  // namespace vcas
