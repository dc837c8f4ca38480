# The CUDA backend: the sources of kernels/device, compiled by nvcc where a toolkit is found.
# VCAS_HAS_CUDA says whether it is built.
vcas_choice(VCAS_CUDA "CUDA backend" auto on off)
set(VCAS_HAS_CUDA OFF)
if(VCAS_CUDA STREQUAL "off")
  message(STATUS "CUDA: off")
  return()
endif()
if(VCAS_SANITIZE)
  if(VCAS_CUDA STREQUAL "on")
    message(FATAL_ERROR "VCAS_CUDA=on with VCAS_SANITIZE: nvcc has no sanitizers; kernels run "
                        "under them in the emulator (device emu)")
  endif()
  message(STATUS "CUDA: off, sanitizers are on")
  return()
endif()

find_package(CUDAToolkit 12.8 QUIET)
if(NOT CUDAToolkit_FOUND)
  if(VCAS_CUDA STREQUAL "on")
    message(FATAL_ERROR "VCAS_CUDA=on, but no CUDA toolkit of version 12.8 or later was found; "
                        "CUDAToolkit_ROOT names its folder")
  endif()
  message(STATUS "CUDA: no toolkit found")
  return()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  # A100, RTX 30 and 40, L4; H100, H200; what is newer compiles PTX when it starts.
  set(CMAKE_CUDA_ARCHITECTURES 80 90a 100-virtual CACHE STRING
      "GPUs to build for; native: this machine's")
endif()
enable_language(CUDA)
# What is native to compute capability 9.0 is 90 to CMake, which lacks wgmma.
if(CMAKE_CUDA_ARCHITECTURES STREQUAL "native" AND CMAKE_CUDA_ARCHITECTURES_NATIVE MATCHES "^90")
  set(CMAKE_CUDA_ARCHITECTURES 90a)
endif()
set(VCAS_HAS_CUDA ON)
message(STATUS "CUDA: toolkit ${CUDAToolkit_VERSION}, for sm_${CMAKE_CUDA_ARCHITECTURES}")
