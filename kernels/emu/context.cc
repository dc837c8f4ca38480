#include "kernels/emu/context.h"

#include <cstdlib>
#include <numeric>
#include <utility>

namespace vcas::emu {
namespace {

// What was set stays so until its end.
template <class T>
struct SetUntilEnd {
  T& value;
  ~SetUntilEnd() { value = {}; }
};

}  // namespace

void* Context::allocate(std::size_t bytes) {
  check_not_capturing("memory asked for");
  constexpr std::size_t kAlignment = 256;  // cudaMalloc's
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, bytes ? bytes : 1) != 0 || !data)
    throw Error(ExitCode::kOutOfMemory,
                "no memory for " + std::to_string(bytes) + " bytes on the emulated device",
                "a smaller batch or micro-batch needs less");
  std::memset(data, 0, bytes);
  return data;
}

void Context::deallocate(void* data) { std::free(data); }

std::unique_ptr<Mailbox> Context::make_mailbox(std::size_t bytes) {
  class LateMailbox final : public Mailbox {
   public:
    LateMailbox(Context& context, std::size_t bytes) : context_(context), host_(bytes) {}
    void send(const void* device, std::size_t bytes) override {
      context_.copy_to_host(host_.data(), device, bytes);
    }
    bool arrived() override { return false; }
    const std::byte* receive() override { return host_.data(); }

   private:
    Context& context_;
    std::vector<std::byte> host_;
  };
  return std::make_unique<LateMailbox>(*this, bytes);
}

void* Context::at_least(Workspace& workspace, std::size_t bytes) {
  if (bytes > workspace.bytes) {
    if (in_side_) run_put_off(last_ticket_ + 1);  // may use it
    deallocate(workspace.data);
    workspace = {};
    workspace = {allocate(bytes), bytes};
    ++grown_;
  }
  return workspace.data;
}

void Context::sort(const Pairs& to, const Pairs& from, std::int64_t count, std::int32_t, void*) {
  queue([=] {
    std::vector<std::int32_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](std::int32_t i) { return from.key[i]; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      to.key[i] = from.key[order[i]];
      to.value[i] = from.value[order[i]];
    }
  });
}

std::int64_t Context::run_side(const std::function<void()>& body) {
  VCAS_CHECK(!in_side_, "a body beside others begins a further one");
  const SetUntilEnd<bool> in_side{in_side_ = true};
  body();
  return ++last_ticket_;
}

void Context::join_side(std::int64_t ticket) {
  if (in_side_) return;
  joined_ticket_ = std::max(joined_ticket_, std::min(ticket, last_ticket_));
  now_or_captured([=, this] { run_put_off(ticket); });
}

void Context::run_put_off(std::int64_t ticket) {
  while (!put_off_.empty() && put_off_.front().ticket <= ticket) run_put_off_once();
}

void Context::run_put_off_once() {
  if (put_off_.empty()) return;
  const auto work = std::move(put_off_.front().work);
  put_off_.pop_front();
  work();
}

void Context::beside(const std::function<void()>& body) {
  if (captured_) return captured_->push_back([=, this] { beside(body); });
  begun_.push_back(body);
  if (!late_) join();
}

void Context::join() {
  check_not_capturing("waiting for what runs beside");
  const SetUntilEnd<bool> is_beside{is_beside_ = true};
  for (const auto& body : std::exchange(begun_, {})) body();
}

Context::LaunchGraph Context::capture(const std::function<void()>& body) {
  check_not_capturing("a capture");
  LaunchGraph graph;
  join_side(last_ticket_);
  const SetUntilEnd<LaunchGraph*> captured{captured_ = &graph};
  body();
  VCAS_CHECK(joined_ticket_ == last_ticket_, "a graph ends before what runs beside it");
  return graph;
}

}  // namespace vcas::emu
