// Methods that choose items train on several ranks as in one process, or by the same law.
#include "tests/optim/distance.h"
#include "tests/optim/forward_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace vcas;

namespace {

// What a rank ends with, and what a checkpoint would hold.
struct Trained {
  std::vector<std::vector<std::int64_t>> ids;  // of each step
  std::vector<StepReport> reports;
  std::vector<float> weights;
  std::vector<std::vector<float>> moments;
  std::vector<float> memory;
  nlohmann::json state;
};

void copy_to(ForwardFixture& f, const std::vector<float>& from, const Tensor& to) {
  f.ops.copy_to_device(to.data, from.data(), from.size() * sizeof(float));
}

// Trains on `ranks` threads, from `start` where that is given.
std::vector<Trained> train(int ranks, const ForwardFixture::Settings& settings, std::int64_t until,
                           const Trained* start = nullptr) {
  std::vector<Trained> all(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](std::shared_ptr<Ranks> own) {
    ForwardFixture::Settings shared = settings;
    shared.ranks = own;
    ForwardFixture f(shared);
    if (start) {
      copy_to(f, start->weights, f.model->graph.parameters().masters());
      for (std::size_t i = 0; i < start->moments.size(); ++i)
        copy_to(f, start->moments[i], f.trainer->optimizer().state()[i].tensor);
      std::ranges::copy(start->memory, f.trainer->item_memory().begin());
      f.trainer->restore(start->state);
    }
    Trained& result = all[static_cast<std::size_t>(own->place().rank)];
    result.ids = f.run(until);
    f.trainer->gather_state();
    result.reports = f.reports;
    const Parameters& parameters = f.model->graph.parameters();
    result.weights = f.host(parameters.masters().range(0, parameters.elements()));
    for (const NamedTensor& state : f.trainer->optimizer().state())
      result.moments.push_back(f.host(state.tensor));
    result.memory.assign(f.trainer->item_memory().begin(), f.trainer->item_memory().end());
    result.state = f.trainer->state();
  });
  return all;
}

// What SampleF has learnt of norms.
std::vector<float> forecast_of(const Trained& rank) {
  return rank.state.at("method").at("state").at("forward").at("forecast").at("squares");
}

void check_same(const std::vector<Trained>& ranks) {
  for (const Trained& other : ranks) {
    CHECK(other.weights == ranks[0].weights);
    CHECK(other.moments == ranks[0].moments);
    CHECK(other.memory == ranks[0].memory);
    CHECK(other.state == ranks[0].state);
    for (std::size_t i = 0; i < other.reports.size(); ++i) {
      CHECK(other.reports[i].loss == ranks[0].reports[i].loss);
      CHECK(other.reports[i].items == ranks[0].reports[i].items);
      CHECK(other.reports[i].dropped == ranks[0].reports[i].dropped);
    }
  }
}

const std::string kBefore[] = {"", R"("type": "infobatch")",
                               R"("type": "uniform", "keep": 0.4, "forward": true)"};

}  // namespace

TEST_CASE("ranks leave out the items that one process leaves out", "[ranks][forward][law]") {
  for (const std::string& method : kBefore)
    for (const Content content : {Content::kImages, Content::kTexts}) {
      CAPTURE(method);
      // Adam would enlarge the rounding of gradients that are zero but for it.
      const ForwardFixture::Settings settings{
          .content = content, .batch = 12, .dropout = 0, .method = method, .optimizer = "sgd"};
      const std::vector<Trained> one = train(1, settings, 14);
      CHECK(one[0].reports.back().dropped > 0);
      for (const int ranks : {2, 3}) {
        CAPTURE(ranks);
        const std::vector<Trained> shared = train(ranks, settings, 14);
        check_same(shared);
        for (std::size_t step = 0; step < 14; ++step) {
          std::vector<std::int64_t> ids;
          for (const Trained& rank : shared)
            ids.insert(ids.end(), rank.ids[step].begin(), rank.ids[step].end());
          CHECK(ids == one[0].ids[step]);
          CHECK(shared[0].reports[step].items == one[0].reports[step].items);
          CHECK(shared[0].reports[step].dropped == one[0].reports[step].dropped);
        }
        CHECK(distance(shared[0].weights, one[0].weights) < 1e-6);
        if (method.empty()) CHECK(distance(forecast_of(shared[0]), forecast_of(one[0])) < 1e-4);
      }
    }
}

