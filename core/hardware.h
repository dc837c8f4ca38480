// What this process may use of the machine, and what it uses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace vcas {

// Limits of a container or service: the smallest along the path of control groups (v2 or v1).
struct CgroupLimits {
  std::optional<double> cpus;
  std::optional<std::int64_t> memory_bytes;
};
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/sys/fs/cgroup",
                           const std::filesystem::path& membership = "/proc/self/cgroup");

// More threads than any machine has use up the address space.
constexpr int kMostThreads = 1024;

// VCAS_NUM_THREADS, then OMP_NUM_THREADS, then the CPUs that affinity and control group allow.
// Each of `processes` on this machine has its share of those.
int usable_threads(int processes = 1);

std::int64_t total_memory_bytes();  // of the machine or the control group, the smaller one
// What this process may still take of it without anybody's pages going to disk.
std::int64_t available_memory_bytes();
std::int64_t free_disk_bytes(const std::filesystem::path& folder);  // may not exist yet
std::string cpu_name();
std::int64_t resident_bytes();  // now
std::int64_t peak_resident_bytes();

}  // namespace vcas
