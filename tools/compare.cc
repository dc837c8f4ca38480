#include "tools/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/progress.h"
#include "core/read_json.h"
#include "core/signals.h"
#include "optim/checkpoint.h"
#include "tools/comparison_report.h"
#include "tools/output.h"
#include "tools/report_text.h"
#include "tools/training_run.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

// Steps of one run before the next has its turn: long enough for caches, short against whatever
// else the machine does.
constexpr std::int64_t kBlock = 20;

// The model counts too: its folder may have the vocabulary and the order of the classes. So does
// what is measured of the data.
bool same_data(const RunConfig& a, const RunConfig& b) {
  return a.seed == b.seed && to_json(a.model) == to_json(b.model) &&
         a.train.measures == b.train.measures && a.train.best_measure == b.train.best_measure &&
         a.train.positive_class == b.train.positive_class && to_json(a.data) == to_json(b.data);
}

// Throws where a run would write into one that is none of the comparison's.
void check_other_runs(const CompareRequest& request) {
  settle_interrupted(request.folder);
  const std::vector<std::string> replaced = runs_of_comparison(request.folder);
  for (const std::string& name : request.run_names())
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

// compare.json before any run has numbers.
Json new_record(const CompareRequest& request) {
  Json record = to_json(request);
  record["runs"] = Json::array();
  for (const std::uint64_t seed : request.seeds)
    for (const Variant& variant : request.variants)
      record["runs"].push_back(
          {{"name", request.run_name(variant, seed)}, {"variant", variant.name}, {"seed", seed}});
  return record;
}

LoadedConfig loaded_of(const CompareRequest& request, const Json& run) {
  const std::string name = run["variant"];
  LoadedConfig loaded = std::ranges::find(request.variants, name, &Variant::name)->loaded;
  loaded.config.seed = run["seed"];
  return loaded;
}

void check_goes_on(const fs::path& saved, const RunConfig& config) {
  check_same_config(saved, config, "start another comparison, without --resume");
}

// The same with the runs that are over. Throws where it could not go on.
Json resumed_record(const CompareRequest& request) {
  const std::vector<std::string> names = runs_of_comparison(request.folder);
  if (!names.empty() && names != request.run_names())
    throw Error(
        ExitCode::kBadConfig,
        fmt::format("{} compares {}, not {}", request.folder.string(), fmt::join(names, ", "),
                    fmt::join(request.run_names(), ", ")),
        fmt::format("vcas compare --resume {} goes on with what it has", request.folder.string()));
  if (!fs::exists(request.folder))
    throw Error(ExitCode::kNoInput, request.folder.string() + ": No such file or directory",
                "there is nothing to resume; start without --resume");
  if (!has_progress(request.folder))
    throw Error(ExitCode::kNoInput, request.folder.string() + ": no complete checkpoint",
                "start again with --overwrite");
  Json record = new_record(request);
  const Json saved = read_ordered_json(request.folder / kComparisonFile);
  for (std::size_t i = 0; i < record["runs"].size(); ++i) {
    if (!is_over(saved["runs"][i])) continue;
    Json& run = record["runs"][i];
    check_goes_on(request.folder / run["name"].get<std::string>(), loaded_of(request, run).config);
    run = saved["runs"][i];
  }
  return record;
}

// A run among others.
struct Contender {
  Contender(Json& its_record, TrainRequest its_request, const RunData& its_data,
            Progress& its_progress)
      : record(its_record),
        name(record["name"]),
        request(std::move(its_request)),
        data(its_data),
        progress(its_progress),
        run(request, data, progress, name) {}

  const Session& session() const { return run.session(); }
  bool done() const { return run.done() || has_diverged(record); }

  void start(const fs::path& its_folder, FolderUse comparison) {
    folder = its_folder;
    run.start(folder, use_of(request, comparison));
  }

  void advance(std::int64_t step) {
    try {
      run.advance(step);
    } catch (const Error& error) {
      if (error.code() == ExitCode::kStopped)
        stopped = error.what();
      else if (error.code() == ExitCode::kDiverged)
        note_divergence(error);
      else
        throw;
    }
  }

  void note_divergence(const Error& error) {
    numbers.clear();
    record["diverged"] = {
        {"step", newest_crash(folder).value()}, {"why", error.what()}, {"hint", error.hint()}};
    progress.message(fmt::format("{}: warning: {}", name, error.what()), LogLevel::kWarning);
  }

  void take_turn() { advance((run.steps() / kBlock + 1) * kBlock); }

  void note_numbers() {
    if (!has_diverged(record)) numbers = run_numbers(session(), run.evaluation(), data);
  }

  void finish(bool stops) {
    if (has_diverged(record)) return;
    if (!stops) run.finish();
    if (stops && stopped.empty()) advance(session().total_steps());
  }

  Json& record;  // of compare.json
  std::string name;
  fs::path folder = {};  // once it has started
  TrainRequest request;
  const RunData& data;
  Progress& progress;
  TrainingRun run;
  Json numbers = Json::object();  // when all had made the same steps
  std::string stopped = {};       // what it said when a signal stopped it
};

// The runs of one seed that have not diverged, in turns.
class SeedRuns {
 public:
  // Reads the data, and makes the models.
  SeedRuns(const CompareRequest& request, Json& runs, std::uint64_t seed, Progress& progress)
      : label_(request.seeds.size() > 1 ? fmt::format("seed {}  ", seed) : ""),
        progress_(progress) {
    for (Json& record : runs) {
      if (record["seed"] != seed || has_diverged(record)) continue;
      TrainRequest run{.loaded = loaded_of(request, record)};
      if (request.use == FolderUse::kAsItIs)
        find_checkpoint(request.folder / record["name"].get<std::string>(), run);
      const RunData& data = data_for(run.loaded.config, request);
      check_same_files(run, data);
      try {
        contenders_.emplace_back(record, std::move(run), data, progress_);
      } catch (const Error& error) {
        throw Error(
            error.code(),
            fmt::format("variant \"{}\": {}", record["variant"].get<std::string>(), error.what()),
            error.hint());
      }
      label_ += (contenders_.size() > 1 ? " / " : "") + record["variant"].get<std::string>();
    }
  }

  void start(const fs::path& folder, FolderUse use) {
    for (Contender& c : contenders_) c.start(folder / c.name, use);
  }

  // Until all are done, or a signal comes; calls `saved` when one has saved.
  void train(const std::function<void()>& saved) {
    show();
    if (are_level()) note_numbers();
    auto lead = contenders_.begin();
    while (!done() && stop_signal() == 0) {
      // The lead changes, so that none always runs just after the same other one.
      for (auto c = lead; c != contenders_.end(); ++c) take_turn(*c);
      for (auto c = contenders_.begin(); c != lead; ++c) take_turn(*c);
      if (++lead == contenders_.end()) lead = contenders_.begin();
      show();
      if (std::ranges::any_of(contenders_, [](const Contender& c) { return c.run.has_saved(); }))
        saved();
      // When a signal comes between turns, what all had made of the same steps counts.
      if (done() || are_level()) note_numbers();
    }
    const bool stopped = !done();
    for (Contender& c : contenders_) c.finish(stopped);
  }

  bool done() const { return std::ranges::all_of(contenders_, &Contender::done); }

  // Sets the numbers of these runs in compare.json.
  void write() const {
    for (const Contender& c : contenders_) {
      if (c.numbers.empty()) continue;
      c.record.update(c.numbers);
      add_measurements(c.record, c.folder);
    }
  }

  // What the runs said that a signal stopped.
  std::string stopped() const {
    std::string lines;
    for (const Contender& c : contenders_)
      if (!c.stopped.empty()) lines += c.stopped + "\n";
    return lines;
  }

 private:
  // Where the run goes on; one that had not saved yet begins again.
  static void find_checkpoint(const fs::path& folder, TrainRequest& run) {
    run.resume = find_newest_checkpoint(folder).step.has_value();
    if (!run.resume) return;
    run.from = find_resume_point(folder, true);
    check_goes_on(run.from.checkpoint, run.loaded.config);
    keep_threads(run);
  }

  // Runs with the same data share them.
  const RunData& data_for(const RunConfig& config, const CompareRequest& request) {
    for (const Contender& c : contenders_)
      if (same_data(c.request.loaded.config, config)) return c.data;
    const RunData& data = data_.emplace_back(config);
    if (request.to_accuracy && std::ranges::count(measure_names(data), "accuracy") == 0)
      throw Error(ExitCode::kBadConfig, "--to-accuracy needs accuracy among the measures",
                  config.model.kind->head() == "regression"
                      ? "a model that predicts a number has none"
                      : "train.measures=[\"accuracy\"] measures it");
    return data;
  }

  // A run that is ahead waits, as after a resume.
  void take_turn(Contender& contender) {
    std::int64_t fewest = contender.run.steps();
    for (const Contender& c : contenders_)
      if (!c.done()) fewest = std::min(fewest, c.run.steps());
    if (!contender.done() && contender.run.steps() == fewest) contender.take_turn();
  }

  // Runs that are done may have had fewer steps to make.
  bool are_level() const {
    std::int64_t most = 0;
    for (const Contender& c : contenders_)
      if (!has_diverged(c.record)) most = std::max(most, c.run.steps());
    return std::ranges::all_of(
        contenders_, [&](const Contender& c) { return c.done() || c.run.steps() == most; });
  }

  void note_numbers() {
    for (Contender& c : contenders_) c.note_numbers();
  }

  void show() {
    std::int64_t steps = 0, total = 0;
    for (const Contender& c : contenders_) {
      steps += c.run.steps();
      total += has_diverged(c.record) ? c.run.steps() : c.session().total_steps();
    }
    progress_.update(steps, total, [&] { return describe(); });
  }

  ProgressText describe() const {
    std::vector<std::string> flops, backward, times, seconds, flops_saved, backward_saved;
    std::vector<std::string> lines = {""};
    for (const Contender& c : contenders_) {
      times.push_back(format_duration(c.session().train_seconds()));
      seconds.push_back(fmt::format("{:.1f}", c.session().train_seconds()));
      const Method& method = c.session().trainer().method();
      if (!method.samples()) continue;
      const Savings savings = c.session().savings();
      flops.push_back(format_change(savings.flops));
      backward.push_back(format_change(savings.backward_flops));
      flops_saved.push_back(format_share(savings.flops));
      backward_saved.push_back(format_share(savings.backward_flops));
      lines.push_back(fmt::format("{}: {}", c.name, method.progress()));
    }
    lines[0] = fmt::format("FLOPs {}  BP FLOPs {}  trained {}", fmt::join(flops, " / "),
                           fmt::join(backward, " / "), fmt::join(times, " / "));
    return {.label = label_,
            .lines = lines,
            .fields = fmt::format("flops_saved={} bp_flops_saved={} seconds={}",
                                  fmt::join(flops_saved, "/"), fmt::join(backward_saved, "/"),
                                  fmt::join(seconds, "/"))};
  }

  std::string label_;
  Progress& progress_;
  std::list<RunData> data_;
  std::list<Contender> contenders_;
};

// The folder of a comparison, which no other process uses.
struct OpenFolder {
  explicit OpenFolder(const CompareRequest& request)
      : path(take_run_folder(request.folder, request.use, kComparisonFile)),
        lock(path),
        replaced(path, request.use) {}

  void write(const Json& record) const {
    atomic_write(path / kComparisonFile, record.dump(2) + "\n");
  }
  void write_tables(const Json& record) const {
    atomic_write(path / kComparisonTables[0], comparison_csv(record));
    atomic_write(path / kComparisonTables[1], comparison_markdown(record));
  }

  fs::path path;
  FolderLock lock;
  ReplacedRun replaced;
};

void remove_weights(const fs::path& run) {
  for (const char* link : {"best", "last"}) fs::remove(run / link);
  remove_checkpoints_after(run, -1);
}

class Comparison {
 public:
  explicit Comparison(const CompareRequest& request)
      : request_(request),
        resumes_(request.use == FolderUse::kAsItIs),
        keeps_weights_(request.keep_weights || request.run_names().size() == 2),
        record_(resumes_ ? resumed_record(request) : new_record(request)),
        progress_(stderr, progress_options(2)) {
    if (resumes_) folder_.emplace(request_);
  }

  void run() {
    for (const std::uint64_t seed : request_.seeds)
      if (stopped_.empty()) run_seed(seed);
    const bool any = std::ranges::any_of(record_["runs"], has_numbers);
    if (any) print();
    if (!stopped_.empty())
      throw Error(ExitCode::kStopped,
                  stopped_ + (!any            ? "there are no numbers of equal steps yet"
                              : any_finished_ ? "the numbers are of the seeds that are finished"
                                              : "the numbers are of the steps that all had made"),
                  "go on with --resume");
    fail_if_diverged();
  }

 private:
  void print() {
    add_summary(record_);
    if (stopped_.empty()) {
      folder_->write(record_);
      folder_->write_tables(record_);
    }
    print_text(request_.json ? record_.dump(2) + "\n" : comparison_text(record_));
  }

  void fail_if_diverged() const {
    std::string lines, hint;
    for (const Json& run : record_["runs"]) {
      if (!has_diverged(run)) continue;
      lines += fmt::format("{}{}: {}", lines.empty() ? "" : "\n", run["name"].get<std::string>(),
                           run["diverged"]["why"].get<std::string>());
      hint = run["diverged"]["hint"];
    }
    if (!lines.empty()) throw Error(ExitCode::kDiverged, lines, hint);
  }

  void run_seed(std::uint64_t seed) {
    if (is_seed_finished(seed)) return finish_seed(seed);
    if (any_finished_ && stop_signal() != 0) {
      stopped_ =
          fmt::format("stopped by SIG{} before seed {}\n", ::sigabbrev_np(stop_signal()), seed);
      return;
    }
    SeedRuns runs(request_, record_["runs"], seed, progress_);
    if (!folder_) {
      folder_.emplace(request_);
      folder_->write(record_);
    }
    runs.start(folder_->path, request_.use);
    runs.train([&] { folder_->replaced.settle(); });
    progress_.finish();
    folder_->write(record_);  // has those that diverged, and no unfinished numbers
    stopped_ = runs.stopped();
    if (runs.done() || !any_finished_) runs.write();
    if (runs.done()) finish_seed(seed);
  }

  bool is_seed_finished(std::uint64_t seed) const {
    return std::ranges::all_of(
        record_["runs"], [&](const Json& run) { return run["seed"] != seed || is_over(run); });
  }

  // Its numbers are safe before its weights go. Replays need those of runs that diverged.
  void finish_seed(std::uint64_t seed) {
    any_finished_ = true;
    folder_->write(record_);
    if (keeps_weights_) return;
    for (const Json& run : record_["runs"])
      if (run["seed"] == seed && !has_diverged(run))
        remove_weights(folder_->path / run["name"].get<std::string>());
  }

  const CompareRequest& request_;
  const bool resumes_, keeps_weights_;
  Json record_;
  Progress progress_;
  const SignalHandlers signals_;
  std::optional<OpenFolder> folder_;
  std::string stopped_;  // why the seeds are not all finished
  bool any_finished_ = false;
};

}  // namespace

void compare(const CompareRequest& request) {
  for (const Variant& variant : request.variants)
    if (variant.loaded.config.train.patience > 0)
      throw Error(ExitCode::kBadConfig,
                  fmt::format("variant \"{}\": train.patience may end it early, and runs are "
                              "compared after equal steps",
                              variant.name),
                  "set train.patience=0");
  check_run_folder(request.folder, request.use, kComparisonFile);
  if (request.use == FolderUse::kOverwrite) check_other_runs(request);
  Comparison(request).run();
}

}  // namespace vcas
