// How programs write numbers and tables for people.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/decorators/count_ops.h"
#include "optim/time_saved.h"

namespace vcas {

std::string format_bytes(double bytes);                           // "4.1 GiB"
std::string format_change(double saved);                          // .384 -> "-38.4%"; or "unknown"
std::string format_share(double saved);                           // .384 -> "0.384"; or "unknown"
std::string format_change(const std::optional<Estimate>& saved);  // "-14.4% ±1.2", "not known yet"

// Columns as wide as they need to be; the first one to the left, the others to the right.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

// A field of CSV: in quotes where it needs them (RFC 4180).
std::string csv_field(const std::string& text);

// Seconds per layer and phase of the calls that were timed.
std::string timing_table(CountOps& ops);

}  // namespace vcas
