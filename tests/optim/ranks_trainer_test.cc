// Ranks train one model as one process does: threads stand for processes.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>

#include "tests/optim/distance.h"
#include "tests/optim/text_fixture.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/check_error.h"
#include "tests/support/fewer_cases.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

namespace {

constexpr double kDropout = 0.1;

// What a rank ends with.
struct Trained {
  std::vector<float> weights;
  std::vector<StepReport> reports;
  std::vector<double> ratios;
  nlohmann::json state;
};

// Trains on `ranks` ranks, from the weights and state of `start` where that is given.
std::vector<Trained> train(int ranks, const TrainerOptions& options, std::int64_t steps,
                           const Trained* start = nullptr) {
  std::vector<Trained> all(static_cast<std::size_t>(ranks));
  on_thread_ranks(ranks, [&](std::shared_ptr<Ranks> own) {
    TrainerOptions shared = options;
    shared.ranks = own;
    TrainerFixture f(shared, kDropout);
    if (start) {
      f.ops->copy_to_device(f.model->graph.parameters().masters().data, start->weights.data(),
                            start->weights.size() * sizeof(float));
      f.trainer->restore(start->state);
    }
    Trained& result = all[static_cast<std::size_t>(own->place().rank)];
    result.reports = f.run(steps);
    result.weights = f.weights();
    result.state = f.trainer->state();
    if (options.method.type == "vcas") {
      result.ratios = f.vcas().controller().act_ratio();
      const std::vector<double>& weight = f.vcas().controller().weight_ratio();
      result.ratios.insert(result.ratios.end(), weight.begin(), weight.end());
    }
  });
  return all;
}

void check_same(const std::vector<Trained>& ranks) {
  for (const Trained& other : ranks) {
    CHECK(other.weights == ranks[0].weights);
    CHECK(other.ratios == ranks[0].ratios);
    for (std::size_t i = 0; i < other.reports.size(); ++i) {
      CHECK(other.reports[i].loss == ranks[0].reports[i].loss);
      CHECK(other.reports[i].gradient_norm == ranks[0].reports[i].gradient_norm);
      CHECK(other.reports[i].imbalance > 1 - 1e-9);  // the longest over the mean
    }
  }
}

// A rank's items of a batch of texts with masked words.
Batch masked_share(const Batch& whole, const Place& place) {
  Batch share;
  share.items = whole.items / place.size;
  const auto first = static_cast<std::size_t>(place.rank * share.items);
  const std::size_t last = first + static_cast<std::size_t>(share.items);
  const auto part = []<class T>(const std::vector<T>& all, std::int64_t begin, std::int64_t end) {
    return std::vector<T>(all.begin() + begin, all.begin() + end);
  };
  const std::int64_t row = whole.offsets[first], mask = whole.masked_offsets[first];
  share.offsets = part(whole.offsets, first, last + 1);
  share.masked_offsets = part(whole.masked_offsets, first, last + 1);
  share.tokens = part(whole.tokens, row, share.offsets.back());
  share.token_types = part(whole.token_types, row, share.offsets.back());
  share.masked_rows = part(whole.masked_rows, mask, share.masked_offsets.back());
  share.masked_labels = part(whole.masked_labels, mask, share.masked_offsets.back());
  share.labels = part(whole.labels, first, last);
  share.targets = part(whole.targets, first, last);
  for (std::int64_t& offset : share.offsets) offset -= row;
  for (std::int64_t& offset : share.masked_offsets) offset -= mask;
  for (std::int32_t& masked : share.masked_rows) masked -= static_cast<std::int32_t>(row);
  return share;
}

// Steps of 32 items in micro-batches of 8, so four in all.
TrainerOptions four_parts(const std::string& method, const std::string& optimizer = "sgd") {
  TrainerOptions options = TrainerFixture::defaults();
  options.batch = 32;
  options.micro_batch = 8;
  options.method.type = method;
  options.optimizer.kind.type = optimizer;
  return options;
}

TrainerOptions sampled(double act_ratio, double weight_ratio) {
  TrainerOptions options = four_parts("vcas");
  vcas_of(options).act_ratio = {act_ratio};
  vcas_of(options).weight_ratio = {weight_ratio};
  return options;
}

}  // namespace

