#include "tools/step_bench.h"
namespace vcas {
void bench_steps(const LoadedConfig&, const BenchRequest&) {}
}  // namespace vcas
