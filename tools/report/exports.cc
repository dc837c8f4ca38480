#include "tools/report/exports.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <set>

#include "tools/report_text.h"

namespace vcas {
namespace {

using nlohmann::json;

constexpr std::string_view kNameBegin = "events.out.tfevents.", kNameEnd = ".vcas";

std::string cell(const json& value) {
  if (value.is_null()) return "";
  return csv_field(value.is_string() ? value.get<std::string>() : value.dump());
}

template <class Unsigned>
std::string little_endian(Unsigned value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i) & 255);
  return bytes;
}

// The wire format of protocol buffers: a field's number and type, then its value.
std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes += static_cast<char>((value & 127) | 128);
  return bytes + static_cast<char>(value);
}

std::string field_double(std::uint64_t number, double value) {
  return varint(number << 3 | 1) + little_endian(std::bit_cast<std::uint64_t>(value));
}

std::string field_float(std::uint64_t number, double value) {
  return varint(number << 3 | 5) +
         little_endian(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
}

std::string field_integer(std::uint64_t number, std::int64_t value) {
  return varint(number << 3) + varint(value);
}

std::string field_bytes(std::uint64_t number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}

// CRC-32C (Castagnoli), of RFC 3720.
std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> made{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) made[i] = made[i] >> 1 ^ (made[i] & 1 ? 0x82f63b78u : 0u);
    }
    return made;
  }();
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(c)) & 255];
  return ~crc;
}

std::string masked_crc(const std::string& bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return little_endian(std::rotr(crc, 15) + 0xa282ead8u);
}

std::string record(const std::string& bytes) {
  const std::string length = little_endian(static_cast<std::uint64_t>(bytes.size()));
  return length + masked_crc(length) + bytes + masked_crc(bytes);
}

double seconds_since_1970(const json& event) {
  std::tm time = {};
  const bool is_date = ::strptime(text(event, "date").c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
  return is_date ? static_cast<double>(::timegm(&time)) : 0;
}

using Scalars = std::vector<std::pair<std::string, double>>;

Scalars train_scalars(const json& event) {
  Scalars scalars;
  for (const char* key : {"loss", "accuracy", "learning_rate", "gradient_norm"})
    scalars.emplace_back(fmt::format("train/{}", key), number(event, key));
  for (const char* key : {"flops_saved", "time_saved"})
    scalars.emplace_back(fmt::format("saved/{}", key), number(event, key));
  return scalars;
}

Scalars eval_scalars(const json& event, const std::vector<std::string>& measures) {
  Scalars scalars;
  for (const std::string& measure : measures)
    scalars.emplace_back("eval/" + measure, number(event, measure));
  return scalars;
}

Scalars probe_scalars(const json& event) {
  Scalars scalars;
  for (const char* key : {"act_ratio", "weight_ratio"})
    scalars.emplace_back(fmt::format("keep/{}", key), mean(numbers(event, key)));
  return scalars;
}

// Field numbers of Event: wall_time 1, step 2, file_version 3, summary 5; of Summary: value 1;
// of its Value: tag 1, simple_value 2.
std::string event_record(const json& event, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    if (std::isfinite(value))
      summary += field_bytes(1, field_bytes(1, tag) + field_float(2, value));
  const double time = number(event, "time");
  return record(field_double(1, seconds_since_1970(event) + (std::isfinite(time) ? time : 0)) +
                field_integer(2, event.at("step").get<std::int64_t>()) + field_bytes(5, summary));
}

}  // namespace

std::string metrics_csv(const std::vector<RunRecord>& runs) {
  std::set<std::string> keys;
  for (const RunRecord& run : runs)
    for (const json& event : run.train) {
      const json flat = event.flatten();
      for (const auto& [key, value] : flat.items()) keys.insert(key);
    }
  for (const char* key : {"/event", "/step", "/time", "/date"}) keys.erase(key);
  // A list that some events have is null in others.
  std::erase_if(keys, [&](const std::string& key) { return keys.contains(key + "/0"); });
  std::string out = kCsvBegin;
  for (std::string key : keys) {
    std::ranges::replace(key, '/', '.');
    out += fmt::format(",{}", csv_field(key.substr(1)));
  }
  for (const RunRecord& run : runs)
    for (const json& event : run.train) {
      const json flat = event.flatten();
      out += fmt::format("\n{},{},{}", csv_field(run.name), cell(member(event, "step")),
                         cell(member(event, "time")));
      for (const std::string& key : keys) out += fmt::format(",{}", cell(member(flat, key)));
    }
  return out + "\n";
}

std::string tensorboard_events(const RunRecord& run) {
  const std::vector<std::string> measures = measures_of({run});
  std::string out =
      record(field_double(1, seconds_since_1970(run.start)) + field_bytes(3, "brain.Event:2"));
  for (const json& event : run.train) out += event_record(event, train_scalars(event));
  for (const json& event : run.eval) out += event_record(event, eval_scalars(event, measures));
  for (const json& event : run.variance) out += event_record(event, probe_scalars(event));
  return out;
}

std::string tensorboard_name(const RunRecord& run) {
  return fmt::format("{}{:.0f}{}", kNameBegin, seconds_since_1970(run.start), kNameEnd);
}

bool is_tensorboard_name(std::string_view name) {
  return name.starts_with(kNameBegin) && name.ends_with(kNameEnd);
}

}  // namespace vcas
