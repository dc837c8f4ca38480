#include "tools/training_run.h"

#include <fmt/format.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/hardware.h"
#include "core/progress.h"
#include "core/signals.h"
#include "optim/checkpoint.h"
#include "tools/held_out.h"
#include "tools/report/findings.h"
#include "tools/report_text.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// Whether the step has passed a multiple of `every` since `last`.
bool is_due(std::int64_t step, std::int64_t last, std::int64_t every) {
  return step / every > last / every;
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

// Names of the sampled linears, in the order of weight ratios: "vit.encoder.layer.0.output.dense".
std::vector<std::string> linear_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const int weight : graph.sampled_weights()) {
    const std::string& name = graph.parameters().list()[weight].name;
    names.push_back(name.substr(0, name.rfind('.')));
  }
  return names;
}

// In the order of ratios: of each gate what the names of the linears below it, and above the next
// one, begin with.
std::vector<std::string> gate_names(const Graph& graph) {
  std::vector<std::string> names(static_cast<std::size_t>(graph.gates()));
  const std::vector<std::string> linears = linear_names(graph);
  for (int k = 0; k < std::ssize(linears); ++k) {
    if (graph.gate_above(k) < 0) continue;
    const std::string& linear = linears[k];
    std::string& name = names[graph.gate_above(k)];
    if (name.empty()) name = linear;
    while (!name.empty() && !(linear + ".").starts_with(name + "."))
      name.resize(std::max<std::size_t>(name.rfind('.') + 1, 1) - 1);
  }
  return names;
}

// Throws unless the steps that shall be recorded are still to come, and something records them.
void check_profile(const TrainRequest& request, Session& session) {
  if (request.profile_first == 0) return;
  const std::int64_t first = session.trainer().steps() + 1, last = session.total_steps();
  if (request.profile_first < first || request.profile_last > last)
    throw Error(ExitCode::kUsage,
                fmt::format("--profile-steps {}:{} is not within the steps of this run, {}:{}",
                            request.profile_first, request.profile_last, first, last),
                "train.steps and train.epochs set its last step, --resume the first");
  if (!session.records())
    throw Error(ExitCode::kUnavailable,
                fmt::format("--profile-steps needs a GPU; device \"{}\" has no profiler here",
                            session.ops().name()),
                "--trace FILE records them on any device; --timing prints the seconds of each "
                "layer");
}

}  // namespace

TrainingRun::TrainingRun(const TrainRequest& request, const RunData& data, Progress& progress,
                         const std::string& label)
    : request_(request),
      data_(data),
      progress_(progress),
      label_(label),
      session_(config(), data_, {.trace = request.trace}),
      eval_every_(session_.steps_of(config().train.eval_every)),
      checkpoint_every_(session_.steps_of(config().train.checkpoint_every)),
      log_every_(session_.steps_of(config().train.log_every)) {
  if (eval_every_ == 0) eval_every_ = session_.steps_per_epoch();
  session_.ops().set_timing(request.timing);
  for (const std::string& name : measure_names(data_)) evaluation_.measures.push_back({name, 0});
}

// A new run gets its folder after all checks: one made for nothing is in the way of the next try.
void TrainingRun::start(const fs::path& folder, FolderUse use) {
  if (request_.continues()) folder_.emplace(folder, use);
  if (request_.resume) restore();
  check_profile(request_, session_);
  session_.prepare();
  if (request_.continues())
    mend_folder();
  else
    folder_.emplace(folder, use);
  write_facts();
  greet();
  write_start();
  report_.step = steps();
  for (const std::string& warning : data_.warnings) warn(warning);
  for (const std::string& images : rewritten_)
    warn(
        fmt::format("{} has files of the same names and sizes that were written since {}; if "
                    "pixels have changed, this run is no exact continuation",
                    images, request_.from.checkpoint.string()));
  complain();
  // Starts the clock; lines are drawn from the first step on.
  if (label_.empty())
    progress_.update(steps(), session_.total_steps(), [this] { return describe(report_); });
}

