#include "data/validation_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace vcas {
namespace {

// Some items of a dataset that others use too.
class SubsetDataset final : public Dataset {
 public:
  SubsetDataset(std::shared_ptr<const Dataset> whole, std::vector<std::int64_t> items)
      : whole_(std::move(whole)), items_(std::move(items)) {}

  std::int64_t size() const override { return std::ssize(items_); }
  std::vector<std::int64_t> item_shape() const override { return whole_->item_shape(); }
  const std::vector<std::string>& class_names() const override { return whole_->class_names(); }
  std::int32_t label(std::int64_t index) const override { return whole_->label(items_.at(index)); }
  std::int64_t rows(std::int64_t index) const override { return whole_->rows(items_.at(index)); }
  void append(std::int64_t index, const ItemDraw& draw, Batch& out) const override {
    whole_->append(items_.at(index), draw, out);
  }
  const ImageTransformOptions* image_transform() const override {
    return whole_->image_transform();
  }
  const std::vector<SourceFile>& sources() const override { return whole_->sources(); }

 private:
  std::shared_ptr<const Dataset> whole_;
  std::vector<std::int64_t> items_;
};

struct Candidate {
  std::int32_t label;
  std::uint64_t draw;
  std::int64_t item;

  auto operator<=>(const Candidate&) const = default;
};

}  // namespace

ValidationSplit split_off(std::unique_ptr<Dataset> whole, double share, std::uint64_t seed) {
  const PhiloxAddress address = data_address(seed, DataSite::kValidation);
  std::vector<Candidate> candidates;
  for (std::int64_t item = 0; item < whole->size(); ++item) {
    std::uint32_t words[4];
    philox_draw(address, static_cast<std::uint64_t>(item), words);
    candidates.push_back({whole->label(item), std::uint64_t{words[0]} << 32 | words[1], item});
  }
  std::sort(candidates.begin(), candidates.end());
  // Evenly along the classes, one after the other: each gets its share.
  std::vector<std::int64_t> train, validation;
  const auto held_out = [&](std::int64_t count) {
    return std::llround(static_cast<double>(count) * share);
  };
  for (std::int64_t i = 0; i < std::ssize(candidates); ++i)
    (held_out(i + 1) > held_out(i) ? validation : train).push_back(candidates[i].item);
  if (train.empty() || validation.empty())
    throw Error(ExitCode::kBadConfig,
                fmt::format("data.validation_share is {}: of {} items {} are held out", share,
                            whole->size(), validation.size()),
                "items must be left on both sides");
  std::sort(train.begin(), train.end());
  std::sort(validation.begin(), validation.end());
  const std::shared_ptr<const Dataset> shared = std::move(whole);
  return {std::make_unique<SubsetDataset>(shared, std::move(train)),
          std::make_unique<SubsetDataset>(shared, std::move(validation))};
}

}  // namespace vcas
