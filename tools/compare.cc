#include "tools/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/progress.h"
#include "core/signals.h"
#include "optim/checkpoint.h"
#include "tools/report_text.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// Steps of one run before the other has its turn: long enough for caches, short against whatever
// else the machine does.
constexpr std::int64_t kBlock = 20;

// One of the two.
struct Contender {
  std::string name;
  TrainingRun run;
  std::string stopped = {};  // what it said when a signal stopped it

  const Session& session() const { return run.session(); }

  void advance(std::int64_t step) {
    try {
      run.advance(step);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kStopped) throw;
      stopped = error.what();
    }
  }

  void finish(bool stops) {
    if (!stops) run.finish();
    if (stops && stopped.empty()) advance(session().total_steps());
  }

  // Unless it is ahead, as it may be after a resume.
  void take_turn(const Contender& other) {
    if (run.steps() <= other.run.steps() || other.run.done())
      advance((run.steps() / kBlock + 1) * kBlock);
  }

  // Null for what there is none of yet.
  nlohmann::ordered_json result(const std::vector<std::string>& measures) const {
    const nlohmann::ordered_json savings = session().savings().to_json();
    const RunTotals& totals = session().totals();
    nlohmann::ordered_json json = {
        {"name", name},
        {"steps", run.steps()},
        {"train_loss", nullptr},
        {"eval_loss", nullptr},
        {"forward_share", totals.forward_share()},
        {"flops",
         {{"forward", session().flops(Phase::kForward)},
          {"backward", session().flops(Phase::kBackward)},
          {"probe", session().flops(Phase::kProbe)}}},
        {"formula_flops_saved", savings["formula_flops_saved"]},
        {"formula_backward_flops_saved", savings["formula_backward_flops_saved"]},
        {"own_time_saved", savings["time_saved"]},
        {"own_time_saved_interval", savings["time_saved_interval"]},
        {"seconds",
         {{"train", session().train_seconds()},
          {"data", totals.data_seconds},
          {"forward", totals.step_seconds.forward},
          {"backward", totals.step_seconds.backward},
          {"probe", totals.step_seconds.probe},
          {"optimizer", totals.step_seconds.optimizer},
          {"evaluation", totals.eval_seconds}}}};
    json.update(session().trainer().method().report());
    if (totals.late_steps > 0)
      json["train_loss"] = totals.late_loss / static_cast<double>(totals.late_steps);
    for (const std::string& measure : measures) json["eval_" + measure] = nullptr;
    if (const auto evaluation = run.evaluation()) json.update(evaluation->to_json("eval_"));
    return json;
  }
};

double total_flops(const nlohmann::ordered_json& run, bool with_forward) {
  const auto& flops = run["flops"];
  return (with_forward ? flops["forward"].get<double>() : 0.0) + flops["backward"].get<double>() +
         flops["probe"].get<double>();
}

// What the second run saved over the first, as shares; null where nothing can be said.
nlohmann::ordered_json saved_json(const nlohmann::ordered_json& a,
                                  const nlohmann::ordered_json& b) {
  if (a["steps"] == 0 || b["steps"] == 0)
    return {{"flops", nullptr},         {"backward_flops", nullptr},
            {"formula_flops", nullptr}, {"formula_backward_flops", nullptr},
            {"seconds", nullptr},       {"backward_seconds", nullptr},
            {"conversion", nullptr}};
  const double flops = 1 - total_flops(b, true) / total_flops(a, true);
  const auto seconds = [](const nlohmann::ordered_json& run) {
    return run["seconds"]["train"].get<double>();
  };
  const double time = 1 - seconds(b) / seconds(a);
  const auto work = [](const nlohmann::ordered_json& run) {  // what sampling can change
    const auto& s = run["seconds"];
    return s["backward"].get<double>() + s["probe"].get<double>();
  };
  nlohmann::ordered_json saved = {
      {"flops", flops},
      {"backward_flops", 1 - total_flops(b, false) / total_flops(a, false)},
      {"formula_flops", b["formula_flops_saved"]},
      {"formula_backward_flops", b["formula_backward_flops_saved"]},
      {"seconds", time},
      {"backward_seconds", 1 - work(b) / work(a)}};
  saved["conversion"] = flops > 0 ? nlohmann::ordered_json(time / flops) : nullptr;
  return saved;
}

