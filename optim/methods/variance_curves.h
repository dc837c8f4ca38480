// The variance that sampling adds at any ratios, and the ratios of least cost within a budget.
// All comes from one exact pass (docs/sampling.md). Pure arithmetic.
//
//   K_k    inner products of the items' gradients of linear k        MeasuredBatch::gram
//   z_r,k  ||dy_r|| ||x_r||                                          MeasuredBatch::row_score
//   s_i(l) score of item i at gate l                                 MeasuredBatch::item_score
//   m_i    score of item i before the forward                        MeasuredBatch::forward_score
//   e_i    f_i^2 over the sum of squared norms                       MeasuredBatch::forward_norm
//   eta_k  what systematic draws of rows of linear k add, over Eq. 3
//   phi_l  what echoes add to V_act, over the square of the share that gate l drops
//   pi_i   probability that SampleF and SampleA keep item i, at all gates above
//   q_r    probability that SampleW keeps row r, if its item is kept
#pragma once

#include <cstdint>
#include <vector>

#include "core/philox.h"
#include "kernels/ops/sampling.h"
#include "optim/methods/controller.h"

namespace vcas {

// c, where the sum over i of weights[i] min(1, c values[i]) is `budget`. Empty weights: all are 1.
// Infinite where the budget covers all positive values.
double capped_level(const std::vector<double>& values, const std::vector<double>& weights,
                    double budget);

class VarianceCurves {
 public:
  struct Ratios {
    std::vector<double> act;     // rho [gate]
    std::vector<double> weight;  // nu [linear]
    double forward = 1;          // of SampleF
  };
  // They are those of the gradient of all N items.
  struct Variances {
    double forward = 0, weighted_forward = 0;  // sums over k of V_f,k and of w_k V_f,k
    double act = 0, weighted_act = 0;          // what SampleA adds to them, by K
    std::vector<double> gate_act;              // [gate]: of weighted_act, at the linears below it
    double echo = 0;                           // what echoes add to weighted_act, by phi
    std::vector<double> weight;                // [linear]
    double expected_forward = 0;               // of weighted_forward, by e_i
  };
  struct Optimum {
    Ratios ratios;
    double lambda = 0;  // the water level: cost that a unit of weighted variance saves
  };

  // `importance`: w_k [linear], what a variance weighs in the budget.
  // `draws` addresses the random numbers of simulated draws.
  VarianceCurves(const ControlledModel& model, const MeasuredBatch& batch,
                 const std::vector<double>& importance, Selection selection,
                 const RandomKey& draws);

  // phi_l [gate], weighted. They are 0 at first.
  void set_echo_variance(const std::vector<double>& phi) { echo_variance_ = phi; }
  // eta_k [linear], 1 at first.
  void set_row_factor(const std::vector<double>& eta) { row_factor_ = eta; }

  // With the item ratios that a step with this batch has by thresholds, where there are any.
  Ratios by_thresholds(Ratios ratios) const;
  // What a step with this batch adds. V_act is the mean over simulated draws, V_w eta times Eq. 3.
  Variances at(const Ratios& given) const;
  // The ratios of least cost with sum over k of w_k (V_f,k + V_act,k + V_w,k) = budget.
  // `start`: a guess at lambda.
  Optimum within(double budget, double start) const;

 private:
  using Probabilities = std::vector<double>;  // pi [item]
  struct Point {                              // at one water level
    Probabilities forward;                    // pi of SampleF
    std::vector<Probabilities> pi;            // [gate]
    std::vector<double> full_rows;            // [linear]: with q = 1
    std::vector<double> free_square;          // [linear]: sum of z^2 over the others
    Ratios ratios;
    // Weighted variances; of items as if they were drawn alone. That of SampleF is by e_i.
    double expected_forward = 0, act = 0, echo = 0, weight = 0;
  };
  struct Shared {                          // neighbouring gates of one level
    double value = 0, cost = 0, echo = 0;  // b, f, phi
    std::size_t first = 0;                 // the gate nearest the output
    double level = 0;                      // pi_i = min(1, level s_i)
  };
  struct Kept {
    std::size_t item;
    double scale;  // product of 1/p
  };
  struct Rows {  // of a linear: all, or one of each stretch
    std::vector<double> score;
    std::vector<std::uint32_t> item;
    double each = 1;  // how many a row stands for
  };

  Point at_level(double lambda) const;
  void set_items(Point& point, double lambda) const;
  double kept(const Shared& group, double level) const;
  double level_of(const Shared& group, double lambda) const;
  std::vector<Shared> shared_levels(const Point& point, double lambda) const;
  void set_forward(Point& point, const std::vector<Shared>& groups, double lambda) const;
  Probabilities forward_inclusion(double ratio) const;
  double expected_forward(const Probabilities& forward) const;
  void set_rows(Point& point, double lambda) const;
  double echo(const Ratios& ratios) const;
  double lambda_of(double budget, double correction, double start) const;
  double sum_at_gate(std::size_t gate, const std::vector<Kept>& items, double target) const;
  // `of_batch`: thresholds decide, and round to whole items. They round ratios of the mean over
  // batches up as often as down.
  Variances simulated_act(const Ratios& ratios, bool of_batch) const;
  void draw(const std::vector<double>& score, double budget, bool systematic,
            const PhiloxAddress& address, std::uint64_t first, std::vector<Kept>& kept) const;
  PhiloxAddress address_of(std::size_t site) const;
  std::vector<Kept> draw_forward(double ratio, std::uint64_t number) const;
  std::vector<Probabilities> inclusion(const Ratios& ratios) const;
  // w_k eta_k
  double row_importance(std::size_t linear) const {
    return importance_[linear] * row_factor_[linear];
  }
  double weight_variance(std::size_t linear, const Probabilities* pi, double ratio) const;
  const Probabilities* above(const std::vector<Probabilities>& pi, std::size_t linear) const;

  const ControlledModel& model_;
  const MeasuredBatch& batch_;
  const std::vector<double>& importance_;
  std::vector<double> echo_variance_;  // [gate]
  std::vector<double> row_factor_;     // [linear]
  Selection selection_;
  RandomKey draws_;
  std::size_t items_;                       // n
  double scale_;                            // N / n
  double tokens_ = 0;                       // sum of T_i
  double whole_cost_ = 0;                   // of an exact backward
  std::vector<double> token_square_;        // [gate]: sum over i of T_i s_i^2
  std::vector<double> expected_;            // e_i; 0 where SampleF keeps all
  double weighted_trace_ = 0;               // sum over k of w_k tr K_k
  std::vector<std::vector<double>> score_;  // [gate][item], of mean square 1
  // [gate + 1][n * n]: sums over the linears k below, down to the next gate, of K_k and of w_k K_k.
  // The last ones are of the linears above all gates.
  std::vector<std::vector<double>> gram_, weighted_gram_;
  std::vector<Rows> rows_;  // [linear]
};

}  // namespace vcas
