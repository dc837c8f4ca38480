#include "kernels/ops.h"

#include <vector>

namespace vcas {
namespace {

class CopyingMailbox final : public Mailbox {
 public:
  CopyingMailbox(Ops& ops, std::size_t bytes) : ops_(ops), host_(bytes) {}
  void send(const void* device, std::size_t bytes) override {
    ops_.copy_to_host(host_.data(), device, bytes);
  }
  bool arrived() override { return true; }
  const std::byte* receive() override { return host_.data(); }

 private:
  Ops& ops_;
  std::vector<std::byte> host_;
};

}  // namespace

std::unique_ptr<Mailbox> Ops::make_mailbox(std::size_t bytes) {
  return std::make_unique<CopyingMailbox>(*this, bytes);
}

}  // namespace vcas
