#include "core/progress.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <vector>

#include "tests/core/environment.h"
#include "tests/support/catch.h"

using namespace vcas;

namespace {

// A progress display on a temporary file under a clock set by hand.
struct Display {
  double time = 1000;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::tmpfile(), std::fclose};
  Progress progress;
  EnvironmentVariable columns{"COLUMNS", "80"};

  explicit Display(bool live, bool color = false, LogLevel level = LogLevel::kInfo)
      : progress(file.get(),
                 {.live = live, .color = color, .level = level, .now = [this] { return time; }}) {}

  // What was written since the last call.
  std::string take() {
    std::string text;
    std::rewind(file.get());
    for (int c; (c = std::fgetc(file.get())) != EOF;) text += static_cast<char>(c);
    std::rewind(file.get());
    REQUIRE(::ftruncate(::fileno(file.get()), 0) == 0);
    return text;
  }
};

// What the pipe holds.
std::size_t drain(int pipe) {
  std::size_t bytes = 0;
  std::array<char, 4096> some;
  for (ssize_t n; (n = ::read(pipe, some.data(), some.size())) > 0;)
    bytes += static_cast<std::size_t>(n);
  return bytes;
}

// The lines that a terminal shows after `output`; knows the codes that the display uses.
std::vector<std::string> screen_after(const std::string& output) {
  std::vector<std::string> lines(1);
  for (std::size_t i = 0; i < output.size(); ++i) {
    if (output[i] == '\n') {
      lines.emplace_back();
    } else if (output[i] == '\x1b') {
      const std::size_t end = output.find_first_of("AJm", i);
      if (output[end] == 'A') {
        REQUIRE(lines.back().empty());  // moves up from the start of a line
        const int up = std::stoi(output.substr(i + 2));
        REQUIRE(up < static_cast<int>(lines.size()));
        REQUIRE(output.compare(end + 1, 3, "\x1b[J") == 0);
        lines.resize(lines.size() - static_cast<std::size_t>(up));
        lines.back().clear();
      }
      i = end;
    } else {
      lines.back() += output[i];
    }
  }
  return lines;
}

}  // namespace

TEST_CASE("progress: durations and counts", "[progress]") {
  CHECK(format_duration(0) == "0:00");
  CHECK(format_duration(7.4) == "0:07");
  CHECK(format_duration(18 * 60 + 52) == "18:52");
  CHECK(format_duration(3599.6) == "1:00:00");
  CHECK(format_duration(3723) == "1:02:03");
  CHECK(format_duration(100 * 3600) == "100:00:00");
  CHECK(format_duration(-1) == "--:--");
  CHECK(format_duration(1.0 / 0.0) == "--:--");
  CHECK(format_count(0) == "0");
  CHECK(format_count(999) == "999");
  CHECK(format_count(36816) == "36,816");
  CHECK(format_count(-1234567) == "-1,234,567");
}

TEST_CASE("progress: in a log, a line at intervals and one at the end", "[progress]") {
  Display display(false);
  int described = 0;
  const auto update = [&](std::int64_t step) {
    display.progress.update(step, 100, [&] {
      ++described;
      return ProgressText{.fields = "loss=0.5"};
    });
  };
  update(20);  // a resumed run
  for (int step = 21; step <= 30; ++step) {
    display.time += 0.9;
    update(step);
  }
  CHECK(display.take().empty());
  CHECK(described == 0);
  display.time += 2;
  update(31);
  CHECK(display.take() == "step=31 loss=0.5 eta=69s\n");
  display.progress.message("saved\x1b[2J\r\tby\nπ\x7f\u009b\u00a0");
  CHECK(display.take() == "saved\\x1b[2J\\x0d\tby\nπ\\x7f\\x9b\u00a0\n");
  display.time += 1;
  update(100);
  CHECK(display.take() == "step=100 loss=0.5 eta=0s\n");
  update(100);
  CHECK(display.take().empty());
}

