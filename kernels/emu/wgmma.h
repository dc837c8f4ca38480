// Matrix products of a warpgroup (wgmma) on the host.
// They run on while its threads do other things.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace vcas::emu {

// What one lane gives to wgmma, m64nNk16. Its fragments of a are as those for mma.
// b lies in shared memory. The sums are four for each eight columns.
struct WgmmaLane {
  const std::uint32_t* a;  // 4
  std::uint64_t b;         // a matrix descriptor
  bool k_major;            // b, else MN-major
  float* c;                // 4 blocks
  int blocks;
};

// The dynamic shared memory of a block. Its addresses begin behind what the system keeps.
struct SharedWindow {
  static constexpr std::uint32_t kFirst = 1024;
  const std::byte* data;
  std::size_t bytes;
};

// The products that one warp has started and not waited for: its 16 rows of the warpgroup's.
// A tensor core reads factors at any time until the wait.
// So they are read at the start and again at the wait, and must be the same. Sums read as NaN.
class AsyncProducts {
 public:
  // `lanes`: the WgmmaLane of each of the 32 lanes. All products in flight add to the same sums.
  void start(const void* const* lanes, const SharedWindow& shared);
  void commit() { ++group_; }
  // Waits for all but the last `groups` of the committed groups.
  void wait(unsigned groups, const SharedWindow& shared);
  bool in_flight() const { return !products_.empty(); }
  // What was wrong. Null: nothing.
  const char* fault() const { return fault_; }

 private:
  static constexpr std::size_t kLanes = 32;
  struct Product {
    std::array<WgmmaLane, kLanes> lane;
    std::vector<std::uint16_t> factors;  // a[16][16], then b[16][8 blocks]
    unsigned group;
  };

  std::vector<std::uint16_t> factors(const std::array<WgmmaLane, kLanes>& lane,
                                     const SharedWindow& shared);

  std::vector<Product> products_;
  std::vector<float> sums_;  // of the products in flight: lane after lane
  unsigned group_ = 0;
  const char* fault_ = nullptr;
};

}  // namespace vcas::emu
