// Ranks that are threads of one process.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "core/ranks.h"

namespace vcas {

class ThreadRank final : public Ranks {
 public:
  // What the ranks show each other between two barriers.
  struct Meeting {
    explicit Meeting(int size) : barrier(size), shown(static_cast<std::size_t>(size)) {}
    std::barrier<> barrier;
    std::vector<std::span<const std::byte>> shown;  // [rank]
  };

  ThreadRank(std::shared_ptr<Meeting> meeting, int rank)
      : meeting_(std::move(meeting)), rank_(rank) {}

  Place place() const override {
    const int size = static_cast<int>(meeting_->shown.size());
    return {rank_, size, rank_, size};
  }
  void gather_all(std::span<const double> mine, std::span<double> all) override {
    meet(std::as_bytes(mine), [&](int rank, std::span<const std::byte> bytes) {
      std::ranges::copy(bytes, std::as_writable_bytes(all).begin() + rank * std::ssize(bytes));
    });
  }
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) override {
    std::vector<std::vector<std::byte>> all;
    meet(mine, [&](int, std::span<const std::byte> bytes) {
      if (rank_ == 0) all.emplace_back(bytes.begin(), bytes.end());
    });
    return all;
  }
  void broadcast(std::vector<std::byte>& bytes) override {
    meet(bytes, [&](int rank, std::span<const std::byte> shown) {
      if (rank == 0 && rank_ != 0) bytes.assign(shown.begin(), shown.end());
    });
  }
  void all_to_all(std::byte* to, const std::byte* from, std::size_t bytes_each) override {
    meet({from, bytes_each * meeting_->shown.size()},
         [&](int rank, std::span<const std::byte> shown) {
           std::memcpy(to + rank * bytes_each, shown.data() + rank_ * bytes_each, bytes_each);
         });
  }
  void all_gather(std::byte* all, std::size_t bytes_each) override {
    meet({all + rank_ * bytes_each, bytes_each}, [&](int rank, std::span<const std::byte> shown) {
      if (rank != rank_) std::memcpy(all + rank * bytes_each, shown.data(), bytes_each);
    });
  }
  void barrier() override { meeting_->barrier.arrive_and_wait(); }
  [[noreturn]] void abort(ExitCode code) override { std::_Exit(static_cast<int>(code)); }

 private:
  template <class Look>
  void meet(std::span<const std::byte> mine, const Look& look) {
    meeting_->shown[static_cast<std::size_t>(rank_)] = mine;
    barrier();
    const std::vector<std::span<const std::byte>> shown = meeting_->shown;
    for (std::size_t rank = 0; rank < shown.size(); ++rank)
      look(static_cast<int>(rank), shown[rank]);
    barrier();
  }

  std::shared_ptr<Meeting> meeting_;
  int rank_;
};

// Runs `body` on `size` ranks. Throws what the first of them throws, once all have ended.
// A body that throws must throw on all ranks, or the others wait for ever.
inline void on_thread_ranks(int size, const std::function<void(std::shared_ptr<Ranks>)>& body) {
  const auto meeting = std::make_shared<ThreadRank::Meeting>(size);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(std::make_shared<ThreadRank>(meeting, rank));
        } catch (...) {
          failures[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

// The same, but one rank runs on this thread.
inline void on_ranks(int size, const std::function<void(std::shared_ptr<Ranks>)>& body) {
  size == 1 ? body(one_rank()) : on_thread_ranks(size, body);
}

}  // namespace vcas