void TrainingRun::restore() {
  const fs::path& checkpoint = request_.from.checkpoint;
  const auto fail = [&](const std::string& why) {
    throw Error(ExitCode::kBadData,
                fmt::format("{}: {}", (checkpoint / "trainer_state.json").string(), why),
                "use an earlier checkpoint");
  };
  const nlohmann::json state = load_checkpoint(checkpoint, trainer());
  try {
    constexpr std::int64_t kMost = 1'000'000'000'000;
    for (const char* count : {"/step", "/evaluated", "/best/step", "/session/trainer/step",
                              "/session/trainer/optimizer_steps"})
      if (const std::int64_t steps =
              state.value(nlohmann::json::json_pointer(count), std::int64_t{0});
          steps < 0 || steps > kMost)
        fail(fmt::format("{} is {}", count, steps));
    restore(state);
  } catch (const nlohmann::json::exception& error) {
    fail(error.what());
  }
}

void TrainingRun::restore(const nlohmann::json& state) {
  const fs::path& checkpoint = request_.from.checkpoint;
  if (!request_.fork || has_item_memory(checkpoint, trainer()))
    check_same_data(checkpoint, state.value("data", nlohmann::json::object()), data_,
                    session_.model(), request_.fork);
  session_.restore(state.at("session"));
  evaluated_ = state.at("evaluated").get<std::int64_t>();
  if (request_.fork) {
    check_forked_split(checkpoint, config(), data_);
    if (trainer().done()) evaluated_ = 0;  // nothing is left to train: evaluate what is there
    session_.totals().clipped_steps = 0;   // by another threshold, maybe
    return;
  }
  const nlohmann::json& best = state.at("best");
  best_ = {best.at("step"), best.at("score")};
  evaluation_.loss = state.at("evaluation").at("loss");
  for (Measure& measure : evaluation_.measures)
    state.at("evaluation").at(measure.name).get_to(measure.value);
  saved_ = trainer().steps();
  for (const auto& [folder, before] : state.value("written", nlohmann::json::object()).items())
    if (const auto now = data_.written().find(folder);
        now != data_.written().end() && before < now->second)
      rewritten_.push_back(folder);
}

// Checkpoints, links and lines as the checkpoint says: a run may be killed at any moment.
void TrainingRun::mend_folder() {
  const fs::path& run = folder_->path();
  for (const char* name : {"last", "best"})
    if (const fs::file_status link = fs::symlink_status(run / name);
        fs::exists(link) && !fs::is_symlink(link))
      throw Error(ExitCode::kCannotCreate,
                  fmt::format("{}: is no link to a checkpoint", (run / name).string()),
                  "rename it: the run makes a link with this name");
  if (config().run.overwrite) remove_checkpoints_after(run, saved_);
  folder_->metrics().truncate_after(steps(), evaluated_);
  link_checkpoint(run, "last", saved_);
  const std::vector<nlohmann::json> lines = read_metrics(run / "metrics.jsonl");
  if (std::ranges::none_of(lines, [&](const nlohmann::json& line) {
        return line["step"] == saved_ && line.value("event", "") == "checkpoint";
      }))
    note_checkpoint(nullptr);  // the run was killed before it did
  if (best_.step > 0 && !fs::exists(checkpoint_folder(run, best_.step)))  // pruned meanwhile
    best_ = evaluated_ == saved_ ? Best{saved_, evaluation_.value(data_.best_measure)} : Best{};
  if (best_.step > 0)
    link_checkpoint(run, "best", best_.step);
  else
    fs::remove(run / "best");
  prune_checkpoints(run, config().train.keep_checkpoints, {saved_, best_.step});
}

void TrainingRun::write_facts() {
  const auto print = [&](PrintMode mode) {
    return print_config(stored_config(), request_.loaded.origins, mode);
  };
  atomic_write(folder_->path() / "config.json", print(PrintMode::kPlain));
  atomic_write(folder_->path() / "config.origins.txt", print(PrintMode::kOrigins));
  if (config().data.kind->facts().has_class_folders) {
    nlohmann::ordered_json numbers = nlohmann::ordered_json::object();
    for (const std::string& name : data_.train->class_names()) {
      const std::size_t number = numbers.size();
      numbers[name] = number;
    }
    atomic_write(folder_->path() / "class_to_idx.json", numbers.dump(2) + "\n");
  }
}

RunConfig TrainingRun::stored_config() const {
  RunConfig stored = config();
  stored.run.folder = folder_->path().string();
  stored.run.overwrite = false;
  return stored;
}

std::optional<TestResult> TrainingRun::evaluation() const {
  return evaluated_ > 0 ? std::optional(evaluation_) : std::nullopt;
}

void TrainingRun::say(const std::string& line, LogLevel level) {
  progress_.message(label_.empty() ? line : fmt::format("{}: {}", label_, line), level);
  folder_->write_log(line);
}