TEST_CASE("progress: lines below the level of the log are left out", "[progress]") {
  const auto shown = [](LogLevel level, bool live) {
    Display display(live, false, level);
    display.progress.message("a warning", LogLevel::kWarning);
    display.progress.message("a line");
    display.progress.message("a detail", LogLevel::kDebug);
    display.progress.update(1, 1, [] { return ProgressText{}; });
    display.progress.finish();
    return display.take();
  };
  for (const bool live : {false, true}) {
    CHECK(shown(LogLevel::kError, live).empty());
    CHECK(shown(LogLevel::kWarning, live) == "a warning\n");
    CHECK_THAT(shown(LogLevel::kInfo, live), Catch::Matchers::StartsWith("a warning\na line\n"));
    CHECK_THAT(shown(LogLevel::kDebug, live),
               Catch::Matchers::StartsWith("a warning\na line\na detail\n"));
  }
  CHECK(shown(LogLevel::kInfo, false) == "a warning\na line\nstep=1\n");
}

TEST_CASE("log: the level is that of the environment", "[log]") {
  {
    const EnvironmentVariable unset("VCAS_LOG_LEVEL", nullptr);
    CHECK(log_level() == LogLevel::kInfo);
  }
  for (const auto& [name, level] : std::map<const char*, LogLevel>{{"", LogLevel::kInfo},
                                                                   {"error", LogLevel::kError},
                                                                   {"warning", LogLevel::kWarning},
                                                                   {"info", LogLevel::kInfo},
                                                                   {"debug", LogLevel::kDebug}}) {
    const EnvironmentVariable set("VCAS_LOG_LEVEL", name);
    CHECK(log_level() == level);
  }
  const EnvironmentVariable bad("VCAS_LOG_LEVEL", "Info");
  CHECK_THROWS_WITH(log_level(),
                    "VCAS_LOG_LEVEL=\"Info\" is not one of: error, warning, info, debug");
}

TEST_CASE("progress: the ETA follows this process's own steps", "[progress]") {
  Display display(true);
  const auto eta_after = [&](std::int64_t step, double seconds) {
    display.time += seconds;
    display.progress.update(step, 20000, [] { return ProgressText{}; });
    const std::string text = display.take();
    return text.substr(text.find("ETA"));
  };
  CHECK(eta_after(10000, 50) == "ETA --:--\n");
  CHECK(eta_after(10001, 1) == "ETA 2:46:39\n");  // 9,999 s
  eta_after(12001, 4000);                         // two seconds a step from now on
  CHECK(eta_after(15000, 5998) == "ETA 2:46:40\n");
  eta_after(10, 1);  // another run of steps: nothing known
  CHECK(eta_after(11, 1) == "ETA 5:33:09\n");
}

TEST_CASE("progress: on a terminal the block is redrawn in place", "[progress]") {
  Display display(true);
  std::string output;
  const auto update = [&](std::int64_t step, std::vector<std::string> lines) {
    display.progress.update(step, 36816,
                            [&] { return ProgressText{.label = "epoch 1/3", .lines = lines}; });
    return output += display.take();
  };
  update(4079, {"loss 0.7"});
  display.time += 0.05;
  const std::size_t size = output.size();
  update(4080, {"too early to draw"});
  CHECK(output.size() == size);
  display.time += 3.95;
  update(4180, {"loss 0.6", "FLOPs", "three", "four"});
  CHECK(screen_after(output) ==
        std::vector<std::string>{
            " epoch 1/3  ━━━                           11%   step 4,180/36,816   ETA 21:31",
            "   loss 0.6", "   FLOPs", "   three", ""});
  display.progress.message("[00:04] eval");
  output += display.take();
  display.time += 0.2;
  update(4185, {"loss 0.5"});
  const auto screen = screen_after(output);
  REQUIRE(screen.size() == 4);
  CHECK(screen[0] == "[00:04] eval");
  CHECK_THAT(screen[1], ContainsSubstring("step 4,185/36,816"));
  CHECK(screen[2] == "   loss 0.5");

  display.progress.finish();
  display.progress.message("done");
  output += display.take();
  CHECK(screen_after(output).size() == 5);
  CHECK(screen_after(output)[3] == "done");
}

