#include "tools/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/hardware.h"
#include "core/progress.h"
#include "core/signals.h"
#include "optim/checkpoint.h"
#include "tools/output.h"
#include "tools/report_text.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// Whether the step has passed a multiple of `every` since `last`.
bool is_due(std::int64_t step, std::int64_t last, std::int64_t every) {
  return step / every > last / every;
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
      ranks_(*request.ranks),
      data_(data),
      progress_(progress),
      label_(label),
      session_(config(), data_, {.trace = request.trace}, request.ranks),
      watchdog_(ranks_, config().run.rank_timeout, [this] { trainer().give_up(); }),
      eval_every_(session_.steps_of(config().train.eval_every)),
      checkpoint_every_(session_.steps_of(config().train.checkpoint_every)),
      log_every_(session_.steps_of(config().train.log_every)) {
  if (eval_every_ == 0) eval_every_ = session_.steps_per_epoch();
  session_.ops().set_timing(request.timing);
  for (const std::string& name : measure_names(data_)) evaluation_.measures.push_back({name, 0});
}

// A new run gets its folder after all checks: one made for nothing is in the way of the next try.
void TrainingRun::start(const fs::path& folder, FolderUse use) {
  const bool first = ranks_.is_first();
  if (request_.continues() && first) folder_.emplace(folder, use);
  if (request_.resume) restore();
  const std::vector<std::string> warnings = run_warnings(request_, data_, session_.model());
  check_profile(request_, session_);
  session_.prepare();
  ranks_.barrier();  // all have read what is there
  if (first && !request_.continues()) folder_.emplace(folder, use);
  if (first) open_folder();
  share_best();
  report_.step = steps();
  for (const std::string& warning : warnings) warn(warning);
  if (request_.fork) warn_if_no_step_is_left();
  warn_if_warmup_never_ends();
  complain();
  // Starts the clock; lines are drawn from the first step on.
  if (label_.empty() && first)
    progress_.update(steps(), session_.total_steps(), [this] { return describe(report_); });
}

void TrainingRun::open_folder() {
  if (request_.continues()) mend_folder();
  write_facts();
  greet();
  write_start();
}

// Whether a step is the best decides what all ranks do, and the folder has had a say in it.
void TrainingRun::share_best() {
  if (ranks_.size() == 1) return;
  const nlohmann::json best =
      broadcast_json(ranks_, {best_.step, best_.score, best_.evaluations_since});
  best_ = {best.at(0), best.at(1), best.at(2)};
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
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadData || !error.hint().empty()) throw;
    fail(error.what());
  }
}

void TrainingRun::restore(const nlohmann::json& state) {
  const fs::path& checkpoint = request_.from.checkpoint;
  if (!request_.fork || has_item_memory(checkpoint, trainer()))
    check_same_data(checkpoint, state.value("data", nlohmann::json::object()), data_,
                    request_.fork);
  session_.restore(state.at("session"));
  evaluated_ = state.at("evaluated").get<std::int64_t>();
  if (request_.fork) {
    if (trainer().done()) evaluated_ = 0;  // nothing is left to train: evaluate what is there
    // By another threshold, maybe, and of another loss.
    RunTotals& totals = session_.totals();
    totals.clipped_steps = totals.late_steps = 0;
    totals.clipped_after = steps();
    totals.late_loss = 0;
    return;
  }
  const nlohmann::json& best = state.at("best");
  // save() has null for what is not finite.
  const auto number = [](const nlohmann::json& value) {
    return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
  };
  best_ = {best.at("step"), number(best.at("score")),
           best.value("evaluations_since", std::int64_t{0})};
  const nlohmann::json& evaluation = state.at("evaluation");
  evaluation_.loss = number(evaluation.at("loss"));
  for (Measure& measure : evaluation_.measures) measure.value = number(evaluation.at(measure.name));
  saved_ = trainer().steps();
  saved_evaluated_ = evaluated_;
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
  nlohmann::json saved;  // the newest line of the checkpoint
  read_metrics(run / "metrics.jsonl", [&](nlohmann::json line) {
    if (line["step"] == saved_ && line["event"] == "checkpoint") saved = std::move(line);
  });
  if (saved.is_null())
    note_checkpoint(nullptr);  // the run was killed before it did
  else if (const nlohmann::json seconds = saved.value("seconds", nlohmann::json());
           seconds.is_number())
    session_.totals().checkpoint_seconds += seconds.get<double>();  // the save could not have them
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
  if (!folder_) return;
  progress_.message(label_.empty() ? line : fmt::format("{}: {}", label_, line), level);
  folder_->write_log(line);
}

