// Whatever the bytes, the parser either throws kBadData or gives tensors that lie within them.
#include <cstdlib>

#include "core/error.h"
#include "core/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    std::size_t total = 0;
    for (const vcas::StoredTensor& tensor : vcas::parse_safetensors(bytes, "fuzz").tensors) {
      std::size_t count = 1;
      for (const std::int64_t extent : tensor.shape) count *= static_cast<std::size_t>(extent);
      if (count * vcas::stored_type_bytes(tensor.dtype) != tensor.bytes.size()) std::abort();
      total += tensor.bytes.size();
      const bool inside = tensor.bytes.empty() || (tensor.bytes.data() >= bytes.data() &&
                                                   &tensor.bytes.back() <= &bytes.back());
      if (!inside) std::abort();
    }
    if (total > size) std::abort();
  } catch (const vcas::Error& error) {
    if (error.code() != vcas::ExitCode::kBadData) std::abort();
  }
  return 0;
}
