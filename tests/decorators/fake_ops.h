// A backend without arithmetic: element i of every output becomes i + 1, added to the old content
// where the operation adds. It insists on getting its own memory only.
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace vcas {

class FakeOps final : public Ops {
 public:
  // Called after each operation for each output, to plant a difference.
  using Hook = std::function<void(const std::string& output, const Tensor& tensor)>;

  explicit FakeOps(std::string name = "fake", Hook hook = {})
      : name_(std::move(name)), hook_(std::move(hook)) {}
  ~FakeOps() override { VCAS_CHECK(blocks_.empty(), "memory of " + name_ + " was not given back"); }

  std::string name() const override { return name_; }
  void* allocate(std::size_t bytes) override {
    void* data = std::calloc(1, bytes + 1);
    blocks_[data] = bytes;
    return data;
  }
  void deallocate(void* data, std::size_t bytes) override {
    if (data == nullptr) return;
    VCAS_CHECK(blocks_.at(data) == bytes, "deallocated with another size");
    blocks_.erase(data);
    std::free(data);
  }
  void copy_to_device(void* device, const void* host, std::size_t bytes) override {
    std::memcpy(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, std::size_t bytes) override {
    std::memcpy(host, device, bytes);
  }
  void enter(const std::string& place) override { place_ = place; }

#define VCAS_OP(Args) \
  void run(const Args& args) override { pretend(args); }
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

  const std::string& place() const { return place_; }
  std::int64_t calls() const { return calls_; }

 private:
  struct Visitor {
    FakeOps& ops;
    void in(const char* name, const Tensor& tensor) {
      if (tensor) VCAS_CHECK(ops.blocks_.contains(tensor.data), std::string(name) + " is foreign");
    }
    void out(const char* name, const Tensor& tensor, bool accumulate = false) {
      if (!tensor) return;
      in(name, tensor);
      if (tensor.dtype == DType::kF32) ops.fill<float>(tensor, accumulate);
      if (tensor.dtype == DType::kF64) ops.fill<double>(tensor, accumulate);
      if (tensor.dtype == DType::kI32) ops.fill<std::int32_t>(tensor, accumulate);
      if (tensor.dtype == DType::kI64) ops.fill<std::int64_t>(tensor, accumulate);
      if (ops.hook_) ops.hook_(name, tensor);
    }
  };

  template <class T>
  void fill(const Tensor& tensor, bool accumulate) {
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      T& element = tensor.ptr<T>()[i];
      element = (accumulate ? element : T{0}) + static_cast<T>(i + 1);
    }
  }
  template <class Args>
  void pretend(const Args& args) {
    ++calls_;
    args.visit(Visitor{*this});
  }

  std::string name_, place_;
  Hook hook_;
  std::map<void*, std::size_t> blocks_;
  std::int64_t calls_ = 0;
};

// Tensors in the memory of `ops`, given back at the end.
class TestMemory {
 public:
  explicit TestMemory(Ops& ops) : ops_(ops) {}
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;
  ~TestMemory() {
    for (const Tensor& tensor : tensors_) ops_.deallocate(tensor.data, tensor.bytes());
  }

  Tensor tensor(DType dtype, const Shape& shape) {
    Tensor made{nullptr, dtype, shape};
    made.data = ops_.allocate(made.bytes());
    return tensors_.emplace_back(made);
  }
  Tensor f32(const Shape& shape) { return tensor(DType::kF32, shape); }
  template <class T>
  Tensor holding(const std::vector<T>& values) {
    const Tensor made = tensor(DTypeOf<T>::value, {static_cast<std::int64_t>(values.size())});
    ops_.copy_to_device(made.data, values.data(), made.bytes());
    return made;
  }

 private:
  Ops& ops_;
  std::vector<Tensor> tensors_;
};

}  // namespace vcas
