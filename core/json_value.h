// What values of JSON hold. nlohmann::json itself turns 1.5, true and 2^40 into an int without a
// word.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace vcas {

// Whether value.get<T>() has what `value` says. T is a number, a bool, a text or Json, or a vector
// or a map of these by texts.
template <class T, class Json>
bool json_holds(const Json& value) {
  if constexpr (std::is_same_v<T, Json>) {
    return true;
  } else if constexpr (std::is_same_v<T, bool>) {
    return value.is_boolean();
  } else if constexpr (std::is_integral_v<T>) {
    if (value.is_number_unsigned()) return std::in_range<T>(value.template get<std::uint64_t>());
    return value.is_number_integer() && std::in_range<T>(value.template get<std::int64_t>());
  } else if constexpr (std::is_floating_point_v<T>) {
    return value.is_number() &&
           std::abs(value.template get<double>()) <= std::numeric_limits<T>::max();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value.is_string();
  } else if constexpr (requires { typename T::mapped_type; }) {
    return value.is_object() &&
           std::ranges::all_of(value, json_holds<typename T::mapped_type, Json>);
  } else {
    static_assert(std::is_same_v<T, std::vector<typename T::value_type>>);
    return value.is_array() && std::ranges::all_of(value, json_holds<typename T::value_type, Json>);
  }
}

}  // namespace vcas
