#include "tools/comparison_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "core/metrics.h"
#include "tools/report_text.h"

namespace vcas {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

// Null where a run lacks the member, as one of an earlier program may.
Json member(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() ? Json() : *found;
}

// 1 - part / whole; null where one is not known.
Json saved_share(const Json& part, const Json& whole) {
  if (!part.is_number() || !whole.is_number() || whole == 0.0) return nullptr;
  return 1 - part.get<double>() / whole.get<double>();
}

// What a run saved over the base, as shares; null where nothing can be said.
Json saved_json(const Json& base, const Json& run) {
  const auto share = [&](const char* group, const char* key) {
    return saved_share(run[group][key], base[group][key]);
  };
  const auto sampled = [](const Json& of) {  // what sampling can change
    return of["seconds"]["backward"].get<double>() + of["seconds"]["probe"].get<double>();
  };
  const bool begun = run["steps"] > 0 && base["steps"] > 0;
  const Json none;
  Json saved = {{"flops", share("flops", "total")},
                {"backward_flops", share("flops", "total_backward")},
                {"formula_flops", begun ? run["formula_flops_saved"] : none},
                {"formula_backward_flops", begun ? run["formula_backward_flops_saved"] : none},
                {"seconds", share("seconds", "train")},
                {"backward_seconds", saved_share(sampled(run), sampled(base))}};
  const bool converts = saved["flops"] > 0.0 && saved["seconds"].is_number();
  saved["conversion"] =
      converts ? Json(saved["seconds"].get<double>() / saved["flops"].get<double>()) : none;
  return saved;
}

// The measure of "until": that of --to-accuracy, else what chooses the base's best checkpoint.
std::string reached_measure(const Json& comparison) {
  if (!comparison["to_accuracy"].is_null()) return "accuracy";
  for (const Json& run : comparison["runs"])
    if (run["variant"] == comparison["base"] && has_numbers(run)) return run["best_measure"];
  return "accuracy";
}

// What training took until an evaluation had a measure as good as `value`; null where none had.
Json until_json(const Json& run, const std::string& measure, double value) {
  Json until = {{"measure", measure}, {"value", value}};
  for (const char* key : {"step", "seconds", "flops"}) until[key] = nullptr;
  for (const Json& evaluation : run["evaluations"]) {
    const Json reached = member(evaluation, measure);
    if (!reached.is_number() || is_better(measure, value, reached)) continue;
    until["step"] = evaluation["step"];
    until["seconds"] = member(evaluation, "train_seconds");
    until["flops"] = member(evaluation, "train_flops");
    break;
  }
  return until;
}

// All numbers in it, by their paths: {"seconds": {"train": 3}} has "seconds.train".
void collect_numbers(const Json& value, const std::string& path, Json& numbers) {
  if (value.is_number()) numbers[path] = value;
  if (!value.is_object()) return;
  for (const auto& [key, inner] : value.items())
    collect_numbers(inner, path.empty() ? key : path + "." + key, numbers);
}

Json numbers_of(const Json& run) {
  Json numbers = Json::object();
  collect_numbers(run, "", numbers);
  numbers.erase("seed");
  return numbers;
}

// The run of the base at the seed of `run`.
const Json& base_run(const Json& comparison, const Json& run) {
  return *std::ranges::find_if(comparison["runs"], [&](const Json& other) {
    return other["variant"] == comparison["base"] && other["seed"] == run["seed"];
  });
}

// Mean and sample standard deviation.
struct Spread {
  double mean = 0;
  Json deviation = nullptr;  // of a single value
  double count = 0;
};

Spread spread_of(const std::vector<double>& values) {
  Spread spread;
  for (const double value : values) spread.mean += (value - spread.mean) / ++spread.count;
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / (spread.count - 1));
  return spread;
}

Json summary_of(const Json& comparison, const std::string& variant) {
  Json values = Json::object(), differences = Json::object();
  for (const Json& run : comparison["runs"]) {
    if (run["variant"] != variant || !has_numbers(run)) continue;
    const Json base = numbers_of(base_run(comparison, run)), numbers = numbers_of(run);
    for (const auto& [key, value] : numbers.items()) {
      values[key].push_back(value);
      if (base.contains(key))
        differences[key].push_back(value.get<double>() - base[key].get<double>());
    }
  }
  for (Json& list : values) {
    const Spread spread = spread_of(list);
    list = {{"mean", spread.mean}, {"spread", spread.deviation}, {"seeds", spread.count}};
  }
  for (Json& list : differences) {
    const Spread spread = spread_of(list);
    Json error;
    if (!spread.deviation.is_null())
      error = spread.deviation.get<double>() / std::sqrt(spread.count);
    list = {{"mean", spread.mean}, {"spread", error}, {"seeds", spread.count}};
  }
  // A mean of ratios would be one of the seeds that saved least.
  if (values.contains("saved.conversion")) {
    const Json& saved = values["saved.flops"];
    const double flops = saved["mean"], seconds = values["saved.seconds"]["mean"];
    if (flops > 0)
      values["saved.conversion"].update({{"mean", seconds / flops}, {"seeds", saved["seeds"]}});
    else
      values.erase("saved.conversion");
  }
  return {{"name", variant}, {"values", values}, {"minus_base", differences}};
}

