#include "tools/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/metrics.h"
#include "core/progress.h"
#include "core/signals.h"
#include "tools/report_text.h"
#include "tools/run_folder.h"
#include "tools/session.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// Steps of one run before the other has its turn: long enough for caches, short against whatever
// else the machine does.
constexpr std::int64_t kBlock = 20;

class Contender {
 public:
  Contender(const std::string& name, const LoadedConfig& loaded, const RunData& data,
            const fs::path& folder)
      : name_(name),
        config_(loaded.config),
        measures_(measure_names(data)),
        session_(config_, data),
        metrics_(made(folder, name)) {
    metrics_.write(
        MetricEvent::kStart, 0,
        {{"name", name}, {"total_steps", session_.total_steps()}, {"config", to_json(config_)}});
  }

  const std::string& name() const { return name_; }
  const RunConfig& config() const { return config_; }
  Session& session() { return session_; }
  std::int64_t steps() const { return session_.trainer().steps(); }
  bool done() const { return session_.trainer().done(); }

  void run_block(Progress& progress) {
    const std::int64_t every =
        config_.train.eval_every > 0 ? config_.train.eval_every : session_.steps_per_epoch();
    const auto take = [this](const StepReport& report) {
      losses_.push_back(report.loss);
      log(report);
    };
    for (std::int64_t i = 0; i < kBlock && !done() && stop_signal() == 0; ++i) {
      session_.queue_step();
      const bool evaluates = done() || steps() % every == 0;
      session_.finish_steps(evaluates, take);
      if (evaluates) evaluate(progress);
    }
    session_.finish_steps(true, take);
  }

  // Null for what there is none of yet.
  nlohmann::ordered_json result() const {
    const Savings savings = session_.savings();
    const RunTotals& totals = session_.totals();
    nlohmann::ordered_json json = {{"name", name_},
                                   {"steps", steps()},
                                   {"train_loss", nullptr},
                                   {"eval_loss", nullptr},
                                   {"flops",
                                    {{"forward", session_.flops(Phase::kForward)},
                                     {"backward", session_.flops(Phase::kBackward)},
                                     {"probe", session_.flops(Phase::kProbe)}}},
                                   {"formula_flops_saved", savings.formula},
                                   {"formula_backward_flops_saved", savings.formula_backward},
                                   {"own_time_saved", savings.time},
                                   {"seconds",
                                    {{"train", session_.train_seconds()},
                                     {"data", totals.data_seconds},
                                     {"forward", totals.step_seconds.forward},
                                     {"backward", totals.step_seconds.backward},
                                     {"probe", totals.step_seconds.probe},
                                     {"optimizer", totals.step_seconds.optimizer},
                                     {"evaluation", totals.eval_seconds}}},
                                   {"act_ratio", session_.trainer().controller().act_ratio()},
                                   {"weight_ratio", session_.trainer().controller().weight_ratio()},
                                   {"s", session_.trainer().controller().s()}};
    if (!losses_.empty()) json["train_loss"] = final_loss();
    for (const std::string& name : measures_) json["eval_" + name] = nullptr;
    if (evaluation_) json.update(evaluation_->to_json("eval_"));
    return json;
  }

  void write_end(const nlohmann::ordered_json& result) {
    metrics_.write(MetricEvent::kEnd, result["steps"], result);
  }

 private:
  static fs::path made(const fs::path& folder, const std::string& name) {
    fs::create_directories(folder / name);
    return folder / name / "metrics.jsonl";
  }

  void log(const StepReport& report) {
    const Savings savings = session_.savings();
    nlohmann::ordered_json line = {{"loss", report.loss}};
    if (session_.model().has_accuracy()) line["accuracy"] = report.accuracy;
    line.update({{"learning_rate", report.learning_rate},
                 {"gradient_norm", report.gradient_norm},
                 {"exact", report.exact},
                 {"seconds", report.seconds.total()},
                 {"probe_seconds", report.seconds.probe},
                 {"train_seconds", session_.train_seconds()},
                 {"flops_saved", savings.flops},
                 {"backward_flops_saved", savings.backward_flops}});
    metrics_.write(MetricEvent::kTrain, report.step, line);
    if (!report.probed) return;
    const ProbeResult& probe = session_.trainer().last_probe();
    const VcasController& controller = session_.trainer().controller();
    metrics_.write(MetricEvent::kVariance, report.step,
                   {{"v_s", probe.v_s},
                    {"v_act", probe.v_act},
                    {"v_w_linear", probe.v_w},
                    {"v_s_linear", probe.v_s_weight},
                    {"s", controller.s()},
                    {"act_ratio", controller.act_ratio()},
                    {"weight_ratio", controller.weight_ratio()}});
  }