std::string table(const nlohmann::ordered_json& comparison) {
  const nlohmann::ordered_json &a = comparison["runs"][0], &b = comparison["runs"][1],
                               &saved = comparison["saved"];
  const auto number = [](const nlohmann::ordered_json& value, const char* format) {
    return value.is_null() ? "-" : fmt::format(fmt::runtime(format), value.get<double>());
  };
  const auto percent = [](const nlohmann::ordered_json& value) {
    return value.is_null() ? "-" : fmt::format("{:.1f}%", 100 * value.get<double>());
  };
  const auto pflop = [&](const nlohmann::ordered_json& run, bool with_forward) {
    return fmt::format("{:.4g}", total_flops(run, with_forward) / 1e12);
  };
  std::vector<std::vector<std::string>> rows = {
      {"", a["name"], b["name"], "saved"},
      {"steps", number(a["steps"], "{:.0f}"), number(b["steps"], "{:.0f}")},
      {"final training loss", number(a["train_loss"], "{:.4f}"),
       number(b["train_loss"], "{:.4f}")}};
  for (const auto& [key, value] : a.items())
    if (key.starts_with("eval_"))
      rows.push_back({"test " + key.substr(5), number(value, "{:.4f}"),
                      number(b.value(key, nlohmann::ordered_json()), "{:.4f}")});
  if (a["forward_share"] != 1.0 || b["forward_share"] != 1.0)
    rows.push_back(
        {"items in the forward", percent(a["forward_share"]), percent(b["forward_share"])});
  rows.insert(rows.end(),
              {{"TFLOP, counted", pflop(a, true), pflop(b, true), percent(saved["flops"])},
               {"  by the paper's formula", "", "", percent(saved["formula_flops"])},
               {"TFLOP of backward, counted", pflop(a, false), pflop(b, false),
                percent(saved["backward_flops"])},
               {"  by the paper's formula", "", "", percent(saved["formula_backward_flops"])},
               {"seconds of training", number(a["seconds"]["train"], "{:.1f}"),
                number(b["seconds"]["train"], "{:.1f}"), percent(saved["seconds"])},
               {"  forward", number(a["seconds"]["forward"], "{:.1f}"),
                number(b["seconds"]["forward"], "{:.1f}")},
               {"  backward", number(a["seconds"]["backward"], "{:.1f}"),
                number(b["seconds"]["backward"], "{:.1f}")},
               {"  probe", number(a["seconds"]["probe"], "{:.1f}"),
                number(b["seconds"]["probe"], "{:.1f}")},
               {"  optimizer", number(a["seconds"]["optimizer"], "{:.1f}"),
                number(b["seconds"]["optimizer"], "{:.1f}")},
               {"time saved / FLOPs saved", "", "", number(saved["conversion"], "{:.2f}")}});
  return format_table(rows);
}

// The model counts too: its folder may have the vocabulary and the order of the classes. So does
// what is measured of the data.
bool same_data(const RunConfig& a, const RunConfig& b) {
  return a.seed == b.seed && to_json(a.model) == to_json(b.model) &&
         a.train.measures == b.train.measures && a.train.best_measure == b.train.best_measure &&
         a.train.positive_class == b.train.positive_class && to_json(a.data) == to_json(b.data);
}

// Where each of the two goes on; one that had not saved yet begins again.
void find_checkpoints(CompareRequest& request) {
  const auto find = [&](const std::string& name, TrainRequest& run) {
    const fs::path folder = request.folder / name;
    run.resume = find_newest_checkpoint(folder).step.has_value();
    if (!run.resume) return;
    run.from = find_resume_point(folder, true);
    check_same_config(run.from.checkpoint, run.loaded.config);
  };
  find(request.first_name, request.first);
  find(request.second_name, request.second);
  if (!request.first.resume && !request.second.resume)
    throw Error(ExitCode::kNoInput, request.folder.string() + ": no complete checkpoint",
                "start again with --overwrite");
}

// Throws where one of the two would write into a run that is none of the comparison's.
void check_other_runs(const CompareRequest& request) {
  settle_interrupted(request.folder);
  const std::vector<std::string> replaced = runs_of_comparison(request.folder);
  for (const std::string& name : {request.first_name, request.second_name})
    if (const fs::path run = request.folder / name;
        fs::exists(run / "metrics.jsonl") && std::ranges::count(replaced, name) == 0)
      throw Error(ExitCode::kCannotCreate, run.string() + ": the folder of another run",
                  "choose another folder for the comparison");
}

// The runs of a comparison that is replaced have been set aside with it.
FolderUse use_of(const TrainRequest& run, FolderUse comparison) {
  if (comparison == FolderUse::kOverwrite) return FolderUse::kAsItIs;
  if (comparison != FolderUse::kAsItIs) return FolderUse::kNew;
  return run.resume ? FolderUse::kAsItIs : FolderUse::kOverwrite;
}