void TrainingRun::greet() {
  const Graph& graph = session_.model().graph;
  const RunConfig& c = config();
  say(fmt::format("vcas-train {} · run {} · seed {} · {} ({} threads){}", VCAS_VERSION,
                  folder_->path().string(), c.seed, session_.ops().name(), use_threads(c),
                  ranks_.size() > 1 ? fmt::format(" · {} ranks", ranks_.size()) : ""));
  if (request_.resume) {
    for (const std::string& ignored : request_.from.ignored) say("  ignored  " + ignored);
    say(fmt::format("{} {} at step {}/{} (epoch {:.2f}, data position {}, O(1))",
                    request_.fork ? "starting from" : "resuming", request_.from.checkpoint.string(),
                    format_count(trainer().steps()), format_count(session_.total_steps()),
                    session_.epoch(trainer().steps()),
                    format_count(trainer().steps() * c.train.batch_size)));
    if (const int usable = usable_threads(c.local_ranks); threads_of(c) != usable && c.threads == 0)
      say(fmt::format("  threads  {} as before, for the same bits; {} are usable", threads_of(c),
                      usable));
  }
  say(fmt::format("  model    {}   {:.2f} M parameters in {} tensors", c.model.kind.type,
                  static_cast<double>(graph.parameters().count()) / 1e6,
                  graph.parameters().size()));
  if (session_.pretrained())
    say(fmt::format("  weights  {}   {}", session_.pretrained()->file.string(),
                    session_.pretrained()->text()));
  say_data();
  say(fmt::format("  plan     {} steps ({} an epoch, batch {}) · {} of {}",
                  format_count(session_.total_steps()), format_count(session_.steps_per_epoch()),
                  c.train.batch_size, format_bytes(static_cast<double>(trainer().planned_bytes())),
                  format_bytes(static_cast<double>(total_memory_bytes()))));
  say(fmt::format("  method   {}   {}", config().method.type, method().summary()));
}

void TrainingRun::say_data() {
  const RunConfig& c = config();
  say(fmt::format("  data     {}   train {} · test {}{}{} · {}", c.data.kind.type,
                  format_count(data_.train->size()), format_count(data_.test->size()),
                  c.data.validation_share > 0 ? " held out" : "",
                  data_.mismatched ? " · mismatched " + format_count(data_.mismatched->size()) : "",
                  classes_text(data_.train->class_names())));
  for (const std::string& note : data_.notes) say("  note     " + note);
}

void TrainingRun::write_start() {
  const Graph& graph = session_.model().graph;
  const RunConfig& c = config();
  const StepFlops flops = session_.exact_step_flops();
  nlohmann::ordered_json fields = {
      {"date", utc_time()},
      {"host", host_name()},
      {"version", VCAS_VERSION},
      {"device", session_.ops().name()},
      {"precision", c.precision},
      {"threads", use_threads(c)},
      {"ranks", ranks_.size()},
      {"seed", c.seed},
      {"total_steps", session_.total_steps()},
      {"steps_per_epoch", session_.steps_per_epoch()},
      {"parameters", graph.parameters().count()},
      {"planned_bytes", trainer().planned_bytes()},
      {"exact_step_flops", {{"forward", flops.forward}, {"backward", flops.backward}}},
      {"padded_step_flops", session_.padded_step_flops()},
      {"gates", gate_names(graph)},
      {"linears", linear_names(graph)},
      {"config", to_json(stored_config())}};
  if (request_.fork) fields["fork_of"] = fs::absolute(request_.from.checkpoint).string();
  folder_->metrics().write(MetricEvent::kStart, steps(), fields);
}