TEST_CASE("ranks train exactly as one process in as many micro-batches", "[ranks][law]") {
  const std::vector<Trained> one = train(1, four_parts("exact"), 5);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const std::vector<Trained> shared = train(ranks, four_parts("exact"), 5);
    check_same(shared);
    CHECK(distance(shared[0].weights, one[0].weights) < 1e-7);
    for (std::size_t i = 0; i < 5; ++i) {
      const StepReport &got = shared[0].reports[i], &want = one[0].reports[i];
      CHECK_THAT(got.loss, WithinRel(want.loss, 1e-6));
      CHECK(got.accuracy == want.accuracy);
      CHECK_THAT(got.gradient_norm, WithinRel(want.gradient_norm, 1e-5));
      CHECK(got.items == want.items);
    }
  }
}

// Later steps are not compared: a draw that rounding moved changes what is kept.
TEST_CASE("ranks draw what one process draws", "[ranks][law]") {
  const std::vector<Trained> path = train(1, four_parts("exact"), 3);
  for (const Trained* start : {static_cast<const Trained*>(nullptr), &path[0]}) {
    TrainerOptions options = sampled(0.5, 0.5);
    const std::int64_t next = start ? 4 : 1;
    const std::vector<Trained> one = train(1, options, next, start);
    CHECK_FALSE(one[0].reports[0].exact);
    for (const int ranks : {2, 4}) {
      CAPTURE(ranks, next);
      const std::vector<Trained> shared = train(ranks, options, next, start);
      check_same(shared);
      CHECK(distance(shared[0].weights, one[0].weights) < 1e-8);
    }
    // Other draws are far away, so the bound above says something.
    options.seed += 1;
    CHECK(distance(train(1, options, next, start)[0].weights, one[0].weights) > 1e-5);
  }
}

TEST_CASE("sampled gradients of two ranks have the exact mean", "[ranks][law]") {
  constexpr int kDraws = repetitions(4096);
  std::vector<double> along;  // of each draw: its share along the exact gradient
  on_thread_ranks(2, [&](std::shared_ptr<Ranks> own) {
    const auto gradient = [&](TrainerFixture& f) {
      const Tensor& slab = f.model->graph.parameters().gradients();
      f.trainer->gather(slab);
      return std::vector<float>(slab.ptr<float>(), slab.ptr<float>() + slab.elements());
    };
    const auto still = [&](TrainerOptions options) {  // weights stay, draws do not
      options.ranks = own;
      options.total_steps = kDraws;
      options.schedule.learning_rate = 1e-30;
      return options;
    };
    RandomBatches source(32, 0, own->place());
    const Batch batch = source.next();
    TrainerFixture whole(still(four_parts("exact")));
    whole.trainer->step(batch);
    const std::vector<float> want = gradient(whole);
    double square = 0;
    for (const float g : want) square += static_cast<double>(g) * static_cast<double>(g);
    TrainerFixture part(still(sampled(0.5, 0.5)));
    std::vector<double> shares;
    for (int i = 0; i < kDraws; ++i) {
      part.trainer->step(batch);
      const std::vector<float> got = gradient(part);
      double product = 0;
      for (std::size_t k = 0; k < got.size(); ++k)
        product += static_cast<double>(got[k]) * static_cast<double>(want[k]);
      shares.push_back(product / square);
    }
    if (own->is_first()) along = shares;
  });
  double mean = 0, variance = 0;
  for (const double share : along) mean += share / kDraws;
  for (const double share : along) variance += std::pow(share - mean, 2) / (kDraws - 1);
  const double error = std::sqrt(variance / kDraws);
  CAPTURE(mean, error);
  CHECK(error > 0);
  CHECK(error * std::sqrt(kDraws) < 0.64);
  CHECK(std::abs(mean - 1) < 5 * error);
}

TEST_CASE("at ratios of 1 ranks have the bits of exact training", "[ranks]") {
  const std::vector<Trained> exact = train(2, four_parts("exact"), 4);
  const std::vector<Trained> whole = train(2, sampled(1, 1), 4);
  CHECK(whole[0].weights == exact[0].weights);
  CHECK(whole[1].weights == exact[0].weights);
}

