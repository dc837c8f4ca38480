// The emulator's side of kernels/device: memory, products, launches.
#pragma once

#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/cpu/gemm.h"
#include "kernels/emu/emulator.h"
#include "kernels/ops.h"

namespace vcas::emu {

// Device memory is one block of the heap for each allocation, so that the address sanitizer sees
// what overruns it.
class Context {
 public:
  explicit Context(ThreadOrder order) : emulator_(order) { gemm_use_one_thread(); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { deallocate(scratch_); }

  std::string name() const { return "emu"; }
  // Few, so that loops over a grid go round more than once.
  unsigned multiprocessors() const { return 2; }

  void* allocate(std::size_t bytes);
  void deallocate(void* data);
  void copy_to_device(void* device, const void* host, std::size_t bytes) {
    if (bytes) std::memcpy(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, std::size_t bytes) {
    if (bytes) std::memcpy(host, device, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    ++launches_;
    std::memcpy(to, from, bytes);
  }
  // Workspace, which holds until the next call.
  void* scratch(std::size_t bytes);

  template <class T>
  void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<T>& a, const Factor<T>& b,
            T* c, bool accumulate) {
    if (m > 0 && n > 0) ++launches_;
    vcas::gemm(m, n, k, a, b, c, n, accumulate);
  }

  template <class... P, class... A>
  void launch(dim3 grid, dim3 block, std::size_t shared_bytes, void (*kernel)(P...), A&&... a) {
    ++launches_;
    std::tuple<P...> arguments(std::forward<A>(a)...);
    auto body = [&] { std::apply(kernel, arguments); };
    emulator_.launch(
        grid, block, shared_bytes, [](void* call) { (*static_cast<decltype(body)*>(call))(); },
        &body);
  }

  // What a GPU would have been given so far: kernels, products and copies within its memory.
  std::int64_t launches() const { return launches_; }

 private:
  Emulator emulator_;
  std::int64_t launches_ = 0;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace vcas::emu
