// JSON files that others may have written.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace vcas {

// Missing or unreadable: kNoInput. Throws kBadData, with the place, for what is not JSON.
// At most 64 levels of nesting: values are walked and copied by recursion.
nlohmann::json read_json(const std::filesystem::path& file);
nlohmann::ordered_json read_ordered_json(const std::filesystem::path& file);

}  // namespace vcas