void TrainingRun::greet() {
  const Graph& graph = session_.model().graph;
  const RunConfig& c = config();
  say(fmt::format("vcas-train {} · run {} · seed {} · {} ({} threads)", VCAS_VERSION,
                  folder_->path().string(), c.seed, session_.ops().name(), use_threads(c)));
  if (request_.resume) {
    for (const std::string& ignored : request_.from.ignored) say("  ignored  " + ignored);
    say(fmt::format("{} {} at step {}/{} (epoch {:.2f}, data position {}, O(1))",
                    request_.fork ? "starting from" : "resuming", request_.from.checkpoint.string(),
                    format_count(trainer().steps()), format_count(session_.total_steps()),
                    session_.epoch(trainer().steps()),
                    format_count(trainer().steps() * c.train.batch_size)));
    if (threads_of(c) != usable_threads() && c.threads == 0)
      say(fmt::format("  threads  {} as before, for the same bits; {} are usable", threads_of(c),
                      usable_threads()));
  }
  say(fmt::format("  model    {}   {:.2f} M parameters in {} tensors", c.model.kind.type,
                  static_cast<double>(graph.parameters().count()) / 1e6,
                  graph.parameters().size()));
  if (session_.pretrained())
    say(fmt::format("  weights  {}   {}", c.model.pretrained, session_.pretrained()->text()));
  say_data();
  say(fmt::format("  plan     {} steps ({} an epoch, batch {}) · {} of {}",
                  format_count(session_.total_steps()), format_count(session_.steps_per_epoch()),
                  c.train.batch_size, format_bytes(static_cast<double>(trainer().planned_bytes())),
                  format_bytes(static_cast<double>(total_memory_bytes()))));
  say(fmt::format("  method   {}   {}", config().method.type, method().summary()));
}

void TrainingRun::say_data() {
  const RunConfig& c = config();
  constexpr std::size_t kMostNamed = 10;
  const std::vector<std::string>& classes = data_.train->class_names();
  say(fmt::format(
      "  data     {}   train {} · test {}{}{} · {} classes{}", c.data.kind.type,
      format_count(session_.train_items()), format_count(session_.test_items(*data_.test)),
      c.data.validation_share > 0 ? " held out" : "",
      data_.mismatched ? " · mismatched " + format_count(session_.test_items(*data_.mismatched))
                       : "",
      classes.size(),
      classes.empty() || classes.size() > kMostNamed
          ? ""
          : fmt::format(": {}", fmt::join(classes, ", "))));
  for (const std::string& note : data_.notes) say("  note     " + note);
}

void TrainingRun::write_start() {
  const Graph& graph = session_.model().graph;
  const RunConfig& c = config();
  const StepFlops flops = session_.exact_step_flops();
  folder_->metrics().write(
      MetricEvent::kStart, steps(),
      {{"date", utc_time()},
       {"host", host_name()},
       {"version", VCAS_VERSION},
       {"device", session_.ops().name()},
       {"precision", c.precision},
       {"threads", use_threads(c)},
       {"seed", c.seed},
       {"total_steps", session_.total_steps()},
       {"steps_per_epoch", session_.steps_per_epoch()},
       {"parameters", graph.parameters().count()},
       {"planned_bytes", trainer().planned_bytes()},
       {"exact_step_flops", {{"forward", flops.forward}, {"backward", flops.backward}}},
       {"padded_step_flops", session_.padded_step_flops()},
       {"gates", gate_names(graph)},
       {"linears", linear_names(graph)},
       {"config", to_json(stored_config())}});
}

bool TrainingRun::evaluate() {
  const std::optional<TestResult> result = session_.evaluate([] { return stop_signal() != 0; });
  if (!result) return false;
  evaluation_ = *result;
  evaluated_ = trainer().steps();
  const double score = evaluation_.value(data_.best_measure);
  const bool improved = best_.step == 0 || is_better(data_.best_measure, score, best_.score);
  if (improved) best_ = {evaluated_, score};
  nlohmann::ordered_json line = {{"epoch", session_.epoch(evaluated_)}};
  line.update(evaluation_.to_json(""));
  line.update({{"items", evaluation_.items},
               {"best", improved},
               {"train_seconds", session_.train_seconds()},
               {"train_flops", session_.train_flops()}});
  folder_->metrics().write(MetricEvent::kEval, evaluated_, line);
  say(fmt::format("[{}] eval step {}  {}{}", format_duration(monotonic_seconds() - started_),
                  format_count(evaluated_), evaluation_.text(), improved ? "  (best so far)" : ""));
  if (!evaluation_.warning.empty()) warn(evaluation_.warning);
  return true;
}

