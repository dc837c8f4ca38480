#include "tools/report/run_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "tools/evaluation.h"

namespace vcas {
namespace {

using nlohmann::json;
using Columns = std::vector<double>;

constexpr std::size_t kMostPoints = 200, kFewestPoints = 40, kMeanOf = 10;

// At most kMostPoints, each the mean of neighbours, in a band from the least to the largest.
Curve thin(Curve curve, bool with_band) {
  const std::size_t count = curve.x.size();
  const std::size_t points =
      std::min(count, std::clamp(count / kMeanOf, kFewestPoints, kMostPoints));
  if (points == count) return curve;
  const auto mean = [](const Columns& values, std::size_t first, std::size_t last) {
    double sum = 0, known = 0;
    for (std::size_t i = first; i < last; ++i)
      if (std::isfinite(values[i])) sum += values[i], ++known;
    return sum / known;  // NaN of none
  };
  Curve out = {.label = curve.label, .colour = curve.colour, .dashed = curve.dashed};
  for (std::size_t point = 0; point < points; ++point) {
    const std::size_t first = point * count / points, last = (point + 1) * count / points;
    out.x.push_back(mean(curve.x, first, last));
    out.y.push_back(mean(curve.y, first, last));
    if (!with_band) continue;
    double low = out.y.back(), high = low;
    for (std::size_t i = first; i < last; ++i) {
      low = std::fmin(low, curve.y[i]);
      high = std::fmax(high, curve.y[i]);
    }
    out.low.push_back(low);
    out.high.push_back(high);
  }
  return out;
}

bool is_known(const Columns& values) {
  return std::ranges::any_of(values, [](double value) { return std::isfinite(value); });
}

// The seconds of training at each of these steps.
Columns seconds_at(const RunRecord& run, const Columns& steps) {
  const Columns logged = column(run.train, "step"), seconds = column(run.train, "train_seconds");
  Columns out;
  for (const double step : steps) {
    const auto after = std::ranges::upper_bound(logged, step);
    out.push_back(after == logged.begin() ? 0 : seconds[after - logged.begin() - 1]);
  }
  return out;
}

// The seconds of training that each event has; older evaluations have none.
Columns seconds_of(const RunRecord& run, const std::vector<json>& events) {
  Columns seconds = column(events, "train_seconds");
  const Columns logged = seconds_at(run, column(events, "step"));
  for (std::size_t i = 0; i < seconds.size(); ++i)
    if (!std::isfinite(seconds[i])) seconds[i] = logged[i];
  return seconds;
}

enum class Against { kSteps, kSeconds };

// A key of events over steps or seconds, of all runs.
Plot overlay(const std::vector<RunRecord>& runs, std::vector<json> RunRecord::*events,
             const std::string& key, Against against) {
  Curves content;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Curve curve = {.label = runs[i].name,
                   .colour = static_cast<int>(i),
                   .x = against == Against::kSteps ? column(runs[i].*events, "step")
                                                   : seconds_of(runs[i], runs[i].*events),
                   .y = column(runs[i].*events, key)};
    if (is_known(curve.y)) content.curves.push_back(thin(std::move(curve), true));
  }
  return {.x_title = against == Against::kSteps ? "step" : "seconds of training",
          .content = std::move(content)};
}

bool has_lines(const Plot& plot) {
  return std::ranges::any_of(std::get<Curves>(plot.content).curves,
                             [](const Curve& curve) { return curve.x.size() > 1; });
}

bool has_curves(const Plot& plot) { return !std::get<Curves>(plot.content).curves.empty(); }

const char* by(Against against) { return against == Against::kSteps ? "step" : "second"; }

void add_losses(PlotSection& section, const std::vector<RunRecord>& runs) {
  for (const Against against : {Against::kSteps, Against::kSeconds}) {
    Plot plot = overlay(runs, &RunRecord::train, "loss", against);
    std::get<Curves>(plot.content).log = true;
    plot.id = fmt::format("loss-by-{}", by(against));
    plot.title = fmt::format("Training loss by {}", by(against));
    plot.hint = against == Against::kSteps
                    ? "Lower is better. Sampling is free where its curve lies on the exact one."
                    : "The curve further left reaches the same loss in less time.";
    plot.y_title = "training loss";
    if (has_curves(plot)) section.plots.push_back(std::move(plot));
  }
}

void add_evaluations(PlotSection& section, const std::vector<RunRecord>& runs) {
  const std::vector<std::string> measures = measures_of(runs);
  for (std::size_t i = 0; i < measures.size(); ++i)
    for (const Against against : {Against::kSteps, Against::kSeconds}) {
      Plot plot = overlay(runs, &RunRecord::eval, measures[i], against);
      plot.id = fmt::format("test-{}-by-{}", i, by(against));
      plot.title = fmt::format("Test {} by {}", measures[i], by(against));
      plot.hint = lower_is_better(measures[i])
                      ? "Lower is better. A rise at the end is overfitting."
                      : "Higher is better. Runs of other seeds differ too: compare by several.";
      plot.y_title = "test " + measures[i];
      if (has_lines(plot))
        section.plots.push_back(std::move(plot));
      else if (against == Against::kSteps)
        section.missing.push_back(
            fmt::format("Test {}: each run was evaluated once, as the summary tells", measures[i]));
    }
}

void add_norms(PlotSection& section, const std::vector<RunRecord>& runs) {
  Plot plot = overlay(runs, &RunRecord::train, "gradient_norm", Against::kSteps);
  if (!has_curves(plot)) return;
  Curves& content = std::get<Curves>(plot.content);
  content.log = true;
  std::set<double> limits;
  for (const RunRecord& run : runs)
    if (const double limit = number(member(run.config, "optimizer"), "max_gradient_norm");
        limit > 0)
      limits.insert(limit);
  for (const double limit : limits) content.levels.push_back({"clipped above", limit});
  plot.id = "gradient-norm";
  plot.title = "Length of the gradient by step";
  plot.hint = "Most steps should stay below the clipping line: clipping bends sampled gradients.";
  plot.y_title = "norm before clipping";
  section.plots.push_back(std::move(plot));
}

PlotSection learning(const std::vector<RunRecord>& runs) {
  PlotSection section{"Learning",
                      "Each point is the mean of neighbouring steps where there are many; the band "
                      "goes from the least to the largest of them."};
  add_losses(section, runs);
  add_evaluations(section, runs);
  add_norms(section, runs);
  return section;
}

// Probes in groups, at most `most` of them.
HeatMap heat_map(const RunRecord& run, const std::string& key, std::vector<std::string> names,
                 std::size_t most) {
  HeatMap map;
  std::vector<Columns> probes;
  Columns steps;
  for (const json& event : run.variance)
    if (Columns values = numbers(event, key);
        !values.empty() && (probes.empty() || values.size() == probes[0].size())) {
      probes.push_back(std::move(values));
      steps.push_back(number(event, "step"));
    }
  if (probes.empty()) return map;
  const std::size_t rows = probes[0].size(), columns = std::min(most, probes.size());
  if (names.size() != rows) {
    names.clear();
    for (std::size_t row = 0; row < rows; ++row) names.push_back(fmt::format("{}", row));
  }
  map.rows = std::move(names);
  map.values.assign(rows, {});
  for (std::size_t column = 0; column < columns; ++column) {
    const std::size_t first = column * probes.size() / columns;
    const std::size_t last = (column + 1) * probes.size() / columns;
    map.edges.push_back(steps[first]);
    for (std::size_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (std::size_t i = first; i < last; ++i) sum += probes[i][row];
      map.values[row].push_back(sum / static_cast<double>(last - first));
    }
  }
  map.edges.push_back(std::max(static_cast<double>(run.steps()), steps.back() + 1));
  return map;
}

// Without what all of them begin with, up to a dot.
std::vector<std::string> short_names(const json& start, const std::string& key) {
  std::vector<std::string> names;
  if (const json& list = member(start, key); list.is_array())
    for (const json& name : list) names.push_back(name.is_string() ? name.get<std::string>() : "");
  if (names.size() < 2) return names;
  std::size_t common = names[0].size();
  for (const std::string& name : names)
    common =
        std::min<std::size_t>(common, std::ranges::mismatch(name, names[0]).in1 - name.begin());
  const std::size_t dot = common == 0 ? std::string::npos : names[0].rfind('.', common - 1);
  for (std::string& name : names) name.erase(0, dot == std::string::npos ? 0 : dot + 1);
  return names;
}

struct MapOfRun {
  const char *key, *names, *id, *title, *hint, *y_title;
  bool is_norm = false;
};

void add_map(PlotSection& section, const std::vector<RunRecord>& runs, std::size_t run,
             const MapOfRun& kind) {
  constexpr std::size_t kMostCells = 60, kFullRuns = 4;  // most pages stay below a megabyte
  const std::size_t most = kMostCells * kFullRuns / std::max(kFullRuns, runs.size());
  HeatMap map = heat_map(runs[run], kind.key, short_names(runs[run].start, kind.names), most);
  if (map.rows.empty()) return;
  if (kind.is_norm) {
    map.log = true;
    map.unit = Unit::kNumber;
    map.low = std::numeric_limits<double>::infinity();
    map.high = 0;
    for (const Columns& row : map.values)
      for (const double value : row)
        if (value > 0 && std::isfinite(value))
          map.low = std::min(map.low, value), map.high = std::max(map.high, value);
    if (map.low > map.high) return;
    if (map.low == map.high) map.high = 2 * map.low;
  }
  section.plots.push_back({.id = fmt::format("{}-{}", kind.id, run + 1),
                           .title = fmt::format("{}: {}", kind.title, runs[run].name),
                           .hint = kind.hint,
                           .x_title = "step",
                           .y_title = kind.y_title,
                           .content = std::move(map)});
}

PlotSection kept(const std::vector<RunRecord>& runs) {
  PlotSection section{"What is sampled",
                      "Keep ratios from probe to probe. The input is at the bottom, the output at "
                      "the top. Dark is saved work, yellow is work done in full."};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    add_map(section, runs, i,
            {"act_ratio", "gates", "kept-items", "Items kept at each block",
             "Items of the gradient that go on below each block. Good: dark, the more the lower.",
             "block"});
    add_map(section, runs, i,
            {"weight_ratio", "linears", "kept-rows", "Rows kept in each linear layer",
             "Rows of each weight's gradient, of those that the blocks kept. Good: dark.",
             "linear layer"});
    if (runs[i].has_ratios() && runs[i].variance.empty())
      section.missing.push_back(runs[i].name +
                                ": no probe was logged, so there are no maps of ratios or "
                                "plots of variance");
  }
  return section;
}

