#include "data/token_patterns.h"

#include <algorithm>
#include <utility>

namespace vcas {

void TokenPatterns::add(std::string text, std::int32_t id) {
  begins_[static_cast<unsigned char>(text.front())] = true;
  const auto shorter = std::ranges::find_if(
      all_, [&](const Pattern& other) { return other.text.size() < text.size(); });
  all_.insert(shorter, {std::move(text), id});
}

const TokenPatterns::Pattern* TokenPatterns::find(std::string_view text, std::size_t& begin) const {
  for (begin = 0; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    for (const Pattern& pattern : all_)
      if (text.substr(begin).starts_with(pattern.text)) return &pattern;
  }
  return nullptr;
}

}  // namespace vcas