void TrainingRun::save() {
  const std::int64_t step = trainer().steps();
  const double start = monotonic_seconds();
  const nlohmann::json state = {{"step", step},
                                {"evaluated", evaluated_},
                                {"evaluation", evaluation_.to_json("")},
                                {"best", {{"step", best_.step}, {"score", best_.score}}},
                                {"data", data_.fingerprints()},
                                {"written", data_.written()},
                                {"threads", threads_of(config())},
                                {"session", session_.state()}};
  const fs::path target = checkpoint_folder(folder_->path(), step);
  std::map<std::string, std::string> texts =
      model_files(data_.facts(), data_.tokenizer.get(), session_.model());
  texts["config.json"] = print_config(stored_config(), request_.loaded.origins, PrintMode::kPlain);
  save_checkpoint(target, trainer(), state, texts);
  link_checkpoint(folder_->path(), "last", step);
  if (is_best(step)) link_checkpoint(folder_->path(), "best", step);
  prune_checkpoints(folder_->path(), config().train.keep_checkpoints, {step, best_.step});
  folder_->saved();
  saved_ = step;
  const double seconds = monotonic_seconds() - start;
  session_.totals().checkpoint_seconds += seconds;
  note_checkpoint(seconds);
  folder_->write_log(fmt::format("saved {}", target.string()));
}

void TrainingRun::note_checkpoint(const nlohmann::json& seconds) {
  folder_->metrics().write(MetricEvent::kCheckpoint, saved_,
                           {{"folder", checkpoint_folder("", saved_).string()},
                            {"best", is_best(saved_)},
                            {"seconds", seconds}});
}

void TrainingRun::log_step(const StepReport& report) {
  nlohmann::ordered_json line = {
      {"epoch", session_.epoch(report.step)},
      {"loss", report.loss},
  };
  if (session_.model().has_accuracy) line["accuracy"] = report.accuracy;
  line.update({{"learning_rate", report.learning_rate},
               {"gradient_norm", report.gradient_norm},
               {"clip_factor", report.clip_factor},
               {"exact", report.exact},
               {"items", report.items},
               {"dropped_items", report.dropped},
               {"seconds",
                {{"forward", report.seconds.forward},
                 {"backward", report.seconds.backward},
                 {"probe", report.seconds.probe},
                 {"optimizer", report.seconds.optimizer}}},
               {"train_seconds", session_.train_seconds()}});
  line.update(session_.savings().to_json());
  folder_->metrics().write(MetricEvent::kTrain, report.step, line);
}

void TrainingRun::log_probe(std::int64_t step) {
  const nlohmann::ordered_json measured = method().measured();
  folder_->metrics().write(MetricEvent::kVariance, step, measured);
  complain();
  if (warned_of_ratios_ || 2 * step < session_.total_steps()) return;
  if (const std::optional<Finding> near = ratios_near_one(measured)) {
    warned_of_ratios_ = true;
    warn(near->what, near->advice);
  }
}

void TrainingRun::complain() {
  const Method::Complaint complaint = method().complaint();
  if (!complaint.message.empty()) warn(complaint.message, complaint.hint);
}

void TrainingRun::warn(const std::string& message, const std::string& hint) {
  folder_->metrics().write(MetricEvent::kWarning, report_.step, {{"message", message}});
  say("warning: " + message + (hint.empty() ? "" : "\n  hint: " + hint), LogLevel::kWarning);
}

void TrainingRun::warn_if_little_time_is_saved() {
  const std::int64_t step = report_.step;
  if (warned_of_time_ || !method().samples() || 2 * step < session_.total_steps()) return;
  const Savings savings = session_.savings();
  if (!is_known(savings.time)) return;
  const std::optional<Finding> poor = poor_conversion(savings.flops, savings.time->middle);
  warned_of_time_ = poor || savings.time->middle < 0;
  if (savings.time->middle < 0)
    warn(
        fmt::format("sampling saves no time on this task so far (time {} after {} steps, FLOPs {})",
                    format_change(savings.time), format_count(step), format_change(savings.flops)),
        "let it sample more (docs/sampling.md), or set method.type=exact");
  else if (poor)
    warn(poor->what, poor->advice);
}

