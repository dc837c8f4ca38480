#include "core/mpi/mpi_ranks.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/mpi/mpi_module.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

class MpiRanks final : public Ranks {
 public:
  explicit MpiRanks(const vcas_mpi_table& mpi) : mpi_(mpi) {
    check(mpi_.start(), "start");
    check(mpi_.place(&place_.rank, &place_.size, &place_.local_rank, &place_.local_size), "start");
  }
  ~MpiRanks() override { mpi_.finish(); }

  Place place() const override { return place_; }
  void gather_all(std::span<const double> mine, std::span<double> all) override {
    check(mpi_.gather_all(mine.data(), static_cast<int>(mine.size()), all.data()), "gather");
  }
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) override {
    const bool first = place_.rank == 0;
    std::vector<std::size_t> sizes(first ? static_cast<std::size_t>(place_.size) : 0);
    check(mpi_.gather_sizes(mine.size(), sizes.data()), "gather");
    std::size_t bytes = 0;
    for (const std::size_t size : sizes) bytes += size;
    std::vector<std::byte> joined(bytes);
    if (first && !mine.empty()) std::memcpy(joined.data(), mine.data(), mine.size());
    check(mpi_.gather(mine.data(), mine.size(), joined.data(), sizes.data()), "gather");
    std::vector<std::vector<std::byte>> all;
    const std::byte* next = joined.data();
    for (const std::size_t size : sizes) {
      all.emplace_back(next, next + size);
      next += size;
    }
    return all;
  }
  void broadcast(std::vector<std::byte>& bytes) override {
    std::size_t size = bytes.size();
    check(mpi_.broadcast(&size, sizeof size), "broadcast");
    bytes.resize(size);
    check(mpi_.broadcast(bytes.data(), size), "broadcast");
  }
  void all_to_all(std::byte* to, const std::byte* from, std::size_t bytes_each) override {
    check(mpi_.all_to_all(from, to, bytes_each), "exchange");
  }
  void all_gather(std::byte* all, std::size_t bytes_each) override {
    check(mpi_.all_gather(all, bytes_each), "gather");
  }
  void barrier() override { check(mpi_.barrier(), "wait"); }
  [[noreturn]] void abort(ExitCode code) override {
    mpi_.abort(static_cast<int>(code));
    std::_Exit(static_cast<int>(code));
  }

 private:
  void check(int error, const char* what) const {
    if (error == 0) return;
    char text[512] = {};
    mpi_.text(error, text, sizeof text);
    throw Error(ExitCode::kUnavailable, fmt::format("MPI: the ranks cannot {}: {}", what, text),
                "another rank may have ended, or the network between the machines failed");
  }

  const vcas_mpi_table& mpi_;
  Place place_;
};

// The module stays loaded: MPI has threads and exit handlers of its own.
const vcas_mpi_table& load_module() {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path();
  std::string tried;
  for (const fs::path& folder : {program, program / VCAS_LIBRARY_FOLDER, fs::path()}) {
    const fs::path file = (folder / "libvcas_mpi.so").lexically_normal();
    void* const module = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) {
      tried += fmt::format("\n  {}", ::dlerror());
      continue;
    }
    if (const void* table = ::dlsym(module, "vcas_mpi"))
      return *static_cast<const vcas_mpi_table*>(table);
    tried += fmt::format("\n  {}: no table of functions", file.string());
  }
  throw Error(ExitCode::kUnavailable,
              "this process is one of several of MPI, and libvcas_mpi.so cannot be loaded:" + tried,
              "install MPI (Debian: libopenmpi-dev openmpi-bin) and build vcas again with "
              "VCAS_MPI=on, or start one process without mpirun");
}

// 0: the variable is not set.
int number_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : 0;
}

}  // namespace

bool started_by_mpi() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"})
    if (std::getenv(variable)) return true;
  return false;
}

std::shared_ptr<Ranks> ranks_of_environment() {
  if (!started_by_mpi()) return one_rank();
  return std::make_shared<MpiRanks>(load_module());
}

void check_launcher(const Ranks& ranks) {
  if (ranks.size() > 1) return;
  // A batch job may have more tasks than a launcher in it has processes.
  const bool is_launched_alone =
      number_of("OMPI_COMM_WORLD_SIZE") == 1 || number_of("PMI_SIZE") == 1;
  const struct {
    const char *variable, *hint;
  } launchers[] = {
      {"OMPI_COMM_WORLD_SIZE", "use the mpirun of the MPI that libvcas_mpi.so was built with"},
      {"PMI_SIZE", "use the mpirun of the MPI that libvcas_mpi.so was built with"},
      {"SLURM_NTASKS", "start it with srun --mpi=pmix, or mpirun; or ask for one task"},
      {"WORLD_SIZE", "torchrun is not supported: start it with mpirun, or srun --mpi=pmix"}};
  for (const auto& [variable, hint] : launchers)
    if (const int processes = number_of(variable);
        processes > 1 && !(is_launched_alone && std::string_view(variable) == "SLURM_NTASKS"))
      throw Error(ExitCode::kUnavailable,
                  fmt::format("{}={}, but this process would train alone: {} runs of one process "
                              "are no run of {}",
                              variable, processes, processes, processes),
                  hint);
}

}  // namespace vcas
