// Ranks train one model: threads stand for processes.
#include "optim/communicator.h"

#include <barrier>
#include <thread>

#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

constexpr std::int64_t kRanks = 2, kShare = 8;

// What the ranks share.
struct Meeting {
  std::barrier<> barrier{kRanks};
  std::vector<double> numbers[kRanks];
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(Meeting& meeting, std::int64_t rank) : meeting_(meeting), rank_(rank) {}
  std::int64_t rank() const override { return rank_; }
  std::int64_t size() const override { return kRanks; }
  void sum(std::span<double> numbers) override {
    meeting_.numbers[rank_].assign(numbers.begin(), numbers.end());
    meeting_.barrier.arrive_and_wait();
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = meeting_.numbers[0][i] + meeting_.numbers[1][i];
    meeting_.barrier.arrive_and_wait();
  }
  void sum(Ops& ops, const Tensor& x) override {
    std::vector<float> host(static_cast<std::size_t>(x.elements()));
    ops.copy_to_host(host.data(), x.data, x.bytes());
    std::vector<double> numbers(host.begin(), host.end());
    sum(numbers);
    host.assign(numbers.begin(), numbers.end());
    ops.copy_to_device(x.data, host.data(), x.bytes());
  }

 private:
  Meeting& meeting_;
  std::int64_t rank_;
};

// The items of a step that one rank has.
Batch share_of(const Batch& batch, std::int64_t rank) {
  const auto part = [rank]<class T>(const std::vector<T>& all) {
    const std::int64_t each = std::ssize(all) / kRanks;
    return std::vector<T>(all.begin() + rank * each, all.begin() + (rank + 1) * each);
  };
  return {.items = kShare, .values = part(batch.values), .labels = part(batch.labels)};
}

}  // namespace

TEST_CASE("ranks train as one process does in as many parts", "[trainer][law]") {
  TrainerOptions options = TrainerFixture::defaults();
  options.method.type = "exact";
  options.optimizer.kind.type = "sgd";
  options.batch = kRanks * kShare;
  options.micro_batch = kShare;
  constexpr double kDropout = 0.2;  // each part has masks of its own
  constexpr std::int64_t kSteps = 4;
  TrainerFixture one(options, kDropout);
  const std::vector<StepReport> want = one.run(kSteps);

  Meeting meeting;
  std::vector<float> weights[kRanks];
  std::vector<StepReport> reports[kRanks];
  const auto train = [&](std::int64_t rank) {
    TrainerOptions own = options;
    own.batch = kShare;
    own.communicator = std::make_shared<ThreadRank>(meeting, rank);
    TrainerFixture f(own, kDropout);
    RandomBatches source(kRanks * kShare, TrainerFixture::kPixels, TrainerFixture::kClasses);
    while (f.trainer->steps() < kSteps)
      reports[rank].push_back(f.trainer->step(share_of(source.next(), rank)));
    weights[rank] = f.weights();
  };
  std::thread other(train, 1);
  train(0);
  other.join();

  CHECK(weights[0] == weights[1]);
  const std::vector<float> one_weights = one.weights();
  for (std::size_t i = 0; i < one_weights.size(); ++i)
    REQUIRE_THAT(weights[0][i], WithinAbs(one_weights[i], 1e-6));
  for (std::size_t step = 0; step < want.size(); ++step)
    for (const auto& rank : reports) {
      CHECK_THAT(rank[step].loss, WithinAbs(want[step].loss, 1e-5));
      CHECK(rank[step].accuracy == want[step].accuracy);
      CHECK_THAT(rank[step].gradient_norm, WithinAbs(want[step].gradient_norm, 1e-4));
    }
}

TEST_CASE("one process is rank 0 of 1 and its own sum", "[trainer]") {
  Communicator alone;
  double numbers[] = {3, -1};
  alone.sum(numbers);
  CHECK(alone.rank() == 0);
  CHECK(alone.size() == 1);
  CHECK(numbers[0] == 3);
  CHECK(numbers[1] == -1);
}
