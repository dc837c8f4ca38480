// What decorators of one backend share: all that they do not override goes to that backend.
#pragma once

#include <utility>

#include "kernels/ops.h"

namespace vcas {

class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  bool has_memory() const override { return inner_->has_memory(); }
  void* allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void deallocate(void* data, std::size_t bytes) override { inner_->deallocate(data, bytes); }
  void copy_to_device(void* device, const void* host, std::size_t bytes) override {
    inner_->copy_to_device(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, std::size_t bytes) override {
    inner_->copy_to_host(host, device, bytes);
  }
  std::unique_ptr<Mailbox> make_mailbox(std::size_t bytes) override {
    return inner_->make_mailbox(bytes);
  }
  std::unique_ptr<Exchange> make_exchange(Ranks& ranks) override {
    return inner_->make_exchange(ranks);
  }
  std::unique_ptr<Timeline> make_timeline() override { return inner_->make_timeline(); }
  void enter_phase(Phase phase) override { inner_->enter_phase(phase); }
  void enter(const std::string& place) override { inner_->enter(place); }
  bool queues() const override { return inner_->queues(); }
  void repeat(std::unique_ptr<Recording>& recording, const std::function<void()>& body) override {
    if (sees_each_call_) return body();
    inner_->repeat(recording, body);
  }
  std::int64_t beside(const std::function<void()>& body) override { return inner_->beside(body); }
  void join(std::int64_t ticket) override { inner_->join(ticket); }
  ProductChoices* product_choices() override { return inner_->product_choices(); }
#define VCAS_OP(Args) \
  void run(const Args& args) override { inner_->run(args); }
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

 protected:
  bool sees_each_call_ = false;  // passes are not repeated: a repetition would hide its calls
  std::unique_ptr<Ops> inner_;
};

}  // namespace vcas
