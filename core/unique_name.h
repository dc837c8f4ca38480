// Names of variables that macros define.
#pragma once

#define VCAS_JOIN_EXPANDED(a, b) a##b
#define VCAS_JOIN(a, b) VCAS_JOIN_EXPANDED(a, b)
// No other place of the source file has this name.
#define VCAS_UNIQUE_NAME(prefix) VCAS_JOIN(prefix, __COUNTER__)
