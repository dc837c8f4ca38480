#include "core/hardware.h"

#include <sched.h>

#include <fstream>
#include <vector>

#include "core/error.h"
#include "tests/core/environment.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/check_error.h"

using namespace vcas;
namespace fs = std::filesystem;

namespace {

void put(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("hardware: the thread count follows the environment", "[hardware]") {
  const EnvironmentVariable own("VCAS_NUM_THREADS", nullptr);
  {
    const EnvironmentVariable openmp("OMP_NUM_THREADS", "5,2");
    CHECK(usable_threads() == 5);
    const EnvironmentVariable empty("VCAS_NUM_THREADS", "");
    CHECK(usable_threads() == 5);
    const EnvironmentVariable stronger("VCAS_NUM_THREADS", "3");
    CHECK(usable_threads() == 3);
  }
  for (const char* bad : {" ", "0", "-1", "two", "2x", "1025", "99999999999"}) {
    const EnvironmentVariable broken("VCAS_NUM_THREADS", bad);
    CHECK(error_text([] { usable_threads(); }, ExitCode::kBadConfig) ==
          "VCAS_NUM_THREADS=\"" + std::string(bad) + "\" is not a whole number from 1 to 1024");
  }
  const EnvironmentVariable ignored("OMP_NUM_THREADS", "100000");
  cpu_set_t before, one;
  REQUIRE(::sched_getaffinity(0, sizeof(before), &before) == 0);
  CHECK(usable_threads() >= 1);
  CHECK(usable_threads() <= CPU_COUNT(&before));
  CHECK(usable_threads(1 << 20) == 1);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  REQUIRE(::sched_setaffinity(0, sizeof(one), &one) == 0);
  const int pinned = usable_threads();
  ::sched_setaffinity(0, sizeof(before), &before);
  CHECK(pinned == 1);
}

TEST_CASE("hardware: the smallest limit of the control groups counts", "[hardware]") {
  TemporaryFolder folder;
  const fs::path root = folder.path() / "cgroup", membership = folder.path() / "self";

  put(membership, "0::/service/job\n");
  put(root / "service/job/cpu.max", "max 100000\n");
  put(root / "service/cpu.max", "150000 100000\n");
  put(root / "service/job/memory.max", "3000\n");
  put(root / "service/memory.max", "max\n");
  put(root / "memory.max", "5000\n");
  CHECK(cgroup_limits(root, membership).cpus == 1.5);
  CHECK(cgroup_limits(root, membership).memory_bytes == 3000);

  put(membership, "4:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n1:name=systemd:/\n0::/\n");
  fs::remove_all(root);
  put(root / "cpu,cpuacct/cpu.cfs_quota_us", "50000\n");  // seen from inside a container
  put(root / "cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  put(root / "memory/docker/x/memory.limit_in_bytes", "7000\n");
  CHECK(cgroup_limits(root, membership).cpus == 0.5);
  CHECK(cgroup_limits(root, membership).memory_bytes == 7000);
  put(root / "cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  CHECK_FALSE(cgroup_limits(root, membership).cpus);

  CHECK_FALSE(cgroup_limits(root, folder.path() / "missing").memory_bytes);
}

TEST_CASE("hardware: memory, disk and processor are known", "[hardware]") {
  TemporaryFolder folder;
  CHECK(total_memory_bytes() > 1 << 20);
  CHECK(free_disk_bytes(folder.path() / "not" / "yet") > 0);
  CHECK(free_disk_bytes("relative") > 0);
  CHECK_FALSE(cpu_name().empty());
  const std::int64_t before = resident_bytes();
  std::vector<char> block(64 << 20, 1);
  CHECK(resident_bytes() - before > 48 << 20);
  CHECK(available_memory_bytes() > 1 << 20);
  CHECK(available_memory_bytes() <= total_memory_bytes() - resident_bytes());
  CHECK(peak_resident_bytes() > 64 << 20);
  CHECK(peak_resident_bytes() < total_memory_bytes());
  CHECK(block.back() == 1);
}
