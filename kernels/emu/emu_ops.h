// The kernels of kernels/device on the host, for tests: right, and slow.
#pragma once

#include <memory>

#include "kernels/emu/emulator.h"
#include "kernels/ops.h"

namespace vcas {

// `warpgroup_products`: products in bf16 on tensor cores are those of sm_90a.
std::unique_ptr<Ops> make_emu_ops(emu::ThreadOrder order = emu::ThreadOrder::kForward,
                                  Precision precision = Precision::kF32,
                                  bool warpgroup_products = false);

// Kernels, products and copies that a GPU would have been given. make_emu_ops has made `ops`.
std::int64_t emu_launches(const Ops& ops);

// From now on no library has a product.
void emu_lacks_products(Ops& ops);

// An exchange by NCCL, of one rank too. make_emu_ops has made `ops`.
std::unique_ptr<Exchange> make_emu_nccl_exchange(Ops& ops, Ranks& ranks);

}  // namespace vcas
