// Dense products by cuBLASLt, and which of its algorithms they take.
#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/cuda/context.h"

namespace vcas::cuda {
namespace {

// What cuBLASLt calls the types.
template <class T>
constexpr cudaDataType_t kDataType = std::is_same_v<T, double>     ? CUDA_R_64F
                                     : std::is_same_v<T, bfloat16> ? CUDA_R_16BF
                                                                   : CUDA_R_32F;

// An object of cuBLASLt, with what destroys it.
template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;

template <class T>
constexpr const char* kTypeName = std::is_same_v<T, double>     ? "f64"
                                  : std::is_same_v<T, bfloat16> ? "bf16"
                                                                : "f32";

// In bytes; cuBLASLt assumes 256 unless it is told.
std::uint32_t alignment(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

// What tells a product from others, for its choice of an algorithm.
template <class T, class Out>
std::string product_name(const std::string& sizes, const Factor<T>& a, const Factor<T>& b,
                         const Out* c, std::int64_t n, bool accumulate, bool bias) {
  std::string name = std::string(kTypeName<T>) + " to " + kTypeName<Out> +
                     (bias ? " with bias" : "") + (accumulate ? " added" : "") + ", " + sizes;
  const auto add = [&](const void* data, std::int64_t stride, bool transposed) {
    name += ", " + std::to_string(stride) + (transposed ? " T" : "") + " on " +
            std::to_string(alignment(data));
  };
  add(a.data, a.stride, a.transposed), add(b.data, b.stride, b.transposed), add(c, n, false);
  return name;
}

}  // namespace

std::int64_t choices_by(const std::string& chooser, const ProductChoices& choices) {
  return std::count_if(choices.chosen.begin(), choices.chosen.end(),
                       [&](const auto& choice) { return choice.first.starts_with(chooser); });
}

double Context::seconds_of(const std::function<void()>& body) {
  constexpr int kTimes = 8;
  body();  // outside of a graph: the first time loads the kernel
  // A graph, or the host would take longer than a short product.
  const LaunchGraph graph(captured_on(branch_.stream,
                                      [&] {
                                        for (int i = 0; i < kTimes; ++i) body();
                                      }),
                          {});
  const std::unique_ptr<Timeline> timeline = make_timeline();
  const auto launch = [&] {
    check(cudaGraphLaunch(graph.exec(), branch_.stream), "launching what is timed");
    timeline->mark();
  };
  launch();
  check(cudaDeviceSynchronize(), "kernels before what is timed");
  launch(), launch();
  return timeline->take_seconds()[1] / kTimes;
}

// By columns c^T = b^T a^T, so the factors change places, and `bias` is a column.
template <class T, class Out>
bool Context::gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Factor<T>& a,
                   const Factor<T>& b, Out* c, bool accumulate, const Out* bias) {
  if (m == 0 || n == 0) return true;
  if (k == 0) {
    VCAS_CHECK(!bias, "the bias of a product of no rows");
    if (!accumulate)
      check(cudaMemsetAsync(c, 0, static_cast<std::size_t>(m * n) * sizeof(Out), branch_.stream),
            "a product of no rows");
    return true;
  }
  const std::string sizes =
      std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k);
  const std::string what = "a product of " + sizes;
  const bool tf32 = std::is_same_v<T, float> && precision_ == Precision::kTf32;
  cublasLtMatmulDesc_t made = nullptr;
  cublas_.check(cublas_.create_product(&made,
                                       std::is_same_v<T, double> ? CUBLAS_COMPUTE_64F
                                       : tf32                    ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                 : CUBLAS_COMPUTE_32F,
                                       kDataType<Compute<T>>),
                what);
  const Owned<cublasLtMatmulDesc_t> product(made, cublas_.destroy_product);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    cublas_.check(cublas_.set_product(product.get(), attribute, &value,
                                      sizeof value),  // NOLINT: or a pointer
                  what);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  const auto layout = [&](cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                          std::int64_t stride, bool transposed) {
    if (transposed) std::swap(rows, columns);
    cublasLtMatrixLayout_t matrix = nullptr;
    cublas_.check(cublas_.create_layout(&matrix, type, static_cast<std::uint64_t>(rows),
                                        static_cast<std::uint64_t>(columns), stride),
                  what);
    return Owned<cublasLtMatrixLayout_t>(matrix, cublas_.destroy_layout);
  };
  const auto left = layout(kDataType<T>, n, k, b.stride, b.transposed);
  const auto right = layout(kDataType<T>, k, m, a.stride, a.transposed);
  const auto out = layout(kDataType<Out>, n, m, n, false);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(b.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(a.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(c));
  const auto multiply = [&](const cublasLtMatmulAlgo_t& algorithm) {
    const Compute<T> one = 1, beta = accumulate ? 1 : 0;
    cublas_.check(cublas_.multiply(handle_, product.get(), &one, b.data, left.get(), a.data,
                                   right.get(), &beta, c, out.get(), c, out.get(), &algorithm,
                                   branch_.products, kProductBytes, branch_.stream),
                  what);
  };
  std::string name;
  if (choices_.timed || !choices_.chosen.empty()) {
    name = chooser_ + (tf32 ? "tf32, " : "") +
           product_name(sizes, a, b, c, n, accumulate, bias != nullptr);
    const auto known = choices_.chosen.find(name);
    const auto algorithm =
        known == choices_.chosen.end() ? std::nullopt : algorithm_of(known->second);
    cublasLtMatmulHeuristicResult_t checked;
    if (algorithm &&
        cublas_.check_algorithm(handle_, product.get(), left.get(), right.get(), out.get(),
                                out.get(), &*algorithm, &checked) == CUBLAS_STATUS_SUCCESS &&
        checked.workspaceSize <= kProductBytes) {
      multiply(*algorithm);
      return true;
    }
  }
  // What adds to c would change it. Sizes that a step draws are not all worth their time.
  constexpr std::int64_t kMostChoices = 256;
  const bool timed =
      choices_.timed && !capturing_ && !accumulate && choices_by(chooser_, choices_) < kMostChoices;
  constexpr int kMostTimed = 8;
  cublasLtMatmulHeuristicResult_t found[kMostTimed];
  int count = 0;
  const cublasStatus_t status =
      cublas_.choose_algorithms(handle_, product.get(), left.get(), right.get(), out.get(),
                                out.get(), preference_, timed ? kMostTimed : 1, found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0))
    return false;
  cublas_.check(status, what);
  const cublasLtMatmulAlgo_t* best = &found[0].algo;  // as cuBLASLt thinks
  if (timed) {
    constexpr double kNoise = 0.98;
    double least = seconds_of([&] { multiply(*best); });
    for (int i = 1; i < count; ++i) try {
        const double seconds = seconds_of([&] { multiply(found[i].algo); });
        if (seconds < kNoise * least) least = seconds, best = &found[i].algo;
      } catch (const InternalError&) {  // it does not run
      }
    choices_.chosen[name] = text_of(*best);
  }
  multiply(*best);
  return true;
}

template bool Context::gemm(std::int64_t, std::int64_t, std::int64_t, const Factor<float>&,
                            const Factor<float>&, float*, bool, const float*);
template bool Context::gemm(std::int64_t, std::int64_t, std::int64_t, const Factor<double>&,
                            const Factor<double>&, double*, bool, const double*);
template bool Context::gemm(std::int64_t, std::int64_t, std::int64_t, const Factor<bfloat16>&,
                            const Factor<bfloat16>&, bfloat16*, bool, const bfloat16*);
template bool Context::gemm(std::int64_t, std::int64_t, std::int64_t, const Factor<bfloat16>&,
                            const Factor<bfloat16>&, float*, bool, const float*);

}  // namespace vcas::cuda