TEST_CASE("ranks have one schedule, and the same bits in each run", "[ranks]") {
  const std::string controller = GENERATE("paper", "budget");
  const std::string probe = GENERATE("in_place", "separate");
  const int ranks = GENERATE(2, 4);
  CAPTURE(controller, probe, ranks);
  TrainerOptions options = four_parts("vcas", "adamw");
  options.total_steps = 80;
  options.micro_batch = 32 / ranks / 2;
  VcasOptions& vcas = vcas_of(options);
  vcas.controller = controller;
  vcas.probe = probe;
  vcas.update_every = 3;
  vcas.s_step = 0.1;
  const std::vector<Trained> first = train(ranks, options, 64);
  check_same(first);
  CHECK(std::ranges::count(first[0].reports, true, &StepReport::probed) >= 20);
  CHECK(std::ranges::min(first[0].ratios) < 1);
  CHECK(train(ranks, options, 64)[0].weights == first[0].weights);
}

TEST_CASE("a probe of several ranks is shared, and leaves no trace", "[ranks]") {
  TrainerOptions options = four_parts("vcas");
  VcasOptions& vcas = vcas_of(options);
  vcas.update_every = 5;
  vcas.s_step = 0;
  vcas.weight_multiplier = 1;  // the ratios stay 1
  vcas.repeats = 4;
  const std::vector<Trained> probed = train(2, options, 10);
  const auto measured = [&](int ranks) {
    return std::ranges::count(train(ranks, options, 10)[0].reports, true, &StepReport::measured);
  };
  CHECK(measured(1) == 8);  // two probes of four batches
  CHECK(measured(2) == 4);
  CHECK(measured(4) == 2);
  vcas.repeats = 3;
  CHECK(measured(2) == 4);  // rounded up
  CHECK(probed[0].weights == train(2, four_parts("exact"), 10)[0].weights);
}

TEST_CASE("separate probes of ranks share no dropout", "[ranks]") {
  std::vector<std::set<std::int64_t>> forwards(2);  // the numbers that address their dropout
  on_thread_ranks(2, [&](std::shared_ptr<Ranks> own) {
    const auto rank = static_cast<std::size_t>(own->place().rank);
    TrainerOptions options = four_parts("vcas");
    options.ranks = own;
    vcas_of(options).probe = "separate";
    TrainerFixture f(options, kDropout, watched_ops([&](const Dropout& args, const std::string&) {
                       forwards[rank].insert(*args.step.ptr<std::int64_t>());
                     }));
    f.run(1);
  });
  CHECK(forwards[0].size() == 2 + 1);  // two micro-batches, and half of a probe of two
  std::set<std::int64_t> all = forwards[0];
  all.insert(forwards[1].begin(), forwards[1].end());
  CHECK(all.size() == 2 * forwards[0].size());
}

TEST_CASE("a loss that is not a number on one rank ends all, and names it", "[ranks]") {
  std::vector<std::string> messages(2);
  on_thread_ranks(2, [&](std::shared_ptr<Ranks> own) {
    const auto rank = static_cast<std::size_t>(own->place().rank);
    TrainerOptions options = four_parts("exact");
    options.ranks = own;
    TrainerFixture f(options);
    const std::vector<float> before = f.weights();
    RandomBatches source(options.batch, 0, own->place());
    Batch batch = source.next();
    if (rank == 1) batch.values[3] = std::nanf("");
    const Error error = error_of([&] { f.trainer->step(batch); });
    messages[rank] = fmt::format("{} {}", static_cast<int>(error.code()), error.what());
    if (f.weights() != before) messages[rank] += "; but they changed";
  });
  for (const std::string& message : messages)
    CHECK(message == "70 step 1: loss is nan on rank 1; weights unchanged");
}

