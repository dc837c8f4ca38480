// Ops on a device: written once, for a GPU and for the emulator.
#pragma once

#include <optional>
#include <utility>

#include "core/ranks.h"
#include "kernels/device/launch.cuh"

namespace vcas::VCAS_DEVICE {

// By NCCL (exchange_ops.cuh).
std::unique_ptr<Exchange> make_nccl_exchange(Context& context, Ranks& ranks);

class DeviceOps final : public Ops {
 public:
  // `arguments` make the Context.
  template <class... A>
  explicit DeviceOps(A&&... arguments) : context_(std::forward<A>(arguments)...) {}

  std::string name() const override { return context_.name(); }
  void* allocate(std::size_t bytes) override { return context_.allocate(bytes); }
  void deallocate(void* data, std::size_t) override { context_.deallocate(data); }
  void copy_to_device(void* device, const void* host, std::size_t bytes) override {
    context_.copy_to_device(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, std::size_t bytes) override {
    context_.copy_to_host(host, device, bytes);
  }
  std::unique_ptr<Mailbox> make_mailbox(std::size_t bytes) override {
    return context_.make_mailbox(bytes);
  }
  std::unique_ptr<Exchange> make_exchange(Ranks& ranks) override {
    if (ranks.size() == 1) return Ops::make_exchange(ranks);
    if (context_.has_nccl()) return make_nccl_exchange(context_, ranks);
    return std::make_unique<ExchangeBeside>(context_, Ops::make_exchange(ranks));
  }
  std::unique_ptr<Timeline> make_timeline() override { return context_.make_timeline(); }
  bool queues() const override { return true; }
  // Not captured the first time: a graph can hold neither new memory nor what a kernel needs once.
  void repeat(std::unique_ptr<Recording>& recording, const std::function<void()>& body) override {
    if (!recording) {
      body();
      recording = std::make_unique<Captured>();
      return;
    }
    auto& captured = static_cast<Captured&>(*recording);
    if (!captured.graph || captured.grown != context_.grown()) {
      captured.graph = context_.capture(body);
      captured.grown = context_.grown();
    }
    context_.replay(*captured.graph);
  }

  std::int64_t beside(const std::function<void()>& body) override {
    return context_.run_side(body);
  }
  void join(std::int64_t ticket) override { context_.join_side(ticket); }
  ProductChoices* product_choices() override { return context_.product_choices(); }

#define VCAS_RUN(Args)                  \
  void run(const Args& args) override { \
    check_call(args);                   \
    compute(context_, args);            \
  }
  VCAS_FOR_EACH_OP(VCAS_RUN)
#undef VCAS_RUN

  Context& context() { return context_; }
  const Context& context() const { return context_; }

 private:
  struct Captured final : Recording {
    std::optional<Context::LaunchGraph> graph;
    int grown = 0;  // where the workspace lies that the graph uses
  };

  // By way of the host, and begun where NCCL would be: for an emulator without one.
  class ExchangeBeside final : public Exchange {
   public:
    ExchangeBeside(Context& context, std::unique_ptr<Exchange> inner)
        : context_(context), inner_(std::move(inner)) {}
    void begin_sum_parts(const Tensor& x, DType wire) override {
      context_.beside([=, this] { inner_->begin_sum_parts(x, wire); });
    }
    void begin_gather_parts(const Tensor& x) override {
      context_.beside([=, this] { inner_->begin_gather_parts(x); });
    }
    void end() override {
      context_.join();
      inner_->end();
    }
    void sum(const Tensor& numbers, double factor) override { inner_->sum(numbers, factor); }

   private:
    Context& context_;
    std::unique_ptr<Exchange> inner_;
  };

  Context context_;
};

}  // namespace vcas::VCAS_DEVICE
