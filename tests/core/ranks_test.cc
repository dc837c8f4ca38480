// What ranks do together: threads stand for processes.
#include "core/ranks.h"

#include <limits>

#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace vcas;

namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

// What each rank found, by rank.
template <class T, class Body>
std::vector<T> on_each(int size, const Body& body) {
  std::vector<T> found(static_cast<std::size_t>(size));
  const auto store = [&](std::shared_ptr<Ranks> ranks) {
    found[static_cast<std::size_t>(ranks->place().rank)] = body(*ranks);
  };
  if (size == 1)
    store(one_rank());
  else
    on_thread_ranks(size, store);
  return found;
}

}  // namespace

TEST_CASE("ranks gather the numbers of all by rank", "[ranks]") {
  const int size = GENERATE(1, 2, 3);
  std::vector<double> want;
  for (int rank = 0; rank < size; ++rank) want.insert(want.end(), {rank + 0.5, -rank * 1.0});
  for (const auto& found : on_each<std::vector<double>>(size, [](Ranks& ranks) {
         const double mine[] = {ranks.place().rank + 0.5, -ranks.place().rank * 1.0};
         std::vector<double> all(2 * static_cast<std::size_t>(ranks.size()));
         ranks.gather_all(mine, all);
         return all;
       }))
    CHECK(found == want);
  for (const double found : on_each<double>(
           size, [](Ranks& ranks) { return largest(ranks, ranks.place().rank == 0 ? 7 : -1); }))
    CHECK(found == 7);
}

TEST_CASE("rank 0 gathers bytes of any sizes, and all get what it sends", "[ranks]") {
  const int size = GENERATE(1, 2, 3);
  using All = std::vector<std::vector<std::byte>>;
  const auto gathered = on_each<All>(size, [](Ranks& ranks) {  // nothing, "1", "22"
    const int rank = ranks.place().rank;
    return ranks.gather(bytes_of(std::string(rank, static_cast<char>('0' + rank))));
  });
  REQUIRE(gathered[0].size() == static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    CHECK(gathered[0][rank] == bytes_of(std::string(rank, static_cast<char>('0' + rank))));
    if (rank > 0) CHECK(gathered[rank].empty());
  }
  for (const char* text : {"", "of rank 0"})
    for (const auto& found : on_each<std::vector<std::byte>>(size, [&](Ranks& ranks) {
           std::vector<std::byte> bytes = bytes_of(ranks.is_first() ? text : "another");
           ranks.broadcast(bytes);
           return bytes;
         }))
      CHECK(found == bytes_of(text));
}

TEST_CASE("ranks exchange parts", "[ranks]") {
  const int size = GENERATE(1, 2, 3);
  const auto parts = on_each<std::vector<std::byte>>(size, [&](Ranks& ranks) {
    const char own = static_cast<char>('a' + ranks.place().rank);
    std::string from;  // part r is own, then r
    for (int to = 0; to < size; ++to) from += {own, static_cast<char>('0' + to)};
    std::vector<std::byte> got(from.size());
    ranks.all_to_all(got.data(), bytes_of(from).data(), 2);
    return got;
  });
  const auto all = on_each<std::vector<std::byte>>(size, [&](Ranks& ranks) {
    std::vector<std::byte> slab = bytes_of(std::string(3 * size, '-'));
    const int rank = ranks.place().rank;
    std::fill_n(slab.begin() + 3 * rank, 3, static_cast<std::byte>('a' + rank));
    ranks.all_gather(slab.data(), 3);
    return slab;
  });
  for (int rank = 0; rank < size; ++rank) {
    std::string got, slab;
    for (int from = 0; from < size; ++from) {
      got += {static_cast<char>('a' + from), static_cast<char>('0' + rank)};
      slab += std::string(3, static_cast<char>('a' + from));
    }
    CHECK(parts[rank] == bytes_of(got));
    CHECK(all[rank] == bytes_of(slab));
  }
}

TEST_CASE("numbers arrive bit for bit as JSON", "[ranks]") {
  const double numbers[] = {0.1, -0.0, 1e-310, 3, std::numeric_limits<double>::infinity()};
  for (const auto& found : on_each<std::vector<double>>(2, [&](Ranks& ranks) {
         const nlohmann::json of_first = ranks.is_first() ? nlohmann::json(numbers) : nullptr;
         return broadcast_json(ranks, of_first).get<std::vector<double>>();
       })) {
    REQUIRE(found.size() == std::size(numbers));
    CHECK(std::memcmp(found.data(), numbers, sizeof numbers) == 0);
  }
  const auto gathered = on_each<std::vector<nlohmann::json>>(2, [](Ranks& ranks) {
    return gather_json(ranks, {{"rank", ranks.place().rank}});
  });
  CHECK(gathered[0] == std::vector<nlohmann::json>{{{"rank", 0}}, {{"rank", 1}}});
  CHECK(gathered[1].empty());
}
