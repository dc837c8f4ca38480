// `vcas replay`: which operation made the number that ended a run?
#pragma once

#include <cstdint>
#include <filesystem>

namespace vcas {

struct ReplayRequest {
  std::filesystem::path run;
  std::int64_t step = 0;  // 0: that of the run's newest crash file
};

// Trains again up to the step, from the last checkpoint before it.
// Looks at each operation of that step and of an evaluation. Writes nothing. Prints what it does.
// Throws kDiverged with the first operation that makes NaN or infinity.
// Throws kNoInput where nothing says which step, kUsage for a step that the run does not have.
void replay(const ReplayRequest& request);

}  // namespace vcas
