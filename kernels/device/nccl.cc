#include "kernels/device/nccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "core/error.h"

namespace vcas {
namespace {

constexpr const char* kHint =
    "install NCCL 2.18 or later, or name its libnccl.so.2 by VCAS_NCCL; one rank needs none";

std::string text_of(int version) {
  return std::to_string(version / 10000) + '.' + std::to_string(version / 100 % 100);
}

// Where it may be.
std::vector<std::string> candidates() {
  if (const char* named = std::getenv("VCAS_NCCL")) return {named};
  std::vector<std::string> files = {"libnccl.so.2"};
#ifdef VCAS_CUDA_LIBRARIES
  files.push_back(VCAS_CUDA_LIBRARIES "/libnccl.so.2");
#endif
  return files;
}

struct Library {
  void* handle;
  std::string file;
};

// Never closed: the library has threads of its own.
Library load() {
  std::string tried;
  for (const std::string& file : candidates()) {
    if (void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return {handle, file};
    tried += std::string("\n  ") + dlerror();
  }
  throw Error(ExitCode::kUnavailable,
              "several ranks with GPUs need NCCL, which cannot be loaded:" + tried, kHint);
}

}  // namespace

Nccl::Nccl() {
  const auto [library, file] = load();
  const auto find = [&library = library, &file = file]<class Function>(const char* name,
                                                                       Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function)
      throw Error(ExitCode::kUnavailable, file + " has no function " + name + " of NCCL", kHint);
  };
  find("ncclGetVersion", get_version);
  find("ncclGetErrorString", error_text);
  int version = 0;
  if (get_version(&version) != 0 || version < kOldest)
    throw Error(
        ExitCode::kUnavailable,
        file + " is NCCL " + text_of(version) + ", and 2.18 is the oldest that vcas can use",
        kHint);
  find("ncclGetLastError", last_error);
  find("ncclGetUniqueId", make_id);
  find("ncclCommInitRank", join);
  find("ncclCommDestroy", destroy);
  find("ncclCommAbort", abort);
  find("ncclCommGetAsyncError", async_error);
  find("ncclSend", send);
  find("ncclRecv", receive);
  find("ncclAllGather", all_gather);
  find("ncclGroupStart", group_start);
  find("ncclGroupEnd", group_end);
}

void Nccl::check(int status, const std::string& what) const {
  if (status == 0) return;
  const std::string more = last_error(nullptr);
  throw Error(ExitCode::kUnavailable,
              "NCCL: " + what + ": " + error_text(status) + (more.empty() ? "" : " (" + more + ")"),
              "NCCL_DEBUG=INFO shows more; another rank may have ended, or have no GPU of its own");
}

}  // namespace vcas
