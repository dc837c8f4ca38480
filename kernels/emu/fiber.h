// One thread of an emulated block: a stack of execution that is switched to by hand.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

namespace vcas::emu {

class Fiber {
 public:
  // Stands for the caller. Its stack exists already.
  Fiber() = default;
  // Has a stack of its own, with a guard page below. Throws Error(kOutOfMemory).
  explicit Fiber(std::size_t stack_bytes);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // The next switch to this fiber calls `entry` on an empty stack. `entry` must not return.
  // What the stack held is forgotten without being unwound.
  void start(void (*entry)());

  // Continues `to` where it was left. Returns when something switches back to `from`.
  // To the thread sanitizer it orders no memory accesses of the two.
  static void switch_between(Fiber& from, Fiber& to);

  // The first statement of an entry function.
  static void entered();

 private:
#if !defined(__x86_64__) && !defined(__aarch64__)
  ucontext_t context_;
#endif
  void* stack_pointer_ = nullptr;  // where it was left; with a context_ the lowest address
  char* stack_ = nullptr;          // lowest address of the usable part
  std::size_t stack_bytes_ = 0;
  [[maybe_unused]] void* sanitizer_state_ = nullptr;  // ASan: the fake stack; TSan: its thread
};

}  // namespace vcas::emu
