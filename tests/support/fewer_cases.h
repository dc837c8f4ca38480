// Sanitizers are slow: they see less of a long test.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <type_traits>
#include <vector>

namespace vcas {

// All of them; under sanitizers the first, the fourth and so on.
template <class Cases>
auto cases_to_run(const Cases& cases) {
  constexpr std::size_t kStep = VCAS_ASAN || VCAS_TSAN ? 3 : 1;
  std::vector<std::decay_t<decltype(*std::begin(cases))>> out;
  std::size_t number = 0;
  for (const auto& each : cases)
    if (number++ % kStep == 0) out.push_back(each);
  return out;
}
template <class T>
std::vector<T> cases_to_run(std::initializer_list<T> cases) {
  return cases_to_run(std::vector<T>(cases));
}

// How often a loop repeats the same; under sanitizers an eighth of it.
constexpr int repetitions(int number) { return VCAS_ASAN || VCAS_TSAN ? number / 8 : number; }

}  // namespace vcas
