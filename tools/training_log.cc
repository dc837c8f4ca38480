// What a run tells while it goes on, and at its end.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/hardware.h"
#include "tools/report/findings.h"
#include "tools/report_text.h"
#include "tools/training_run.h"

namespace vcas {

void TrainingRun::log_step(const StepReport& report) {
  nlohmann::ordered_json line = {
      {"epoch", session_.epoch(report.step)},
      {"loss", report.loss},
  };
  if (session_.model().has_accuracy) line["accuracy"] = report.accuracy;
  line.update({{"learning_rate", report.learning_rate},
               {"gradient_norm", report.gradient_norm},
               {"clip_factor", report.clip_factor},
               {"skipped", report.skipped},
               {"exact", report.exact},
               {"items", report.items},
               {"dropped_items", report.dropped},
               {"seconds",
                {{"forward", report.seconds.forward},
                 {"backward", report.seconds.backward},
                 {"probe", report.seconds.probe},
                 {"optimizer", report.seconds.optimizer}}},
               {"train_seconds", session_.train_seconds()}});
  if (ranks_.size() > 1) {
    line["seconds"]["exchange"] = report.seconds.exchange;
    line["imbalance"] = report.imbalance;
  }
  line.update(session_.savings().to_json());
  note(MetricEvent::kTrain, report.step, line);
}

void TrainingRun::log_probe(std::int64_t step) {
  const nlohmann::ordered_json measured = method().measured();
  note(MetricEvent::kVariance, step, measured);
  trainer().check_ranks();
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
  note(MetricEvent::kWarning, report_.step, {{"message", message}});
  say("warning: " + message + (hint.empty() ? "" : "\n  hint: " + hint), LogLevel::kWarning);
}

// A trace that is lost ends no training.
void TrainingRun::stop_recording() {
  try {
    session_.stop_recording();
  } catch (const Error& error) {
    warn(error.what(), error.hint());
  }
}

void TrainingRun::warn_if_skipped() {
  if (report_.skipped)
    warn(fmt::format("step {} was skipped: its gradient has norm {:.3g}",
                     format_count(report_.step), report_.gradient_norm));
}

void TrainingRun::warn_if_warmup_never_ends() {
  const std::int64_t warmup = trainer().schedule().warmup();
  if (warmup < session_.total_steps()) return;
  warn(fmt::format("the warm-up takes {} steps and the run {}: the learning rate never reaches "
                   "schedule.learning_rate",
                   format_count(warmup), format_count(session_.total_steps())),
       "lower schedule.warmup_steps or schedule.warmup_ratio");
}

void TrainingRun::warn_if_no_step_is_left() {
  if (!trainer().done()) return;
  warn(fmt::format("no step is left: {} is of step {}, and the run ends with step {}",
                   request_.from.checkpoint.string(), format_count(steps()),
                   format_count(session_.total_steps())),
       "raise train.steps or train.epochs: a fork counts from the first step of its weights");
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
        "use larger batches, a wider model or fewer probes (method.update_every), or set "
        "method.type=exact");
  else if (poor)
    warn(poor->what, poor->advice);
}

// Clipping bends a sampled gradient away from the exact one: docs/sampling.md.
void TrainingRun::warn_if_most_is_clipped() {
  constexpr std::int64_t kFewest = 100;
  const std::int64_t clipped = session_.totals().clipped_steps,
                     steps = report_.step - session_.totals().clipped_after;
  if (warned_of_clipping_ || !method().samples() || config().optimizer.clip == "predicted" ||
      steps < kFewest || 2 * clipped < steps)
    return;
  warned_of_clipping_ = true;
  warn(
      fmt::format("{} of {} steps had a gradient longer than optimizer.max_gradient_norm ({}), the "
                  "last one of {:.3g}; sampling loses accuracy where most steps are clipped",
                  format_count(clipped), format_count(steps), config().optimizer.max_gradient_norm,
                  report_.gradient_norm),
      "set optimizer.clip=predicted, or a norm above the usual one: docs/sampling.md, "
      "\"Clipping\"");
}

