// The cpu with onlookers, who may also tamper with what was computed.
#pragma once

#include <memory>
#include <string>
#include <type_traits>

#include "kernels/decorators/forwarding_ops.h"

namespace vcas {

template <class Watch>
class WatchedOps final : public ForwardingOps {
 public:
  explicit WatchedOps(Watch watch) : ForwardingOps(make_ops("cpu")), watch_(std::move(watch)) {}

  void enter(const std::string& place) override {
    place_ = place;
    inner_->enter(place);
  }
#define VCAS_OP(Args) \
  void run(const Args& args) override { look(args); }
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

 private:
  template <class Args>
  void look(const Args& args) {
    inner_->run(args);
    for_each_of(args, [&]<class One>(const One& one) {
      if constexpr (std::is_invocable_v<Watch&, const One&, const std::string&>)
        watch_(one, place_);
    });
  }

  Watch watch_;
  std::string place_;
};

// Each of `watch` takes one kind of operation and the place, "<node>/forward", "<node>/backward" or
// "<node>/weights", and is called after it: [&](const Draw& args, const std::string& place) {}.
template <class... Watch>
std::unique_ptr<Ops> watched_ops(Watch... watch) {
  struct All : Watch... {
    using Watch::operator()...;
  };
  return std::make_unique<WatchedOps<All>>(All{std::move(watch)...});
}

}  // namespace vcas
