// The emulator's side of kernels/device: memory, products, launches.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/device/nccl.h"
#include "kernels/device/pairs.h"
#include "kernels/emu/emulator.h"
#include "kernels/emu/tensor_core.h"
#include "kernels/ops.h"

namespace vcas::emu {

// op(A) without gaps between its rows, with each number converted.
template <class T, class F>
std::vector<float> converted(const Factor<T>& a, std::int64_t rows, std::int64_t columns,
                             const F& convert) {
  std::vector<float> out;
  out.reserve(rows * columns);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      out.push_back(convert(a.data[a.transposed ? c * a.stride + r : r * a.stride + c]));
  return out;
}

// The product of converted factors. Sums are f32.
template <class T, class Out, class F>
void gemm_in_f32(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<T>& a,
                 const Factor<T>& b, Out* c, bool accumulate, const F& convert) {
  const std::vector<float> left = converted(a, m, k, convert), right = converted(b, k, n, convert);
  std::vector<float> sums(static_cast<std::size_t>(m * n));
  if (accumulate) std::copy_n(c, sums.size(), sums.begin());
  gemm(m, n, k, Factor<float>{left.data(), k}, {right.data(), n}, sums.data(), n, accumulate);
  for (std::size_t i = 0; i < sums.size(); ++i) c[i] = static_cast<Out>(sums[i]);
}

// Each allocation is one block of the heap. So the address sanitizer sees what overruns it.
class Context {
 public:
  explicit Context(ThreadOrder order = ThreadOrder::kForward, Precision precision = Precision::kF32,
                   bool warpgroup_products = false)
      : emulator_(order, 1,
                  warpgroup_products ? Emulator::kMaxSharedBytesOfSm90 : Emulator::kMaxSharedBytes),
        precision_(precision),
        warpgroup_products_(warpgroup_products),
        late_(order != ThreadOrder::kForward),
        mixes_(order == ThreadOrder::kRandom) {
    gemm_use_one_thread();
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() {
    for (const Branch& branch : branches_) {
      deallocate(branch.scratch.data);
      deallocate(branch.counts.data);
    }
  }

  std::string name() const { return "emu"; }
  Precision precision() const { return precision_; }
  // Whether products in bf16 are those of sm_90a (wgmma).
  bool warpgroup_products() const { return warpgroup_products_; }
  // Few of them: loops over a grid go round more than once.
  unsigned multiprocessors() const { return 2; }
  std::size_t most_shared_bytes() const { return emulator_.most_shared_bytes(); }

  void* allocate(std::size_t bytes);
  void deallocate(void* data);
  void copy_to_device(void* device, const void* host, std::size_t bytes) {
    check_not_capturing("a copy from the host");
    VCAS_CHECK(!in_side_, "a copy from the host in a body beside others");
    if (bytes) std::memcpy(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, std::size_t bytes) {
    check_not_capturing("a copy to the host");
    if (in_side_) run_put_off(last_ticket_ + 1);  // waits for its own branch
    if (bytes) std::memcpy(host, device, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    queue([=] { std::memcpy(to, from, bytes); });
  }
  // Acts as a device that is behind: nothing has arrived before it is received.
  std::unique_ptr<Mailbox> make_mailbox(std::size_t bytes);
  std::unique_ptr<Timeline> make_timeline() { return make_host_timeline(); }
  // Workspace. It holds until the next call, which makes all of it NaN.
  void* scratch(std::size_t bytes) {
    void* const data = at_least(branches_[in_side_].scratch, bytes);
    in_order([=] { std::memset(data, 0xFF, bytes); });
    return data;
  }
  // So many counts of 0, which kernels leave at 0 (ends_last).
  unsigned* counts(std::size_t number) {
    return static_cast<unsigned*>(at_least(branches_[in_side_].counts, number * sizeof(unsigned)));
  }
  // How often these have moved.
  int grown() const { return grown_; }

  // Products have one algorithm here. Tests see what becomes of choices.
  ProductChoices* product_choices() { return &choices_; }

  // A product as on a GPU, with `bias` or += but not both. Sums are f32.
  // Gives false, and does nothing, as long as products are lacking.
  // Factors have the precision of the context, or bf16.
  template <class T, class Out>
  [[nodiscard]] bool gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<T>& a,
                          const Factor<T>& b, Out* c, bool accumulate, const Out* bias = nullptr) {
    if (lacks_products_) return false;
    if (choices_.timed)
      choices_.chosen["emu: product of " + std::to_string(m) + " x " + std::to_string(n) + " x " +
                      std::to_string(k)] = "the only one";
    if (m == 0 || n == 0) return true;
    queue([=, precision = precision_] {
      for (std::int64_t r = 0; bias && r < m; ++r) std::copy_n(bias, n, c + r * n);
      const bool add = accumulate || bias;
      if constexpr (std::is_same_v<T, bfloat16>)
        return gemm_in_f32(m, n, k, a, b, c, add, [](bfloat16 x) -> float { return x; });
      else if (std::is_same_v<T, float> && precision == Precision::kTf32)
        return gemm_in_f32(m, n, k, a, b, c, add,
                           [](T x) { return round_to_tf32(static_cast<float>(x)); });
      else
        vcas::gemm(m, n, k, a, b, c, n, add);
    });
    return true;
  }
  void set_lacks_products(bool lacks) { lacks_products_ = lacks; }

  // `to` = `from` by ascending key. Pairs of a key keep their order.
  // `workspace` has sort_bytes(count).
  void sort(const Pairs& to, const Pairs& from, std::int64_t count, std::int32_t keys_below,
            void* workspace);
  std::size_t sort_bytes(std::int64_t) const { return 0; }

  template <class... P, class... A>
  void launch(dim3 grid, dim3 block, std::size_t shared_bytes, void (*kernel)(P...), A&&... a) {
    const std::tuple<P...> arguments(std::forward<A>(a)...);
    queue([=, this] {
      auto body = [&] { std::apply(kernel, arguments); };
      emulator_.launch(
          grid, block, shared_bytes, [](void* call) { (*static_cast<decltype(body)*>(call))(); },
          &body);
    });
  }

  // Launches with their arguments, as a graph of the GPU holds them.
  using LaunchGraph = std::vector<std::function<void()>>;
  // What `body` launches, without running it.
  LaunchGraph capture(const std::function<void()>& body);
  void replay(const LaunchGraph& graph) {
    ++launches_;
    run_put_off(last_ticket_);
    for (const auto& launch : graph) launch();
  }

  // Ops::beside and Ops::join. A GPU may be at these launches at any time until it is told to join.
  // Here it does them at once if threads have their turns in order, and in `join_side` if in
  // reverse order. At random it does one behind each launch that comes after.
  std::int64_t run_side(const std::function<void()>& body);
  void join_side(std::int64_t ticket);

  // Calls `body` beside the operations, as the Context of a GPU does. That one may be at it at any
  // time until `join`: here it is done at once if threads have their turns in order, else in
  // `join`.
  void beside(const std::function<void()>& body);
  void join();
  // What stands for the stream of what runs beside. Operations have none.
  CUstream_st* stream() { return is_beside_ ? reinterpret_cast<CUstream_st*>(this) : nullptr; }
  // Ranks exchange by NCCL where one is named: a library that takes memory of the host.
  static bool has_nccl() { return std::getenv("VCAS_NCCL"); }

  // How much a GPU would have been given: kernels, products, copies within its memory, graphs.
  std::int64_t launches() const { return launches_; }

 private:
  struct Workspace {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  // Memory that only its operations use.
  struct Branch {
    Workspace scratch, counts;
  };
  struct PutOff {
    std::int64_t ticket;
    std::function<void()> work;
  };

  void* at_least(Workspace& workspace, std::size_t bytes);
  void check_not_capturing(const char* what) const {
    VCAS_CHECK(!captured_, std::string(what) + " while a graph is captured");
  }
  // `body` is called now, or each time the graph is launched that is being captured.
  template <class Body>
  void now_or_captured(const Body& body) {
    captured_ ? captured_->push_back(body) : body();
  }
  template <class Work>
  void queue(const Work& work) {
    if (!captured_) ++launches_;
    in_order(work);
  }
  template <class Work>
  void in_order(const Work& work) {
    if (in_side_)
      return now_or_captured([=, this, ticket = last_ticket_ + 1] {
        late_ ? put_off_.push_back({ticket, work}) : work();
      });
    now_or_captured([=, this] {
      work();
      if (mixes_) run_put_off_once();
    });
  }
  void run_put_off(std::int64_t ticket);  // up to that one
  void run_put_off_once();

  Emulator emulator_;
  Precision precision_;
  bool warpgroup_products_;
  const bool late_;             // what runs beside is done later
  const bool mixes_;            // in turns with what comes after
  std::deque<PutOff> put_off_;  // launches of run_side
  bool in_side_ = false;
  std::int64_t last_ticket_ = 0, joined_ticket_ = 0;
  bool is_beside_ = false;
  std::vector<std::function<void()>> begun_;  // beside
  bool lacks_products_ = false;
  ProductChoices choices_;
  std::int64_t launches_ = 0;
  LaunchGraph* captured_ = nullptr;  // the graph that is being captured
  Branch branches_[2];               // the second one is of run_side
  int grown_ = 0;
};

}  // namespace vcas::emu
