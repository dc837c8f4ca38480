// Whatever the bytes, a metrics.jsonl is kBadData, or a log that goes on with what was read.
#include "core/metrics.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path path = fuzz_path("metrics");
  write_fuzz_file(path, data, size);
  fuzz_read(
      [] {
        const std::size_t lines = vcas::read_metrics(path).size();
        vcas::MetricsLog(path).write(vcas::MetricEvent::kTrain, 7);
        if (vcas::read_metrics(path).size() != lines + 1) std::abort();
        vcas::MetricsLog(path).truncate_after(3, 3);
        for (const nlohmann::json& line : vcas::read_metrics(path))
          if (line["step"] > 3) std::abort();
      },
      {vcas::ExitCode::kBadData});
  std::filesystem::remove(path);
  return 0;
}
