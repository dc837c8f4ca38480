// Exchanges between ranks with a GPU each: NCCL moves bytes, kernels round and add them.
#pragma once

#include <atomic>
#include <exception>

#include "core/ranks.h"
#include "kernels/device/nccl.h"
#include "kernels/device/neighbours.cuh"
#include "kernels/exchange.h"

namespace vcas::VCAS_DEVICE {

// y = x, rounded
__global__ void round_kernel(bfloat16* y, const float* x, std::int64_t n) {
  for_each_neighbours(n, [&](std::int64_t first, int count) {
    store_neighbours(y + first, 0, count, load_neighbours(x + first, 0, count));
  });
}

// sum[i] = factor * (parts[0][i] + parts[1][i] + ...), in this order
template <class T, class Wire>
__global__ void sum_over_ranks_kernel(T* sum, const Wire* parts, std::int64_t n, int ranks,
                                      T factor) {
  for_each_neighbours(n, [&](std::int64_t first, int count) {
    Neighbours<T> total{};
    for (int rank = 0; rank < ranks; ++rank) {
      const auto part = load_neighbours(parts + rank * n + first, 0, count);
      for (int i = 0; i < kNeighbours; ++i)
        total.value[i] = rank ? total.value[i] + part.value[i] : static_cast<T>(part.value[i]);
    }
    for (T& value : total.value) value *= factor;
    store_neighbours(sum + first, 0, count, total);
  });
}

// ---- host ----

// All of its calls of NCCL are given to one stream (Context::beside). So they have one order, and
// the memory that they share needs no other.
class NcclExchange final : public Exchange {
 public:
  NcclExchange(Context& context, Ranks& ranks) : context_(context), place_(ranks.place()) {
    std::vector<std::byte> id(sizeof(NcclId));
    if (ranks.is_first()) check(nccl_.make_id(reinterpret_cast<NcclId*>(id.data())), "an id");
    ranks.broadcast(id);
    NcclComm* comm = nullptr;
    check(nccl_.join(&comm, place_.size, *reinterpret_cast<const NcclId*>(id.data()), place_.rank),
          "the meeting of " + std::to_string(place_.size) + " ranks");
    comm_ = comm;
  }
  ~NcclExchange() override {
    // After an error the others may never come to what has begun.
    if (std::uncaught_exceptions()) abort();
    if (NcclComm* const comm = comm_) nccl_.destroy(comm);
    context_.deallocate(parts_);
  }

  void begin_sum_parts(const Tensor& x, DType wire) override {
    check_terms(x, wire);
    begin(x, [=, this] { sum_parts(x, wire); });
  }
  void begin_gather_parts(const Tensor& x) override {
    begin(x, [=, this] { gather(own_part(x).data, x.data, own_part(x).bytes()); });
  }
  void end() override {
    context_.join();
    int status = 0;
    check(nccl_.async_error(comm_, &status), "its state");
    check(status, "an exchange");
  }
  void sum(const Tensor& numbers, double factor) override {
    check_terms(numbers, numbers.dtype);
    if (numbers.elements() == 0) return;
    context_.beside([=, this] {
      char* const parts = parts_of(numbers.bytes() * static_cast<std::size_t>(place_.size));
      char* const own = parts + numbers.bytes() * static_cast<std::size_t>(place_.rank);
      context_.copy(own, numbers.data, numbers.bytes());
      gather(own, parts, numbers.bytes());
      add(numbers, numbers.dtype, parts, factor);
    });
    end();
  }
  void abort() override {
    if (NcclComm* const comm = comm_.exchange(nullptr)) nccl_.abort(comm);
  }

 private:
  void check(int status, const std::string& what) const { nccl_.check(status, what); }
  Tensor own_part(const Tensor& x) const { return part_of(x, place_.rank, place_.size); }
  template <class Work>
  void begin(const Tensor& x, const Work& work) {
    check_parts(x, place_.size);
    if (x.elements() > 0) context_.beside(work);
  }

  // What follows runs on the stream beside.

  void sum_parts(const Tensor& x, DType wire) {
    const std::size_t bytes = static_cast<std::size_t>(x.elements()) * dtype_bytes(wire);
    char* const parts = parts_of(wire == x.dtype ? bytes : 2 * bytes);
    const char* from = static_cast<const char*>(x.data);
    if (wire != x.dtype) {
      from = parts + bytes;
      launch(context_, grid_over_neighbours(context_, x.elements()), round_kernel,
             reinterpret_cast<bfloat16*>(parts + bytes), x.ptr<float>(), x.elements());
    }
    const std::size_t each = bytes / static_cast<std::size_t>(place_.size);
    check(nccl_.group_start(), "an exchange of parts");
    int status = 0;
    for (int rank = 0; rank < place_.size && status == 0; ++rank) {
      const std::size_t begin = each * static_cast<std::size_t>(rank);
      status = nccl_.send(from + begin, each, Nccl::kBytes, rank, comm_, context_.stream());
      if (status == 0)
        status = nccl_.receive(parts + begin, each, Nccl::kBytes, rank, comm_, context_.stream());
    }
    const int ended = nccl_.group_end();  // after an error too, or the thread would stay in it
    check(status ? status : ended, "an exchange of parts");
    add(own_part(x), wire, parts, 1);
  }
  void gather(const void* own, void* all, std::size_t bytes) {
    check(nccl_.all_gather(own, all, bytes, Nccl::kBytes, comm_, context_.stream()),
          "a gathering of parts");
  }
  void add(const Tensor& sum, DType wire, const void* parts, double factor) {
    const auto add = [&]<class T, class Wire>(T, Wire) {
      const std::int64_t n = sum.elements();
      launch(context_, grid_over_neighbours(context_, n), sum_over_ranks_kernel<T, Wire>,
             sum.ptr<T>(), static_cast<const Wire*>(parts), n, place_.size, static_cast<T>(factor));
    };
    with_statistics_type(sum.dtype, [&](auto type) {
      if (wire == sum.dtype) return add(type, type);
      if constexpr (std::is_same_v<decltype(type), float>) add(type, bfloat16{});
    });
  }
  // It grows to the most that was asked for, once what used it is done.
  char* parts_of(std::size_t bytes) {
    if (bytes > parts_bytes_) {
      context_.deallocate(parts_);
      parts_ = nullptr;
      parts_bytes_ = 0;
      parts_ = context_.allocate(bytes);
      parts_bytes_ = bytes;
    }
    return static_cast<char*>(parts_);
  }

  Context& context_;
  const vcas::Place place_;
  const Nccl nccl_;
  std::atomic<NcclComm*> comm_ = nullptr;  // none once it was given up
  void* parts_ = nullptr;
  std::size_t parts_bytes_ = 0;
};

std::unique_ptr<Exchange> make_nccl_exchange(Context& context, Ranks& ranks) {
  return std::make_unique<NcclExchange>(context, ranks);
}

}  // namespace vcas::VCAS_DEVICE
