// `vcas compare`: several runs in one process, stepped in turns, so that what else the machine does
// slows all alike. Seeds come one after the other.
#pragma once

#include "tools/compare_request.h"

namespace vcas {

// Writes compare.json, compare.csv and compare.md into the folder of the comparison.
// Prints the table, or JSON, to stdout.
// Throws kStopped after all runs of the seed have saved when a signal asked for it.
// Throws kDiverged at the end where a run did. The numbers are of the others.
void compare(const CompareRequest& request);

}  // namespace vcas
