// What the emulator tells the sanitizers. VCAS_ASAN and VCAS_TSAN come from the build.
// The emulator is compiled without the thread sanitizer: its state is no part of what is tested.
#pragma once

#if VCAS_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if VCAS_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_ignore_thread_begin();
extern "C" void __tsan_ignore_thread_end();
#endif

namespace vcas::emu {

// What happened before `release(p)` happened before what follows `acquire(p)`.
inline void release([[maybe_unused]] void* p) {
#if VCAS_TSAN
  __tsan_release(p);
#endif
}
inline void acquire([[maybe_unused]] void* p) {
#if VCAS_TSAN
  __tsan_acquire(p);
#endif
}

// Accesses of the emulator inside library calls: malloc, free, memset.
struct Unwatched {
#if VCAS_TSAN
  Unwatched() { __tsan_ignore_thread_begin(); }
  ~Unwatched() { __tsan_ignore_thread_end(); }
#else
  Unwatched() {}
#endif
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

}  // namespace vcas::emu
