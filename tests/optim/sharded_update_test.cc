// Each rank sums and updates parts of its own, and all have the whole.
#include <limits>

#include "tests/optim/distance.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/check_error.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/watched_ops.h"

using namespace vcas;

namespace {

// What a rank ends with, and what a checkpoint would hold.
struct Trained {
  std::vector<float> weights;
  std::vector<std::vector<float>> moments;
  nlohmann::json state;
  std::vector<StepReport> reports;
};

// Trains to step `until`, from `start` where that is given.
std::vector<Trained> train(int size, TrainerOptions options, std::int64_t until,
                           const Trained* start = nullptr) {
  std::vector<Trained> all(static_cast<std::size_t>(size));
  on_ranks(size, [&, options](std::shared_ptr<Ranks> ranks) {
    TrainerOptions own = options;
    own.ranks = ranks;
    TrainerFixture f(own, 0.1);
    const std::vector<NamedTensor>& moments = f.trainer->optimizer().state();
    if (start) {
      const auto put = [&](const std::vector<float>& from, const Tensor& to) {
        f.ops->copy_to_device(to.data, from.data(), from.size() * sizeof(float));
      };
      put(start->weights, f.model->graph.parameters().masters());
      for (std::size_t i = 0; i < moments.size(); ++i) put(start->moments[i], moments[i].tensor);
      f.trainer->restore(start->state);
    }
    Trained& result = all[static_cast<std::size_t>(ranks->place().rank)];
    result.reports = f.run(until);
    f.trainer->gather_state();
    const Parameters& parameters = f.model->graph.parameters();
    result.weights = to_host<float>(*f.ops, parameters.masters().range(0, parameters.elements()));
    for (const NamedTensor& state : moments)
      result.moments.push_back(to_host<float>(*f.ops, state.tensor));
    result.state = f.trainer->state();
  });
  return all;
}

TrainerOptions exact(const std::string& optimizer) {
  TrainerOptions options = TrainerFixture::defaults();
  options.batch = 24;
  options.micro_batch = 2;
  options.method.type = "exact";
  options.optimizer.kind.type = optimizer;
  options.optimizer.weight_decay = 0.01;
  return options;
}

}  // namespace

TEST_CASE("the size of buckets changes no bit", "[ranks][law]") {
  for (const int ranks : {2, 3}) {
    TrainerOptions options = exact("adamw");
    const std::vector<Trained> one = train(ranks, options, 4);
    for (const std::int64_t bytes : {1, 3000}) {
      CAPTURE(ranks, bytes);
      options.bucket_bytes = bytes;
      for (const Trained& rank : train(ranks, options, 4)) {
        CHECK(rank.weights == one[0].weights);
        CHECK(rank.moments == one[0].moments);
      }
    }
  }
}

// Clipping knows the norm of the whole gradient, in another order of its sum.
TEST_CASE("what ranks update in parts is what one process updates", "[ranks][law]") {
  for (const double max_norm : {0.0, 0.3}) {
    TrainerOptions options = exact("sgd");
    options.optimizer.max_gradient_norm = max_norm;
    options.bucket_bytes = 3000;
    const std::vector<Trained> one = train(1, options, 5);
    CHECK((one[0].reports[0].clip_factor < 1) == (max_norm > 0));
    for (const int ranks : {2, 3, 4}) {
      CAPTURE(max_norm, ranks);
      const std::vector<Trained> shared = train(ranks, options, 5);
      for (const Trained& rank : shared) {
        CHECK(rank.weights == shared[0].weights);
        CHECK(rank.moments == shared[0].moments);
        CHECK(rank.reports[4].gradient_norm == shared[0].reports[4].gradient_norm);
      }
      CHECK(distance(shared[0].weights, one[0].weights) < 1e-7);
      CHECK(distance(shared[0].moments[0], one[0].moments[0]) < 1e-5);
    }
  }
}

TEST_CASE("a state of some ranks goes on on others", "[ranks]") {
  const TrainerOptions options = exact("sgd");
  const std::vector<Trained> one = train(1, options, 6);
  const std::vector<Trained> half = train(2, options, 3);
  CHECK(train(2, options, 6, &half[0])[0].weights == train(2, options, 6)[1].weights);
  for (const int ranks : {1, 3, 4})
    CHECK(distance(train(ranks, options, 6, &half[1])[0].weights, one[0].weights) < 1e-7);
}

