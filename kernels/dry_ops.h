// A backend that has no memory and computes nothing. What stands above it counts what it is asked
// for.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/ops.h"

namespace vcas {

// Addresses are nobody's to read. What is copied to the host is zero.
// `queues`: sizes are those of a backend that queues its work.
class DryOps final : public Ops {
 public:
  explicit DryOps(bool queues = false) : queues_(queues) {}

  std::string name() const override { return "dry"; }
  bool has_memory() const override { return false; }
  void* allocate(std::size_t bytes) override {
    allocated_ += bytes;
    next_ += (bytes + 255) / 256 * 256;
    return reinterpret_cast<void*>(next_);
  }
  void deallocate(void*, std::size_t bytes) override { allocated_ -= bytes; }
  void copy_to_device(void*, const void*, std::size_t) override {}
  void copy_to_host(void* host, const void*, std::size_t bytes) override {
    std::memset(host, 0, bytes);
  }
  bool queues() const override { return queues_; }
  // Takes memory when it is received from, not before.
  std::unique_ptr<Mailbox> make_mailbox(std::size_t bytes) override {
    return std::make_unique<Zeros>(bytes);
  }
#define VCAS_OP(Args) \
  void run(const Args&) override {}
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

  std::size_t allocated() const { return allocated_; }  // bytes, now

 private:
  class Zeros final : public Mailbox {
   public:
    explicit Zeros(std::size_t bytes) : bytes_(bytes) {}
    void send(const void*, std::size_t) override {}
    bool arrived() override { return true; }
    const std::byte* receive() override {
      zeros_.resize(bytes_);
      return zeros_.data();
    }

   private:
    std::size_t bytes_;
    std::vector<std::byte> zeros_;
  };

  bool queues_;
  std::uintptr_t next_ = 256;
  std::size_t allocated_ = 0;
};

}  // namespace vcas
