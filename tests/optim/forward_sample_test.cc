// SampleF: unbiased, deterministic, and nothing is read of what it drops.
#include <cmath>
#include <set>

#include "optim/checkpoint.h"
#include "tests/core/temporary_folder.h"
#include "tests/optim/forward_fixture.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

using Settings = ForwardFixture::Settings;

void remember(ForwardSample& forward, const std::vector<float>& norms) {
  std::ranges::copy(norms, forward.item_memory().begin());
}

// Every fourth of the items was never seen; one has no gradient.
std::vector<float> some_norms(std::int64_t items) {
  std::vector<float> norms;
  for (std::int64_t i = 0; i < items; ++i)
    norms.push_back(i % 4 == 3 ? -1.0f : i == 2 ? 0.0f : 0.1f + static_cast<float>(i * i % 17));
  return norms;
}

}  // namespace

TEST_CASE("SampleF: the mean of weighted gradients, losses and hits is the exact one",
          "[forward]") {
  const auto [content, micro_batch, device, steps] =
      GENERATE(table<Content, std::int64_t, std::string, int>({{Content::kImages, 0, "cpu", 400},
                                                               {Content::kImages, 5, "cpu", 400},
                                                               {Content::kTexts, 0, "cpu", 400},
                                                               {Content::kTexts, 3, "cpu", 400},
                                                               {Content::kNumbers, 0, "cpu", 400},
                                                               {Content::kImages, 0, "emu", 30}}));
  CAPTURE(content, micro_batch, device);
  ForwardFixture f(fixed_gradient(content, micro_batch, device));
  f.run(1);
  const std::vector<double> exact = wide(f.gradient());
  const StepReport complete = f.reports.back();
  const double most_hits = content == Content::kNumbers ? 0 : 1;
  f.run(8);
  std::vector<std::vector<double>> gradients, unweighted, reports;
  while (std::ssize(gradients) < steps) {
    Batch batch = f.next();
    REQUIRE(batch.items == 8);
    REQUIRE(batch.dropped == 8);
    const StepReport report = f.trainer->step(batch);
    CHECK(report.items == 8);
    CHECK(report.dropped == 8);
    CHECK_FALSE(report.exact);
    gradients.push_back(wide(f.gradient()));
    reports.push_back({report.loss, most_hits * report.accuracy});
    batch.weights.clear();  // on purpose
    const double hits = most_hits * 16 * f.trainer->step(batch).accuracy;
    CHECK_THAT(hits, WithinAbs(std::round(hits), 1e-9));  // each counts once
    CHECK(hits <= 8);
    unweighted.push_back(wide(f.gradient()));
  }
  CHECK(error_of_mean(gradients, exact) < 4);
  CHECK(error_of_mean(reports, {complete.loss, most_hits * complete.accuracy}) < 6);
  CHECK(error_of_mean(unweighted, exact) > 8);
}

TEST_CASE("SampleF remembers the norms of items without their weights", "[forward]") {
  const std::int64_t micro_batch = GENERATE(0, 5);
  ForwardFixture f(fixed_gradient(Content::kTexts, micro_batch, "cpu"));
  f.run(4);
  const std::vector<float> exact(f.forward().item_memory().begin(),
                                 f.forward().item_memory().end());
  CHECK(std::set(exact.begin(), exact.end()).size() == 16);
  CHECK(*std::ranges::min_element(exact) > 0);
  f.run(8);
  Batch batch = f.next();
  batch.weights.at(0) = 0;  // it tells nothing of its item
  f.trainer->step(batch);
  const auto check_known = [&](std::int64_t until) {
    f.run(until);
    for (std::size_t i = 0; i < exact.size(); ++i)
      CHECK_THAT(f.forward().item_memory()[i], WithinRel(exact[i], 1e-4f));
  };
  check_known(11);
  check_known(40);
}

TEST_CASE("the newest norm counts 0.7 in what SampleF remembers", "[forward]") {
  ForwardFixture f(fixed_gradient(Content::kImages, 0, "cpu"));
  f.run(4);
  const std::vector<float> exact(f.forward().item_memory().begin(),
                                 f.forward().item_memory().end());
  std::vector<float> planted = exact;
  for (float& norm : planted) norm *= 11;
  remember(f.forward(), planted);
  const int steps = GENERATE(1, 2);
  f.run(4 + steps);
  int seen_again = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const float times = f.forward().item_memory()[i] / exact[i];  // 1 + 10 * 0.3^(times seen)
    const double seen = std::log((times - 1) / 10) / std::log(0.3);
    CHECK_THAT(seen, WithinAbs(std::round(seen), 1e-3));
    seen_again += std::lround(seen) > 0;
  }
  CHECK(seen_again > 0);
}