TEST_CASE("in bf16 all ranks have all weights that layers read", "[ranks][bf16]") {
  on_thread_ranks(2, [](std::shared_ptr<Ranks> ranks) {
    TrainerOptions options = exact("adamw");
    options.batch = 8;
    options.ranks = ranks;
    TrainerFixture f(options, 0.1, make_ops("emu", Precision::kBf16), DType::kBF16);
    f.run(2);
    f.trainer->check_ranks();
    f.trainer->gather_state();
    const Parameters& parameters = f.model->graph.parameters();
    const std::vector<float> masters = to_host<float>(*f.ops, parameters.masters());
    for (std::size_t i = 0; i < masters.size(); ++i)
      if (static_cast<float>(parameters.values().ptr<bfloat16>()[i]) !=
          static_cast<float>(bfloat16(masters[i])))
        throw InternalError("value " + std::to_string(i) + " is not its master, rounded");
  });
}

TEST_CASE("gradients that travel in bf16 are off by their rounding", "[ranks][bf16][law]") {
  std::vector<std::vector<float>> gradients[2];  // in f32 and bf16, of each rank
  for (const bool narrow : {false, true}) {
    gradients[narrow].resize(2);
    on_thread_ranks(2, [&](std::shared_ptr<Ranks> ranks) {
      TrainerOptions options = exact("sgd");
      options.batch = 8;
      options.ranks = ranks;
      options.sends_bf16 = narrow;
      TrainerFixture f(options, 0, make_ops("emu", Precision::kBf16), DType::kBF16);
      f.run(1);
      const Tensor& slab = f.model->graph.parameters().gradients();
      f.trainer->gather(slab);
      gradients[narrow][static_cast<std::size_t>(ranks->place().rank)] =
          to_host<float>(*f.ops, slab);
    });
    CHECK(gradients[narrow][1] == gradients[narrow][0]);
  }
  const double off = distance(gradients[1][0], gradients[0][0]);
  CAPTURE(off);
  CHECK(off > 1e-4);
  CHECK(off < 0x1p-8);
}

namespace {

// Calls the body where the emulator would repeat it.
class NeverRepeats final : public ForwardingOps {
 public:
  NeverRepeats() : ForwardingOps(make_ops("emu")) {}
  void repeat(std::unique_ptr<Recording>&, const std::function<void()>& body) override { body(); }
};

}  // namespace

TEST_CASE("passes that are repeated send their gradients too", "[ranks]") {
  const auto weights = [](bool repeats) {
    std::vector<float> result;
    on_thread_ranks(2, [&](std::shared_ptr<Ranks> ranks) {
      TrainerOptions options = exact("sgd");
      options.method.type = "vcas";
      vcas_of(options).act_ratio = {0.5};
      vcas_of(options).weight_ratio = {0.5};
      options.batch = 16;
      options.micro_batch = 4;
      options.bucket_bytes = 3000;
      options.ranks = ranks;
      TrainerFixture f(options, 0.1,
                       repeats ? make_ops("emu") : std::unique_ptr<Ops>(new NeverRepeats));
      f.run(5);
      f.trainer->check_ranks();
      if (ranks->is_first()) result = f.weights();
    });
    return result;
  };
  CHECK(weights(true) == weights(false));
}

TEST_CASE("a gradient that is not finite is named by all ranks", "[ranks][error]") {
  std::vector<std::string> messages(2);
  on_thread_ranks(2, [&](std::shared_ptr<Ranks> ranks) {
    const auto rank = static_cast<std::size_t>(ranks->place().rank);
    TrainerOptions options = exact("sgd");
    options.ranks = ranks;
    TrainerFixture f(options, 0, watched_ops([&](const ColumnSum& args, const std::string&) {
                       if (rank == 1)
                         args.sum.ptr<float>()[2] = std::numeric_limits<float>::infinity();
                     }));
    const std::vector<float> before = f.weights();
    messages[rank] = error_of([&] { f.run(1); }).what();
    if (f.weights() != before) messages[rank] += "; but they changed";
  });
  CHECK(messages[1] == messages[0]);
  CHECK_THAT(messages[0], ContainsSubstring("step 1: gradient of vit.") &&
                              ContainsSubstring(".bias is inf at element 2") &&
                              ContainsSubstring("; weights unchanged"));
}
