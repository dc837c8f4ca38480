#include "core/ranks.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace vcas {
namespace {

class OneRank final : public Ranks {
 public:
  Place place() const override { return {}; }
  void gather_all(std::span<const double> mine, std::span<double> all) override {
    std::ranges::copy(mine, all.begin());
  }
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) override {
    return {{mine.begin(), mine.end()}};
  }
  void broadcast(std::vector<std::byte>&) override {}
  void all_to_all(std::byte* to, const std::byte* from, std::size_t bytes_each) override {
    std::memcpy(to, from, bytes_each);
  }
  void all_gather(std::byte*, std::size_t) override {}
  void barrier() override {}
  [[noreturn]] void abort(ExitCode code) override { std::_Exit(static_cast<int>(code)); }
};

std::vector<std::byte> to_bytes(const nlohmann::json& json) {
  const std::vector<std::uint8_t> packed = nlohmann::json::to_cbor(json);
  const auto* first = reinterpret_cast<const std::byte*>(packed.data());
  return {first, first + packed.size()};
}

nlohmann::json from_bytes(const std::vector<std::byte>& bytes) {
  const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return nlohmann::json::from_cbor(first, first + bytes.size());
}

}  // namespace

std::shared_ptr<Ranks> one_rank() { return std::make_shared<OneRank>(); }

double largest(Ranks& ranks, double mine) { return std::ranges::max(ranks.gather_all({&mine, 1})); }

std::vector<nlohmann::json> gather_json(Ranks& ranks, const nlohmann::json& mine) {
  std::vector<nlohmann::json> all;
  for (const std::vector<std::byte>& bytes : ranks.gather(to_bytes(mine)))
    all.push_back(from_bytes(bytes));
  return all;
}

nlohmann::json broadcast_json(Ranks& ranks, const nlohmann::json& of_first) {
  std::vector<std::byte> bytes;
  if (ranks.is_first()) bytes = to_bytes(of_first);
  ranks.broadcast(bytes);
  return from_bytes(bytes);
}

}  // namespace vcas
