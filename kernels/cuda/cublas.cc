#include "kernels/cuda/cublas.h"

#include <dlfcn.h>

#include <charconv>

#include "core/error.h"
#include "kernels/cuda/context.h"

namespace vcas::cuda {
namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function)
    throw Error(ExitCode::kUnavailable, std::string("the cuBLASLt library has no function ") + name,
                "install the CUDA toolkit that vcas was built with");
}

}  // namespace

Cublas::Cublas() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  // Never closed: the library keeps threads and device memory of its own.
  void* library = dlopen(name.c_str(), RTLD_NOW);
  if (!library) library = dlopen((VCAS_CUDA_LIBRARIES "/" + name).c_str(), RTLD_NOW);
  if (!library)
    throw Error(ExitCode::kUnavailable, "cannot load " + name + ": " + dlerror(),
                "install cuBLAS, or add its folder to LD_LIBRARY_PATH");
  find(library, "cublasLtCreate", create);
  find(library, "cublasLtDestroy", destroy);
  find(library, "cublasLtGetStatusString", status_text);
  find(library, "cublasLtMatmulDescCreate", create_product);
  find(library, "cublasLtMatmulDescDestroy", destroy_product);
  find(library, "cublasLtMatmulDescSetAttribute", set_product);
  find(library, "cublasLtMatrixLayoutCreate", create_layout);
  find(library, "cublasLtMatrixLayoutDestroy", destroy_layout);
  find(library, "cublasLtMatmulPreferenceCreate", create_preference);
  find(library, "cublasLtMatmulPreferenceDestroy", destroy_preference);
  find(library, "cublasLtMatmulPreferenceSetAttribute", set_preference);
  find(library, "cublasLtGetVersion", version);
  find(library, "cublasLtMatmulAlgoGetHeuristic", choose_algorithms);
  find(library, "cublasLtMatmulAlgoCheck", check_algorithm);
  find(library, "cublasLtMatmul", multiply);
}

constexpr std::size_t kDigits = 16;  // of a word
constexpr std::size_t kWords = sizeof(cublasLtMatmulAlgo_t::data) / sizeof(std::uint64_t);

std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm.data) {
    char digits[kDigits];
    const auto written = std::to_chars(digits, digits + kDigits, word, 16).ptr - digits;
    text.append(kDigits - static_cast<std::size_t>(written), '0').append(digits, written);
  }
  return text;
}

std::optional<cublasLtMatmulAlgo_t> algorithm_of(const std::string& text) {
  if (text.size() != kWords * kDigits) return {};
  cublasLtMatmulAlgo_t algorithm;
  const char* from = text.data();
  for (std::uint64_t& word : algorithm.data) {
    const auto read = std::from_chars(from, from + kDigits, word, 16);
    if (read.ec != std::errc{} || read.ptr != from + kDigits) return {};
    from += kDigits;
  }
  return algorithm;
}

void Cublas::check(cublasStatus_t status, const std::string& what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string why = what + ": " + status_text(status);
  if (status == CUBLAS_STATUS_ALLOC_FAILED)
    throw Error(ExitCode::kOutOfMemory, "GPU out of memory: " + why,
                "a smaller batch or micro-batch needs less");
  // Also of a kernel before, which has failed unseen. The device then says why.
  if (status == CUBLAS_STATUS_EXECUTION_FAILED) cuda::check(cudaDeviceSynchronize(), what);
  throw InternalError("cuBLASLt: " + why);
}

}  // namespace vcas::cuda
