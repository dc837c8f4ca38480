#include "tools/replay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/metrics.h"
#include "core/read_json.h"
#include "optim/checkpoint.h"
#include "tools/output.h"
#include "tools/session.h"
#include "tools/train_request.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// What crash-STEP.json tells of the run that ended so.
struct Crash {
  std::optional<std::vector<std::int64_t>> checkpoints;
  std::optional<std::string> config;  // JSON
  std::string fork_of;                // a checkpoint; empty: it was no fork
  std::optional<int> ranks;
};

Crash read_crash(const fs::path& file) {
  const nlohmann::json content = read_json(file);
  Crash crash;
  try {
    if (content.contains("checkpoints")) content["checkpoints"].get_to(crash.checkpoints.emplace());
    if (content.contains("config")) crash.config = content["config"].dump();
    if (content.contains("ranks")) crash.ranks = content["ranks"].get<int>();
    crash.fork_of = content.value("fork_of", "");
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::kBadData, fmt::format("{}: {}", file.string(), error.what()),
                "the file is damaged; --step N looks at the step without it");
  }
  return crash;
}

// The run as it was after the last checkpoint before `step`, or at its beginning.
// The run is the one that `crash` tells of, if it does: another may have come back to the folder.
TrainRequest request_before(const fs::path& run, std::int64_t step, const Crash& crash) {
  TrainRequest request;
  request.from.run = run;
  const std::vector<std::int64_t> saved = checkpoint_steps(run);
  for (const std::int64_t own : crash.checkpoints.value_or(saved))
    if (own < step && std::ranges::count(saved, own) > 0)
      request.from.checkpoint = checkpoint_folder(run, own);
  request.fork = request.from.checkpoint.empty() && !crash.fork_of.empty();
  if (request.fork) request.from.checkpoint = crash.fork_of;
  if (request.fork && !fs::exists(crash.fork_of))
    throw Error(
        ExitCode::kNoInput,
        fmt::format("{}: no such folder, and {} is a fork of it, without an earlier save of "
                    "its own",
                    crash.fork_of, run.string()),
        "bring it back to replay the fork");
  request.resume = !request.from.checkpoint.empty();
  if (!request.continues() && crash.config)
    request.loaded = load_config(SourceText{fmt::format("crash-{}.json", step), *crash.config}, {},
                                 /*saved=*/true);
  else
    request.loaded = load_config(
        ((request.continues() ? request.from.checkpoint : run) / "config.json").string(), {});
  keep_threads(request);
  return request;
}

void restore(const TrainRequest& request, const RunData& data, Session& session) {
  load_checkpoint(request.from.checkpoint, session.trainer());
  const nlohmann::json state = read_trainer_state(request.from.checkpoint);
  if (!request.fork)  // whose data may be others
    check_same_data(request.from.checkpoint, state.at("data"), data, /*fork=*/false);
  session.restore(state.at("session"));
}

// How the run began, and began again, and its ends.
std::vector<nlohmann::json> starts_and_ends(const fs::path& run) {
  const fs::path metrics = run / "metrics.jsonl";
  if (!fs::exists(metrics))
    throw Error(ExitCode::kNoInput, metrics.string() + ": No such file or directory",
                "replay takes the folder of a run");
  std::vector<nlohmann::json> lines = read_metrics(metrics);
  std::erase_if(lines, [](const auto& line) {
    const std::string event = line.value("event", "");
    return event != "start" && event != "end";
  });
  return lines;
}

// Processes that made this step; 1 where that is not known.
int ranks_of(const std::vector<nlohmann::json>& lines, std::int64_t step) {
  int ranks = 1;
  for (const nlohmann::json& line : lines)
    if (line["event"] == "start" && line["step"] < step) ranks = line.value("ranks", 1);
  return ranks;
}

// Throws kUsage for a step that the run has not made.
void check_made(const std::vector<nlohmann::json>& lines, std::int64_t step) {
  if (lines.empty()) return;
  const nlohmann::json &first = lines.front(), &last = lines.back();
  if (last["event"] == "end" && step > last["step"])
    throw Error(ExitCode::kUsage, fmt::format("--step is {}, and the run ended with step {}", step,
                                              last["step"].get<std::int64_t>()));
  if (const auto begin = first["step"].get<std::int64_t>(); step <= begin)
    throw Error(ExitCode::kUsage,
                fmt::format("--step is {}, and the run began with step {}", step, begin + 1),
                "it is a fork of " + first.value("fork_of", "another run"));
}

}  // namespace

void replay(const ReplayRequest& asked) {
  const std::optional<std::int64_t> crashed = newest_crash(asked.run);
  if (const std::vector<std::string> runs = runs_of_comparison(asked.run); !runs.empty())
    throw Error(ExitCode::kNoInput, asked.run.string() + ": a comparison, no run",
                "each run has a folder in it, such as " + (asked.run / runs.front()).string());
  if (asked.step == 0 && !crashed)
    throw Error(ExitCode::kNoInput, asked.run.string() + ": no crash-STEP.json in it",
                "--step N looks at any step of the run");
  const std::int64_t step = asked.step > 0 ? asked.step : *crashed;
  Crash crash;
  if (asked.step == 0) crash = read_crash(asked.run / fmt::format("crash-{}.json", step));
  std::vector<nlohmann::json> lines;
  if (!crash.ranks) lines = starts_and_ends(asked.run);
  if (asked.step > 0) check_made(lines, step);
  if (asked.step > 0 && !lines.empty()) crash.fork_of = lines.front().value("fork_of", "");
  const int ranks = crash.ranks ? *crash.ranks : ranks_of(lines, step);
  const TrainRequest request = request_before(asked.run, step, crash);
  const RunConfig& config = request.loaded.config;
  const RunData data(config, /*check_images=*/false, request.from.checkpoint);
  Session session(config, data, {.finite = true});
  if (step > session.total_steps())
    throw Error(ExitCode::kUsage,
                fmt::format("--step is {}, and the run has {} steps", step, session.total_steps()));
  if (request.resume) restore(request, data, session);
  const std::string from =
      request.resume ? request.from.checkpoint.string() : std::string("the beginning");
  print_text(fmt::format("replaying step {} from {}\n", step, from));
  if (ranks > 1)
    print_text(
        fmt::format("  {} processes had trained: one may draw and round otherwise\n", ranks));
  while (session.trainer().steps() < step - 1) session.step();
  Loader loader(*data.train, session.loader_options(), step - 1);
  print_text(fmt::format("items of step {}: {}\n", step, fmt::join(loader.next().ids, " ")));
  session.watch();
  std::string place = fmt::format("step {}", step);
  try {
    session.step();
    place = fmt::format("evaluation after step {}", step);
    session.evaluate([] { return false; });
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDiverged) throw;
    throw Error(error.code(), fmt::format("{}: {}", place, error.what()), error.hint());
  }
  print_text(
      fmt::format("ok  all numbers of step {} and of an evaluation after it are finite\n", step));
}

}  // namespace vcas
