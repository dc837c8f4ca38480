// What this program knows of GPUs: built in, and found.
#pragma once

#include <string>
#include <vector>

namespace vcas {

struct CudaSupport {
  std::string build;                 // "13.0 for sm_80 sm_90a"; empty: no kernels are built in
  std::vector<std::string> devices;  // names of the GPUs found
  std::string missing;               // why there are none; empty where there is one
};

CudaSupport cuda_support();

}  // namespace vcas