TEST_CASE("a rank whose items are all left out adds nothing", "[ranks][forward]") {
  const ForwardFixture::Settings settings{
      .items = 6, .batch = 3, .dropout = 0, .method = kBefore[2], .optimizer = "sgd"};
  const std::vector<Trained> one = train(1, settings, 6);
  const std::vector<Trained> shared = train(3, settings, 6);
  CHECK(shared[0].ids[0].empty());
  CHECK(shared[2].ids[0].size() == 1);
  for (const Trained& rank : shared)
    CHECK_FALSE(rank.reports[0].exact);  // though one drops nothing
  check_same(shared);
  CHECK(distance(shared[0].weights, one[0].weights) < 1e-6);
}

TEST_CASE("ranks begin to draw at the step that one process does", "[ranks]") {
  const ForwardFixture::Settings settings{
      .batch = 12,
      .micro_batch = 2,
      .dropout = 0,
      .method = R"("type": "upper_bound", "tau_threshold": 0.5)",
      .optimizer = "sgd"};
  const std::vector<Trained> one = train(1, settings, 8);
  CHECK(one[0].reports.front().exact);
  CHECK_FALSE(one[0].reports.back().exact);
  const auto tau = [](const Trained& rank) {
    return rank.state.at("method").at("state").at("tau").get<double>();
  };
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    const std::vector<Trained> shared = train(ranks, settings, 8);
    check_same(shared);
    for (std::size_t step = 0; step < 8; ++step)
      CHECK(shared[0].reports[step].exact == one[0].reports[step].exact);
    CHECK_THAT(tau(shared[0]), Catch::Matchers::WithinRel(tau(one[0]), 1e-5));
  }
}

TEST_CASE("ranks have the history of losses that one process has", "[ranks]") {
  const ForwardFixture::Settings settings{
      .batch = 12,
      .dropout = 0,
      .method = R"("type": "selective_backprop", "keep": 1, "history": 20)",
      .optimizer = "sgd"};
  const auto history = [&](int ranks) {
    const Trained first = train(ranks, settings, 3)[0];
    return first.state.at("method").at("state").at("history").get<std::vector<float>>();
  };
  const std::vector<float> one = history(1);
  CHECK(one.size() == 20);
  for (const int ranks : {2, 3}) CHECK(distance(history(ranks), one) < 1e-5);
}

TEST_CASE("ranks that remember resume to the same bits", "[ranks][forward]") {
  const std::string methods[] = {kBefore[0],
                                 kBefore[1],
                                 kBefore[2],
                                 R"("type": "selective_backprop", "history": 20)",
                                 R"("type": "upper_bound", "tau_threshold": 1.0)",
                                 R"("type": "uniform")"};
  for (const std::string& method : methods) {
    CAPTURE(method);
    const ForwardFixture::Settings settings{.batch = 12, .micro_batch = 3, .method = method};
    const std::vector<Trained> whole = train(2, settings, 15);
    check_same(whole);
    const std::vector<Trained> half = train(2, settings, 9);
    const std::vector<Trained> resumed = train(2, settings, 15, &half[0]);
    check_same(resumed);
    CHECK(resumed[0].weights == whole[0].weights);
    CHECK(resumed[0].state == whole[0].state);
    // Another number of ranks goes on with the same memory.
    const std::vector<Trained> others = train(4, settings, 15, &half[0]);
    check_same(others);
    CHECK(others[0].reports.size() == 6);
  }
}