TEST_CASE("a gradient that is not finite on one rank is named on all", "[ranks]") {
  std::vector<std::string> messages(3);
  on_thread_ranks(3, [&](std::shared_ptr<Ranks> own) {
    const int rank = own->place().rank;
    TrainerOptions options = four_parts("exact");
    options.batch = 24;
    options.ranks = own;
    TrainerFixture f(options, 0, watched_ops([&](const ColumnSum& args, const std::string& place) {
                       if (rank == 0 && place == "classifier/backward")
                         args.sum.ptr<float>()[2] = std::numeric_limits<float>::infinity();
                     }));
    messages[static_cast<std::size_t>(rank)] = error_of([&] { f.run(1); }).what();
  });
  for (const std::string& message : messages)
    CHECK(message == "step 1: gradient of classifier.bias is inf at element 2; weights unchanged");
}

TEST_CASE("ranks weigh masked words by the terms of all", "[ranks][law]") {
  const Batch whole =
      random_text(TextTrainer::kItems, TextTrainer::kVocabulary, TextTrainer::kClasses, 2);
  TextTrainer one("mlm", 2);
  const StepReport want = one.trainer->step(whole);
  const auto weights = [](TextTrainer& f) {
    const Parameters& parameters = f.model->graph.parameters();
    const float* const values = parameters.masters().ptr<float>();
    return std::vector<float>(values, values + parameters.elements());
  };
  std::vector<std::vector<float>> got(4);
  std::vector<std::int64_t> terms(4);
  std::vector<double> losses(4);
  on_thread_ranks(4, [&](std::shared_ptr<Ranks> own) {
    const auto rank = static_cast<std::size_t>(own->place().rank);
    TextTrainer f("mlm", 2, {}, make_ops("cpu"), DType::kF32, own);
    const Batch share = masked_share(whole, own->place());
    terms[rank] = f.model->loss_terms(share, 0, share.items);
    losses[rank] = f.trainer->step(share).loss;
    got[rank] = weights(f);
  });
  CHECK(terms == std::vector<std::int64_t>{1, 3, 1, 3});
  for (std::size_t rank = 0; rank < 4; ++rank) {
    CHECK_THAT(losses[rank], WithinRel(want.loss, 1e-6));
    CHECK(got[rank] == got[0]);
  }
  CHECK(distance(got[0], weights(one)) < 1e-7);
}

TEST_CASE("ranks whose weights differ are found", "[ranks]") {
  std::vector<std::string> messages(3);
  on_thread_ranks(3, [&](std::shared_ptr<Ranks> own) {
    TrainerOptions options = four_parts("exact");
    options.batch = 24;
    options.ranks = own;
    TrainerFixture f(options);
    f.run(1);
    f.trainer->check_ranks();
    const int rank = own->place().rank;
    float& weight = f.model->graph.parameters().masters().ptr<float>()[5];
    if (rank == 2) weight = -weight;  // which leaves the norm of the weights as it is
    try {
      f.trainer->check_ranks();
    } catch (const InternalError& error) {
      messages[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  for (const std::string& message : messages)
    CHECK(message == "after step 1 the weights of rank 2 are not those of rank 0");
}

TEST_CASE("what ranks cannot share is refused", "[ranks]") {
  const auto message = [](int ranks, const TrainerOptions& options) {
    return error_text([&] { train(ranks, options, 1); }, ExitCode::kBadConfig);
  };
  CHECK(message(3, four_parts("exact")) ==
        "train.batch_size 32 cannot be shared by 3 ranks in micro-batches of 8");
  TrainerOptions options = four_parts("exact");
  options.micro_batch = 0;
  options.batch = 3;
  CHECK(message(2, options) == "train.batch_size 3 cannot be shared by 2 ranks");
  options.micro_batch = 4;
  options.batch = 12;
  CHECK(message(2, options) ==
        "train.batch_size 12 cannot be shared by 2 ranks in micro-batches of 4");
  CHECK_THROWS_WITH(on_thread_ranks(2,
                                    [](std::shared_ptr<Ranks> own) {
                                      TrainerOptions two = four_parts("exact");
                                      two.ranks = own;
                                      TrainerFixture f(two);
                                      RandomBatches whole(32);
                                      f.trainer->step(whole.next());
                                    }),
                    "a batch of 32 items, and steps have 16");
}
