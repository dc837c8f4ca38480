// A batch of random text in items of different lengths, with labels of every kind.
#pragma once

#include "core/philox.h"
#include "data/batch.h"

namespace vcas {

// Items of 5, 1, 7, 3, 5, ... tokens; every third token of each is masked, none of the item of 1.
inline Batch random_text(std::int64_t items, std::int64_t vocabulary, std::int64_t classes,
                         std::uint64_t seed = 1) {
  constexpr std::int64_t kLengths[] = {5, 1, 7, 3};
  const PhiloxAddress address = philox_address({.seed = seed, .stream = Stream::kData});
  std::uint64_t drawn = 0;
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int32_t>(philox_uniform(address, drawn++) * static_cast<float>(limit));
  };
  Batch batch;
  batch.items = items;
  batch.offsets = batch.masked_offsets = {0};
  for (std::int64_t n = 0; n < items; ++n) {
    const std::int64_t length = kLengths[n % 4];
    for (std::int64_t t = 0; t < length; ++t) {
      if (t % 3 == 2) {
        batch.masked_rows.push_back(static_cast<std::int32_t>(batch.tokens.size()));
        batch.masked_labels.push_back(below(vocabulary));
      }
      batch.tokens.push_back(below(vocabulary));
      batch.token_types.push_back(2 * t > length);
    }
    batch.offsets.push_back(std::ssize(batch.tokens));
    batch.masked_offsets.push_back(std::ssize(batch.masked_rows));
    batch.labels.push_back(below(classes));
    batch.targets.push_back(0.5f * static_cast<float>(n) - 1);
    batch.ids.push_back(n);
  }
  return batch;
}

}  // namespace vcas