TEST_CASE("SampleF learns what norms become from kept items, by their weights", "[forward]") {
  ForwardFixture f(fixed_gradient(Content::kTexts, 0, "cpu"));
  NormForecast want(8);  // half of the data
  std::vector<float> exact, known;
  std::vector<Batch> batches;
  for (std::size_t step = 0; step < 12; ++step) {
    batches.push_back(f.next());  // now the memory has the norms of all steps but the last
    if (step == 2)
      known = exact = {f.forward().item_memory().begin(), f.forward().item_memory().end()};
    if (step > 2) {
      const Batch& seen = batches[step - 2];
      for (std::size_t i = 0; i < seen.ids.size(); ++i) {
        const auto item = static_cast<std::size_t>(seen.ids[i]);
        want.learn(known[item], exact[item], seen.weights.empty() ? 1 : seen.weights[i]);
        known[item] = 0.7f * exact[item] + 0.3f * known[item];
      }
    }
    if (step == 6) {
      for (float& norm : known) norm *= 11;
      remember(f.forward(), known);
    }
    f.trainer->step(batches.back());
  }
  const ForwardSample::Forecast got =
      f.forward().forecast(numbers_to(16), std::vector<double>(16, 1));
  const std::vector<double> norms = want.of(std::vector<double>(known.begin(), known.end()));
  for (std::size_t i = 0; i < norms.size(); ++i) CHECK_THAT(got.norm[i], WithinRel(norms[i], 1e-4));
}

TEST_CASE("SampleF keeps items with probabilities in proportion to their scores", "[forward]") {
  constexpr std::int64_t kItems = 24, kSeen = 18, kDraws = 4000;
  ForwardFixture f({.items = kItems, .batch = kItems, .total_steps = 100});
  const std::vector<float> norms = some_norms(kItems);
  remember(f.forward(), norms);
  const double ratio = GENERATE(0.5, 0.3);
  f.forward().set_ratio(ratio);
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < kItems; ++i) rows.push_back(1 + i % 5);
  const auto budget = static_cast<std::int64_t>(std::ceil(ratio * kSeen));

  const std::vector<double> now =
      NormForecast(1).of(std::vector<double>(norms.begin(), norms.end()));
  double sum = 0;
  for (std::size_t i = 0; i < norms.size(); ++i) sum += norms[i] < 0 ? 0 : now[i];
  std::vector<double> kept(kItems), inverse(kItems);
  for (std::int64_t step = 100; step < 100 + kDraws; ++step) {
    const ItemChoice choice = f.forward().choose(step, numbers_to(kItems), rows);
    REQUIRE(std::ssize(choice.kept) == kItems - kSeen + budget);
    REQUIRE(choice.weights.size() == choice.kept.size());
    CHECK(std::ranges::is_sorted(choice.kept));
    for (std::size_t k = 0; k < choice.kept.size(); ++k) {
      const auto item = static_cast<std::size_t>(choice.kept[k]);
      ++kept[item];
      inverse[item] = static_cast<double>(choice.weights[k]);
    }
  }
  double scale = 0;  // of a score that is not capped
  for (std::size_t i = 0; i < kItems; ++i) {
    CAPTURE(i);
    if (norms[i] < 0) {
      CHECK(kept[i] == kDraws);
      CHECK(inverse[i] == 1);
      continue;
    }
    const double score =
        (0.95 * now[i] + 0.05 * sum / kSeen) / std::sqrt(static_cast<double>(rows[i]));
    const double p = 1 / inverse[i];
    CHECK(std::abs(kept[i] / kDraws - p) < 4.5 * std::sqrt(p * (1 - p) / kDraws) + 1e-9);
    if (p == 1) continue;
    if (scale == 0) scale = p / score;
    CHECK_THAT(p, WithinRel(scale * score, 1e-5));
  }
  CHECK(scale > 0);
}