Columns over(const Columns& values, const Columns& by) {
  Columns out;
  for (std::size_t i = 0; i < values.size(); ++i)
    out.push_back(by[i] > 0 ? values[i] / by[i] : kUnknown);
  return out;
}

// What the method may add, of V_s: as its controller bounds it. Items alone have the one budget,
// rows alone the other.
std::vector<Curves::Level> budgets(const RunRecord& run, bool spends) {
  const json& method = member(run.config, "method");
  const std::string sample = text(method, "sample");  // older programs have both
  const bool finds_forward =
      member(method, "forward") == true && number(method, "forward_ratio") == 0;
  std::vector<Curves::Level> levels;
  if (sample != "rows") levels.push_back({"items' budget", number(method, "tau_act")});
  if (sample != "items") levels.push_back({"rows' budget", number(method, "tau_w")});
  if (spends) {
    double sum = finds_forward ? number(method, "tau_f") : 0;
    for (const Curves::Level& level : levels) sum += level.y;
    levels = {{"budget", sum}};
  } else if (levels.front().y == levels.back().y) {
    levels = {{levels.size() == 1 ? "budget" : "budgets", levels.front().y}};
  }
  std::erase_if(levels, [](const Curves::Level& level) { return !std::isfinite(level.y); });
  return levels;
}

