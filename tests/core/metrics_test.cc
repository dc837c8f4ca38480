#include "core/metrics.h"

#include <sys/resource.h>

#include <cmath>

#include "tests/core/temporary_folder.h"
#include "tests/support/check_error.h"

using namespace vcas;

namespace {

// "start0 train1 ..." for short comparisons.
std::string summary(const std::filesystem::path& path) {
  std::string text;
  for (const nlohmann::json& line : read_metrics(path)) {
    text += line["event"].get<std::string>() + line["step"].dump() + " ";
  }
  return text;
}

}  // namespace

TEST_CASE("metrics: one object a line, there as soon as it is written", "[metrics]") {
  TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  double now = 100;
  MetricsLog log(path, [&] { return now; });
  log.write(MetricEvent::kStart, 0);
  now = 101.2504;
  log.write(MetricEvent::kTrain, 10, {{"loss", 0.5}, {"lr", 2e-5}});
  log.write(MetricEvent::kWarning, 10, {{"text", "line\nbreak \xff"}});
  log.write(MetricEvent::kEnd, 11, {{"loss", std::nan("")}});
  CHECK(read_file(path) ==
        "{\"event\":\"start\",\"step\":0,\"time\":0.0}\n"
        "{\"event\":\"train\",\"step\":10,\"time\":1.25,\"loss\":0.5,\"lr\":2e-05}\n"
        "{\"event\":\"warning\",\"step\":10,\"time\":1.25,\"text\":\"line\\nbreak \uFFFD\"}\n"
        "{\"event\":\"end\",\"step\":11,\"time\":1.25,\"loss\":null}\n");
}

TEST_CASE("metrics: a resumed run writes the later steps again", "[metrics]") {
  TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  {
    MetricsLog log(path);
    log.write(MetricEvent::kStart, 0);
    log.write(MetricEvent::kTrain, 100);
    log.write(MetricEvent::kCheckpoint, 100);
    log.write(MetricEvent::kTrain, 120);
    log.write(MetricEvent::kWarning, 120);
  }
  atomic_write(path, read_file(path) + "{\"event\":\"train\",\"st");  // torn
  CHECK(summary(path) == "start0 train100 checkpoint100 train120 warning120 ");
  MetricsLog log(path);
  log.truncate_after(100, 100);
  CHECK(summary(path) == "start0 train100 checkpoint100 ");
  log.write(MetricEvent::kTrain, 110);
  CHECK(summary(path) == "start0 train100 checkpoint100 train110 ");
  log.write(MetricEvent::kWarning, 105);  // late: what follows a later step goes with it
  log.truncate_after(105, 105);
  CHECK(summary(path) == "start0 train100 checkpoint100 ");
  log.truncate_after(-1, -1);
  CHECK(read_file(path).empty());
}

TEST_CASE("metrics: an evaluation that a checkpoint does not know is written again", "[metrics]") {
  TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  MetricsLog log(path);
  log.write(MetricEvent::kTrain, 20);
  log.write(MetricEvent::kCheckpoint, 20);
  log.write(MetricEvent::kStart, 20);
  log.write(MetricEvent::kEval, 20);
  log.truncate_after(20, 20);
  CHECK(summary(path) == "train20 checkpoint20 start20 eval20 ");
  log.truncate_after(20, 10);
  CHECK(summary(path) == "train20 checkpoint20 start20 ");
  log.write(MetricEvent::kEnd, 20);
  log.truncate_after(20, 20);
  CHECK(summary(path) == "train20 checkpoint20 start20 ");
}

TEST_CASE("metrics: torn last lines go, other bad lines are errors", "[metrics]") {
  TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  const std::string good = "{\"event\":\"start\",\"step\":0}\n";
  for (const std::string& torn : {std::string("{"), std::string("{\n"), std::string(20, '\0'),
                                  std::string(20, '\0') + "\n"}) {
    atomic_write(path, good + torn);
    const auto is_torn = [&] { return read_metrics(path, [](const nlohmann::json&) {}); };
    CHECK(read_metrics(path).size() == 1);
    CHECK(is_torn());
    MetricsLog log(path);
    CHECK(read_file(path) == good);
    CHECK_FALSE(is_torn());
  }
  for (const char* bad : {"{\"event\":\"train\"}", "{\"event\":7,\"step\":0}", "{\"step\":0}"}) {
    atomic_write(path, good + bad + "\n" + good);
    check_whole_error([&] { MetricsLog{path}; }, ExitCode::kBadData,
                      path.string() + ":2: not a JSON object with a step and an event",
                      "was the file edited? remove this line, and keep the others");
  }
  check_error([&] { MetricsLog{folder.path() / "no" / "metrics.jsonl"}; }, ExitCode::kCannotCreate,
              "no/metrics.jsonl");
}

TEST_CASE("metrics: a long log is not held in memory", "[metrics]") {
  TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  const nlohmann::json numbers(100, 0.125);
  std::string text;
  for (int step = 1; step <= 20'000; ++step)
    text += nlohmann::json{{"event", "train"}, {"step", step}, {"numbers", numbers}}.dump() + "\n";
  atomic_write(path, text);
  const auto peak_kib = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const long before = peak_kib();
  MetricsLog(path).truncate_after(19'999, 19'999);
  std::int64_t steps = 0, last = 0;
  read_metrics(path, [&](const nlohmann::json& line) {
    ++steps;
    last = line["step"];
  });
  CHECK(steps == 19'999);
  CHECK(last == 19'999);
  // Sanitizers keep freed memory for a while.
  if (!VCAS_ASAN && !VCAS_TSAN) CHECK(peak_kib() - before < 10'000);
}