TEST_CASE("SampleF drops nothing before items come again, at ratio 1 and where a probe measures",
          "[forward]") {
  Settings settings{.total_steps = 18, .probes = true};
  SECTION("the first epoch, and a ratio of 1, have the bits of a run without SampleF") {
    const double ratio = GENERATE(0.5, 1.0);
    Settings off = settings;
    off.ratio = 0;
    settings.ratio = ratio;
    ForwardFixture sampled(settings), exact(off);
    const std::int64_t steps = ratio == 1 ? 18 : 6;
    CHECK(sampled.run(steps) == exact.run(steps));
    CHECK(sampled.weights() == exact.weights());
  }
  SECTION("later steps drop items, those of probes do not") {
    ForwardFixture f(settings);
    f.run(18);
    std::int64_t measured = 0, dropped = 0;
    for (const StepReport& report : f.reports) {
      CAPTURE(report.step);
      if (report.measured) CHECK(report.dropped == 0);
      if (report.step > 10 && !report.measured) CHECK(report.dropped == 4);
      CHECK(report.items + report.dropped == 8);
      measured += report.measured;
      dropped += report.dropped;
    }
    CHECK(measured >= 6);
    CHECK(dropped >= 16);
  }
}

TEST_CASE("SampleF reads nothing of the items that it drops", "[forward]") {
  const std::int64_t prefetch = GENERATE(1, 4);
  ForwardFixture f({.prefetch = prefetch});
  f.run(18);
  std::int64_t trained = 0, ahead = 0;
  for (const StepReport& report : f.reports) trained += report.items;
  for (std::int64_t i = 0; i < prefetch; ++i) ahead += f.next().items;
  f.loader.reset();
  CHECK(trained < 14 * 8);
  // The loader may have begun with batches that nobody took.
  CHECK(f.data.read >= trained + ahead);
  CHECK(f.data.read <= trained + ahead + prefetch * 8);
}

TEST_CASE("SampleF has the same bits whatever the timing", "[forward]") {
  const std::int64_t prefetch = GENERATE(1, 2, 4);
  const auto [content, micro_batch] =
      GENERATE(table<Content, std::int64_t>({{Content::kImages, 0}, {Content::kTexts, 3}}));
  const Settings settings{.content = content,
                          .micro_batch = micro_batch,
                          .prefetch = prefetch,
                          .probes = true,
                          .augments = content == Content::kImages};
  ForwardFixture plain(settings), slow(settings), queued(settings);
  slow.data.delay = std::chrono::microseconds(300);
  const auto ids = plain.run(24);
  CHECK(slow.run(24) == ids);
  CHECK(queued.run(24, true) == ids);
  CHECK(slow.weights() == plain.weights());
  CHECK(queued.weights() == plain.weights());
}

TEST_CASE("SampleF knows the norms of all steps but the last when a batch is taken", "[forward]") {
  ForwardFixture f({});
  const auto known = [&] {
    return std::ranges::count_if(f.forward().item_memory(), [](float norm) { return norm >= 0; });
  };
  f.next();  // the batch of step 0
  CHECK(known() == 0);
  f.loader.reset();
  for (int steps = 1; steps <= 6; ++steps) {
    f.run(steps);
    CHECK(known() == 8 * std::max(steps - 2, 0));
    f.next();
    CHECK(known() == 8 * (steps - 1));
    f.loader.reset();
  }
}

TEST_CASE("SampleF on a device that queues its work draws what the CPU draws", "[forward]") {
  Settings settings{.total_steps = 14};
  ForwardFixture cpu(settings);
  settings.device = "emu";
  ForwardFixture emu(settings), queued(settings);
  const auto ids = emu.run(14);
  CHECK(queued.run(14, true) == ids);
  CHECK(queued.ops.waits() == 1);  // for the last step: the host waits for no norm
  CHECK(queued.weights() == emu.weights());
  CHECK(cpu.run(14) == ids);  // norms differ by rounding, which moves no draw here
}

TEST_CASE("a resumed run with SampleF has the bits of the whole run", "[forward]") {
  const auto [content, probes, micro_batch] = GENERATE(table<Content, bool, std::int64_t>(
      {{Content::kImages, false, 0}, {Content::kImages, true, 3}, {Content::kTexts, true, 0}}));
  const Settings settings{.content = content,
                          .micro_batch = micro_batch,
                          .probes = probes,
                          .augments = content == Content::kImages};
  ForwardFixture whole(settings);
  const auto ids = whole.run(24);
  for (std::int64_t step : {1, 5, 8, 13}) {
    CAPTURE(content, probes, step);
    const TemporaryFolder folder;
    ForwardFixture first(settings), second(settings);
    first.run(step);
    while (!first.trainer->at_rest()) first.run(++step);
    save_checkpoint(folder.path() / "saved", *first.trainer, first.trainer->state(), {});
    second.trainer->restore(load_checkpoint(folder.path() / "saved", *second.trainer));
    CHECK(second.run(24) == std::vector(ids.begin() + step, ids.end()));
    CHECK(second.weights() == whole.weights());
    CHECK(second.trainer->state() == whole.trainer->state());
    CHECK(std::ranges::equal(second.forward().item_memory(), whole.forward().item_memory()));
  }
}

