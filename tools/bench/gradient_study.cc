// Compares sampled gradients with the exact one on a real batch, and prints a table.
// The batch is of Fashion-MNIST or, where a vocabulary is given, of WordNet's pairs of glosses.
// Its items are in the order of their labels.
// A line says whether their mean is right, how far they scatter, and what they cost.
// Both selections have a line at each budget.
// A third line is of systematic selection in an order drawn anew each time.
//
//   vcas_gradient_study [draws] [training steps before] [seed] [vocab.txt]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "core/progress.h"
#include "data/idx.h"
#include "data/loader.h"
#include "data/wordnet.h"
#include "data/wordpiece.h"
#include "kernels/decorators/forwarding_ops.h"
#include "optim/methods/sampled_backward.h"
#include "optim/trainer.h"

namespace vcas {
namespace {

constexpr std::int64_t kItems = 64, kMostTokens = 64;

struct Budget {
  const char* name;
  bool rows;  // SampleW too
  double act_ratio, weight_ratio;
};

struct Order {
  const char* name;
  Selection selection;
  bool shuffled;
};

// Systematic draws in the order r -> (a r + b) mod n, where asked for, a and b drawn for each.
class ShuffledDraws final : public ForwardingOps {
 public:
  ShuffledDraws() : ForwardingOps(make_ops("cpu")) {}

  bool shuffled = false;

#define VCAS_OP(Args) \
  void run(const Args& args) override { forward(args); }
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

 private:
  template <class Args>
  void forward(const Args& args) {
    for_each_of(args, [&]<class One>(const One& one) {
      if constexpr (std::is_same_v<One, Draw>)
        if (shuffled) return draw(one);
      inner_->run(one);
    });
  }

  void draw(const Draw& args) {
    const std::int64_t n = args.score.elements();
    if (n == 0) return inner_->run(args);
    const PhiloxAddress address = step_key(args).address();
    const auto below_n = [&](std::uint64_t index) {
      return static_cast<std::int64_t>(philox_uniform(address, index) * static_cast<float>(n));
    };
    const std::int64_t b = below_n(1);
    std::int64_t a = 0;
    for (std::uint64_t index = 2; std::gcd(a, n) != 1; ++index) a = below_n(index);
    std::vector<std::int32_t> row(static_cast<std::size_t>(n));  // of each place in the order
    std::vector<float> score(row.size());
    for (std::int64_t r = 0; r < n; ++r) {
      const auto place = static_cast<std::size_t>((a * r + b) % n);
      row[place] = static_cast<std::int32_t>(r);
      score[place] = args.score.ptr<float>()[r];
    }
    Draw ordered = args;
    ordered.score.data = score.data();
    inner_->run(ordered);
    std::vector<std::pair<std::int32_t, float>> kept;
    for (std::int64_t i = 0; i < args.kept.elements(); ++i)
      kept.emplace_back(row[args.kept.ptr<std::int32_t>()[i]], args.scale.ptr<float>()[i]);
    std::sort(kept.begin(), kept.end());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      args.kept.ptr<std::int32_t>()[i] = kept[i].first;
      args.scale.ptr<float>()[i] = kept[i].second;
    }
  }
};

struct Scatter {
  double variance = 0;      // mean of ||g - G||^2 over ||G||^2, whole gradient
  double worst_z = 0;       // of all tensors and directions: |mean error| in standard errors
  double mean_error = 0;    // ||mean - G||^2 over its expectation, variance / draws
  double milliseconds = 0;  // of one backward
};

class Study {
 public:
  Study(const ModelOptions& model, std::unique_ptr<Dataset> data, TrainerOptions training)
      : seed_(training.seed),
        data_(std::move(data)),
        model_(build_model(model, data_->item_shape(), data_->classes(), 0.0)),
        loader_(*data_, {.batch = kItems, .seed = training.seed, .label_run = kItems}) {
    model_->graph.finish(ops_, {.max_items = kItems, .max_tokens = kItems * kMostTokens});
    model_->graph.parameters().initialize(ops_, training.seed);
    training.batch = kItems;
    training.method.type = "exact";
    trainer_ = std::make_unique<Trainer>(*model_, ops_, training, nullptr);
    sampled_ = std::make_unique<SampledBackward>(ops_, model_->graph.plan());
    gradients_ = model_->graph.parameters().gradient_list();
  }

  void train(std::int64_t until) {
    while (trainer_->steps() < until) trainer_->step(loader_.next());
  }