// How numbers of a row are written: "{:.1f}%" and, after ±, "{:.1f}".
struct Style {
  const char* value;
  const char* spread;
  double unit = 1;
};
constexpr Style kCount{"{:.0f}", "{:.0f}"}, kLoss{"{:.4f}", "{:.4f}"},
    kDifference{"{:+.4f}", "{:.4f}"}, kPercent{"{:.1f}%", "{:.1f}", 100},
    kTera{"{:.4g}", "{:.2g}", 1e-12}, kSeconds{"{:.1f}", "{:.1f}"}, kRatio{"{:.2f}", "{:.2f}"};

constexpr const char* kNever = "never";

std::string cell(const Json& number, const Style& style, double seeds) {
  const auto write = [&](const char* format, const Json& value) {
    return fmt::format(fmt::runtime(format), style.unit * value.get<double>());
  };
  std::string text = write(style.value, number["mean"]);
  if (!number["spread"].is_null() && number["spread"] != 0.0)
    text += " ±" + write(style.spread, number["spread"]);
  if (number["seeds"] < seeds)
    text += fmt::format(" ({} of {})", number["seeds"].get<double>(), seeds);
  return text;
}

// The summary as rows of text, the first one with the names of the variants.
class Table {
 public:
  explicit Table(const Json& comparison) : summary_(comparison["summary"]) {
    base_ = comparison["base"];
    until_ = comparison["to_accuracy"].is_null()
                 ? fmt::format("{} of {}", reached_measure(comparison), base_)
                 : fmt::format("accuracy {}", comparison["to_accuracy"].get<double>());
    for (const Json& variant : summary_)
      if (const Json steps = member(variant["values"], "steps"); !steps.is_null())
        seeds_ = std::max(seeds_, steps["seeds"].get<double>());
    rows_.emplace_back(1);
    for (const Json& variant : summary_) rows_[0].push_back(variant["name"]);
    add_results();
    add_costs();
  }

  const Rows& rows() const { return rows_; }
  double seeds() const { return seeds_; }

 private:
  bool any(
      const std::string& key,
      const std::function<bool(const Json&)>& holds = [](const Json&) { return true; }) const {
    return std::ranges::any_of(summary_, [&](const Json& variant) {
      const Json number = member(variant["values"], key);
      return !number.is_null() && holds(number);
    });
  }

  // `none`: where a variant lacks the number.
  void add(const std::string& label, const std::string& key, const Style& style,
           const std::string& none = "-", const char* group = "values") {
    std::vector<std::string>& row = rows_.emplace_back(1, label);
    for (const Json& variant : summary_) {
      const bool is_base = variant["name"] == base_;
      const Json number = member(variant[group], key),
                 until = member(variant[group], "until.value");
      const double asked = until.is_null() ? seeds_ : until["seeds"].get<double>();
      if (is_base && (style.value == kDifference.value || key.starts_with("saved.")))
        row.emplace_back();
      else if (number.is_null())
        row.push_back(until.is_null() ? "-" : none);  // a run that diverged may have reached it
      else if (none == kNever && number["seeds"] < asked)  // a mean of the others would flatter
        row.push_back(
            fmt::format("{} in {} of {}", kNever, asked - number["seeds"].get<double>(), asked));
      else
        row.push_back(cell(number, style, seeds_));
    }
  }

  // One seed says nothing of how far a difference is by chance.
  void add_difference(const std::string& key) {
    if (seeds_ > 1) add("  minus " + base_, key, kDifference, "-", "minus_base");
  }