TEST_CASE("SampleF keeps the share that the budget controller finds", "[forward][controller]") {
  const auto [content, micro_batch] =
      GENERATE(table<Content, std::int64_t>({{Content::kImages, 3}, {Content::kTexts, 0}}));
  const Settings settings{
      .content = content, .micro_batch = micro_batch, .total_steps = 40, .finds_ratio = true};
  ForwardFixture whole(settings), slow(settings), first(settings), second(settings);
  slow.data.delay = std::chrono::microseconds(300);
  const auto ids = whole.run(32);
  CHECK(slow.run(32) == ids);
  CHECK(whole.forward().ratio() < 1);
  const auto kept = [](const auto& step) { return std::ssize(step); };
  CHECK(kept(std::ranges::min(ids, {}, kept)) < settings.batch);
  slow.run(40);
  CHECK(slow.trainer->method().measured().at("expected_f") > 0);
  const nlohmann::json taught =
      slow.trainer->state().at("method").at("state").at("forward").at("forecast").at("items");
  CHECK(std::ranges::any_of(taught, [](const nlohmann::json& items) { return items > 0; }));
  for (const std::size_t step : {14, 18, 22}) CHECK(kept(ids[step]) == settings.batch);  // probes

  const TemporaryFolder folder;
  first.run(17);
  save_checkpoint(folder.path() / "saved", *first.trainer, first.trainer->state(), {});
  second.trainer->restore(load_checkpoint(folder.path() / "saved", *second.trainer));
  CHECK(second.run(32) == std::vector(ids.begin() + 17, ids.end()));
  CHECK(second.weights() == whole.weights());
  CHECK(second.trainer->state() == whole.trainer->state());
}

TEST_CASE("a checkpoint with SampleF starts runs without it, and the other way round",
          "[forward]") {
  const TemporaryFolder folder;
  ForwardFixture with({}), without({.ratio = 0});
  for (ForwardFixture* f : {&with, &without}) f->run(8);
  save_checkpoint(folder.path() / "with", *with.trainer, with.trainer->state(), {});
  save_checkpoint(folder.path() / "without", *without.trainer, without.trainer->state(), {});
  ForwardFixture off({.ratio = 0}), on({}), other_batch({.batch = 12}), probed({.probes = true});
  off.trainer->restore(load_checkpoint(folder.path() / "with", *off.trainer));
  off.run(10);
  on.trainer->restore(load_checkpoint(folder.path() / "without", *on.trainer));
  on.run(20);
  CHECK(on.reports.front().dropped == 0);
  CHECK(on.reports.back().dropped == 4);
  // Batches of other items are drawn anew, and those of steps that now measure.
  other_batch.trainer->restore(load_checkpoint(folder.path() / "with", *other_batch.trainer));
  other_batch.run(12);
  for (const StepReport& report : other_batch.reports) {
    CHECK(report.items == 6);
    CHECK(report.dropped == 6);
  }
  // Norms are of mean losses: 12 items have two thirds of what 8 have.
  ForwardFixture larger({.batch = 12});
  larger.trainer->restore(load_checkpoint(folder.path() / "with", *larger.trainer));
  const std::span<const float> norms = with.forward().item_memory(),
                               scaled = larger.forward().item_memory();
  for (std::size_t i = 0; i < norms.size(); ++i)
    CHECK(scaled[i] == (norms[i] < 0 ? norms[i] : norms[i] * (8.0F / 12.0F)));
  nlohmann::json state = with.trainer->state();
  state["method"]["state"]["forward"]["step_items"] = 0;
  CHECK_THROWS_WITH(with.trainer->restore(state), "the state of SampleF: step_items is 0");

  // Losses are no norms: another method does not know what this one remembers.
  ForwardFixture by_loss({.method = R"("type": "infobatch")"});
  CHECK(has_item_memory(folder.path() / "with", *with.trainer));
  CHECK_FALSE(has_item_memory(folder.path() / "with", *by_loss.trainer));
  by_loss.trainer->restore(load_checkpoint(folder.path() / "with", *by_loss.trainer));
  by_loss.run(9);
  CHECK(by_loss.reports.front().dropped == 0);

  probed.trainer->restore(load_checkpoint(folder.path() / "with", *probed.trainer));
  probed.run(9);
  CHECK(probed.reports.front().measured);
  CHECK(probed.reports.front().dropped == 0);

  ForwardFixture other_data({.items = 40});
  CHECK_THAT(
      config_error_of([&] { load_checkpoint(folder.path() / "with", *other_data.trainer); }),
      ContainsSubstring("method.safetensors remembers 48 items, and the training data has "
                        "40 | bring the data back, or choose a method that remembers no items"));
}

