// One run: the loop round the trainer, with everything a user sees of it.
// All ranks make one and call the same. Rank 0 alone has the folder and speaks.
#pragma once

#include <filesystem>
#include <optional>

#include "core/progress.h"
#include "core/ranks.h"
#include "tools/launch.h"
#include "tools/run_folder.h"
#include "tools/session.h"
#include "tools/train_request.h"

namespace vcas {

class TrainingRun {
 public:
  // Makes the model. A label, for one of several runs, stands before its lines, and leaves the bar
  // of `progress` alone. All must outlive it.
  TrainingRun(const TrainRequest& request, const RunData& data, Progress& progress,
              const std::string& label = {});

  // Reads the checkpoint to start from, opens the folder, and greets.
  void start(const std::filesystem::path& folder, FolderUse use);
  // Trains until `step` steps are made, or all of the run; evaluates and saves where that is due.
  void advance(std::int64_t step);
  // All steps are made, and what they lead to is evaluated and saved.
  bool done() const { return ended() && evaluated_ == steps() && saved_ == steps(); }
  // Notes the end in the folder; returns what people want to know then.
  std::string finish();

  std::int64_t steps() const { return session_.trainer().steps(); }
  bool has_saved() const { return saved_ >= 0; }
  const Session& session() const { return session_; }
  // The last evaluation; empty before the first.
  std::optional<TestResult> evaluation() const;
  void print_timing();

 private:
  struct Best {
    std::int64_t step = 0;  // 0: none yet
    double score = 0;
    std::int64_t evaluations_since = 0;
  };

  // What any rank was asked for holds for all.
  struct Agreed {
    int signal = 0;  // to stop
    bool save = false;
  };

  const RunConfig& config() const { return request_.loaded.config; }
  Trainer& trainer() { return session_.trainer(); }
  const Method& method() const { return session_.trainer().method(); }
  // No step is to come: all are made, or evaluations do not improve.
  bool ended() const { return session_.trainer().done() || is_out_of_patience(); }
  bool is_out_of_patience() const {
    return config().train.patience > 0 && best_.evaluations_since >= config().train.patience;
  }
  void restore();
  void restore(const nlohmann::json& state);
  void open_folder();
  void share_best();
  void mend_folder();
  void write_facts();
  RunConfig stored_config() const;
  void greet();
  void say_data();
  void write_start();
  // False when a signal cut the evaluation short.
  bool evaluate();
  void gather_image_hashes();
  void save();
  void note(MetricEvent event, std::int64_t step, const nlohmann::ordered_json& fields);
  void note_checkpoint(const nlohmann::json& seconds);  // in the metrics
  // Between two steps: evaluates and saves where that is due. Throws kStopped after a signal.
  void rest();
  Agreed agree() const;
  void leave_to_first() const;
  void finish_steps(bool all);
  // Saves what was trained before the data failed, and throws `error` with where that is.
  // Returns where there is nothing to save, or where a probe or other ranks stand in the way.
  void save_before(const Error& error);
  void take(const StepReport& report);
  bool is_best(std::int64_t step) const { return best_.step > 0 && best_.step == step; }
  void log_step(const StepReport& report);
  void log_probe(std::int64_t step);
  void complain();  // what the method complains of
  void stop_recording();
  void warn_if_skipped();
  void warn_if_warmup_never_ends();
  void warn_if_no_step_is_left();
  void warn_if_little_time_is_saved();
  void warn_if_most_is_clipped();
  void warn_if_ranks_wait();
  void warn(const std::string& message, const std::string& hint = {});
  // `error`, which ended the run, with what was saved of it.
  Error note_crash(const Error& error, std::int64_t step);
  ProgressText describe(const StepReport& report) const;
  void say(const std::string& line, LogLevel level = LogLevel::kInfo);

  const TrainRequest& request_;
  Ranks& ranks_;
  const RunData& data_;
  Progress& progress_;
  const std::string label_;
  Session session_;
  Watchdog watchdog_;
  std::optional<RunFolder> folder_;  // of rank 0
  std::int64_t eval_every_, checkpoint_every_, log_every_;
  std::int64_t evaluated_ = 0, saved_ = -1;  // steps
  std::int64_t saved_evaluated_ = -1;        // as the checkpoint has it
  int save_requests_ = 0;                    // that were seen
  Best best_;
  TestResult evaluation_;
  StepReport report_;                 // of the last step that was finished
  double shown_loss_ = std::nan("");  // smoothed, for people
  double started_ = monotonic_seconds();
  bool warned_of_time_ = false, warned_of_ratios_ = false, warned_of_clipping_ = false,
       warned_of_waits_ = false;
};

}  // namespace vcas