Plot variance_plot(const RunRecord& run) {
  const Columns steps = column(run.variance, "step");
  const bool spends = is_known(column(run.variance, "spent_act"));
  Curves content = {.levels = budgets(run, spends), .from_zero = true, .unit = Unit::kPercent};
  const auto add = [&](const char* label, int colour, const Columns& values) {
    if (std::ranges::any_of(values, [](double value) { return value > 0; }))
      content.curves.push_back(
          thin({.label = label, .colour = colour, .x = steps, .y = values}, false));
  };
  if (spends) {
    const Columns items = column(run.variance, "spent_act"), rows = column(run.variance, "spent_w"),
                  forward = column(run.variance, "spent_f");
    Columns all;
    for (std::size_t i = 0; i < items.size(); ++i) all.push_back(items[i] + rows[i] + forward[i]);
    add("all", 7, all);
    add("items", 0, items);
    add("rows", 1, rows);
    add("forward", 2, forward);
  } else {
    const Columns v_s = column(run.variance, "v_s");
    add("items", 0, over(column(run.variance, "v_act"), v_s));
    add("rows", 1, over(column(run.variance, "v_w"), v_s));
  }
  return {.id = "variance",
          .title = "Variance that sampling adds: " + run.name,
          .hint = spends ? "The sum should stay near its budget, the dotted line."
                         : "Each curve should come near its budget, the dotted line, from below.",
          .x_title = "step",
          .y_title = "added variance, of the gradient's own",
          .content = std::move(content)};
}

PlotSection variances(const std::vector<RunRecord>& runs) {
  PlotSection section{"Variance and budget",
                      "Far below the budget more could be saved. Far above it training gets "
                      "noisier than was asked for."};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Plot plot = variance_plot(runs[i]);
    plot.id += fmt::format("-{}", i + 1);
    if (has_curves(plot)) section.plots.push_back(std::move(plot));
  }
  return section;
}

