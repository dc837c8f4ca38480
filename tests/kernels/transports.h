// The ways by which ranks exchange tensors: the host, and NCCL or a library that stands for it.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/nccl.h"
#include "kernels/emu/emu_ops.h"
#include "tests/core/environment.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/thread_ranks.h"
#if VCAS_CUDA
#include "kernels/cuda/cuda_ops.h"
#endif

namespace vcas {

struct Transport {
  std::string name;
  const char* library;  // VCAS_NCCL
  int most_ranks;
  bool by_nccl;
  std::function<std::unique_ptr<Ops>()> make_ops;
  std::function<std::unique_ptr<Exchange>(Ops&, Ranks&)> make_exchange;
};

// By way of the host.
inline Transport host_transport(const std::string& device) {
  return {device,
          nullptr,
          5,
          false,
          [device] { return make_ops(device); },
          [](Ops& ops, Ranks& ranks) { return ops.make_exchange(ranks); }};
}
// The emulator with the library that stands for NCCL. What runs beside is done at once, or late.
inline std::vector<Transport> emulated_nccl() {
  std::vector<Transport> transports;
  for (const auto& [name, order] : {std::pair{"emu, NCCL, at once", emu::ThreadOrder::kForward},
                                    std::pair{"emu, NCCL, late", emu::ThreadOrder::kReverse}})
    transports.push_back({name, VCAS_FAKE_NCCL, 5, true,
                          [order = order] { return make_emu_ops(order); }, make_emu_nccl_exchange});
  return transports;
}

// NCCL takes several ranks on one GPU from 2.30 on, if it is asked to.
inline std::vector<Transport> real_nccl() {
#if VCAS_CUDA
  try {
    int version = 0;
    const Nccl nccl;
    nccl.check(nccl.get_version(&version), "its version");
    const bool shares = version >= 23000 && std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return {{"cuda, NCCL", std::getenv("VCAS_NCCL"), shares ? 2 : 1, true,
             [] { return make_ops("cuda"); }, make_cuda_nccl_exchange}};
  } catch (const Error& error) {
    WARN("skipped: " << error.what());
  }
#endif
  return {};
}

// Calls `body` with each of them, and the library that it needs.
inline void on_transports(const std::vector<Transport>& transports,
                          const std::function<void(const Transport&)>& body) {
  for (const Transport& transport : transports) {
    INFO(transport.name);
    const EnvironmentVariable library("VCAS_NCCL", transport.library);
    body(transport);
  }
}
inline void on_every_transport(const std::function<void(const Transport&)>& body) {
  for (const std::string& device : test_devices()) {
    if (device == "cuda") {
      on_transports(real_nccl(), body);
      continue;
    }
    on_transports({host_transport(device)}, body);
    if (device == "emu") on_transports(emulated_nccl(), body);
  }
}

}  // namespace vcas
