#include "core/progress.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <memory>
#include <utility>

#include "core/utf8.h"

namespace vcas {
namespace {

constexpr double kRedrawSeconds = 0.1, kLineSeconds = 10;
constexpr std::size_t kMaxLines = 3;
constexpr int kMinBarColumns = 4;
constexpr int kMaxBarColumns = 28;
constexpr double kFadePerStep = 0.995;  // the step time is a mean over some 200 steps

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_on(std::string_view value) { return !value.empty() && value != "0"; }

bool is_smart_terminal(int fd) { return ::isatty(fd) && environment("TERM") != "dumb"; }

bool use_color(int fd) {
  if (is_on(environment("FORCE_COLOR"))) return true;
  if (!environment("NO_COLOR").empty()) return false;
  return is_on(environment("CLICOLOR_FORCE")) || is_smart_terminal(fd);
}

int width_of(std::string_view text) { return static_cast<int>(code_points(text)); }

std::string clip(std::string_view text, int columns) {
  return std::string(text.substr(0, bytes_of_code_points(text, std::max(columns, 0))));
}

}  // namespace

std::string format_duration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e9)) return "--:--";
  const long total = std::lround(seconds);
  if (total < 3600) return fmt::format("{}:{:02}", total / 60, total % 60);
  return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

std::string format_count(std::int64_t count) {
  std::string text = std::to_string(count);
  const std::size_t first_digit = count < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first_digit + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string utc_time() { return fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr))); }

int terminal_columns(int fd) {
  const std::string_view text = environment("COLUMNS");
  int columns = 0;
  std::from_chars(text.data(), text.data() + text.size(), columns);
  if (columns > 0) return columns;
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

ProgressOptions progress_options(int fd) {
  return {.live = is_smart_terminal(fd), .color = use_color(fd), .level = log_level()};
}

Progress::Progress(std::FILE* out, ProgressOptions options)
    : out_(out), options_(std::move(options)) {}

void Progress::update(std::int64_t step, std::int64_t total,
                      const std::function<ProgressText()>& describe) {
  const std::lock_guard lock(mutex_);
  if (options_.level < LogLevel::kInfo) return;
  const double now = options_.now();
  if (step_ < 0) drawn_time_ = options_.live ? -std::numeric_limits<double>::infinity() : now;
  if (step_ < 0 || step < step_ || total != total_) {
    seconds_ = steps_ = 0;
    step_time_ = now;
  } else if (step > step_) {
    const double steps = static_cast<double>(step - step_);
    const double fade = std::pow(kFadePerStep, steps);
    seconds_ = fade * seconds_ + (now - step_time_);
    steps_ = fade * steps_ + steps;
    step_time_ = now;
  }
  const bool last = step == total && step != step_;
  step_ = step;
  total_ = total;
  const double interval = options_.live ? kRedrawSeconds : kLineSeconds;
  if (now - drawn_time_ < interval && !last) return;
  drawn_time_ = now;
  text_ = describe();
  if (options_.live) {
    const std::string clear = clear_block();  // before the new block is counted
    write_if_room(out_, clear + draw_block());
    return;
  }
  std::string line = fmt::format("step={}", step);
  if (!text_.fields.empty()) line += " " + text_.fields;
  if (const auto seconds = eta()) line += fmt::format(" eta={:.0f}s", *seconds);
  write_if_room(out_, line + "\n");
}

void Progress::message(std::string_view text, LogLevel level) {
  if (options_.level < level) return;
  const std::lock_guard lock(mutex_);
  const bool redraw = block_lines_ > 0;
  std::string output = clear_block();
  output.append(printable(text)).append("\n");
  if (redraw) output += draw_block();
  write_if_room(out_, output);
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  block_lines_ = 0;
  step_ = -1;
}

std::function<void(std::int64_t, std::int64_t)> count_on_stderr(const std::string& verb,
                                                                const std::string& noun) {
  const ProgressOptions options = progress_options(STDERR_FILENO);
  const auto bar = std::make_shared<Progress>(stderr, options);
  return [=](std::int64_t done, std::int64_t all) {
    if (options.live || done < all)
      bar->update(done, all, [&] {
        return ProgressText{.label = verb + " " + noun,
                            .fields = fmt::format("of={} {}={}", all, verb, noun)};
      });
    if (done == all) bar->finish();
  };
}

std::string Progress::clear_block() const {
  if (block_lines_ == 0) return {};
  return fmt::format("\x1b[{}A\x1b[J", block_lines_);
}

std::string Progress::draw_block() {
  // Asked each time: the window may have changed. The last column stays free, for some terminals
  // wrap when it is written.
  const int columns = terminal_columns(::fileno(out_)) - 1;
  std::string block = bar_line(columns) + "\n";
  const std::size_t lines = std::min(text_.lines.size(), kMaxLines);
  for (std::size_t i = 0; i < lines; ++i) block += clip("   " + text_.lines[i], columns) + "\n";
  block_lines_ = 1 + static_cast<int>(lines);
  return block;
}

std::string Progress::bar_line(int columns) const {
  const double done =
      total_ > 0 ? std::clamp(static_cast<double>(step_) / static_cast<double>(total_), 0.0, 1.0)
                 : 0.0;
  const std::string before = text_.label.empty() ? " " : fmt::format(" {}  ", text_.label);
  const std::string after =
      fmt::format(" {:3}%   step {}/{}   ETA {}", static_cast<int>(100 * done), format_count(step_),
                  format_count(total_), format_duration(eta().value_or(-1)));
  const int bar_columns = std::min(columns - width_of(before) - width_of(after), kMaxBarColumns);
  if (bar_columns < kMinBarColumns) return clip(before + after, columns);
  const int halves = static_cast<int>(done * 2 * bar_columns);
  std::string bar;
  for (int i = 0; i < halves / 2; ++i) bar += "━";
  if (halves % 2) bar += "╸";
  if (options_.color) bar = "\x1b[32m" + bar + "\x1b[0m";
  bar.append(static_cast<std::size_t>(bar_columns - (halves + 1) / 2), ' ');
  return before + bar + after;
}

std::optional<double> Progress::eta() const {
  if (steps_ == 0) return std::nullopt;
  return seconds_ / steps_ * static_cast<double>(total_ - step_);
}

}  // namespace vcas