  void add_results() {
    add("steps", "steps", kCount);
    add("final training loss", "train_loss", kLoss);
    add_difference("train_loss");
    std::vector<std::string> measures;
    for (const Json& variant : summary_)
      for (const auto& [key, number] : variant["values"].items())
        if (key.starts_with("eval_") && std::ranges::count(measures, key.substr(5)) == 0)
          measures.push_back(key.substr(5));
    for (const std::string& measure : measures) {
      add("test " + measure, "eval_" + measure, kLoss);
      add_difference("eval_" + measure);
      add("  best", "best." + measure, kLoss);
      add_difference("best." + measure);
    }
    if (any("forward_share", [](const Json& number) { return number["mean"] != 1.0; }))
      add("items in the forward", "forward_share", kPercent);
    if (any("added_variance.forward"))
      add("added variance / V_s, SampleF", "added_variance.forward", kLoss);
    if (any("added_variance.items")) {
      add("added variance / V_s, SampleA", "added_variance.items", kLoss);
      add("added variance / V_s, SampleW", "added_variance.rows", kLoss);
    }
  }

  void add_costs() {
    add("TFLOP, counted", "flops.total", kTera);
    add("  saved", "saved.flops", kPercent);
    add("  saved by the paper's formula", "saved.formula_flops", kPercent);
    if (any("flops.padded_saved"))
      add("  saved, over exact training with padded texts", "flops.padded_saved", kPercent);
    add("TFLOP of backward, counted", "flops.total_backward", kTera);
    add("  saved", "saved.backward_flops", kPercent);
    add("  saved by the paper's formula", "saved.formula_backward_flops", kPercent);
    add("seconds of training", "seconds.train", kSeconds);
    add("  saved", "saved.seconds", kPercent);
    for (const char* phase : {"forward", "backward", "probe", "optimizer", "data"})
      add(fmt::format("  {}", phase), fmt::format("seconds.{}", phase), kSeconds);
    add("time saved / FLOPs saved", "saved.conversion", kRatio);
    if (!any("until.value")) return;
    add("seconds until " + until_, "until.seconds", kSeconds, kNever);
    add("TFLOP until " + until_, "until.flops", kTera, kNever);
  }

  const Json& summary_;
  std::string base_, until_;
  double seeds_ = 0;  // that have numbers
  Rows rows_;
};

// What a reader must know of the table; empty where it speaks for itself.
std::vector<std::string> notes(const Json& comparison, double seeds) {
  std::vector<std::string> lines;
  if (!comparison["base_is_exact"].get<bool>())
    lines.push_back(fmt::format("No variant is exact: savings are over {}, the first one.",
                                comparison["base"].get<std::string>()));
  std::set<Json> steps;
  for (const Json& run : comparison["runs"])
    if (has_numbers(run)) steps.insert(run["steps"]);
  if (steps.size() > 1) lines.push_back("Runs differ in their steps: savings are of whole runs.");
  for (const Json& run : comparison["runs"])
    if (const Json diverged = member(run, "diverged"); !diverged.is_null())
      lines.push_back(fmt::format("{} diverged at step {}: its numbers are left out.",
                                  run["name"].get<std::string>(), diverged["step"].dump()));
  if (seeds > 1)
    lines.push_back(fmt::format(
        "Means of {} seeds ± standard deviations; of differences, standard errors.", seeds));
  return lines;
}

}  // namespace

bool has_numbers(const Json& run) { return run.contains("steps"); }

Json run_numbers(const Session& session, const std::optional<TestResult>& evaluation,
                 const RunData& data) {
  const Json savings = session.savings().to_json();
  const RunTotals& totals = session.totals();
  const std::int64_t steps = session.trainer().steps();
  const double forward = session.flops(Phase::kForward), all = session.train_flops(),
               padded = session.padded_step_flops() * static_cast<double>(steps);
  Json json = {{"steps", steps},
               {"train_loss", nullptr},
               {"eval_loss", nullptr},
               {"forward_share", totals.forward_share()},
               {"flops",
                {{"forward", forward},
                 {"backward", session.flops(Phase::kBackward)},
                 {"probe", session.flops(Phase::kProbe)},
                 {"total", all},
                 {"total_backward", all - forward}}},
               {"formula_flops_saved", savings["formula_flops_saved"]},
               {"formula_backward_flops_saved", savings["formula_backward_flops_saved"]},
               {"own_time_saved", savings["time_saved"]},
               {"own_time_saved_interval", savings["time_saved_interval"]},
               {"seconds",
                {{"train", session.train_seconds()},
                 {"data", totals.data_seconds},
                 {"forward", totals.step_seconds.forward},
                 {"backward", totals.step_seconds.backward},
                 {"probe", totals.step_seconds.probe},
                 {"optimizer", totals.step_seconds.optimizer},
                 {"evaluation", totals.eval_seconds}}}};
  if (padded > 0) json["flops"].update({{"padded", padded}, {"padded_saved", 1 - all / padded}});
  json.update(session.trainer().method().report());
  if (totals.late_steps > 0)
    json["train_loss"] = totals.late_loss / static_cast<double>(totals.late_steps);
  json["best_measure"] = data.best_measure;
  for (const std::string& measure : measure_names(data)) json["eval_" + measure] = nullptr;
  if (evaluation) json.update(evaluation->to_json("eval_"));
  return json;
}

