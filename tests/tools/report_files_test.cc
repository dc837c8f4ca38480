// `vcas report`: its tables, and its files for TensorBoard.
#include <cstdint>
#include <cstring>

#include "tests/support/catch.h"
#include "tests/tools/report_runs.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Bit by bit, and checked by the known answer of RFC 3720's polynomial.
std::uint32_t naive_crc32c(const std::string& bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  return ~crc;
}

std::uint32_t masked(const std::string& bytes) {
  const std::uint32_t crc = naive_crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

template <class T>
T at(const std::string& bytes, std::size_t place) {
  T value;
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}

// The messages of a file of TFRecord.
std::vector<std::string> records(const std::string& file) {
  std::vector<std::string> out;
  for (std::size_t place = 0; place < file.size();) {
    const auto length = at<std::uint64_t>(file, place);
    REQUIRE(place + 16 + length <= file.size());
    CHECK(at<std::uint32_t>(file, place + 8) == masked(file.substr(place, 8)));
    out.push_back(file.substr(place + 12, length));
    CHECK(at<std::uint32_t>(file, place + 12 + length) == masked(out.back()));
    place += 16 + length;
  }
  return out;
}

}  // namespace

TEST_CASE("report: a table has a row for each logged step") {
  const Runs runs;
  runs.add("a", RunText().text());
  runs.add("b, c", exact_run().text());
  runs.add("d\re", exact_run().text());
  succeeded(runs.report({"a", "b, c", "d\re", "--csv", "out/steps.csv"}));
  const std::string csv = content(runs.path() / "out/steps.csv");
  CHECK(std::ranges::count(csv, '\n') == 1 + 40 + 40 + 40);
  CHECK(
      csv.starts_with("run,step,time,accuracy,flops_saved,formula_flops_saved,gradient_norm,"
                      "learning_rate,loss,seconds.backward,seconds.forward,"));
  check_contains(csv, {"\na,1,2.0,0.5,0.3,0.3,1.0,0.1,1.99,1.0,1,0,0,,2.0\n",
                       "\n\"b, c\",40,100.0,", "\n\"d\re\",40,100.0,"});
}

TEST_CASE("report: a list that some steps lack has a column for each of its numbers") {
  const Runs runs;
  const auto step = [](int number, const json& interval) {
    return json({{"event", "train"}, {"step", number}, {"interval", interval}}).dump() + "\n";
  };
  runs.add("a", step(1, nullptr) + step(2, {0.5, 0.25}));
  succeeded(runs.report({"a", "--csv", "steps.csv"}));
  CHECK(content(runs.path() / "steps.csv") ==
        "run,step,time,interval.0,interval.1\na,1,,,\na,2,,0.5,0.25\n");
}

TEST_CASE("report: TensorBoard's files hold the scalars") {
  REQUIRE(naive_crc32c("123456789") == 0xe3069283u);
  REQUIRE(masked("123456789") == 0xc78ab0e5u);
  const Runs runs;
  runs.add("a", RunText().text());
  succeeded(runs.report({"a", "--tensorboard", "tb"}));
  // 2026-11-23T12:00:00Z
  const fs::path file = runs.path() / "tb/a/events.out.tfevents.1795435200.vcas";
  const std::vector<std::string> messages = records(content(file));
  REQUIRE(messages.size() == 1 + 40 + 4 + 4);
  CHECK(messages[0].substr(9) ==
        "\x1a\x0d"
        "brain.Event:2");
  CHECK(at<double>(messages[0], 1) == 1795435200.0);
  const std::string& step = messages[3];  // of step 3
  CHECK(at<double>(step, 1) == 1795435200.0 + 6);
  CHECK(step[9] == 0x10);
  CHECK(step[10] == 3);
  CHECK(step[11] == 0x2a);
  // A value: field 1 of the summary, its tag, its number.
  const std::string loss =
      "\x0a\x11\x0a\x0a"
      "train/loss\x15";
  REQUIRE(contains(step, loss));
  CHECK(at<float>(step, step.find(loss) + loss.size()) == 1.97f);
  CHECK_FALSE(contains(step, "saved/time_saved"));  // null
  for (const char* tag :
       {"train/accuracy", "train/learning_rate", "train/gradient_norm", "saved/flops_saved",
        "eval/accuracy", "eval/loss", "keep/act_ratio", "keep/weight_ratio"})
    CHECK(contains(content(file), tag));
}

TEST_CASE("report: TensorBoard has one file of ours for a run") {
  const Runs runs;
  const fs::path board = runs.path() / "tb/a";
  const auto report = [&](const char* date) {
    RunText text;
    text.start["date"] = date;
    runs.add("a", text.text());
    succeeded(runs.report({"a", "--tensorboard", "tb"}));
  };
  report("2026-11-23T12:00:00Z");
  write_text(board / "events.out.tfevents.1795435200.host", "of another program");
  report("2026-11-23T13:00:00Z");  // another run in its place
  CHECK_FALSE(fs::exists(board / "events.out.tfevents.1795435200.vcas"));
  CHECK(records(content(board / "events.out.tfevents.1795438800.vcas")).size() == 1 + 40 + 4 + 4);
  CHECK(fs::exists(board / "events.out.tfevents.1795435200.host"));
}

TEST_CASE("report: TensorBoard's times of a resumed run count from its last start") {
  const Runs runs;
  RunText begun, resumed;
  begun.steps = resumed.steps = 10;
  begun.ends = false;
  resumed.start["date"] = "2026-11-23T13:00:00Z";
  runs.add("a", begun.text() + resumed.text());
  succeeded(runs.report({"a", "--tensorboard", "tb"}));
  const std::vector<std::string> messages =
      records(content(runs.path() / "tb/a/events.out.tfevents.1795435200.vcas"));
  REQUIRE(messages.size() == 1 + 20 + 2 + 2);
  CHECK(at<double>(messages[10], 1) == 1795435200.0 + 20);
  CHECK(at<double>(messages[11], 1) == 1795435200.0 + 3600 + 2);
  CHECK(at<double>(messages[21], 1) == 1795435200.0 + 1);
  CHECK(at<double>(messages[22], 1) == 1795435200.0 + 3600 + 1);
}