  void evaluate(Progress& progress) {
    const auto result = session_.evaluate([] { return stop_signal() != 0; });
    if (!result) return;
    evaluation_ = result;
    metrics_.write(MetricEvent::kEval, steps(), result->to_json(""));
    progress.message(fmt::format("{:>8}  eval step {}  {}   trained {}", name_,
                                 format_count(steps()), result->text(),
                                 format_duration(session_.train_seconds())));
  }

  // Over the last tenth of the steps.
  double final_loss() const {
    const std::size_t count = std::max<std::size_t>(1, losses_.size() / 10);
    double sum = 0;
    for (std::size_t i = losses_.size() - count; i < losses_.size(); ++i) sum += losses_[i];
    return sum / static_cast<double>(count);
  }

  std::string name_;
  const RunConfig config_;
  std::vector<std::string> measures_;
  Session session_;
  MetricsLog metrics_;
  std::vector<double> losses_;
  std::optional<TestResult> evaluation_;
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

std::string table(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b,
                  const nlohmann::ordered_json& saved) {
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

// The model counts too: its folder may have the vocabulary and the order of the classes.
bool same_data(const RunConfig& a, const RunConfig& b) {
  return a.seed == b.seed && a.model.pretrained == b.model.pretrained &&
         a.model.head == b.model.head && to_json(a.data) == to_json(b.data);
}

}  // namespace

CompareRequest compare_with_exact(const LoadedConfig& loaded) {
  CompareRequest request;
  request.first = request.second = loaded;
  request.first_name = "exact";
  request.second_name = "vcas";
  request.folder = loaded.config.run.folder;
  request.overwrite = loaded.config.run.overwrite;
  request.first.config.vcas.enabled = false;
  request.second.config.vcas.enabled = true;
  return request;
}

void compare(const CompareRequest& request) {
  const FolderUse use = request.overwrite ? FolderUse::kOverwrite : FolderUse::kNew;
  check_run_folder(request.folder, use);
  const SignalHandlers signals;
  const RunData data(request.first.config);
  std::optional<RunData> other;
  if (!same_data(request.first.config, request.second.config)) other.emplace(request.second.config);
  data.print_warnings();
  if (other) other->print_warnings();
  RunFolder folder(request.folder, use);
  Contender first(request.first_name, request.first, data, request.folder);
  Contender second(request.second_name, request.second, other ? *other : data, request.folder);

  Progress progress(stderr, progress_options(2));
  const std::int64_t total = first.session().total_steps() + second.session().total_steps();
  const auto describe = [&] {
    const Savings savings = second.session().savings();
    const VcasController& controller = second.session().trainer().controller();
    return ProgressText{
        .label = first.name() + " / " + second.name(),
        .lines = {fmt::format("FLOPs {}  BP FLOPs {}  trained {} / {}",
                              format_change(savings.flops), format_change(savings.backward_flops),
                              format_duration(first.session().train_seconds()),
                              format_duration(second.session().train_seconds())),
                  fmt::format("keep act {}  w {}  s {:.2f}", format_range(controller.act_ratio()),
                              format_range(controller.weight_ratio()), controller.s())},
        .fields = fmt::format("flops_saved={:.3f} bp_flops_saved={:.3f} seconds={:.1f}/{:.1f}",
                              savings.flops, savings.backward_flops,
                              first.session().train_seconds(), second.session().train_seconds())};
  };
  progress.update(0, total, describe);
  nlohmann::ordered_json a = first.result(), b = second.result();
  for (bool first_leads = true; !(first.done() && second.done()) && stop_signal() == 0;
       first_leads = !first_leads) {
    // The lead changes, so that neither always runs just after the other.
    (first_leads ? first : second).run_block(progress);
    (first_leads ? second : first).run_block(progress);
    progress.update(first.steps() + second.steps(), total, describe);
    // When a signal comes between the two, what they had made of the same steps counts.
    if (first.steps() == second.steps() || (first.done() && second.done())) {
      a = first.result();
      b = second.result();
    }
  }
  progress.finish();

  first.write_end(a);
  second.write_end(b);
  const nlohmann::ordered_json saved = saved_json(a, b);
  const nlohmann::ordered_json json = {{"runs", {a, b}}, {"saved", saved}};
  atomic_write(request.folder / "compare.json", json.dump(2) + "\n");
  const std::string text = request.json ? json.dump(2) + "\n" : table(a, b, saved);
  std::fputs(text.c_str(), stdout);
  if (stop_signal() != 0)
    throw Error(ExitCode::kInterrupted,
                "stopped by a signal; a comparison cannot be resumed, the numbers are of the steps "
                "that both made");
}

}  // namespace vcas
