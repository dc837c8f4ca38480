// Ops on a device: written once, for a GPU and for the emulator.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "kernels/device/launch.cuh"

namespace vcas::VCAS_DEVICE {

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
    return std::make_unique<RecordedExchange>(*this, Ops::make_exchange(ranks));
  }
  std::unique_ptr<Timeline> make_timeline() override { return context_.make_timeline(); }
  bool repeats() const override { return true; }
  // Not captured the first time: a graph can hold neither new memory nor what a kernel needs once.
  void repeat(std::unique_ptr<Recording>& recording, const std::function<void()>& body) override {
    if (!recording) {
      body();
      recording = std::make_unique<Captured>();
      return;
    }
    auto& captured = static_cast<Captured&>(*recording);
    if (!captured.graph || captured.scratch != context_.scratch(0)) {
      captured.exchanges.clear();
      captured.graph = context_.capture([&] {
        struct Noting {
          Captured*& noted;
          ~Noting() { noted = nullptr; }
        };
        capturing_ = &captured;
        const Noting until_the_end{capturing_};
        body();
      });
      captured.scratch = context_.scratch(0);
    }
    context_.replay(*captured.graph);
    for (const auto& begin : captured.exchanges) begin();
  }

#define VCAS_RUN(Args) \
  void run(const Args& args) override { compute(context_, args); }
  VCAS_FOR_EACH_OP(VCAS_RUN)
#undef VCAS_RUN

  const Context& context() const { return context_; }

 private:
  struct Captured final : Recording {
    std::optional<Context::LaunchGraph> graph;
    const void* scratch = nullptr;                 // the workspace that the graph uses
    std::vector<std::function<void()>> exchanges;  // that the body begins
  };

  // What a captured body begins, begins behind each launch of its graph.
  class RecordedExchange final : public Exchange {
   public:
    RecordedExchange(DeviceOps& ops, std::unique_ptr<Exchange> inner)
        : ops_(ops), inner_(std::move(inner)) {}
    void begin_sum_parts(const Tensor& x, DType wire) override {
      begin([=, this] { inner_->begin_sum_parts(x, wire); });
    }
    void begin_gather_parts(const Tensor& x) override {
      begin([=, this] { inner_->begin_gather_parts(x); });
    }
    void end() override { inner_->end(); }
    void sum(const Tensor& numbers, double factor) override { inner_->sum(numbers, factor); }

   private:
    template <class Work>
    void begin(const Work& work) {
      ops_.capturing_ ? ops_.capturing_->exchanges.push_back(work) : work();
    }

    DeviceOps& ops_;
    std::unique_ptr<Exchange> inner_;
  };

  Context context_;
  Captured* capturing_ = nullptr;
};

}  // namespace vcas::VCAS_DEVICE