ProgressText describe(const Contender& first, const Contender& second) {
  const Session &a = first.session(), &b = second.session();
  const Savings savings = b.savings();
  std::vector<std::string> lines = {
      fmt::format("FLOPs {}  BP FLOPs {}  trained {} / {}", format_change(savings.flops),
                  format_change(savings.backward_flops), format_duration(a.train_seconds()),
                  format_duration(b.train_seconds()))};
  if (b.trainer().method().samples()) lines.push_back(b.trainer().method().progress());
  return {.label = first.name + " / " + second.name,
          .lines = lines,
          .fields = fmt::format("flops_saved={:.3f} bp_flops_saved={:.3f} seconds={:.1f}/{:.1f}",
                                savings.flops, savings.backward_flops, a.train_seconds(),
                                b.train_seconds())};
}

}  // namespace

CompareRequest compare_with_exact(const LoadedConfig& loaded) {
  CompareRequest request;
  request.first.loaded = request.second.loaded = loaded;
  const RunOptions& run = loaded.config.run;
  request.folder = run.folder.empty() ? loaded.own_folder + "-compare" : run.folder;
  request.use = use_of(run);
  Part<MethodKind>& sampled = request.second.loaded.config.method;
  if (sampled.type == "exact") sampled.type = "vcas";
  request.first.loaded.config.method.type = request.first_name = "exact";
  request.second_name = sampled.type;
  return request;
}

CompareRequest saved_comparison(const fs::path& folder, const std::vector<std::string>& overrides) {
  settle_interrupted(folder);
  const std::vector<std::string> names = runs_of_comparison(folder);
  if (names.size() != 2)
    throw Error(ExitCode::kNoInput,
                folder.string() + ": not the folder of a comparison, which has compare.json");
  const auto load = [&](const std::string& name) {
    return TrainRequest{.loaded = load_config((folder / name / "config.json").string(), overrides)};
  };
  return {.first = load(names[0]),
          .second = load(names[1]),
          .first_name = names[0],
          .second_name = names[1],
          .folder = folder,
          .use = FolderUse::kAsItIs};
}

void compare(CompareRequest request) {
  check_run_folder(request.folder, request.use, kComparisonFile);
  if (request.use == FolderUse::kOverwrite) check_other_runs(request);
  if (request.use == FolderUse::kAsItIs) find_checkpoints(request);
  const SignalHandlers signals;
  const RunConfig &first_config = request.first.loaded.config,
                  &second_config = request.second.loaded.config;
  const RunData data(first_config);
  std::optional<RunData> other;
  if (!same_data(first_config, second_config)) other.emplace(second_config);
  const RunData& second_data = other ? *other : data;
  Progress progress(stderr, progress_options(2));
  Contender first{request.first_name, {request.first, data, progress, request.first_name}};
  Contender second{request.second_name,
                   {request.second, second_data, progress, request.second_name}};
  const fs::path folder = take_run_folder(request.folder, request.use, kComparisonFile);
  const FolderLock lock(folder);
  ReplacedRun replaced(folder, request.use);
  const auto note = [&](const nlohmann::ordered_json& result) {
    atomic_write(folder / kComparisonFile, result.dump(2) + "\n");
  };
  if (request.use != FolderUse::kAsItIs)
    note({{"runs", {{{"name", first.name}}, {{"name", second.name}}}}});
  first.run.start(folder / first.name, use_of(request.first, request.use));
  second.run.start(folder / second.name, use_of(request.second, request.use));

  const std::int64_t total = first.session().total_steps() + second.session().total_steps();
  const auto done = [&] { return first.run.done() && second.run.done(); };
  const auto results = [&] {
    return std::pair(first.result(measure_names(data)), second.result(measure_names(second_data)));
  };
  const auto show = [&] {
    progress.update(first.run.steps() + second.run.steps(), total,
                    [&] { return describe(first, second); });
  };
  show();
  auto [a, b] = results();
  for (bool first_leads = true; !done() && stop_signal() == 0; first_leads = !first_leads) {
    // The lead changes, so that neither always runs just after the other.
    Contender &lead = first_leads ? first : second, &follower = first_leads ? second : first;
    lead.take_turn(follower);
    follower.take_turn(lead);
    show();
    if (first.run.has_saved() || second.run.has_saved()) replaced.settle();
    // When a signal comes between the two, what they had made of the same steps counts.
    if (first.run.steps() == second.run.steps() || done()) std::tie(a, b) = results();
  }
  progress.finish();

  const bool stopped = !done();
  for (Contender* contender : {&first, &second}) contender->finish(stopped);
  const nlohmann::ordered_json json = {{"runs", {a, b}}, {"saved", saved_json(a, b)}};
  if (!stopped) note(json);
  std::fputs((request.json ? json.dump(2) + "\n" : table(json)).c_str(), stdout);
  if (stopped)
    throw Error(ExitCode::kStopped,
                fmt::format("{}\n{}\nthe numbers are of the steps that both had made",
                            first.stopped, second.stopped),
                "go on with --resume");
}

}  // namespace vcas
