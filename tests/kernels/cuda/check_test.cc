// What the statuses of the CUDA runtime become; no device is needed.
#include <memory>

#include "kernels/cuda/context.h"
#include "tests/support/catch.h"

namespace vcas {
namespace {

Error refused(cudaError_t status) {
  try {
    cuda::check(status, "copy to the host");
  } catch (const Error& error) {
    return error;
  }
  throw std::logic_error("no error");
}

TEST_CASE("cuda: an algorithm of cuBLASLt is read as it was written", "[cuda]") {
  cublasLtMatmulAlgo_t algorithm;
  for (std::size_t i = 0; i < std::size(algorithm.data); ++i) algorithm.data[i] = i << 59 | i;
  std::string text = cuda::text_of(algorithm);
  CHECK(text.substr(0, 48) == "000000000000000008000000000000011000000000000002");
  const auto read = cuda::algorithm_of(text);
  REQUIRE(read);
  CHECK(std::equal(std::begin(algorithm.data), std::end(algorithm.data), std::begin(read->data)));
  for (const std::string& wrong : {std::string(), text + "0", text.substr(1), "g" + text.substr(1),
                                   "-" + text.substr(1), " " + text.substr(1)})
    CHECK(!cuda::algorithm_of(wrong));
}

TEST_CASE("cuda: choices of another device or library leave room for a device's own", "[cuda]") {
  ProductChoices choices;
  for (const char* name : {"NVIDIA A100, cuBLASLt 130001: f32", "NVIDIA H200, cuBLASLt 13000: f32",
                           "NVIDIA H200, cuBLASLt 130001: f32",
                           "NVIDIA H200, cuBLASLt 130001: tf32, f32", "emu: product"})
    choices.chosen[name] = "an algorithm";
  CHECK(cuda::choices_by("NVIDIA H200, cuBLASLt 130001: ", choices) == 2);
  CHECK(cuda::choices_by("NVIDIA H200, cuBLASLt 13000: ", choices) == 1);
  CHECK(cuda::choices_by("NVIDIA H100, cuBLASLt 130001: ", choices) == 0);
}

TEST_CASE("cuda: a status of the runtime becomes an error of its kind", "[cuda]") {
  CHECK_NOTHROW(cuda::check(cudaSuccess, "copy to the host"));

  const Error full = refused(cudaErrorMemoryAllocation);
  CHECK(full.code() == ExitCode::kOutOfMemory);
  CHECK(full.what() == std::string("GPU out of memory: copy to the host: out of memory"));
  CHECK(full.hint().find("train.micro_batch") != std::string::npos);

  const Error none = refused(cudaErrorNoDevice);
  CHECK(none.code() == ExitCode::kUnavailable);
  CHECK(none.what() == std::string("no CUDA device (copy to the host: no CUDA-capable device is "
                                   "detected)"));

  const Error driver = refused(cudaErrorInsufficientDriver);
  CHECK(driver.code() == ExitCode::kUnavailable);
  CHECK(driver.what() == std::string("no CUDA device (copy to the host: no NVIDIA driver, or one "
                                     "older than this build needs)"));

  const Error other = refused(cudaErrorNoKernelImageForDevice);
  CHECK(other.code() == ExitCode::kUnavailable);
  CHECK(other.hint() == "build with CMAKE_CUDA_ARCHITECTURES=native");

  for (const cudaError_t status : {cudaErrorECCUncorrectable, cudaErrorLaunchTimeout}) {
    const Error lost = refused(status);
    CHECK(lost.code() == ExitCode::kUnavailable);
    CHECK(lost.what() ==
          std::string("the GPU was lost (copy to the host: ") + cudaGetErrorString(status) + ")");
    CHECK(lost.hint().find("--resume") != std::string::npos);
  }

  for (const cudaError_t status : {cudaErrorLaunchFailure, cudaErrorIllegalAddress}) {
    const Error failed = refused(status);
    CHECK(failed.code() == ExitCode::kInternal);
    CHECK(failed.what() == std::string("a kernel failed on the GPU (copy to the host: ") +
                               cudaGetErrorString(status) + ")");
    CHECK(failed.hint().find("please report it") != std::string::npos);
    CHECK(failed.hint().find("the last checkpoint is whole, and --resume") != std::string::npos);
  }

  CHECK_THROWS_AS(cuda::check(cudaErrorInvalidValue, "copy to the host"), InternalError);
}

TEST_CASE("cuda: memory that the host lacks is not said to be the GPU's", "[cuda]") {
  CHECK_NOTHROW(cuda::check_host(cudaSuccess, 64));
  try {
    cuda::check_host(cudaErrorMemoryAllocation, 64);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kOutOfMemory);
    CHECK(error.what() == std::string("host out of memory: no 64 bytes of page-locked memory"));
    CHECK(error.hint().find("on this machine") != std::string::npos);
  }
  CHECK_THROWS_AS(cuda::check_host(cudaErrorInvalidValue, 64), InternalError);
}

TEST_CASE("cuda: a status of cuBLASLt becomes an error of its kind", "[cuda]") {
  std::unique_ptr<cuda::Cublas> cublas;
  try {
    cublas = std::make_unique<cuda::Cublas>();  // finds all functions in use
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kUnavailable);
    REQUIRE(std::string(error.what()).starts_with("cannot load libcublasLt.so."));
    WARN("skipped: " << error.what());
    return;
  }
  CHECK_NOTHROW(cublas->check(CUBLAS_STATUS_SUCCESS, "a product of 2 x 3 x 4"));
  CHECK_THROWS_AS(cublas->check(CUBLAS_STATUS_NOT_SUPPORTED, "a product"), InternalError);
  try {
    cublas->check(CUBLAS_STATUS_ALLOC_FAILED, "a product of 2 x 3 x 4");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kOutOfMemory);
    CHECK(std::string(error.what()).starts_with("GPU out of memory: a product of 2 x 3 x 4: "));
  }
}

}  // namespace
}  // namespace vcas
