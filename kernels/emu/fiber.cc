#include "kernels/emu/fiber.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <span>
#include <string>

#include "core/error.h"
#include "kernels/emu/sanitizers.h"

#if defined(__x86_64__)
// vcas_emu_switch(save, to): pushes what a call must preserve and stores the stack pointer at
// *save. Then it takes `to` as the stack pointer and pops the same registers from there.
asm(R"(
.text
.type vcas_emu_switch,@function
vcas_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size vcas_emu_switch, .-vcas_emu_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.type vcas_emu_switch,%function
vcas_emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size vcas_emu_switch, .-vcas_emu_switch
)");
#endif
#if defined(__x86_64__) || defined(__aarch64__)
extern "C" void vcas_emu_switch(void** save, void* to);
#endif

namespace vcas::emu {

#if VCAS_ASAN
namespace {

// The stack that the operating system gave this thread. Asking for it reads a file.
std::span<char> thread_stack() {
  static thread_local const std::span<char> stack = [] {
    pthread_attr_t attributes;
    void* lowest = nullptr;
    std::size_t bytes = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &lowest, &bytes);
    pthread_attr_destroy(&attributes);
    return std::span(static_cast<char*>(lowest), bytes);
  }();
  return stack;
}

}  // namespace
#endif

Fiber::Fiber(std::size_t stack_bytes) : stack_bytes_(stack_bytes) {
  const auto guard = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, guard + stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE) != 0)
    throw Error(ExitCode::kOutOfMemory, "no memory for a stack of " + std::to_string(stack_bytes) +
                                            " bytes of an emulated thread");
  stack_ = static_cast<char*>(memory) + guard;
  stack_pointer_ = stack_;
}

Fiber::~Fiber() {
  if (!stack_) return;
#if VCAS_TSAN
  if (sanitizer_state_) __tsan_destroy_fiber(sanitizer_state_);
#endif
  const auto guard = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  munmap(stack_ - guard, guard + stack_bytes_);
}

void Fiber::start(void (*entry)()) {
#if VCAS_TSAN
  if (!sanitizer_state_) sanitizer_state_ = __tsan_create_fiber(0);
#endif
  char* const top = stack_ + stack_bytes_;
#if VCAS_ASAN
  // Frames that were never unwound.
  const auto live = static_cast<std::size_t>(top - static_cast<char*>(stack_pointer_));
  __asan_unpoison_memory_region(stack_pointer_, live);
#endif
#if defined(__x86_64__)
  void** stack = reinterpret_cast<void**>(top) - 1;  // aligned as after a call
  *stack = nullptr;                                  // return address of `entry`: none
  *--stack = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; ++saved) *--stack = nullptr;
  stack_pointer_ = stack;
#elif defined(__aarch64__)
  void** stack = reinterpret_cast<void**>(top) - 20;
  for (int saved = 0; saved < 20; ++saved) stack[saved] = nullptr;
  stack[11] = reinterpret_cast<void*>(entry);  // x30, where `ret` goes
  stack_pointer_ = stack;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = static_cast<std::size_t>(top - stack_);
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#endif
}

void Fiber::switch_between(Fiber& from, Fiber& to) {
#if VCAS_TSAN
  if (!from.stack_) from.sanitizer_state_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.sanitizer_state_, __tsan_switch_to_fiber_no_sync);
#endif
#if VCAS_ASAN
  const std::span<char> stack = to.stack_ ? std::span(to.stack_, to.stack_bytes_) : thread_stack();
  __sanitizer_start_switch_fiber(&from.sanitizer_state_, stack.data(), stack.size());
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  vcas_emu_switch(&from.stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&from.context_, &to.context_);
#endif
#if VCAS_ASAN
  __sanitizer_finish_switch_fiber(from.sanitizer_state_, nullptr, nullptr);
#endif
}

void Fiber::entered() {
#if VCAS_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

}  // namespace vcas::emu
