// Sampled gradients against the exact one on a real batch of Fashion-MNIST: is their mean right,
// how far do they scatter, what do they cost, for both selections at the same budgets. Prints a
// table.
//
//   vcas_gradient_study [draws] [training steps before] [seed]
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "data/idx.h"
#include "data/loader.h"
#include "optim/trainer.h"

namespace vcas {
namespace {

constexpr std::int64_t kItems = 64;

struct Budget {
  const char* name;
  SamplingMode mode;
  double act_ratio, weight_ratio;
};

struct Scatter {
  double variance = 0;      // mean of ||g - G||^2 over ||G||^2, whole gradient
  double worst_z = 0;       // of all tensors and directions: |mean error| in standard errors
  double mean_error = 0;    // ||mean - G||^2 over its expectation, variance / draws
  double milliseconds = 0;  // of one backward
};

class Study {
 public:
  Study(int draws, int training_steps, std::uint64_t seed)
      : draws_(draws), seed_(seed), data_(load_idx({})), ops_(make_ops("cpu")) {
    ModelOptions options;
    options.width = 64;
    options.depth = 4;
    options.heads = 2;
    options.patch = 7;
    options.pooling = "mean";
    model_ = build_model(options, data_->item_shape(), data_->classes(), 0.0);
    model_->graph.finish(ops_, {.max_items = kItems});
    model_->graph.parameters().initialize(ops_, seed);
    TrainerOptions training;
    training.total_steps = training_steps + 1;
    training.batch = kItems;
    training.seed = seed;
    training.schedule.kind = "constant";
    training.vcas.enabled = false;
    Trainer trainer(*model_, ops_, training, nullptr);
    Loader loader(*data_, {.batch = kItems, .seed = seed});
    for (int step = 0; step < training_steps; ++step) trainer.step(loader.next());
    trainer.step(loader.next());  // leaves its batch in the graph
    for (const Parameter& parameter : model_->graph.parameters().list())
      sink_.full.push_back(parameter.gradient);
    Exec exec = model_->graph.make_exec(seed_, 0, true);
    model_->graph.forward(exec);
    exact_ = gradient(exec, context({"", SamplingMode::kExact, 1, 1}, Selection::kBernoulli));
  }

  Scatter scatter(const Budget& budget, Selection selection) {
    const auto& list = model_->graph.parameters().list();
    const BackwardContext sampled = context(budget, selection);
    std::vector<double> mean(exact_.size()), sum(list.size()), squares(list.size());
    double total = 0, seconds = 0;
    for (int draw = 0; draw < draws_; ++draw) {
      Exec exec = model_->graph.make_exec(seed_, static_cast<std::uint64_t>(draw), true);
      const auto start = std::chrono::steady_clock::now();
      const auto& g = gradient(exec, sampled);
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      for (std::size_t p = 0; p < list.size(); ++p) {
        double along = 0;
        const auto [begin, end] = range(list[p]);
        for (std::size_t i = begin; i < end; ++i) {
          const double error = double{g[i]} - exact_[i];
          mean[i] += error / draws_;
          total += error * error / draws_;
          along += error * exact_[i];
        }
        sum[p] += along;
        squares[p] += along * along;
      }
    }
    Scatter out;
    double exact_norm = 0, mean_norm = 0;
    for (std::size_t i = 0; i < exact_.size(); ++i) {
      exact_norm += double{exact_[i]} * exact_[i];
      mean_norm += mean[i] * mean[i];
    }
    for (std::size_t p = 0; p < list.size(); ++p) {
      const double average = sum[p] / draws_;
      const double variance = squares[p] / draws_ - average * average;
      const double error = std::sqrt(variance / draws_);
      if (error > 0) out.worst_z = std::max(out.worst_z, std::abs(average) / error);
    }
    out.variance = total / exact_norm;
    out.mean_error = mean_norm / (total / draws_);
    out.milliseconds = 1e3 * seconds / draws_;
    return out;
  }

 private:
  BackwardContext context(const Budget& budget, Selection selection) const {
    const Graph& graph = model_->graph;
    return {
        .sink = &sink_,
        .mode = budget.mode,
        .selection = selection,
        .act_ratio = std::vector<double>(static_cast<std::size_t>(graph.gates()), budget.act_ratio),
        .weight_ratio = std::vector<double>(graph.sampled_weights().size(), budget.weight_ratio),
        .repeat = 0,
        .loss_scale = 1.0 / static_cast<double>(kItems),
        .record = nullptr};
  }

  const std::vector<float>& gradient(Exec& exec, const BackwardContext& context) {
    const Tensor& slab = model_->graph.parameters().gradients();
    ops_.run(Fill{.y = slab, .value = 0});
    model_->graph.backward(exec, context);
    gradient_.assign(slab.ptr<float>(), slab.ptr<float>() + slab.elements());
    return gradient_;
  }

  std::pair<std::size_t, std::size_t> range(const Parameter& parameter) const {
    const float* slab = model_->graph.parameters().gradients().ptr<float>();
    const auto begin = static_cast<std::size_t>(parameter.gradient.ptr<float>() - slab);
    return {begin, begin + static_cast<std::size_t>(parameter.shape.elements())};
  }

  int draws_;
  std::uint64_t seed_;
  std::unique_ptr<Dataset> data_;
  CountOps ops_;
  std::unique_ptr<Model> model_;
  GradSink sink_;
  std::vector<float> gradient_, exact_;
};

void run(int draws, int training_steps, std::uint64_t seed) {
  Study study(draws, training_steps, seed);
  fmt::print("{} draws after {} exact steps, seed {}, batch of {} images\n", draws, training_steps,
             seed, kItems);
  fmt::print("{:<22} {:<11} {:>14} {:>10} {:>12} {:>8}\n", "budget", "selection", "variance/||G||2",
             "worst |z|", "mean error", "ms");
  for (const Budget& budget : {Budget{"SampleA rho .3", SamplingMode::kItems, 0.3, 1},
                               Budget{"SampleA rho .6", SamplingMode::kItems, 0.6, 1},
                               Budget{"SampleW nu .2", SamplingMode::kItemsAndRows, 1, 0.2},
                               Budget{"SampleW nu .5", SamplingMode::kItemsAndRows, 1, 0.5},
                               Budget{"both rho .5 nu .5", SamplingMode::kItemsAndRows, 0.5, 0.5}})
    for (const Selection selection : {Selection::kBernoulli, Selection::kSystematic}) {
      const Scatter s = study.scatter(budget, selection);
      fmt::print("{:<22} {:<11} {:>14.5f} {:>10.2f} {:>12.3f} {:>8.2f}\n", budget.name,
                 selection == Selection::kBernoulli ? "bernoulli" : "systematic", s.variance,
                 s.worst_z, s.mean_error, s.milliseconds);
      std::fflush(stdout);
    }
}

}  // namespace
}  // namespace vcas

int main(int argc, char** argv) {
  try {
    vcas::run(argc > 1 ? std::atoi(argv[1]) : 4096, argc > 2 ? std::atoi(argv[2]) : 300,
              argc > 3 ? static_cast<std::uint64_t>(std::atoll(argv[3])) : 1);
    return 0;
  } catch (const vcas::Error& error) {
    fmt::print(stderr, "error: {}\n  hint: {}\n", error.what(), error.hint());
    return static_cast<int>(error.code());
  }
}
