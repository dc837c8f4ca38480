#include "kernels/emu/emu_ops.h"

#include "kernels/device/device_ops.cuh"

namespace vcas {

std::unique_ptr<Ops> make_emu_ops(emu::ThreadOrder order, Precision precision,
                                  bool warpgroup_products) {
  return std::make_unique<emu::DeviceOps>(order, precision, warpgroup_products);
}

std::int64_t emu_launches(const Ops& ops) {
  return dynamic_cast<const emu::DeviceOps&>(ops).context().launches();
}

void emu_lacks_products(Ops& ops) {
  dynamic_cast<emu::DeviceOps&>(ops).context().set_lacks_products(true);
}

std::unique_ptr<Exchange> make_emu_nccl_exchange(Ops& ops, Ranks& ranks) {
  return emu::make_nccl_exchange(dynamic_cast<emu::DeviceOps&>(ops).context(), ranks);
}

}  // namespace vcas