// Clipping bends a sampled gradient away from the exact one: docs/sampling.md.
void TrainingRun::warn_if_most_is_clipped() {
  constexpr std::int64_t kFewest = 100;
  const std::int64_t step = report_.step, clipped = session_.totals().clipped_steps;
  if (warned_of_clipping_ || !method().samples() || config().optimizer.clip == "predicted" ||
      step < kFewest || 2 * clipped < step)
    return;
  warned_of_clipping_ = true;
  warn(
      fmt::format("{} of {} steps had a gradient longer than optimizer.max_gradient_norm ({}), the "
                  "last one of {:.3g}; sampling loses accuracy where most steps are clipped",
                  format_count(clipped), format_count(step), config().optimizer.max_gradient_norm,
                  report_.gradient_norm),
      "set optimizer.clip=predicted, or a norm above the usual one: docs/sampling.md, "
      "\"Clipping\"");
}

void TrainingRun::note_crash(const Error& error, std::int64_t step) {
  const fs::path note = folder_->path() / fmt::format("crash-{}.json", step);
  const std::vector<std::int64_t> kept = checkpoint_steps(folder_->path());
  nlohmann::ordered_json content = {
      {"step", step}, {"message", error.what()}, {"seed", config().seed}, {"checkpoints", kept}};
  content.update(method().report());
  atomic_write(note, content.dump(2) + "\n");
  folder_->metrics().write(MetricEvent::kWarning, report_.step, {{"message", error.what()}});
  throw Error(error.code(),
              fmt::format("{}\n  saved {}; {}\n  vcas replay {} names the operation", error.what(),
                          note.string(),
                          kept.empty() ? "no checkpoint was made yet"
                                       : fmt::format("last good checkpoint-{}", kept.back()),
                          folder_->path().string()),
              error.hint());
}

ProgressText TrainingRun::describe(const StepReport& report) const {
  const RunTotals& totals = session_.totals();
  const double seconds = std::max(session_.train_seconds(), 1e-9);
  const double rate = static_cast<double>(report.step * config().train.batch_size) / seconds;
  ProgressText text;
  text.label = fmt::format(
      "epoch {}/{}",
      std::min(static_cast<std::int64_t>(session_.epoch(report.step)) + 1, session_.epochs()),
      session_.epochs());
  if (std::isnan(shown_loss_)) return text;  // before the first step
  text.lines.push_back(fmt::format(
      "loss {:.4f}  {}lr {:.2e}  |g| {:.2f}   {} items/s   data {:.0f}% step {:.0f}%", shown_loss_,
      session_.model().has_accuracy ? fmt::format("acc {:.3f}  ", report.accuracy) : "",
      report.learning_rate, report.gradient_norm, format_count(std::llround(rate)),
      100 * totals.data_seconds / seconds, 100 * totals.step_seconds.total() / seconds));
  text.fields = fmt::format("epoch={:.2f} loss={:.4f} lr={:.3g} items/s={:.0f}",
                            session_.epoch(report.step), shown_loss_, report.learning_rate, rate);
  if (!method().samples()) return text;
  const Savings savings = session_.savings();
  text.lines.push_back(fmt::format("BP FLOPs {}   train FLOPs {}   time {} (measured vs exact)",
                                   format_change(savings.backward_flops),
                                   format_change(savings.flops), format_change(savings.time)));
  text.lines.push_back(method().progress());
  text.fields +=
      fmt::format(" bp_flops_saved={:.3f} time_saved={}", savings.backward_flops,
                  is_known(savings.time) ? fmt::format("{:.3f}", savings.time->middle) : "unknown");
  return text;
}

