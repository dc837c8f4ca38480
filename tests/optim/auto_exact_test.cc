#include "optim/methods/auto_exact.h"

#include "optim/methods/budget_controller.h"
#include "optim/methods/paper_controller.h"
#include "tests/support/catch.h"

namespace vcas {
namespace {

ControlledModel two_gates() { return {.gates = 2, .linears = {{0, 1, 1}, {1, 1, 1}}}; }

// 8 items of 2 rows. Below a gate an exact backward takes 3 s, and dW of each linear 1 s of it.
MeasuredBatch exact_batch() {
  std::vector<std::int64_t> offsets;
  for (std::int64_t n = 0; n <= 8; ++n) offsets.push_back(2 * n);
  return {
      .items = 8, .offsets = {offsets, offsets}, .weight_seconds = {1, 1}, .item_seconds = {2, 2}};
}

// The upper gate keeps half of the items, the lower one a quarter; linears keep half of the rows.
const KeepRatios kRatios{.act = {0.25, 0.5}, .weight = {0.5, 0.5}};

SampleTimes times(std::vector<double> gate, std::vector<double> linear) {
  SampleTimes times(2, 2);
  times.gate = std::move(gate);
  times.linear = std::move(linear);
  times.linear_rows = {4, 8};
  return times;
}

AutoExact::Found found_by(const SampleTimes& sampled, int exact_backwards = 1) {
  AutoExact auto_exact(two_gates());
  auto_exact.add_sampled(sampled, kRatios);  // nothing is known of exact backwards: does not count
  for (int i = 0; i < exact_backwards; ++i) auto_exact.add_exact(exact_batch());
  for (int i = 0; i < 7; ++i) auto_exact.add_sampled(sampled, kRatios);
  CHECK_FALSE(auto_exact.take().any());  // seven are too few
  auto_exact.add_sampled(sampled, kRatios);
  const AutoExact::Found found = auto_exact.take();
  auto_exact.add_sampled(sampled, kRatios);
  CHECK_FALSE(auto_exact.take().any());  // once is enough
  return found;
}

}  // namespace

TEST_CASE("what sampling takes is weighed against what it spares", "[auto_exact]") {
  // The upper gate spares half of 3 s, the lower one a quarter. Dense products of the rows that
  // are there, 4 and 8 of 16, take 0.25 s and 0.5 s. So they do in the mean of two exact backwards.
  const int exact_backwards = GENERATE(1, 2);
  const AutoExact::Found none = found_by(times({0.7, 1.4}, {0.24, 0.49}), exact_backwards);
  CHECK_FALSE(none.any());
  const AutoExact::Found all = found_by(times({0.8, 1.6}, {0.26, 0.51}), exact_backwards);
  CHECK(all.gates == std::vector<int>{0, 1});
  CHECK(all.linears == std::vector<int>{0, 1});
  const AutoExact::Found some = found_by(times({0.8, 1.4}, {0.24, 0.51}), exact_backwards);
  CHECK(some.gates == std::vector<int>{0});
  CHECK(some.linears == std::vector<int>{1});
}

TEST_CASE("a gate answers for those below that draw nothing, and for the items that came",
          "[auto_exact]") {
  // Both have the ratio 1/2: the upper one draws, and spares half of 6 s.
  const auto found = [&](double seconds, double forward_share) {
    AutoExact auto_exact(two_gates());
    auto_exact.add_exact(exact_batch());
    for (int i = 0; i < 8; ++i)
      auto_exact.add_sampled(times({0, seconds}, {0, 0}), {.act = {0.5, 0.5}, .weight = {1, 1}},
                             forward_share);
    return auto_exact.take().gates;
  };
  CHECK(found(2.9, 1).empty());
  CHECK(found(3.1, 1) == std::vector<int>{1});
  CHECK(found(1.9, 2.0 / 3).empty());
  CHECK(found(2.1, 2.0 / 3) == std::vector<int>{1});
}

TEST_CASE("a fork samples what its own settings say", "[auto_exact]") {
  VcasOptions options{.controller = GENERATE("paper", "budget"), .auto_exact = true};
  options.sample = "items";
  const auto first = make_controller(options, two_gates(), 0, 1000);
  first->make_exact({}, {1});
  options.sample = "both";
  const auto fork = make_controller(options, two_gates(), 0, 1000);
  fork->from_json(first->to_json());
  nlohmann::json state = fork->to_json();
  CHECK(state.at("exact_gates").empty());
  CHECK(state.at("exact_linears") == std::vector<int>{1});
  options.sample = "rows";
  const auto rows = make_controller(options, two_gates(), 0, 1000);
  state["act_ratio"] = {0.5, 0.5};
  rows->from_json(state);
  CHECK(rows->act_ratio() == std::vector<double>{1, 1});

  state["exact_linears"] = {2};
  CHECK_THROWS_WITH(rows->from_json(state),
                    "the state of the VCAS controller has number 2 in exact_linears, the model has "
                    "2");
}

TEST_CASE("a gate that draws nothing is not weighed, nor is a linear that keeps all",
          "[auto_exact]") {
  AutoExact auto_exact(two_gates());
  auto_exact.add_exact(exact_batch());
  for (int i = 0; i < 9; ++i)
    auto_exact.add_sampled(times({9, 9}, {9, 9}), {.act = {1, 1}, .weight = {1, 1}});
  CHECK_FALSE(auto_exact.take().any());
}

TEST_CASE("a linear that no row has reached is not weighed", "[auto_exact]") {
  SampleTimes without_rows = times({0, 0}, {9, 9});
  without_rows.linear_rows = {0, 0};
  CHECK(found_by(without_rows).linears.empty());
}

TEST_CASE("what went exact stays exact, through probes and checkpoints", "[auto_exact]") {
  VcasOptions options{.controller = GENERATE("paper", "budget"), .auto_exact = true};
  const auto make = [&] { return make_controller(options, two_gates(), 0, 1000); };
  MeasuredBatch batch = exact_batch();
  batch.tokens.assign(8, 1.0);
  batch.v_act = batch.v_w = batch.drawn_error = batch.drawn_variance = {0, 0};
  batch.row_score.assign(2, std::vector<double>(16, 1.0));
  batch.row_score[0][0] = batch.row_score[1][0] = 50;
  batch.item_score.assign(2, {9, 1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1});
  batch.gram.assign(2, std::vector<double>(64, 0.0));
  for (auto& gram : batch.gram)
    for (std::size_t i = 0; i < 8; ++i) gram[i * 9] = i == 0 ? 81 : 0.01;

  const auto free = make(), bound = make();
  bound->make_exact({1}, {0});
  for (int probe = 0; probe < 40; ++probe) {
    CHECK(free->update({batch}).empty());
    CHECK(bound->update({batch}).empty());
  }
  CHECK(free->act_ratio()[1] < 1);
  CHECK(free->weight_ratio()[0] < 1);
  CHECK(bound->act_ratio()[1] == 1);
  CHECK(bound->act_ratio()[0] < 1);
  CHECK(bound->weight_ratio()[0] == 1);
  CHECK(bound->weight_ratio()[1] < 1);

  const auto resumed = make();
  resumed->from_json(bound->to_json());
  CHECK(resumed->update({batch}).empty());
  CHECK(bound->update({batch}).empty());
  CHECK(resumed->act_ratio() == bound->act_ratio());
  CHECK(resumed->weight_ratio() == bound->weight_ratio());

  // A lower gate that is exact draws nothing: it has the ratio of the one above.
  const auto lower = make();
  lower->make_exact({0}, {});
  for (int probe = 0; probe < 40; ++probe) CHECK(lower->update({batch}).empty());
  CHECK(lower->act_ratio()[1] < 1);
  CHECK(lower->act_ratio()[0] == lower->act_ratio()[1]);
}

}  // namespace vcas