void TrainingRun::note(MetricEvent event, std::int64_t step, const nlohmann::ordered_json& fields) {
  if (folder_) folder_->metrics().write(event, step, fields);
}

bool TrainingRun::evaluate() {
  const std::optional<TestResult> result = session_.evaluate([this] {
    watchdog_.alive();
    return stop_signal() != 0;
  });
  if (!result) return false;
  evaluation_ = *result;
  evaluated_ = trainer().steps();
  const double score = evaluation_.value(data_.best_measure);
  const bool beats = std::isfinite(best_.score) ? is_better(data_.best_measure, score, best_.score)
                                                : std::isfinite(score);
  const bool improved = best_.step == 0 || beats;
  if (improved)
    best_ = {evaluated_, score};
  else
    ++best_.evaluations_since;
  nlohmann::ordered_json line = {{"epoch", session_.epoch(evaluated_)}};
  line.update(evaluation_.to_json(""));
  line.update({{"items", evaluation_.items},
               {"best", improved},
               {"evaluations_since_best", best_.evaluations_since},
               {"train_seconds", session_.train_seconds()},
               {"train_flops", session_.train_flops()}});
  note(MetricEvent::kEval, evaluated_, line);
  say(fmt::format("[{}] eval step {}  {}{}", format_duration(monotonic_seconds() - started_),
                  format_count(evaluated_), evaluation_.text(), improved ? "  (best so far)" : ""));
  if (!evaluation_.warning.empty()) warn(evaluation_.warning);
  if (is_out_of_patience())
    say(fmt::format("stopping at step {} of {}: {} of {} is the best, {} evaluations ago",
                    format_count(evaluated_), format_count(session_.total_steps()),
                    data_.best_measure, checkpoint_folder("", best_.step).string(),
                    best_.evaluations_since));
  return true;
}

// Rank 0 gets those of the images that others have read: the checkpoint has all.
void TrainingRun::gather_image_hashes() {
  const std::string own = data_.image_hashes();
  for (const std::vector<std::byte>& hashes : ranks_.gather(std::as_bytes(std::span(own))))
    data_.expect_images({reinterpret_cast<const char*>(hashes.data()), hashes.size()});
}

void TrainingRun::save() {
  const std::int64_t step = trainer().steps();
  trainer().check_ranks();
  trainer().gather_state();
  gather_image_hashes();
  saved_evaluated_ = evaluated_;
  const double own_threads = threads_of(config());
  const std::vector<double> threads = ranks_.gather_all({&own_threads, 1});
  if (!folder_) {
    saved_ = step;
    return;
  }
  folder_->check_place();
  const double start = monotonic_seconds();
  // A measure may be infinite, such as the perplexity of a very large loss: JSON has null there.
  const auto as_read = [](const nlohmann::json& json) {
    return nlohmann::json::parse(json.dump());
  };
  const nlohmann::json state = {{"step", step},
                                {"evaluated", evaluated_},
                                {"evaluation", as_read(evaluation_.to_json(""))},
                                {"best",
                                 {{"step", best_.step},
                                  {"score", as_read(best_.score)},
                                  {"evaluations_since", best_.evaluations_since}}},
                                {"data", data_.fingerprints()},
                                {"items", data_.train->size()},
                                {"threads", std::vector<int>(threads.begin(), threads.end())},
                                {"ranks", ranks_.size()},
                                {"session", session_.state()}};
  const fs::path target = checkpoint_folder(folder_->path(), step);
  std::map<std::string, std::string> texts =
      model_files(data_.facts(), data_.tokenizer.get(), config().model.kind->max_positions());
  if (std::string hashes = data_.image_hashes(); !hashes.empty())
    texts[kImageHashesFile] = std::move(hashes);
  texts["config.json"] = print_config(stored_config(), request_.loaded.origins, PrintMode::kPlain);
  save_checkpoint(target, trainer(), state, texts);
  link_checkpoint(folder_->path(), "last", step);
  if (is_best(step)) link_checkpoint(folder_->path(), "best", step);
  prune_checkpoints(folder_->path(), config().train.keep_checkpoints, {step, best_.step});
  folder_->saved();
  saved_ = step;
  watchdog_.alive();
  const double seconds = monotonic_seconds() - start;
  session_.totals().checkpoint_seconds += seconds;
  note_checkpoint(seconds);
  folder_->write_log(fmt::format("saved {}", target.string()));
}

