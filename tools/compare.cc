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

RunConfig config_of(const CompareRequest& request, const Json& run) {
  const std::string name = run["variant"];
  const auto variant = std::ranges::find(request.variants, name, &Variant::name);
  RunConfig config = variant->loaded.config;
  config.seed = run["seed"];
  return config;
}

// The same with the runs that are finished. Throws where it could not go on.
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
    if (!is_finished(saved["runs"][i])) continue;
    Json& run = record["runs"][i];
    check_same_config(request.folder / run["name"].get<std::string>(), config_of(request, run));
    run = saved["runs"][i];
  }
  return record;
}

// A run among others.
struct Contender {
  Contender(std::string run_name, TrainRequest its_request, const RunData& its_data,
            Progress& progress)
      : name(std::move(run_name)),
        request(std::move(its_request)),
        data(its_data),
        run(request, data, progress, name) {}

  const Session& session() const { return run.session(); }

  void advance(std::int64_t step) {
    try {
      run.advance(step);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kStopped) throw;
      stopped = error.what();
    }
  }

  void take_turn() { advance((run.steps() / kBlock + 1) * kBlock); }

  void note_numbers() { numbers = run_numbers(session(), run.evaluation(), data); }

  void finish(bool stops) {
    if (!stops) run.finish();
    if (stops && stopped.empty()) advance(session().total_steps());
  }

  std::string name;
  TrainRequest request;
  const RunData& data;
  TrainingRun run;
  Json numbers = {};         // when all had made the same steps
  std::string stopped = {};  // what it said when a signal stopped it
};

// The runs of one seed, in turns.
class SeedRuns {
 public:
  // Reads the data, and makes the models.
  SeedRuns(const CompareRequest& request, std::uint64_t seed, Progress& progress)
      : label_(request.seeds.size() > 1 ? fmt::format("seed {}  ", seed) : ""),
        progress_(progress) {
    for (const Variant& variant : request.variants) {
      const std::string name = request.run_name(variant, seed);
      TrainRequest run{.loaded = variant.loaded};
      run.loaded.config.seed = seed;
      if (request.use == FolderUse::kAsItIs) find_checkpoint(request.folder / name, run);
      const RunData& data = data_for(run.loaded.config, request);
      check_same_files(run, data);
      contenders_.emplace_back(name, std::move(run), data, progress_);
      label_ += (contenders_.size() > 1 ? " / " : "") + variant.name;
    }
  }

  void start(const fs::path& folder, FolderUse use) {
    for (Contender& c : contenders_) c.run.start(folder / c.name, use_of(c.request, use));
  }

  // Until all are done, or a signal comes; calls `saved` when one has saved.
  void train(const std::function<void()>& saved) {
    show();
    note_numbers();
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

  bool done() const {
    return std::ranges::all_of(contenders_, [](const Contender& c) { return c.run.done(); });
  }

  // Sets the numbers of these runs in compare.json.
  void write(Json& runs, const fs::path& folder) const {
    for (Json& run : runs)
      for (const Contender& c : contenders_) {
        if (run["name"] != c.name) continue;
        run.update(c.numbers);
        add_measurements(run, folder / c.name);
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
    check_same_config(run.from.checkpoint, run.loaded.config);
    keep_threads(run);
  }

  // Runs with the same data share them.
  const RunData& data_for(const RunConfig& config, const CompareRequest& request) {
    for (const Contender& c : contenders_)
      if (same_data(c.request.loaded.config, config)) return c.data;
    const RunData& data = data_.emplace_back(config);
    if (request.to_accuracy && std::ranges::count(measure_names(data), "accuracy") == 0)
      throw Error(ExitCode::kBadConfig, "--to-accuracy needs accuracy among the measures",
                  "train.measures=[\"accuracy\"] measures it");
    return data;
  }

  // A run that is ahead waits, as after a resume.
  void take_turn(Contender& contender) {
    std::int64_t fewest = contender.run.steps();
    for (const Contender& c : contenders_)
      if (!c.run.done()) fewest = std::min(fewest, c.run.steps());
    if (!contender.run.done() && contender.run.steps() == fewest) contender.take_turn();
  }

  // Runs that are done may have had fewer steps to make.
  bool are_level() const {
    std::int64_t most = 0;
    for (const Contender& c : contenders_) most = std::max(most, c.run.steps());
    return std::ranges::all_of(
        contenders_, [&](const Contender& c) { return c.run.done() || c.run.steps() == most; });
  }

  void note_numbers() {
    for (Contender& c : contenders_) c.note_numbers();
  }

  void show() {
    std::int64_t steps = 0, total = 0;
    for (const Contender& c : contenders_) {
      steps += c.run.steps();
      total += c.session().total_steps();
    }
    progress_.update(steps, total, [&] { return describe(); });
  }

  ProgressText describe() const {
    std::vector<std::string> flops, backward, times, seconds, lines = {""};
    std::vector<double> flops_saved, backward_saved;
    for (const Contender& c : contenders_) {
      times.push_back(format_duration(c.session().train_seconds()));
      seconds.push_back(fmt::format("{:.1f}", c.session().train_seconds()));
      const Method& method = c.session().trainer().method();
      if (!method.samples()) continue;
      const Savings savings = c.session().savings();
      flops.push_back(format_change(savings.flops));
      backward.push_back(format_change(savings.backward_flops));
      flops_saved.push_back(savings.flops);
      backward_saved.push_back(savings.backward_flops);
      lines.push_back(fmt::format("{}: {}", c.name, method.progress()));
    }
    lines[0] = fmt::format("FLOPs {}  BP FLOPs {}  trained {}", fmt::join(flops, " / "),
                           fmt::join(backward, " / "), fmt::join(times, " / "));
    return {.label = label_,
            .lines = lines,
            .fields = fmt::format("flops_saved={:.3f} bp_flops_saved={:.3f} seconds={}",
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
    add_summary(record_);
    if (stopped_.empty()) {
      folder_->write(record_);
      folder_->write_tables(record_);
    }
    std::fputs((request_.json ? record_.dump(2) + "\n" : comparison_text(record_)).c_str(), stdout);
    if (!stopped_.empty())
      throw Error(ExitCode::kStopped,
                  stopped_ + (any_finished_ ? "the numbers are of the seeds that are finished"
                                            : "the numbers are of the steps that all had made"),
                  "go on with --resume");
  }

 private:
  void run_seed(std::uint64_t seed) {
    if (is_seed_finished(seed)) return finish_seed(seed);
    if (any_finished_ && stop_signal() != 0) {
      stopped_ =
          fmt::format("stopped by SIG{} before seed {}\n", ::sigabbrev_np(stop_signal()), seed);
      return;
    }
    SeedRuns runs(request_, seed, progress_);
    if (!folder_) {
      folder_.emplace(request_);
      folder_->write(record_);
    }
    runs.start(folder_->path, request_.use);
    runs.train([&] { folder_->replaced.settle(); });
    progress_.finish();
    stopped_ = runs.stopped();
    if (runs.done() || !any_finished_) runs.write(record_["runs"], folder_->path);
    if (runs.done()) finish_seed(seed);
  }

  bool is_seed_finished(std::uint64_t seed) const {
    return std::ranges::all_of(
        record_["runs"], [&](const Json& run) { return run["seed"] != seed || is_finished(run); });
  }

  // Its numbers are safe before its weights go.
  void finish_seed(std::uint64_t seed) {
    any_finished_ = true;
    folder_->write(record_);
    if (keeps_weights_) return;
    for (const Variant& variant : request_.variants)
      remove_weights(folder_->path / request_.run_name(variant, seed));
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
