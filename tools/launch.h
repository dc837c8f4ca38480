// What the ranks of a run settle before it, and who speaks for them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/ranks.h"
#include "tools/train_request.h"

namespace vcas {

std::string host_name();
// "rank 3 (node2): "; empty of one process.
std::string speaker(const Ranks& ranks);

// Several ranks on a machine have a GPU each: that of their number there, among those of
// CUDA_VISIBLE_DEVICES where it is set. To be called before anything looks for a GPU.
void choose_gpu(const Ranks& ranks);

// Sets what a configuration leaves to the number of ranks: micro-batches and threads.
// Throws kBadConfig when they cannot share a step.
void settle_for_ranks(RunConfig& config, const Ranks& ranks);

// Where the run goes on, as `find` says on rank 0. The others might find another checkpoint, and
// only one may settle what a killed run has left. Throws kBadData for a damaged one.
ResumePoint find_for_all(Ranks& ranks, const std::function<ResumePoint()>& find);

// One rank of each machine reads first: the others find its caches. `checkpoint`: as in RunData.
std::unique_ptr<RunData> read_data(const RunConfig& config, Ranks& ranks,
                                   const std::filesystem::path& checkpoint);

// Throws kBadConfig on rank 0 unless all ranks have its version, settings, data and weights.
void check_same_start(const TrainRequest& request, const RunData& data);

// Throws kUnavailable unless all ranks compute on such a device: a rank may have found no GPU.
void check_same_device(const std::string& device, Ranks& ranks);

// Ends this process with kUnavailable, and so the run, when a rank hangs:
// nothing was `alive` for so many seconds. With one process it does nothing.
class Watchdog {
 public:
  // `give_up` leaves what the others do not come to. It is called before the end, by another
  // thread.
  Watchdog(const Ranks& ranks, double seconds, std::function<void()> give_up);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // A step, a batch of an evaluation or a checkpoint has ended.
  void alive();
  // There is a checkpoint now, which the last words name.
  void can_resume() { can_resume_ = true; }

 private:
  void watch(const std::stop_token& stop);

  std::string speaker_;
  double seconds_;
  std::function<void()> give_up_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::uint64_t signs_ = 0;  // of life; guarded by mutex_
  std::atomic<bool> can_resume_ = false;
  std::jthread thread_;  // last: it ends before the rest goes
};

}  // namespace vcas