TEST_CASE("a state of SampleF without a norm and weight for each item is refused", "[forward]") {
  ForwardFixture f({});
  f.run(8);
  nlohmann::json state = f.trainer->state();
  nlohmann::json& seen = state.at("method").at("state").at("forward").at("seen");
  REQUIRE_FALSE(seen.empty());
  f.run(12);
  f.trainer->restore(state);  // nothing is left of what came after
  CHECK(f.trainer->state().at("method") == state.at("method"));
  const nlohmann::json good = seen.back();
  seen.back()["norms"][0] = std::nan("");  // tells nothing: its item is one that was not seen
  f.trainer->restore(state);
  f.loader.reset();
  f.run(10);
  CHECK(f.forward().item_memory()[good.at("items")[0].get<std::size_t>()] < 0);
  for (const char* key : {"norms", "weights"}) {
    seen.back() = good;
    seen.back()[key] = {1.0};
    CHECK(error_text([&] { f.trainer->restore(state); }, ExitCode::kBadData) ==
          "the state of SampleF has not one norm and weight for each item");
  }
}

TEST_CASE("a state of SampleF with a choice that no draw makes is refused", "[forward]") {
  ForwardFixture f({});
  f.run(8);
  nlohmann::json state = f.trainer->state();
  nlohmann::json& pending = state.at("method").at("state").at("forward").at("pending");
  CHECK(pending.front().at("step") == 8);  // of steps to come alone
  const nlohmann::json good = {
      {"step", 9}, {"items", {4, 0, 7}}, {"kept", {0, 2}}, {"weights", {1.5, 1.0}}};
  for (const nlohmann::json& change :
       nlohmann::json::parse(R"([{}, {"kept": [1]}, {"kept": []}, {"kept": [], "weights": []},
          {"kept": [-1, 2]}, {"kept": [0, 3]}, {"kept": [2, 0]}, {"kept": [0, 0]},
          {"weights": [0]}, {"weights": [1, 0]}, {"weights": [1, -1]}, {"weights": [1, 1e300]},
          {"items": [4, 0, 48]}, {"items": [-1, 0, 7]}])")) {
    CAPTURE(change);
    pending = nlohmann::json::array({good});
    pending[0].update(change);
    if (change.empty()) {
      f.trainer->restore(state);
      continue;
    }
    CHECK_THAT(
        error_text([&] { f.trainer->restore(state); }, ExitCode::kBadData),
        ContainsSubstring(change.contains("items") ? "SampleF knows 48 items"
                                                   : "the state of SampleF has no choice among "
                                                     "the 3 items of step 9"));
  }
}

TEST_CASE("what SampleF drops is not counted as computed", "[forward]") {
  ForwardFixture f({.ratio = 0.25});
  FormulaFlops formula({{.gate = 0, .size = 1}});
  std::vector<double> forward, saved;
  for (int step = 0; step < 18; ++step) {
    const double before = f.ops.flops(Phase::kForward);
    f.run(step + 1);
    forward.push_back(f.ops.flops(Phase::kForward) - before);
  }
  CHECK_THAT(forward.back(), WithinRel(forward.front() / 4, 1e-9));
  formula.add_exact_step(0.25);
  CHECK(formula.saved() == 0.75);
  CHECK(formula.backward_saved() == 0.75);
  FormulaFlops of_two_ranks = formula;  // one of which gets no item
  of_two_ranks.clear();
  CHECK(of_two_ranks.saved() == 0);
  of_two_ranks.add_step({formula.cost().forward / 2, formula.cost().backward / 2});
  CHECK(of_two_ranks.saved() == 0.875);
  CHECK(of_two_ranks.backward_saved() == 0.875);
}