Plot seconds_plot(const std::vector<RunRecord>& runs) {
  Bars bars;
  for (const RunRecord& run : runs) {
    const std::vector<PhaseSeconds> phases = seconds_by_phase(run);
    if (!std::isfinite(phases.front().seconds)) continue;
    bars.rows.push_back(run.name);
    bars.parts.resize(phases.size());
    for (std::size_t i = 0; i < phases.size(); ++i) {
      bars.parts[i].label = phases[i].label;
      bars.parts[i].values.push_back(std::isfinite(phases[i].seconds) ? phases[i].seconds : 0);
    }
  }
  return {.id = "seconds-by-phase",
          .title = "Where the seconds go",
          .hint = "Sampling makes backward shorter. The probe is what it pays for that.",
          .x_title = "seconds",
          .y_title = "run",
          .content = std::move(bars)};
}

// Against the twin, from the twentieth part of the run on: before, single steps decide.
Columns seconds_saved(const RunRecord& run, const RunRecord& twin, const Columns& steps) {
  const Columns own = column(run.train, "train_seconds"), exact = seconds_at(twin, steps);
  Columns out;
  for (std::size_t i = 0; i < steps.size(); ++i)
    out.push_back(20 * steps[i] < steps.back() || !(exact[i] > 0) ||
                          steps[i] > static_cast<double>(twin.steps())
                      ? kUnknown
                      : 1 - own[i] / exact[i]);
  return out;
}

Plot saved_plot(const RunRecord& run, const RunRecord* twin) {
  const Columns steps = column(run.train, "step");
  Curves content = {.from_zero = true, .unit = Unit::kPercent};
  const auto add = [&](const char* label, int colour, const Columns& values) {
    if (is_known(values))
      content.curves.push_back(
          thin({.label = label, .colour = colour, .dashed = colour == 5, .x = steps, .y = values},
               false));
  };
  add("FLOPs", 0, column(run.train, "flops_saved"));
  add("by formula", 5, column(run.train, "formula_flops_saved"));
  add("seconds", 1,
      twin != nullptr ? seconds_saved(run, *twin, steps) : column(run.train, "time_saved"));
  return {.id = "saved",
          .title = "FLOPs and seconds saved so far: " + run.name,
          .hint =
              "Good: seconds come near FLOPs. The gap is what the machine does not turn into "
              "time.",
          .x_title = "step",
          .y_title = twin != nullptr ? "saved, of " + twin->name
                                     : "saved, of exact training by its own estimate",
          .content = std::move(content)};
}

PlotSection costs(const std::vector<RunRecord>& runs) {
  PlotSection section{"Cost",
                      "Seconds are saved of an exact run with the same settings, where there is "
                      "one here. It is a fair measure if vcas compare has trained both in turns."};
  if (Plot plot = seconds_plot(runs); !std::get<Bars>(plot.content).rows.empty())
    section.plots.push_back(std::move(plot));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].samples() || runs[i].train.empty()) continue;
    Plot plot = saved_plot(runs[i], exact_twin(runs[i], runs));
    plot.id += fmt::format("-{}", i + 1);
    if (has_curves(plot)) section.plots.push_back(std::move(plot));
  }
  return section;
}

PlotSection gradients(const std::vector<RunRecord>& runs) {
  PlotSection section{"Where the gradient is",
                      "Exact backwards of the probes, item by item, at the output of each block."};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::size_t before = section.plots.size();
    add_map(section, runs, i,
            {"gate_norm", "gates", "gate-norm", "Length of the gradient at each block",
             "Equal colours from top to bottom: the gradient neither vanishes nor explodes.",
             "block", true});
    add_map(section, runs, i,
            {"gate_share", "gates", "gate-share", "Items that hold 95 % of the gradient",
             "Dark: few items carry the gradient, so many can be dropped.", "block"});
    if (section.plots.size() == before && !runs[i].variance.empty())
      section.missing.push_back(runs[i].name +
                                ": its metrics have no gate_norm and gate_share, as older "
                                "programs wrote none");
  }
  return section;
}

}  // namespace

std::vector<PhaseSeconds> seconds_by_phase(const RunRecord& run) {
  std::vector<PhaseSeconds> phases;
  double other = run.train_seconds();
  for (const char* phase : {"forward", "backward", "optimizer", "probe", "data"}) {
    phases.push_back({phase, phase_seconds(run, phase)});
    if (std::isfinite(phases.back().seconds)) other -= phases.back().seconds;
  }
  phases.push_back({"other", std::isfinite(other) ? std::max(other, 0.0) : kUnknown});
  phases.push_back({"evaluation", phase_seconds(run, "eval")});
  phases.push_back({"checkpoints", phase_seconds(run, "checkpoint")});
  return phases;
}

std::vector<PlotSection> plot_sections(const std::vector<RunRecord>& runs) {
  std::vector<PlotSection> sections = {learning(runs), costs(runs), kept(runs), variances(runs),
                                       gradients(runs)};
  std::erase_if(sections, [](const PlotSection& section) {
    return section.plots.empty() && section.missing.empty();
  });
  return sections;
}

}  // namespace vcas
