// Tokenised texts kept between runs: tokenising again what has not changed is lost time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace vcas {

struct TokenContent {
  std::vector<std::int32_t> tokens;         // [R] of all items, special tokens included
  std::vector<std::int64_t> offsets;        // [N + 1] rows of each item
  std::vector<std::int32_t> first_lengths;  // [N] rows of the first text, with [CLS] and its [SEP];
                                            // empty: there is no second text anywhere
  std::vector<std::int32_t> labels;         // [N], or empty where there are none
  std::vector<float> targets;               // [N], or empty where there are none
  std::vector<std::string> class_names;
  std::int64_t skipped_rows = 0;
  std::int64_t cut_rows = 0;  // items that lost tokens
};

// VCAS_CACHE_DIR, else XDG_CACHE_HOME/vcas, else HOME/.cache/vcas; none where all are unset.
std::optional<std::filesystem::path> cache_folder();

// What `make` gives, from the cache where it is known by `key`, a ContentHash of all it depends on.
// A damaged file is made anew. A cache that cannot be written is done without.
TokenContent cached_tokens(std::uint64_t key, const std::function<TokenContent()>& make);

}  // namespace vcas