// Sums over ranks take as long for a sampled step as for an exact one.
void TrainingRun::warn_if_ranks_wait() {
  constexpr double kMuch = 0.2;
  if (warned_of_waits_ || ranks_.size() == 1 || 2 * report_.step < session_.total_steps()) return;
  const double waits = session_.totals().step_seconds.exchange;
  if (waits < kMuch * session_.train_seconds()) return;
  warned_of_waits_ = true;
  warn(fmt::format("{:.0f}% of the time goes into sums over {} ranks and waits for them",
                   100 * waits / session_.train_seconds(), ranks_.size()),
       fmt::format("more or larger micro-batches in a step (train.batch_size, train.micro_batch), "
                   "{}or fewer ranks; docs/clusters.md has traps of MPI",
                   config().precision == "bf16" && config().train.gradient_exchange == "f32"
                       ? "train.gradient_exchange=bf16, "
                       : ""));
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
      fmt::format(" bp_flops_saved={} time_saved={}", format_share(savings.backward_flops),
                  is_known(savings.time) ? format_share(savings.time->middle) : "unknown");
  return text;
}

std::string TrainingRun::finish() {
  if (!folder_) return {};
  const RunTotals& totals = session_.totals();
  const Savings savings = session_.savings();
  const double seconds = session_.train_seconds();
  const std::string& score = data_.best_measure;
  nlohmann::ordered_json end = {{"train_loss", nullptr}};
  std::string loss = "stopped before the last tenth of the steps";
  if (totals.late_steps > 0) {
    end["train_loss"] = totals.late_loss / static_cast<double>(totals.late_steps);
    loss =
        fmt::format("train loss {:.4f} (last tenth of the steps)", end["train_loss"].get<double>());
  }
  end.update(evaluation_.to_json("eval_"));
  end.update({{"best_step", best_.step},
              {"best_" + score, best_.score},
              {"stopped_early", is_out_of_patience()},
              {"train_seconds", seconds},
              {"forward_share", totals.forward_share()},
              {"totals", totals.to_json()},
              {"peak_resident_bytes", peak_resident_bytes()}});
  end.update(savings.to_json());
  note(MetricEvent::kEnd, trainer().steps(), end);

  std::string exact;
  if (method().samples())
    exact = is_known(savings.time)
                ? fmt::format(" (exact would take about {} by this run's own timing; time {})",
                              format_duration(session_.exact_train_seconds(
                                  session_.backward_of_forward()->middle)),
                              format_change(savings.time))
                : " (time against exact is not known; vcas compare measures it)";
  const double whole = seconds + totals.eval_seconds + totals.checkpoint_seconds;
  std::string text = fmt::format("done in {}, {} of training{}", format_duration(whole),
                                 format_duration(seconds), exact);
  if (method().samples())
    text += fmt::format("  BP FLOPs {}  train FLOPs {}", format_change(savings.backward_flops),
                        format_change(savings.flops));
  if (totals.dropped_items > 0)
    text += fmt::format("  forward of {:.1f}% of items", 100 * totals.forward_share());
  text += fmt::format("\n  {}   eval {}", loss, evaluation_.text());
  if (totals.skipped_steps > 0)
    text += fmt::format("\n  skipped steps: {}", format_count(totals.skipped_steps));
  text += fmt::format("\n  best checkpoint-{}  {} {:.4f}     {}", best_.step, score, best_.score,
                      (folder_->path() / "metrics.jsonl").string());
  const StepSeconds& step = totals.step_seconds;
  const auto share = [&](const char* name, double part) {
    return fmt::format("  {} {:.1f}%", name, 100 * part / std::max(whole, 1e-9));
  };
  text += "\n  time:" + share("data", totals.data_seconds) + share("forward", step.forward) +
          share("backward", step.backward) + share("probe", step.probe) +
          (ranks_.size() > 1 ? share("exchange", step.exchange) : "") +
          share("optimizer", step.optimizer) + share("eval", totals.eval_seconds) +
          share("checkpoints", totals.checkpoint_seconds) + "\n";
  folder_->write_log(text);
  return text;
}

}  // namespace vcas