void TrainingRun::note_checkpoint(const nlohmann::json& seconds) {
  note(MetricEvent::kCheckpoint, saved_,
       {{"folder", checkpoint_folder("", saved_).string()},
        {"best", is_best(saved_)},
        {"seconds", seconds}});
}

Error TrainingRun::note_crash(const Error& error, std::int64_t step) {
  if (!folder_) return error;
  const fs::path file = folder_->path() / fmt::format("crash-{}.json", step);
  const std::vector<std::int64_t> kept = checkpoint_steps(folder_->path());
  nlohmann::ordered_json content = {{"step", step},           {"message", error.what()},
                                    {"seed", config().seed},  {"checkpoints", kept},
                                    {"ranks", ranks_.size()}, {"config", to_json(stored_config())}};
  if (request_.fork) content["fork_of"] = fs::absolute(request_.from.checkpoint).string();
  content.update(method().report());
  std::string message = error.what();
  try {
    atomic_write(file, content.dump(2) + "\n");
    note(MetricEvent::kWarning, report_.step, {{"message", error.what()}});
  } catch (const Error& other) {
    message += fmt::format("\n  {}", other.what());
  }
  if (!fs::is_regular_file(file)) return Error(error.code(), message, error.hint());
  return Error(error.code(),
               fmt::format("{}\n  saved {}; {}\n  vcas replay {} names the operation", message,
                           file.string(),
                           kept.empty() ? "no checkpoint was made yet"
                                        : fmt::format("last good checkpoint-{}", kept.back()),
                           folder_->path().string()),
               error.hint());
}

void TrainingRun::take(const StepReport& report) {
  report_ = report;
  watchdog_.alive();
  if (report.step == request_.profile_last) stop_recording();
  shown_loss_ = std::isnan(shown_loss_) ? report.loss : 0.95 * shown_loss_ + 0.05 * report.loss;
  if (report.step % log_every_ == 0) log_step(report);
  if (report.probed) log_probe(report.step);
  warn_if_skipped();
  warn_if_little_time_is_saved();
  warn_if_most_is_clipped();
  warn_if_ranks_wait();
  if (label_.empty() && folder_)
    progress_.update(report.step, session_.total_steps(), [&] { return describe(report); });
}

void TrainingRun::finish_steps(bool all) {
  try {
    session_.finish_steps(all, [this](const StepReport& report) { take(report); });
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDiverged) throw;
    const Error noted = note_crash(error, report_.step + 1);
    leave_to_first();
    throw noted;
  }
}

// All ranks end here. The first comes when it has saved. It speaks for all and ends the others.
// They wait for that at a second barrier, which the first does not meet.
void TrainingRun::leave_to_first() const {
  ranks_.barrier();
  if (!ranks_.is_first()) ranks_.barrier();
}

