#include "tools/launch.h"

#include <fmt/format.h>
#include <limits.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <sstream>

#include "core/error.h"
#include "core/log.h"
#include "core/read_json.h"
#include "data/source_file.h"
#include "models/hf_config.h"
#include "models/hf_files.h"
#include "tools/pretrained.h"
#include "tools/version.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

// Sizes and CRCs of all files.
nlohmann::json content_of_checkpoint(const fs::path& folder) {
  return {{folder.string(), read_json(folder / "manifest.json")}};
}

nlohmann::json content_of_pretrained(const Pretrained& from) {
  if (from.is_checkpoint) return content_of_checkpoint(from.folder);
  nlohmann::json hashes;
  const auto add = [&](const fs::path& file) {
    hashes[file.string()] = fmt::format("{}{:016x}", kFileHash, source_file(file).hash);
  };
  const HfWeights weights(from.weights);
  for (const SafetensorsFile& file : weights.files()) add(file.path());
  add(from.config);
  if (const fs::path images = from.folder / kHfImageProcessorFile; fs::exists(images)) add(images);
  return hashes;
}

// What must be the same on all ranks.
nlohmann::json start_of(const TrainRequest& request, const RunData& data) {
  const RunConfig& config = request.loaded.config;
  nlohmann::json start = {
      {"version", version()}, {"settings", to_json(config)}, {"data", data.fingerprints()}};
  if (!data.left_out.empty()) start["left_out"] = data.left_out;
  if (request.resume)
    start["checkpoint"] = content_of_checkpoint(request.from.checkpoint);
  else if (const std::string& pretrained = config.model.pretrained; !pretrained.empty())
    start["weights"] = content_of_pretrained(find_pretrained(pretrained));
  return start;
}

// "/data/d~1test.tsv" -> "data/d/test.tsv"
std::string readable(std::string pointer) {
  pointer.erase(0, 1);
  for (const auto& [escaped, character] : {std::pair{"~1", '/'}, {"~0", '~'}})
    for (std::size_t at = 0; (at = pointer.find(escaped, at)) != pointer.npos; ++at)
      pointer.replace(at, 2, 1, character);
  return pointer;
}

// "settings/train/batch_size is 32, not 64"
std::string difference(const nlohmann::json& first, const nlohmann::json& other) {
  const nlohmann::json flat = first.flatten(), other_flat = other.flatten();
  for (const bool is_kind : {true, false})  // another kind has other settings
    for (const auto& [key, value] : flat.items())
      if (key.ends_with("/type") == is_kind &&
          (!other_flat.contains(key) || other_flat[key] != value))
        return fmt::format("{} is {}, not {}", readable(key),
                           other_flat.contains(key) ? other_flat[key].dump() : "absent",
                           value.dump());
  for (const auto& [key, value] : other_flat.items())
    if (!flat.contains(key))
      return fmt::format("{} is {}, not absent", readable(key), value.dump());
  return {};
}

}  // namespace

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string speaker(const Ranks& ranks) {
  if (ranks.size() == 1) return {};
  return fmt::format("rank {} ({}): ", ranks.place().rank, host_name());
}

void choose_gpu(const Ranks& ranks) {
  const Place place = ranks.place();
  if (place.local_size == 1) return;
  const char* const given = std::getenv("CUDA_VISIBLE_DEVICES");
  if (given && !std::strchr(given, ',')) return;  // what starts the ranks has chosen
  std::string own = std::to_string(place.local_rank);
  if (given) {
    std::istringstream list(given);
    for (int i = 0; i <= place.local_rank; ++i)
      if (!std::getline(list, own, ',')) own.clear();
  }
  ::setenv("CUDA_VISIBLE_DEVICES", own.c_str(), 1);
}

void settle_for_ranks(RunConfig& config, const Ranks& ranks) {
  config.ranks = ranks.size();
  config.local_ranks = ranks.place().local_size;
  config.is_first_rank = ranks.is_first();
  if (ranks.size() == 1) return;
  if (config.tune_products)
    throw Error(ExitCode::kBadConfig,
                fmt::format("tune_products must be false with {} processes: each would choose for "
                            "itself",
                            ranks.size()),
                "set tune_products=false");
  check_shares(config.train.batch_size, config.train.micro_batch, ranks.size());
  if (config.train.micro_batch == 0)
    config.train.micro_batch = config.train.batch_size / ranks.size();
}

