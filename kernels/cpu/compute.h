// What the CPU operations share: threads, loops and workspace.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <type_traits>

#include "kernels/args.h"
#include "kernels/cpu/loops.h"
#include "kernels/dropout.h"

namespace vcas {

// Memory for `allocate`. Large buffers are on huge pages, all are on cache lines.
// Null on failure.
void* allocate_aligned(std::size_t bytes);

// The number of the calling thread within its parallel region.
int thread_number();

// Carries an exception out of a parallel region. The program would end if one left it by itself.
class Caught {
 public:
  template <class Body>
  void run(const Body& body) noexcept {
    try {
      body();
    } catch (...) {
#pragma omp critical
      exception_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::exception_ptr exception_;
};

class CpuContext {
 public:
  CpuContext(int threads, const Loops<float>& f32, const Loops<double>& f64)
      : threads_(threads), f32_(f32), f64_(f64) {}

  int threads() const { return threads_; }

  template <class T>
  const Loops<T>& loops() const {
    if constexpr (std::is_same_v<T, float>)
      return f32_;
    else
      return f64_;
  }

  // Workspace that only grows: a run that has warmed up allocates nothing.
  // The pointer holds until the next call. Not for use within a parallel region.
  template <class T>
  T* scratch(std::int64_t elements) {
    return static_cast<T*>(scratch_bytes(static_cast<std::size_t>(elements) * sizeof(T)));
  }

  // How many slices `work` is worth. Its unit is one element read or written.
  int slices_for(std::int64_t count, std::int64_t work) const {
    constexpr std::int64_t kWorkPerSlice = 1
                                           << 14;  // a few microseconds: what waking a thread costs
    return static_cast<int>(
        std::clamp<std::int64_t>(std::min(work / kWorkPerSlice, count), 1, threads_));
  }

  // Calls body(begin, end, slice) on `slices` contiguous parts of [0, count).
  // The parts start at multiples of `grain`. They depend on the arguments only, so results do too.
  template <class Body>
  void slices(int slices, std::int64_t count, std::int64_t grain, const Body& body) const {
    const std::int64_t grains = (count + grain - 1) / grain;
    const auto part = [&](int slice) {
      const std::int64_t begin = grains * slice / slices * grain;
      const std::int64_t end = std::min(grains * (slice + 1) / slices * grain, count);
      if (begin < end) body(begin, end, slice);
    };
    if (slices == 1) return part(0);
    Caught caught;
#pragma omp parallel for schedule(static, 1) num_threads(slices)
    for (int slice = 0; slice < slices; ++slice) caught.run([&] { part(slice); });
    caught.rethrow();
  }

  // Calls body(task, thread) for every task. Free threads take `grain` tasks at a time.
  // The result of a task must not depend on who takes it.
  template <class Body>
  void tasks(int threads, std::int64_t count, std::int64_t grain, const Body& body) const {
    Caught caught;
#pragma omp parallel for schedule(dynamic, grain) num_threads(threads) if (threads > 1)
    for (std::int64_t task = 0; task < count; ++task)
      caught.run([&] { body(task, thread_number()); });
    caught.rethrow();
  }

  // Calls body(begin, end) on parts of [0, count) that start at multiples of `grain`.
  // `work` is that of all, as of slices_for.
  template <class Body>
  void grains(std::int64_t count, std::int64_t grain, std::int64_t work, const Body& body) const {
    slices(slices_for((count + grain - 1) / grain, work), count, grain,
           [&](std::int64_t begin, std::int64_t end, int) { body(begin, end); });
  }

  // `grains` for row loops without workspace.
  template <class Body>
  void rows(std::int64_t count, std::int64_t width, const Body& body) const {
    grains(count, 1, count * width, body);
  }

  template <class T>
  T norm(const T* x, std::int64_t n) const {
    return static_cast<T>(std::sqrt(loops<T>().sum_squares(x, n)));
  }

  // Calls body(begin, end), which writes rows [begin, end) of y, for all rows given here. It gets
  // a few rows at a time: what reads them next finds them in the cache.
  template <class T, class Body>
  void write_rows(const Tensor& y, const Tensor& y_norm, std::int64_t begin, std::int64_t end,
                  const Body& body) const {
    constexpr std::int64_t kElements = 4096;
    const std::int64_t width = y.width();
    const std::int64_t step =
        std::max<std::int64_t>(kElements / std::max<std::int64_t>(width, 1), 1);
    for (std::int64_t first = begin; first < end; first += step) {
      const std::int64_t last = std::min(first + step, end);
      body(first, last);
      if (y_norm)
        loops<T>().row_norms(y_norm.ptr<T>() + first, 1, y.ptr<T>() + first * width, nullptr, width,
                             last - first, width);
    }
  }
  // All rows, in parallel if they are worth it at `work` each.
  template <class T, class Body>
  void write_rows(const Tensor& y, const Tensor& y_norm, std::int64_t work,
                  const Body& body) const {
    rows(y.rows(), work,
         [&](std::int64_t begin, std::int64_t end) { write_rows<T>(y, y_norm, begin, end, body); });
  }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  void* scratch_bytes(std::size_t bytes);

  int threads_;
  const Loops<float>& f32_;
  const Loops<double>& f64_;
  std::unique_ptr<void, Free> scratch_;
  std::size_t scratch_size_ = 0;
};

// Calls f(T{}) with the C++ type of a compute dtype.
template <class F>
void with_type(DType dtype, const F& f) {
  if (dtype == DType::kF32) return f(float{});
  VCAS_CHECK(dtype == DType::kF64, "no CPU kernels for " + std::string(dtype_name(dtype)));
  f(double{});
}

#define VCAS_COMPUTE(Args) void compute(CpuContext& cpu, const Args& args);
VCAS_FOR_EACH_OP(VCAS_COMPUTE)
#undef VCAS_COMPUTE

// Rows [begin, end) of a Dropout, without their norms.
template <class T>
void dropout_rows(const CpuContext& cpu, const Dropout& args, std::int64_t begin,
                  std::int64_t end) {
  cpu.loops<T>().dropout(args.y.ptr<T>(), args.x.ptr<T>(), args.residual.ptr<T>(),
                         args.row.ptr<std::int32_t>(), begin, end, args.y.width(),
                         dropout_threshold(args.p), static_cast<T>(dropout_scale(args.p)),
                         step_key(args).address());
}

}  // namespace vcas
