#include "kernels/ops.h"

#include "core/progress.h"

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

class HostTimeline final : public Timeline {
 public:
  void mark() override { marks_.push_back(monotonic_seconds()); }
  std::vector<double> take_seconds() override {
    std::vector<double> seconds;
    for (std::size_t i = 1; i < marks_.size(); ++i) seconds.push_back(marks_[i] - marks_[i - 1]);
    marks_.clear();
    return seconds;
  }

 private:
  std::vector<double> marks_;
};

}  // namespace

std::unique_ptr<Timeline> make_host_timeline() { return std::make_unique<HostTimeline>(); }

std::unique_ptr<Mailbox> Ops::make_mailbox(std::size_t bytes) {
  return std::make_unique<CopyingMailbox>(*this, bytes);
}

}  // namespace vcas
