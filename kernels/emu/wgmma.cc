#include "kernels/emu/wgmma.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/emu/sanitizers.h"

namespace vcas::emu {
namespace {

constexpr std::size_t kRows = 16, kDepth = 16;  // of a warp's part of a product

float bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

bool is_unknown(float x) { return std::bit_cast<std::uint32_t>(x) == 0xFFFFFFFFu; }

// A matrix descriptor: addresses in units of 16 bytes.
struct Descriptor {
  Descriptor(std::uint64_t bits, bool is_k_major)
      : k_major(is_k_major),
        start(field(bits, 0)),
        leading(field(bits, 16)),
        stride(field(bits, 32)),
        rest(bits & 0xFFFFC000C000C000u) {}
  static std::uint32_t field(std::uint64_t bits, int first) {
    return static_cast<std::uint32_t>(bits >> first & 0x3FFF) << 4;
  }
  // The swizzle of 128 bytes (1 in the highest two bits), and nothing else: no base offset either,
  // as patterns begin at multiples of 1024 bytes. A product takes any 16 of 64 numbers along k.
  bool understood() const {
    const std::uint32_t last = k_major ? (64 - kDepth) * 2 : 0;
    return rest == std::uint64_t{1} << 62 && start % 1024 <= last;
  }
  // The address of b(k, column). A pattern has 8 x 128 bytes, whose chunks of 16 bytes are swapped
  // by it: 8 rows k of 64 columns (MN-major), or 8 columns of 64 numbers along k (K-major).
  std::uint32_t address(std::uint32_t k, std::uint32_t column) const {
    const std::uint32_t plain =
        start + (k_major ? column / 8 * stride + column % 8 * 128 + k * 2
                         : column / 64 * leading + k / 8 * stride + k % 8 * 128 + column % 64 * 2);
    return plain ^ (plain >> 7 & 7) << 4;
  }
  bool k_major;
  std::uint32_t start, leading, stride;
  std::uint64_t rest;
};

}  // namespace

std::vector<std::uint16_t> AsyncProducts::factors(const std::array<WgmmaLane, kLanes>& lane,
                                                  const SharedWindow& shared) {
  const std::size_t columns = static_cast<std::size_t>(lane[0].blocks) * 8;
  std::vector<std::uint16_t> out(kRows * kDepth + kDepth * columns);
  for (std::size_t own = 0; own < kLanes; ++own)
    for (std::size_t i = 0; i < 4; ++i)
      std::memcpy(&out[(own / 4 + i % 2 * 8) * kDepth + own % 4 * 2 + i / 2 * 8], lane[own].a + i,
                  sizeof lane[own].a[i]);
  const Descriptor b(lane[0].b, lane[0].k_major);
  for (std::uint32_t k = 0; k < kDepth; ++k)
    for (std::uint32_t column = 0; column < columns; ++column) {
      const std::uint32_t address = b.address(k, column);
      std::uint16_t& number = out[kRows * kDepth + k * columns + column];
      if (address < SharedWindow::kFirst ||
          address - SharedWindow::kFirst + sizeof number > shared.bytes) {
        fault_ = "wgmma reads beside the dynamic shared memory";
        return out;
      }
      std::memcpy(&number, shared.data + (address - SharedWindow::kFirst), sizeof number);
    }
  return out;
}

void AsyncProducts::start(const void* const* lanes, const SharedWindow& shared) {
  const Unwatched unwatched;
  std::array<WgmmaLane, kLanes> lane{};
  for (std::size_t own = 0; own < kLanes; ++own) {
    lane[own] = *static_cast<const WgmmaLane*>(lanes[own]);
    if (lane[own].b != lane[0].b) fault_ = "lanes of a warp differ in their matrix descriptor";
    if (in_flight() && lane[own].c != products_.back().lane[own].c)
      fault_ = "products in flight with other sums";
  }
  if (!Descriptor(lane[0].b, lane[0].k_major).understood())
    fault_ = "a matrix descriptor without the 128-byte swizzle, or beside a pattern's first row";
  if (fault_) return;
  Product product{lane, factors(lane, shared), group_};
  if (!fault_ && std::count(product.factors.begin(), product.factors.end(), 0xFFFF))
    fault_ = "wgmma reads what was never written, or has not landed";
  if (fault_) return;
  if (!in_flight()) {
    sums_.clear();
    for (const WgmmaLane& own : lane) {
      sums_.insert(sums_.end(), own.c, own.c + 4 * own.blocks);
      std::memset(own.c, 0xFF, static_cast<std::size_t>(own.blocks) * 4 * sizeof *own.c);
    }
  }
  products_.push_back(std::move(product));
}

void AsyncProducts::wait(unsigned groups, const SharedWindow& shared) {
  const Unwatched unwatched;
  while (in_flight() && products_.front().group + groups < group_) {
    const Product product = std::move(products_.front());
    products_.erase(products_.begin());
    if (factors(product.lane, shared) != product.factors)
      fault_ = "a factor of a wgmma changed before it was waited for";
    const std::uint16_t* a = product.factors.data();
    const std::uint16_t* b = a + kRows * kDepth;
    float* sum = sums_.data();
    for (std::size_t own = 0; own < kLanes; ++own) {
      const std::size_t values = static_cast<std::size_t>(product.lane[own].blocks) * 4;
      float* c = product.lane[own].c;
      if (!std::all_of(c, c + values, is_unknown))
        fault_ = "the sums of a wgmma changed before it was waited for";
      for (std::size_t i = 0; i < values; ++i, ++sum)
        for (std::size_t k = 0; k < kDepth; ++k)
          *sum += bf16(a[(own / 4 + i / 2 % 2 * 8) * kDepth + k]) *
                  bf16(b[k * values * 2 + i / 4 * 8 + own % 4 * 2 + i % 2]);
      if (!in_flight()) std::copy(sum - values, sum, c);
    }
  }
}

}  // namespace vcas::emu
