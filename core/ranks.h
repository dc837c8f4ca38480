// The processes that train one model together, each on items of its own: its ranks.
// Host memory only. docs/clusters.md
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "core/error.h"

namespace vcas {

// `rank` of `size` in all, `local_rank` of `local_size` on this machine.
struct Place {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
};

// All ranks call the same in the same order, from one thread each.
// Results have the same bits on all of them.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual Place place() const = 0;
  int size() const { return place().size; }
  bool is_first() const { return place().rank == 0; }

  // The numbers of all ranks, one rank after another, [ranks * n]. Each has n of them.
  virtual void gather_all(std::span<const double> mine, std::span<double> all) = 0;
  std::vector<double> gather_all(std::span<const double> mine) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(size()));
    gather_all(mine, all);
    return all;
  }
  // To rank 0, by rank, of any sizes; nothing to the others.
  virtual std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) = 0;
  // What rank 0 has becomes what all have.
  virtual void broadcast(std::vector<std::byte>& bytes) = 0;
  // Part r of `from` goes to rank r. Part r of `to` comes from rank r.
  virtual void all_to_all(std::byte* to, const std::byte* from, std::size_t bytes_each) = 0;
  // Part r of `all` goes from rank r to the others.
  virtual void all_gather(std::byte* all, std::size_t bytes_each) = 0;
  virtual void barrier() = 0;
  // Ends all ranks. One alone calls it.
  [[noreturn]] virtual void abort(ExitCode code) = 0;
};

// This process alone.
std::shared_ptr<Ranks> one_rank();

// The largest of the ranks' numbers.
double largest(Ranks& ranks, double mine);
// To rank 0, by rank; nothing to the others.
std::vector<nlohmann::json> gather_json(Ranks& ranks, const nlohmann::json& mine);
// What rank 0 gives. All bits of numbers arrive.
nlohmann::json broadcast_json(Ranks& ranks, const nlohmann::json& of_first);

}  // namespace vcas
