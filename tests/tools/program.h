// Runs the built program as a user would, without a shell.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/metrics.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/catch.h"

struct Outcome {
  int code = -1;
  std::string out, err;
};

inline std::string content(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

// A process of vcas in `folder`; its input is stdin.txt there, if any, and its output goes to
// files.
class Process {
 public:
  Process(const std::filesystem::path& folder, std::vector<std::string> arguments,
          const std::vector<std::string>& environment = {},
          const std::filesystem::path& program = VCAS_PROGRAM)
      : folder_(folder) {
    const bool train = !arguments.empty() && arguments.front() == "vcas-train";
    if (train) arguments.erase(arguments.begin());
    arguments.insert(arguments.begin(),
                     (train ? program.parent_path() / "vcas-train" : program).string());
    // No setting of the machine that runs the tests leaks in, and it has no GPU.
    std::vector<std::string> variables = {"PATH=/usr/bin:/bin", "TERM=dumb",
                                          "CUDA_VISIBLE_DEVICES="};
    variables.insert(variables.end(), environment.begin(), environment.end());

    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    const bool has_input = std::filesystem::exists(folder / "stdin.txt");
    ::posix_spawn_file_actions_addopen(&actions, 0, has_input ? "stdin.txt" : "/dev/null", O_RDONLY,
                                       0);
    ::posix_spawn_file_actions_addopen(&actions, 1, "stdout.txt", kFlags, 0666);
    ::posix_spawn_file_actions_addopen(&actions, 2, "stderr.txt", kFlags, 0666);
    const int error = ::posix_spawn(&id_, arguments.front().c_str(), &actions, nullptr,
                                    pointers(arguments).data(), pointers(variables).data());
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0) throw std::runtime_error("cannot start " + arguments.front());
  }

  pid_t id() const { return id_; }
  bool runs() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
  }
  void signal(int number) const { ::kill(id_, number); }

  Outcome wait() const {
    int status = 0;
    ::waitpid(id_, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            content(folder_ / "stdout.txt"), content(folder_ / "stderr.txt")};
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (std::string& text : texts) list.push_back(text.data());
    list.push_back(nullptr);
    return list;
  }

  std::filesystem::path folder_;
  pid_t id_ = -1;
};

inline Outcome run(const std::filesystem::path& folder, const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment = {}) {
  return Process(folder, arguments, environment).wait();
}

// What the program shows on a terminal.
inline Outcome on_terminal(const std::filesystem::path& folder, const std::string& arguments) {
  const std::string command = "TERM=xterm " VCAS_PROGRAM " " + arguments;
  return Process(folder, {"--quiet", "--return", "--command", command, "/dev/null"}, {},
                 "/usr/bin/script")
      .wait();
}

// All files of a folder with their content, and where links lead.
inline std::map<std::string, std::string> snapshot(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_symlink())
      files[entry.path().string()] = std::filesystem::read_symlink(entry.path()).string();
    else if (entry.is_regular_file() && entry.path().filename() != "lock")
      files[entry.path().string()] = content(entry.path());
  return files;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline void check_contains(const std::string& text, const std::vector<std::string>& parts) {
  INFO(text.substr(0, 4096));
  for (const std::string& part : parts) {
    INFO(part);
    CHECK(contains(text, part));
  }
}

// The outcome of what must end well.
inline Outcome succeeded(Outcome outcome) {
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return outcome;
}

// It ended with this code, and said all of these.
inline void check_failure(const Outcome& outcome, int code, const std::vector<std::string>& said) {
  INFO(outcome.err);
  CHECK(outcome.code == code);
  check_contains(outcome.err, said);
}

// It ended with this code, and said this alone.
inline void check_message(const Outcome& outcome, int code, const std::string& said) {
  INFO(outcome.err);
  CHECK(outcome.code == code);
  CHECK(outcome.err == said);
}

// Waits until `file` has this many lines; false after a minute.
inline bool wait_for_lines(const std::filesystem::path& file, std::ptrdiff_t lines) {
  for (int i = 0; i < 6000; ++i) {
    const std::string text = content(file);
    if (std::count(text.begin(), text.end(), '\n') >= lines) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// The lines of one kind.
inline std::vector<nlohmann::json> events_of(const std::filesystem::path& metrics,
                                             const std::string& event) {
  std::vector<nlohmann::json> lines = vcas::read_metrics(metrics);
  std::erase_if(lines, [&](const nlohmann::json& line) { return line["event"] != event; });
  return lines;
}

// What a run warned of, as its metrics have it.
inline std::vector<std::string> noted_warnings(const std::filesystem::path& metrics) {
  std::vector<std::string> messages;
  for (const nlohmann::json& line : events_of(metrics, "warning"))
    messages.push_back(line["message"]);
  return messages;
}

inline std::vector<std::int64_t> saved_steps(const std::filesystem::path& run) {
  std::vector<std::int64_t> steps;
  for (const auto& entry : std::filesystem::directory_iterator(run))
    if (const std::string name = entry.path().filename().string(); name.starts_with("checkpoint-"))
      steps.push_back(std::stoll(name.substr(11)));
  std::sort(steps.begin(), steps.end());
  return steps;
}

// Forgets what the run did after this checkpoint, as if it had been killed.
inline void forget_after(const std::filesystem::path& run, std::int64_t step) {
  for (const std::int64_t saved : saved_steps(run))
    if (saved > step) std::filesystem::remove_all(run / ("checkpoint-" + std::to_string(saved)));
  std::filesystem::remove(run / "last");
  std::filesystem::remove(run / "best");
}

// The first arguments with more behind them.
inline std::vector<std::string> with(std::vector<std::string> arguments,
                                     const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// A folder for runs of the configuration tiny.json.
class TinyFolder : public TemporaryFolder {
 public:
  explicit TinyFolder(const std::string& config, std::vector<std::string> environment = {})
      : environment_(std::move(environment)) {
    write_text(path() / "tiny.json", config);
  }

  Outcome vcas(const std::vector<std::string>& arguments) const {
    return run(path(), arguments, environment_);
  }
  Outcome train(const std::vector<std::string>& arguments) const {
    return vcas(with({"vcas-train", "--config", "tiny.json"}, arguments));
  }
  nlohmann::json json(const std::string& name) const {
    return nlohmann::json::parse(content(path() / name));
  }
  // What `vcas eval --json` prints.
  nlohmann::json eval(const std::string& model, const std::vector<std::string>& more = {}) const {
    return nlohmann::json::parse(
        succeeded(vcas(with({"eval", "--model", model, "--json"}, more))).out);
  }
  nlohmann::json end_of(const std::string& run_folder) const {
    return vcas::read_metrics(path() / run_folder / "metrics.jsonl").back();
  }
  std::string weights(const std::string& run_folder, const std::string& checkpoint = "last") const {
    return content(path() / run_folder / checkpoint / "model.safetensors");
  }

 private:
  std::vector<std::string> environment_;
};

// A small Vision Transformer on random images.
class TinyRun : public TinyFolder {
 public:
  TinyRun()
      : TinyFolder(R"({
  "threads": 1,
  "data": {"type": "synthetic",
           "synthetic": {"items": 256, "eval_items": 64, "classes": 4, "shape": [1, 8, 8]}},
  "model": {"type": "vit", "width": 16, "depth": 2, "heads": 2, "patch": 4, "dropout": 0.1},
  "train": {"steps": 40, "batch_size": 16, "eval_every": 20},
  "schedule": {"learning_rate": 0.003},
  "method": {"controller": "paper", "update_every": 5, "s_step": 0.1, "weight_multiplier": 0.7}
})") {}
};