  // The batch of the last step stays in the graph.
  Scatter scatter(const Budget& budget, const Order& order, int draws) {
    const auto& list = model_->graph.parameters().list();
    ops_.shuffled = false;
    Exec forward = model_->graph.make_exec(seed_, 0, true);
    model_->graph.forward(forward);
    const std::vector<float> exact = gradient(forward, nullptr);
    ops_.shuffled = order.shuffled;
    sampled_->pass.ratios =
        equal_ratios(model_->graph.plan(), budget.act_ratio, budget.weight_ratio);
    sampled_->pass.selection = order.selection;
    sampled_->pass.samples_rows = budget.rows;
    std::vector<double> mean(exact.size()), sum(list.size()), squares(list.size());
    double total = 0, seconds = 0;
    for (int draw = 0; draw < draws; ++draw) {
      Exec exec = model_->graph.make_exec(seed_, static_cast<std::uint64_t>(draw), true);
      const double start = monotonic_seconds();
      const auto& g = gradient(exec, sampled_.get());
      seconds += monotonic_seconds() - start;
      for (std::size_t p = 0; p < list.size(); ++p) {
        double along = 0;
        const auto [begin, end] = range(list[p]);
        for (std::size_t i = begin; i < end; ++i) {
          const double error = double{g[i]} - exact[i];
          mean[i] += error / draws;
          total += error * error / draws;
          along += error * exact[i];
        }
        sum[p] += along;
        squares[p] += along * along;
      }
    }
    Scatter out;
    double exact_norm = 0, mean_norm = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      exact_norm += double{exact[i]} * exact[i];
      mean_norm += mean[i] * mean[i];
    }
    for (std::size_t p = 0; p < list.size(); ++p) {
      const double average = sum[p] / draws;
      const double variance = squares[p] / draws - average * average;
      const double error = std::sqrt(variance / draws);
      if (error > 0) out.worst_z = std::max(out.worst_z, std::abs(average) / error);
    }
    out.variance = total / exact_norm;
    out.mean_error = mean_norm / (total / draws);
    out.milliseconds = 1e3 * seconds / draws;
    return out;
  }

 private:
  std::vector<float> gradient(Exec& exec, BackwardHooks* hooks) {
    const Tensor& slab = model_->graph.parameters().gradients();
    ops_.run(Fill{.y = slab, .value = 0});
    model_->graph.backward(exec, {.gradients = {gradients_},
                                  .loss_scale = 1.0 / static_cast<double>(kItems),
                                  .hooks = hooks});
    return {slab.ptr<float>(), slab.ptr<float>() + slab.elements()};
  }

  std::pair<std::size_t, std::size_t> range(const Parameter& parameter) const {
    const auto [begin, end] = model_->graph.parameters().range(parameter);
    return {static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
  }

  std::uint64_t seed_;
  std::unique_ptr<Dataset> data_;
  ShuffledDraws ops_;
  std::unique_ptr<Model> model_;
  Loader loader_;
  std::vector<Tensor> gradients_;
  std::unique_ptr<SampledBackward> sampled_;
  std::unique_ptr<Trainer> trainer_;
};

Study study_of_images(const TrainerOptions& training) {
  return {
      read_model_options({"type=vit", "width=64", "depth=4", "heads=2", "patch=7", "pooling=mean"}),
      load_idx(fashion_mnist()), training};
}

// The model of configs/bert_wordnet.json.
Study study_of_texts(const char* vocabulary, TrainerOptions training) {
  const WordPiece tokenizer(vocabulary);
  training.schedule.learning_rate = 5e-4;
  training.optimizer.max_gradient_norm = 1;
  return {
      read_model_options({"type=bert", "width=128", "depth=4", "heads=4",
                          fmt::format("max_positions={}", kMostTokens),
                          fmt::format("vocabulary={}", tokenizer.size())}),
      load_wordnet({.task = WordNetTask::kIsA, .split = Split::kTrain, .max_length = kMostTokens},
                   tokenizer),
      training};
}

void run_scatter(int draws, int training_steps, std::uint64_t seed, const char* vocabulary) {
  TrainerOptions training;
  training.total_steps = training_steps + 1;
  training.seed = seed;
  training.schedule.kind.type = "constant";
  Study study = vocabulary ? study_of_texts(vocabulary, training) : study_of_images(training);
  study.train(training.total_steps);
  fmt::print("{} draws after {} exact steps, seed {}, batch of {}\n", draws, training_steps, seed,
             kItems);
  fmt::print("{:<22} {:<11} {:>14} {:>10} {:>12} {:>8}\n", "budget", "selection", "variance/||G||2",
             "worst |z|", "mean error", "ms");
  for (const Budget& budget :
       {Budget{"SampleA rho .3", false, 0.3, 1}, Budget{"SampleA rho .6", false, 0.6, 1},
        Budget{"SampleW nu .2", true, 1, 0.2}, Budget{"SampleW nu .5", true, 1, 0.5},
        Budget{"both rho .5 nu .5", true, 0.5, 0.5}})
    for (const Order& order : {Order{"bernoulli", Selection::kBernoulli, false},
                               Order{"systematic", Selection::kSystematic, false},
                               Order{"  shuffled", Selection::kSystematic, true}}) {
      const Scatter s = study.scatter(budget, order, draws);
      fmt::print("{:<22} {:<11} {:>14.5f} {:>10.2f} {:>12.3f} {:>8.2f}\n", budget.name, order.name,
                 s.variance, s.worst_z, s.mean_error, s.milliseconds);
      std::fflush(stdout);
    }
}

}  // namespace
}  // namespace vcas

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  try {
    vcas::run_scatter(number(1, 4096), number(2, 300), number(3, 1), argc > 4 ? argv[4] : nullptr);
    return 0;
  } catch (const vcas::Error& error) {
    fmt::print(stderr, "error: {}\n  hint: {}\n", error.what(), error.hint());
    return static_cast<int>(error.code());
  }
}
