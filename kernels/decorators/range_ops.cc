#include "kernels/decorators/range_ops.h"

namespace vcas {

RangeOps::RangeOps(std::unique_ptr<Ops> inner, std::unique_ptr<Profiler> profiler)
    : ForwardingOps(std::move(inner)), profiler_(std::move(profiler)) {}

void RangeOps::enter(const std::string& place) {
  leave();
  const std::size_t slash = place.rfind('/');
  profiler_->push(
      slash == std::string::npos ? place : place.substr(slash + 1) + "/" + place.substr(0, slash));
  in_place_ = true;
  inner_->enter(place);
}

void RangeOps::start() {
  sees_each_call_ = true;
  profiler_->start();
}

void RangeOps::stop() {
  profiler_->stop();
  sees_each_call_ = false;
}

void RangeOps::begin(const std::string& name) {
  leave();
  profiler_->push(name);
}

void RangeOps::end() {
  leave();
  profiler_->pop();
}

void RangeOps::leave() {
  if (in_place_) profiler_->pop();
  in_place_ = false;
}

}  // namespace vcas
