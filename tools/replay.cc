#include "tools/replay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <optional>

#include "core/error.h"
#include "optim/checkpoint.h"
#include "tools/session.h"
#include "tools/train_request.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// The run as it was after the last checkpoint before `step`, or at its beginning.
TrainRequest request_before(const fs::path& run, std::int64_t step) {
  TrainRequest request;
  request.from.run = run;
  for (const std::int64_t saved : checkpoint_steps(run))
    if (saved < step) request.from.checkpoint = checkpoint_folder(run, saved);
  request.resume = !request.from.checkpoint.empty();
  request.loaded =
      load_config(((request.resume ? request.from.checkpoint : run) / "config.json").string(), {});
  keep_threads(request);
  return request;
}

void restore(const TrainRequest& request, const RunData& data, Session& session) {
  load_checkpoint(request.from.checkpoint, session.trainer());
  const nlohmann::json state = read_trainer_state(request.from.checkpoint);
  check_same_data(request.from.checkpoint, state.value("data", nlohmann::json::object()), data,
                  session.model(), /*fork=*/false);
  session.restore(state.at("session"));
}

}  // namespace

void replay(const ReplayRequest& asked) {
  const std::optional<std::int64_t> crash = newest_crash(asked.run);
  if (asked.step == 0 && !crash)
    throw Error(ExitCode::kNoInput, asked.run.string() + ": no crash-STEP.json in it",
                "--step N looks at any step of the run");
  const std::int64_t step = asked.step > 0 ? asked.step : *crash;
  const TrainRequest request = request_before(asked.run, step);
  const RunConfig& config = request.loaded.config;
  const RunData data(config, /*check_images=*/false, request.from.checkpoint);
  Session session(config, data, {.finite = true});
  if (step > session.total_steps())
    throw Error(ExitCode::kUsage,
                fmt::format("--step is {}, and the run has {} steps", step, session.total_steps()));
  if (request.resume) restore(request, data, session);
  const std::string from =
      request.resume ? request.from.checkpoint.string() : std::string("the beginning");
  std::fputs(fmt::format("replaying step {} from {}\n", step, from).c_str(), stdout);
  while (session.trainer().steps() < step - 1) session.step();
  Loader loader(*data.train, session.loader_options(), step - 1);
  std::fputs(fmt::format("items of step {}: {}\n", step, fmt::join(loader.next().ids, " ")).c_str(),
             stdout);
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
  std::fputs(
      fmt::format("ok  all numbers of step {} and of an evaluation after it are finite\n", step)
          .c_str(),
      stdout);
}

}  // namespace vcas
