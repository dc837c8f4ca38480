// The one interface layers use to compute. A call is one overload of `run`, chosen by its
// arguments.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/args.h"
#include "kernels/exchange.h"

namespace vcas {

class Ranks;

// What the operations of a call of Ops::repeat did. Ends before its Ops.
class Recording {
 public:
  virtual ~Recording() = default;
};

// A place on the host that a device copies to while the host goes on. Ends before its Ops.
class Mailbox {
 public:
  virtual ~Mailbox() = default;
  // Copies from `device` after the operations called so far.
  // What was sent before must have been received.
  virtual void send(const void* device, std::size_t bytes) = 0;
  // Whether `receive` would not wait.
  virtual bool arrived() = 0;
  // What was sent. It holds until the next `send`.
  virtual const std::byte* receive() = 0;
};

// When a device was where. Ends before its Ops.
class Timeline {
 public:
  virtual ~Timeline() = default;
  // After the operations called so far.
  virtual void mark() = 0;
  // The seconds from each mark to the next. Waits for the last one. Forgets the marks.
  virtual std::vector<double> take_seconds() = 0;
};
// For a backend that does not queue its work.
std::unique_ptr<Timeline> make_host_timeline();

// Which of a library's algorithms each product takes. Both are named by the backend, products with
// its device and library: so choices of another mean nothing to it.
struct ProductChoices {
  bool timed = false;  // a product without one is computed by several and gets the fastest
  std::map<std::string, std::string> chosen;
};

// What the operations of a training run are for.
enum class Phase { kForward, kBackward, kProbe, kOptimizer, kEvaluation };

// One thread at a time. It outlives all graphs, trainers and buffers made with it.
class Ops {
 public:
  virtual ~Ops() = default;

  // "cpu", "check:cpu,emu", ...
  virtual std::string name() const = 0;

  // Whether addresses are those of memory: a dry run has none.
  virtual bool has_memory() const { return true; }
  // Memory of this backend, 64-byte aligned, zeroed. Throws Error(kOutOfMemory).
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* data, std::size_t bytes) = 0;
  // `host` may be changed afterwards. The copy comes after the operations called so far.
  virtual void copy_to_device(void* device, const void* host, std::size_t bytes) = 0;
  // Waits for the operations called so far.
  virtual void copy_to_host(void* host, const void* device, std::size_t bytes) = 0;
  // Room for `bytes`. This one is for backends that do not queue their work: it waits in `send`.
  virtual std::unique_ptr<Mailbox> make_mailbox(std::size_t bytes);
  // For tensors of this backend, among `ranks`. This one goes by way of the host, and does in
  // Exchange::end what has begun.
  virtual std::unique_ptr<Exchange> make_exchange(Ranks& ranks);
  virtual std::unique_ptr<Timeline> make_timeline() { return make_host_timeline(); }

  // Say what the following calls are for, and where in the model: "block.7/ffn_in/backward".
  // Decorators use it, backends ignore it.
  virtual void enter_phase(Phase) {}
  virtual void enter(const std::string& /*place*/) {}

  // Whether the device queues its work: `repeat` can repeat, and `beside` runs beside.
  // Batches of texts then get rows of padding, so that their sizes come again (Graph::set_batch).
  // What operations beside others read stays longer (GraphPlan::queues).
  virtual bool queues() const { return false; }
  // Calls `body`, or repeats on the device what its operations did last time with `recording`.
  // The device gets that as one piece of work.
  // The body must call the same operations with the same arguments each time.
  // What changes is in the memory that they name. It copies nothing from or to the host.
  // It may begin exchanges.
  // `recording` is null at first. A backend that cannot repeat leaves it null.
  virtual void repeat(std::unique_ptr<Recording>& /*recording*/,
                      const std::function<void()>& body) {
    body();
  }

  // Calls `body`. Its operations come after those called so far and those of bodies before.
  // They may run beside those called next, until these are told to `join` the ticket.
  // So may they beside copies, marks and what `deallocate` frees.
  // Another body has a larger ticket. Bodies begin no further ones.
  // They copy nothing from the host.
  // What `repeat` calls joins all that it begins.
  virtual std::int64_t beside(const std::function<void()>& body) {
    body();
    return 0;
  }
  // Operations called next come after the bodies up to `ticket`. Within a body they do anyway.
  virtual void join(std::int64_t /*ticket*/) {}
  static constexpr std::int64_t kAllTickets = kAll;

  // Null: the backend has no choice.
  virtual ProductChoices* product_choices() { return nullptr; }

#define VCAS_OP(Args) virtual void run(const Args& args) = 0;
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP
};

// What a tensor holds: numbers of its type, or bytes.
template <class T>
std::vector<T> to_host(Ops& ops, const Tensor& tensor) {
  std::vector<T> host(tensor.bytes() / sizeof(T));
  ops.copy_to_host(host.data(), tensor.data, tensor.bytes());
  return host;
}

// kF32: everything in f32. kTf32: f32, but products round their factors to 10 bits of mantissa.
// kBf16: tensors of bf16 (kernels/ops/op.h). Sums are f32.
enum class Precision { kF32, kTf32, kBf16 };

constexpr DType compute_dtype(Precision precision) {
  return precision == Precision::kBf16 ? DType::kBF16 : DType::kF32;
}

// `device`: cpu, cuda, emu (kernels/emu), check:a,b or auto.
// Throws Error(kUnavailable) for a device that is absent. Throws Error(kBadConfig) for an unknown
// name, and for a precision that the device lacks.
// It never takes another device or precision instead.
std::unique_ptr<Ops> make_ops(const std::string& device, Precision precision = Precision::kF32);

}  // namespace vcas