TrainingRun::Agreed TrainingRun::agree() const {
  const double mine[] = {static_cast<double>(stop_signal()),
                         save_requests() != save_requests_ ? 1.0 : 0.0};
  const std::vector<double> all = ranks_.gather_all(mine);
  Agreed agreed;
  for (std::size_t i = 0; i < all.size(); i += std::size(mine)) {
    agreed.signal = std::max(agreed.signal, static_cast<int>(all[i]));
    agreed.save |= all[i + 1] > 0;
  }
  return agreed;
}

void TrainingRun::rest() {
  Trainer& t = trainer();
  const std::int64_t step = t.steps();
  const bool evaluate_now =
      is_due(step, evaluated_, eval_every_) || (t.done() && evaluated_ < step);
  const Agreed asked = agree();
  if (saved_ >= 0) watchdog_.can_resume();  // rank 0 is done with that save
  bool save_now =
      asked.save || t.done() ||
      (checkpoint_every_ > 0 && is_due(step, std::max<std::int64_t>(saved_, 0), checkpoint_every_));
  if (!evaluate_now && !save_now && asked.signal == 0) return;
  save_requests_ = save_requests();
  finish_steps(true);
  int signal = 0;
  try {
    if (evaluate_now && evaluate())
      save_now |= checkpoint_every_ == 0 || is_best(step) || is_out_of_patience();
    signal = ended() && evaluated_ == step ? 0 : agree().signal;
    // A signal may have cut the evaluation of this step short, and saved it without.
    if ((save_now || signal != 0) && (saved_ != step || saved_evaluated_ != evaluated_)) save();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDiverged) throw;
    const Error noted = note_crash(error, step);
    // As in leave_to_first, but a save that fails is the first's alone.
    if (!ranks_.is_first()) ranks_.barrier();
    throw noted;
  }
  if (signal == 0) return;
  leave_to_first();
  const std::string where =
      fmt::format("stopped by SIG{} at step {}/{}; saved {}", ::sigabbrev_np(signal), step,
                  session_.total_steps(), checkpoint_folder(folder_->path(), step).string());
  folder_->write_log(where);
  throw Error(ExitCode::kStopped, where, "go on with --resume");
}

void TrainingRun::save_before(const Error& error) {
  const bool is_of_data = error.code() == ExitCode::kBadData || error.code() == ExitCode::kNoInput;
  // Other ranks may be anywhere.
  if (!is_of_data || !folder_ || ranks_.size() > 1 || !trainer().at_rest()) return;
  finish_steps(true);
  const std::int64_t step = trainer().steps();
  if (step == 0) return;
  try {
    if (saved_ != step) save();
  } catch (const Error& other) {
    throw Error(error.code(), fmt::format("{}\n  not saved: {}", error.what(), other.what()),
                error.hint());
  }
  const bool is_alone = label_.empty();  // runs of a comparison cannot be forked
  throw Error(
      error.code(),
      fmt::format("{}\n  saved {}", error.what(),
                  checkpoint_folder(folder_->path(), step).string()),
      fmt::format("{}{}--resume goes on then{}", error.hint(), error.hint().empty() ? "" : "; ",
                  is_alone ? ", with --resume-mode=fork where files differ" : ""));
}

void TrainingRun::advance(std::int64_t step) try {
  Trainer& t = trainer();
  while (true) {
    if (t.at_rest())
      rest();
    else if (t.done())
      throw Error(ExitCode::kBadConfig,
                  fmt::format("method.type \"{}\" is not at rest after the last step, {}",
                              t.method_type(), format_count(t.steps())),
                  "Method::at_rest is true then: a measurement begins only if it can end by "
                  "Training::total_steps (optim/methods/method.h)");
    if (t.steps() >= step || (t.at_rest() && ended())) break;
    if (t.steps() + 1 == request_.profile_first) {
      finish_steps(true);
      session_.start_recording();
    }
    session_.queue_step();
    finish_steps(t.steps() == request_.profile_last);
  }
  finish_steps(true);
} catch (const Error& error) {
  save_before(error);
  throw;
}

void TrainingRun::print_timing() { print_text(timing_table(session_.ops())); }

}  // namespace vcas