void add_measurements(Json& run, const std::filesystem::path& folder) {
  Json evaluations = Json::array(), best = Json::object();
  // Sums over probes: few batches have most of V_s.
  double forward = 0, items = 0, rows = 0, exact = 0;
  read_metrics(folder / "metrics.jsonl", [&](const Json& line) {
    if (line["step"] > run["steps"]) return;
    if (line["event"] == "variance" && 2 * line["step"].get<double>() >= run["steps"] &&
        line["v_s"] > 0.0 && line["v_act"].is_number() && line["v_w"].is_number()) {
      if (const Json v_f = member(line, "v_f"); v_f.is_number()) forward += v_f.get<double>();
      items += line["v_act"].get<double>();
      rows += line["v_w"].get<double>();
      exact += line["v_s"].get<double>();
    }
    if (line["event"] != "eval") return;
    Json evaluation = line;
    for (const char* key : {"event", "time", "epoch", "items", "best"}) evaluation.erase(key);
    for (const auto& [key, value] : evaluation.items()) {
      if (!run.contains("eval_" + key) || value.is_null()) continue;
      if (!best.contains(key) || is_better(key, value, best[key])) best[key] = value;
    }
    evaluations.push_back(evaluation);
  });
  run["best"] = best;
  run["evaluations"] = evaluations;
  if (!(exact > 0)) return;
  run["added_variance"] = {{"items", items / exact}, {"rows", rows / exact}};
  if (forward > 0) run["added_variance"]["forward"] = forward / exact;
}

void add_summary(Json& comparison) {
  for (Json& run : comparison["runs"]) {
    if (!has_numbers(run)) continue;
    const Json& base = base_run(comparison, run);
    if (run["variant"] != comparison["base"] && has_numbers(base))
      run["saved"] = saved_json(base, run);
    const Json& asked = comparison["to_accuracy"];
    const std::string measure = reached_measure(comparison);
    const Json value = asked.is_null() ? member(base, "eval_" + measure) : asked;
    if (value.is_number() && member(run, "eval_" + measure).is_number())
      run["until"] = until_json(run, measure, value);
  }
  // Scripts of two-run comparisons read it there.
  for (const Json& run : comparison["runs"])
    if (comparison["runs"].size() == 2 && run.contains("saved")) comparison["saved"] = run["saved"];
  comparison["summary"] = Json::array();
  for (const Json& variant : comparison["variants"])
    comparison["summary"].push_back(summary_of(comparison, variant["name"]));
}

std::string comparison_text(const Json& comparison) {
  const Table table(comparison);
  std::string text = format_table(table.rows());
  for (const std::string& note : notes(comparison, table.seeds())) text += note + "\n";
  return text;
}

std::string comparison_markdown(const Json& comparison) {
  const Table table(comparison);
  std::string text;
  for (const std::vector<std::string>& row : table.rows()) {
    for (const std::string& cell : row)
      text += "| " + (cell.starts_with("  ") ? "… " + cell.substr(2) : cell) + " ";
    text += "|\n";
    if (&row != &table.rows().front()) continue;
    text += "|---";
    for (std::size_t i = 1; i < row.size(); ++i) text += "|---:";
    text += "|\n";
  }
  for (const std::string& note : notes(comparison, table.seeds())) text += "\n" + note + "\n";
  return text;
}

std::string comparison_csv(const Json& comparison) {
  Json columns = Json::object();
  for (const Json& run : comparison["runs"]) columns.update(numbers_of(run));
  std::string text = "variant,seed";
  for (const auto& [key, value] : columns.items()) text += fmt::format(",{}", csv_field(key));
  for (const Json& run : comparison["runs"]) {
    const Json numbers = numbers_of(run);
    text += fmt::format("\n{},{}", csv_field(run["variant"]), run["seed"].dump());
    for (const auto& [key, value] : columns.items())
      text += fmt::format(",{}", numbers.contains(key) ? numbers[key].dump() : "");
  }
  return text + "\n";
}

}  // namespace vcas