ResumePoint find_for_all(Ranks& ranks, const std::function<ResumePoint()>& find) {
  if (ranks.is_first()) {
    ResumePoint found = find();
    broadcast_json(ranks, {found.run.string(), found.checkpoint.string()});
    return found;
  }
  const nlohmann::json found = broadcast_json(ranks, {});
  const ResumePoint same{.run = found[0].get<std::string>(),
                         .checkpoint = found[1].get<std::string>()};
  check_manifest(same.checkpoint);
  return same;
}

std::unique_ptr<RunData> read_data(const RunConfig& config, Ranks& ranks,
                                   const fs::path& checkpoint) {
  std::unique_ptr<RunData> data;
  for (const bool first : {true, false}) {
    if ((ranks.place().local_rank == 0) == first)
      data = std::make_unique<RunData>(config, /*check_images=*/false, checkpoint);
    ranks.barrier();
  }
  return data;
}

void check_same_start(const TrainRequest& request, const RunData& data) {
  Ranks& ranks = *request.ranks;
  if (ranks.size() == 1) return;
  nlohmann::json mine = start_of(request, data);
  mine["host"] = host_name();
  std::vector<nlohmann::json> all = gather_json(ranks, mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string host = all[rank]["host"];
    all[rank].erase("host");
    if (const std::string what = difference(all[0], all[rank]); !what.empty())
      throw Error(ExitCode::kBadConfig,
                  fmt::format("rank {} ({}): {} as on rank 0", rank, host, what),
                  "all ranks need the same program, settings and files");
  }
  ranks.barrier();
}

void check_same_device(const std::string& device, Ranks& ranks) {
  if (ranks.size() == 1) return;
  const std::vector<nlohmann::json> all = gather_json(ranks, {host_name(), device});
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank][1] != all[0][1])
      throw Error(ExitCode::kUnavailable,
                  fmt::format("rank {} ({}) computes on {}, and rank 0 on {}", rank,
                              all[rank][0].get<std::string>(), all[rank][1].get<std::string>(),
                              all[0][1].get<std::string>()),
                  "start as many ranks on a machine as it has GPUs, or set device=cpu");
  ranks.barrier();
}

Watchdog::Watchdog(const Ranks& ranks, double seconds, std::function<void()> give_up)
    : speaker_(speaker(ranks)), seconds_(seconds), give_up_(std::move(give_up)) {
  if (ranks.size() > 1)
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

void Watchdog::alive() {
  {
    const std::lock_guard lock(mutex_);
    ++signs_;
  }
  changed_.notify_all();
}

void Watchdog::watch(const std::stop_token& stop) {
  // The clock runs on while a job is suspended. That ends one wait of many.
  constexpr int kWaits = 20;
  constexpr double kMost = 1e9;  // a clock counts nanoseconds
  const std::chrono::duration<double> part(std::min(seconds_, kMost) / kWaits);
  std::unique_lock lock(mutex_);
  for (int silent = 0; silent < kWaits;) {
    const std::uint64_t seen = signs_;
    silent = changed_.wait_for(lock, stop, part, [&] { return signs_ != seen; }) ? 0 : silent + 1;
    if (stop.stop_requested()) return;
  }
  write_stderr(fmt::format(
      "error: {}no step, evaluation or checkpoint has ended for {:.0f} s: a rank hangs\n"
      "  hint: look at the machines; {}run.rank_timeout sets the time\n",
      speaker_, seconds_, can_resume_ ? "--resume goes on from the last checkpoint; " : ""));
  // A kernel that hangs may hinder the end, and to give it up may hang too.
  std::packaged_task<void()> giving_up(give_up_);
  const std::future<void> given_up = giving_up.get_future();
  std::thread(std::move(giving_up)).detach();
  given_up.wait_for(std::chrono::seconds(2));
  ::_exit(static_cast<int>(ExitCode::kUnavailable));
}

}  // namespace vcas
