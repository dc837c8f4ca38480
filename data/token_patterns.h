// Texts of added tokens, to be found in other texts before these are split into words.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vcas {

class TokenPatterns {
 public:
  struct Pattern {
    std::string text;
    std::int32_t id;
  };

  // `text` is not empty.
  void add(std::string text, std::int32_t id);
  const std::vector<Pattern>& all() const { return all_; }  // longest first

  // Appends the ids of all in `text`, and of what lies between by `encode_between`(text).
  // The first that occurs goes before others, and the longest one there.
  template <class Encode>
  void split(std::string_view text, std::vector<std::int32_t>& ids, Encode encode_between) const {
    while (true) {
      std::size_t begin = 0;
      const Pattern* found = find(text, begin);
      encode_between(text.substr(0, begin));
      if (!found) return;
      ids.push_back(found->id);
      text.remove_prefix(begin + found->text.size());
    }
  }

 private:
  // Null, with `begin` at the end, where none occurs.
  const Pattern* find(std::string_view text, std::size_t& begin) const;

  std::vector<Pattern> all_;
  std::array<bool, 256> begins_{};  // by first byte
};

}  // namespace vcas
