// Progress on stderr: a few live lines on a terminal, a line of key=value pairs now and then
// elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/log.h"

namespace vcas {

std::string format_duration(double seconds);   // "18:52", "1:02:03", "--:--" if not known
std::string format_count(std::int64_t count);  // "36,816"

double monotonic_seconds();
std::string utc_time();  // "2026-11-22T09:05:01Z"

int terminal_columns(int fd);  // COLUMNS, then the terminal's width, then 80

struct ProgressOptions {
  bool live = false;  // redraw in place
  bool color = false;
  LogLevel level = LogLevel::kInfo;  // the bar and the lines of steps are kInfo
  std::function<double()> now = monotonic_seconds;
};
// Colour by FORCE_COLOR, NO_COLOR, CLICOLOR_FORCE, then the terminal.
ProgressOptions progress_options(int fd);

struct ProgressText {
  std::string label;               // before the bar: "epoch 1/3"
  std::vector<std::string> lines;  // below the bar, plain text; three are shown
  std::string fields;              // in a log: "epoch=0.34 loss=0.6213"
};

// Safe to use from several threads, so that messages never tear the bar.
class Progress {
 public:
  Progress(std::FILE* out, ProgressOptions options);

  // To be called after every step. One call before the first step starts the clock.
  // `describe` is called only when something is drawn.
  // A smaller step or another total starts the ETA anew.
  void update(std::int64_t step, std::int64_t total, const std::function<ProgressText()>& describe);

  // A full line above the bar, where lines of this level are wanted.
  void message(std::string_view text, LogLevel level = LogLevel::kInfo);

  // Leaves the block as it is and goes on below it.
  void finish();

 private:
  std::string clear_block() const;  // the escape codes that remove the block
  std::string draw_block();
  std::string bar_line(int columns) const;
  std::optional<double> eta() const;

  std::FILE* out_;
  ProgressOptions options_;
  std::mutex mutex_;
  ProgressText text_;
  std::int64_t step_ = -1, total_ = 0;
  double step_time_ = 0;  // when step_ was reached
  double drawn_time_ = 0;
  double seconds_ = 0, steps_ = 0;  // exponentially fading sums over this process's steps
  int block_lines_ = 0;             // on the screen now
};

// Tells on stderr how many of all are done, where `verb` and `noun` are "checking" and "images".
// A terminal has a bar, anything else a line each ten seconds.
std::function<void(std::int64_t done, std::int64_t all)> count_on_stderr(const std::string& verb,
                                                                         const std::string& noun);

}  // namespace vcas
