#include "core/hardware.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <thread>

#include "core/error.h"
#include "core/parse_number.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

template <class T>
void lower(std::optional<T>& limit, T value) {
  if (!limit || value < *limit) limit = value;
}

// The limits that one control group's folder sets; "max" and -1 mean none.
void read_group(const fs::path& folder, CgroupLimits& limits) {
  double quota = 0, period = 0;
  if (std::ifstream(folder / "cpu.max") >> quota >> period && quota > 0 && period > 0)
    lower(limits.cpus, quota / period);
  if (std::ifstream(folder / "cpu.cfs_quota_us") >> quota &&
      std::ifstream(folder / "cpu.cfs_period_us") >> period && quota > 0 && period > 0) {
    lower(limits.cpus, quota / period);
  }
  std::int64_t bytes = 0;
  for (const char* name : {"memory.max", "memory.limit_in_bytes"})
    if (std::ifstream(folder / name) >> bytes && bytes > 0) lower(limits.memory_bytes, bytes);
}

std::optional<int> thread_count(std::string_view text) {
  const auto value = parse_number<int>(text);
  return value >= 1 && value <= kMostThreads ? value : std::nullopt;
}

int allowed_cpus() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

CgroupLimits cgroup_limits(const fs::path& root, const fs::path& membership) {
  CgroupLimits limits;
  std::ifstream groups(membership);
  for (std::string line; std::getline(groups, line);) {  // id:controllers:/path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    // Version 2 has no controllers here and one tree; version 1 has a tree for each controller set.
    const fs::path tree = root / line.substr(first + 1, second - first - 1);
    for (fs::path group = fs::path(line.substr(second + 1)).relative_path();;
         group = group.parent_path()) {
      read_group(tree / group, limits);
      if (group.empty()) break;
    }
  }
  return limits;
}

int usable_threads(int processes) {
  if (const char* text = std::getenv("VCAS_NUM_THREADS"); text && *text) {
    if (const auto threads = thread_count(text)) return *threads;
    throw Error(ExitCode::kBadConfig,
                fmt::format("VCAS_NUM_THREADS=\"{}\" is not a whole number from 1 to {}", text,
                            kMostThreads));
  }
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    // A list has one number for each level of nesting; what OpenMP ignores is ignored here too.
    const std::string_view list = text;
    if (const auto threads = thread_count(list.substr(0, list.find(',')))) return *threads;
  }
  const int own = allowed_cpus();
  int cpus = std::max(own, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  if (const std::optional<double> limit = cgroup_limits().cpus)
    cpus = std::clamp(static_cast<int>(std::ceil(*limit)), 1, cpus);
  return std::clamp(cpus / processes, 1, own);
}

std::int64_t total_memory_bytes() {
  const std::int64_t physical = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE);
  return std::min(physical, cgroup_limits().memory_bytes.value_or(physical));
}

std::int64_t available_memory_bytes() {
  const std::int64_t allowed = total_memory_bytes() - resident_bytes();
  std::ifstream info("/proc/meminfo");
  for (std::string name; info >> name; info.ignore(1 << 10, '\n')) {
    std::int64_t kib = 0;
    if (name == "MemAvailable:" && info >> kib) return std::min(allowed, kib * 1024);
  }
  return allowed;
}

std::int64_t free_disk_bytes(const fs::path& folder) {
  std::error_code error;
  fs::path existing = fs::absolute(folder);
  while (!fs::exists(existing, error) && existing.has_relative_path())
    existing = existing.parent_path();
  const fs::space_info space = fs::space(existing, error);
  if (error)
    throw Error(ExitCode::kIoError, fmt::format("{}: cannot tell the free space: {}",
                                                existing.string(), error.message()));
  return static_cast<std::int64_t>(space.available);
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name"))
      return line.substr(std::min(line.find(": ") + 2, line.size()));
  utsname name{};  // other processors than x86 have no model name there
  ::uname(&name);
  return name.machine;
}

std::int64_t resident_bytes() {
  std::int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

std::int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace vcas
