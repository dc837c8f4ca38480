// Random mutations of a small corpus: a fuzz target as an ordinary test.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/core/environment.h"
#include "tests/support/catch.h"

// Runs `target` on every seed, then on `count` mutations; `tokens` are bytes that the format uses.
// VCAS_FUZZ_COUNT and VCAS_FUZZ_SEED replace the count and the seed, which is 1.
template <class Target>
void fuzz(Target target, const std::vector<std::string>& corpus, const std::string& tokens,
          long count) {
  const auto run = [&](const std::string& input) {
    target(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  };
  for (const std::string& first : corpus) run(first);
  const long seed = environment_number("VCAS_FUZZ_SEED", 1),
             executions = environment_number("VCAS_FUZZ_COUNT", count);
  std::mt19937 random(static_cast<unsigned>(seed));
  for (long i = 0; i < executions; ++i) {
    INFO("execution " << i << " of seed " << seed);
    std::string input = corpus[random() % corpus.size()];
    for (unsigned change = 0; change <= random() % 4 && !input.empty(); ++change) {
      const std::size_t at = random() % input.size();
      switch (random() % 4) {
        case 0:
          input[at] = static_cast<char>(random());
          break;
        case 1:
          input[at] = tokens[random() % tokens.size()];
          break;
        case 2:
          input.erase(at, 1 + random() % 8);
          break;
        default:
          input.insert(at, input.substr(random() % input.size(), random() % 16));
      }
    }
    run(input);
  }
  SUCCEED();
}
