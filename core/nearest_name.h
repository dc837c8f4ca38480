// Names in messages. "did you mean": the known name closest to a misspelt one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vcas {

// The candidate with the fewest edits: insert, delete, replace, swap of neighbours.
// Case is free. Empty: even that one needs more edits than a third of the letters.
// Names of more than 100 bytes have none.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// A hint that names it, or `otherwise`.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates,
                         const std::string& otherwise = "");

// "a, b", or of many the first, with their number: "a, b, c, d, ... (9)".
std::string some_of(const std::vector<std::string>& names);

}  // namespace vcas
