#include "kernels/decorators/trace_ops.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace vcas {

TraceOps::TraceOps(std::unique_ptr<Ops> inner, std::filesystem::path path)
    : ForwardingOps(std::move(inner)), path_(std::move(path)), file_(path_, std::ios::app) {
  if (!file_) throw Error(ExitCode::kCannotCreate, path_.string() + ": cannot be written");
}

TraceOps::~TraceOps() {
  try {
    close();
  } catch (const Error&) {
    // A caller who cares has called close().
  }
}

void TraceOps::begin() {
  sees_each_call_ = true;
  if (begun_) return;
  file_.close();  // an older trace stayed until now: this one could have been refused
  file_.open(path_, std::ios::trunc);
  file_ << "[";
  begun_ = true;
}

void TraceOps::enter(const std::string& place) {
  place_ = place;
  inner_->enter(place);
}

template <class Args>
void TraceOps::trace(const Args& args) {
  if (!sees_each_call_) return inner_->run(args);
  using Microseconds = std::chrono::duration<double, std::micro>;
  const Clock::time_point begin = Clock::now();
  inner_->run(args);
  const Clock::time_point end = Clock::now();
  const std::string label = place_.empty() ? Args::kName : place_ + "/" + Args::kName;
  file_ << fmt::format(
      "{}\n{{\"name\":{},\"cat\":\"{}\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":{:.3f},\"dur\":{:."
      "3f}}}",
      first_event_ ? "" : ",", nlohmann::json(label).dump(), Args::kName,
      Microseconds(begin - start_).count(), Microseconds(end - begin).count());
  first_event_ = false;
}

#define VCAS_OP(Args) \
  void TraceOps::run(const Args& args) { trace(args); }
VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

void TraceOps::close() {
  sees_each_call_ = false;
  if (!file_.is_open()) return;
  if (begun_) file_ << "\n]\n";
  file_.close();
  if (!file_)
    throw Error(ExitCode::kIoError, path_.string() + ": the trace could not be written",
                "make room there, or choose another place");
}

}  // namespace vcas
