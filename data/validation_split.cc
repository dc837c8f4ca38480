#include "data/validation_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace vcas {
namespace {

class SubsetDataset final : public ForwardingDataset {
 public:
  SubsetDataset(std::shared_ptr<const Dataset> whole, std::vector<std::int64_t> items)
      : ForwardingDataset(std::move(whole)), items_(std::move(items)) {}

  std::int64_t size() const override { return std::ssize(items_); }
  std::int32_t label(std::int64_t index) const override { return inner_->label(items_.at(index)); }
  std::int64_t rows(std::int64_t index) const override { return inner_->rows(items_.at(index)); }
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override {
    inner_->append(items_.at(index), draw, out);
  }

 private:
  std::vector<std::int64_t> items_;
};

struct Candidate {
  std::int32_t label;
  std::uint64_t draw;
  std::int64_t item;

  auto operator<=>(const Candidate&) const = default;  // NOLINT: clang-tidy 14 sees a 0 in it
};

// The part has `share` of the items, rounded. Both keep the order of the whole.
struct Division {
  std::vector<std::int64_t> part, rest;
};

Division divide(const Dataset& whole, double share, const PhiloxAddress& address) {
  std::vector<Candidate> candidates;
  for (std::int64_t item = 0; item < whole.size(); ++item) {
    std::uint32_t words[4];
    philox_draw(address, static_cast<std::uint64_t>(item), words);
    candidates.push_back({whole.label(item), std::uint64_t{words[0]} << 32 | words[1], item});
  }
  std::sort(candidates.begin(), candidates.end());
  // Evenly along the classes, one after the other: each gets its share.
  Division division;
  const auto taken = [&](std::int64_t count) {
    return std::llround(static_cast<double>(count) * share);
  };
  for (std::int64_t i = 0; i < std::ssize(candidates); ++i)
    (taken(i + 1) > taken(i) ? division.part : division.rest).push_back(candidates[i].item);
  std::sort(division.part.begin(), division.part.end());
  std::sort(division.rest.begin(), division.rest.end());
  return division;
}

}  // namespace

ValidationSplit split_off(std::unique_ptr<Dataset> whole, double share, std::uint64_t seed) {
  auto [validation, train] = divide(*whole, share, data_address(seed, DataSite::kValidation));
  if (train.empty() || validation.empty())
    throw Error(ExitCode::kBadConfig,
                fmt::format("data.validation_share is {}: of {} items {} are held out", share,
                            whole->size(), validation.size()),
                "items must be left on both sides");
  const std::shared_ptr<const Dataset> shared = std::move(whole);
  return {std::make_unique<SubsetDataset>(shared, std::move(train)),
          std::make_unique<SubsetDataset>(shared, std::move(validation))};
}

std::unique_ptr<Dataset> subset_of(std::unique_ptr<Dataset> whole, std::int64_t count) {
  if (count == 0 || count >= whole->size()) return whole;
  const double share = static_cast<double>(count) / static_cast<double>(whole->size());
  std::vector<std::int64_t> items = divide(*whole, share, data_address(0, DataSite::kSubset)).part;
  return std::make_unique<SubsetDataset>(std::move(whole), std::move(items));
}

}  // namespace vcas