TEST_CASE("progress: lines never exceed the terminal", "[progress]") {
  Display display(true);
  const auto draw = [&](const char* columns, std::int64_t step) {
    EnvironmentVariable narrow("COLUMNS", columns);
    display.time += 1;
    display.progress.update(step, 100, [] {
      return ProgressText{.label = "epoch 1/3", .lines = {std::string(60, 'x'), "ää|ä|ää"}};
    });
    const auto lines = screen_after(display.take());
    display.progress.finish();
    return lines;
  };
  CHECK(draw("9", 50) == std::vector<std::string>{" epoch 1", "   xxxxx", "   ää|ä|", ""});
  CHECK(draw("50", 45)[0] == " epoch 1/3  ━━╸     45%   step 45/100   ETA --:--");
  CHECK(draw("80", 100)[0].find("━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 100%") != std::string::npos);
}

TEST_CASE("progress: colour is used when asked for", "[progress]") {
  Display display(true, true);
  display.progress.update(50, 100, [] { return ProgressText{}; });
  CHECK_THAT(display.take(), ContainsSubstring("\x1b[32m━━━━━━━━━━━━━━\x1b[0m "));
}

TEST_CASE("progress: terminal and environment decide", "[progress]") {
  const EnvironmentVariable force("FORCE_COLOR", nullptr), no("NO_COLOR", nullptr),
      cli("CLICOLOR_FORCE", nullptr), term("TERM", "xterm"), columns("COLUMNS", nullptr);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const int piped = ends[1];
  CHECK_FALSE(progress_options(piped).live);
  CHECK_FALSE(progress_options(piped).color);

  CHECK(terminal_columns(piped) == 80);
  {
    const EnvironmentVariable on("CLICOLOR_FORCE", "1");
    CHECK(progress_options(piped).color);
    CHECK_FALSE(progress_options(piped).live);
    const EnvironmentVariable off("NO_COLOR", "1");
    CHECK_FALSE(progress_options(piped).color);
    const EnvironmentVariable stronger("FORCE_COLOR", "1");
    CHECK(progress_options(piped).color);
  }
  ::close(ends[0]);
  ::close(ends[1]);

  const int controller = ::posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(::grantpt(controller) == 0);
  REQUIRE(::unlockpt(controller) == 0);
  const int terminal = ::open(::ptsname(controller), O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  CHECK(progress_options(terminal).live);
  CHECK(progress_options(terminal).color);
  winsize size{};
  size.ws_col = 123;
  REQUIRE(::ioctl(terminal, TIOCSWINSZ, &size) == 0);
  CHECK(terminal_columns(terminal) == 123);
  {
    const EnvironmentVariable own("COLUMNS", "60");
    CHECK(terminal_columns(terminal) == 60);
    const EnvironmentVariable off("NO_COLOR", "1");
    CHECK_FALSE(progress_options(terminal).color);
    CHECK(progress_options(terminal).live);
    const EnvironmentVariable dumb("TERM", "dumb");
    CHECK_FALSE(progress_options(terminal).live);
  }
  ::close(terminal);
  ::close(controller);
}

TEST_CASE("nothing waits for a pipe that nobody reads", "[progress]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  REQUIRE(::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{::fdopen(ends[1], "w"), std::fclose};
  const auto capacity = static_cast<std::size_t>(::fcntl(ends[1], F_GETPIPE_SZ));
  for (int i = 0; i < 50; ++i) write_if_room(file.get(), std::string(capacity / 10, 'x'));
  CHECK(drain(ends[0]) <= capacity);
  write_if_room(file.get(), std::string(5000, 'x'));
  CHECK(drain(ends[0]) == 5000);
  ::close(ends[0]);
}

TEST_CASE("nothing waits for a terminal that nobody reads", "[progress]") {
  const int controller = ::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
  REQUIRE(controller >= 0);
  REQUIRE(::grantpt(controller) == 0);
  REQUIRE(::unlockpt(controller) == 0);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(::ptsname(controller), "w"),
                                                             std::fclose};
  REQUIRE(file);
  for (int i = 0; i < 300; ++i) write_if_room(file.get(), std::string(99, 'x') + "\n");
  const std::size_t room = drain(controller);
  CHECK(room < 30000);
  write_if_room(file.get(), "after\n");
  CHECK(drain(controller) == 7);  // CR LF
  ::close(controller);
}