std::string TrainingRun::finish() {
  const RunTotals& totals = session_.totals();
  const Savings savings = session_.savings();
  const double loss = totals.late_loss / static_cast<double>(totals.late_steps);
  const double seconds = session_.train_seconds();
  const std::string& score = data_.best_measure;
  nlohmann::ordered_json end = {{"train_loss", loss}};
  end.update(evaluation_.to_json("eval_"));
  end.update({{"best_step", best_.step},
              {"best_" + score, best_.score},
              {"train_seconds", seconds},
              {"forward_share", totals.forward_share()},
              {"totals", totals.to_json()},
              {"peak_resident_bytes", peak_resident_bytes()}});
  end.update(savings.to_json());
  folder_->metrics().write(MetricEvent::kEnd, trainer().steps(), end);

  std::string exact;
  if (method().samples())
    exact = is_known(savings.time)
                ? fmt::format(" (exact would take about {} by this run's own timing; time {})",
                              format_duration(session_.exact_train_seconds(
                                  session_.backward_of_forward()->middle)),
                              format_change(savings.time))
                : " (time against exact is not known; vcas compare measures it)";
  std::string text = fmt::format("done in {}{}", format_duration(seconds), exact);
  if (method().samples())
    text += fmt::format("  BP FLOPs {}  train FLOPs {}", format_change(savings.backward_flops),
                        format_change(savings.flops));
  if (totals.dropped_items > 0)
    text += fmt::format("  forward of {:.1f}% of items", 100 * totals.forward_share());
  text += fmt::format("\n  train loss {:.4f} (last tenth of the steps)   eval {}", loss,
                      evaluation_.text());
  text += fmt::format("\n  best checkpoint-{}  {} {:.4f}     {}", best_.step, score, best_.score,
                      (folder_->path() / "metrics.jsonl").string());
  const StepSeconds& step = totals.step_seconds;
  const double whole = seconds + totals.eval_seconds + totals.checkpoint_seconds;
  const auto share = [&](double part) { return 100 * part / std::max(whole, 1e-9); };
  text += fmt::format(
      "\n  time: data {:.1f}%  forward {:.1f}%  backward {:.1f}%  probe {:.1f}%  optimizer {:.1f}% "
      " "
      "eval {:.1f}%  checkpoints {:.1f}%\n",
      share(totals.data_seconds), share(step.forward), share(step.backward), share(step.probe),
      share(step.optimizer), share(totals.eval_seconds), share(totals.checkpoint_seconds));
  folder_->write_log(text);
  return text;
}

void TrainingRun::take(const StepReport& report) {
  report_ = report;
  if (report.step == request_.profile_last) session_.stop_recording();
  shown_loss_ = std::isnan(shown_loss_) ? report.loss : 0.95 * shown_loss_ + 0.05 * report.loss;
  if (report.step % log_every_ == 0) log_step(report);
  if (report.probed) log_probe(report.step);
  warn_if_little_time_is_saved();
  warn_if_most_is_clipped();
  if (label_.empty())
    progress_.update(report.step, session_.total_steps(), [&] { return describe(report); });
}

void TrainingRun::finish_steps(bool all) {
  try {
    session_.finish_steps(all, [this](const StepReport& report) { take(report); });
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDiverged) throw;
    note_crash(error, report_.step + 1);
  }
}

void TrainingRun::rest() {
  Trainer& t = trainer();
  const std::int64_t step = t.steps();
  const bool evaluate_now =
      is_due(step, evaluated_, eval_every_) || (t.done() && evaluated_ < step);
  const bool asked = save_requests() != save_requests_;
  bool save_now =
      asked || t.done() ||
      (checkpoint_every_ > 0 && is_due(step, std::max<std::int64_t>(saved_, 0), checkpoint_every_));
  if (!evaluate_now && !save_now && stop_signal() == 0) return;
  save_requests_ = save_requests();
  finish_steps(true);
  int signal = 0;
  try {
    if (evaluate_now && evaluate()) save_now |= checkpoint_every_ == 0 || is_best(step);
    signal = t.done() && evaluated_ == step ? 0 : stop_signal();
    if ((save_now || signal != 0) && (saved_ != step || is_best(step))) save();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDiverged) throw;
    note_crash(error, step);
  }
  if (signal == 0) return;
  const std::string where =
      fmt::format("stopped by SIG{} at step {}/{}; saved {}", ::sigabbrev_np(signal), step,
                  session_.total_steps(), checkpoint_folder(folder_->path(), step).string());
  folder_->write_log(where);
  throw Error(ExitCode::kStopped, where, "go on with --resume");
}

void TrainingRun::advance(std::int64_t step) {
  Trainer& t = trainer();
  while (true) {
    if (t.at_rest()) rest();
    if (t.steps() >= step || (t.at_rest() && t.done())) break;
    if (t.steps() + 1 == request_.profile_first) {
      finish_steps(true);
      session_.start_recording();
    }
    session_.queue_step();
    finish_steps(t.steps() == request_.profile_last);
  }
  finish_steps(true);
}

void TrainingRun::print_timing() { std::fputs(timing_table(session_.ops()).c_str(), stdout); }

}  // namespace vcas
