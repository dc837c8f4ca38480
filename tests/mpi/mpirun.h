// Lines of a shell in a folder with tiny.json, where mpirun and the program are commands.
#pragma once

#include <cstdlib>

#include "tests/support/catch.h"
#include "tests/tools/program.h"

// Says so where tests must be skipped.
inline bool lacks_mpi() {
  const std::filesystem::path module =
      std::filesystem::path(VCAS_PROGRAM).parent_path() / "libvcas_mpi.so";
  if (std::filesystem::exists(module) && std::filesystem::exists("/usr/bin/mpirun")) return false;
  WARN("skipped: MPI is not installed");
  return true;
}

// "mpirun -np 2 "; more ranks than cores are allowed.
inline std::string mpirun_of(int ranks) {
  return "mpirun --oversubscribe --bind-to none -np " + std::to_string(ranks) + " ";
}

// Runs a line on rank 0 and another on rank 1. "mpirun first : second" crashes in Open MPI 5.0.7.
inline std::string on_two_ranks(const std::string& first, const std::string& second) {
  return mpirun_of(2) + "sh -c 'if test $OMPI_COMM_WORLD_RANK = 0; then " + first + "; else " +
         second + "; fi'";
}

// The exit code is that of the line's last command.
inline Outcome shell(const std::filesystem::path& folder, const std::string& line) {
  const std::string programs = std::filesystem::path(VCAS_PROGRAM).parent_path().string();
  write_text(folder / "line.sh",
             "export PATH=" + programs + ":/usr/bin:/bin CUDA_VISIBLE_DEVICES= TERM=dumb" +
                 " HOME=" + folder.string() + " OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1" +
                 " OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm=isolated" +
                 " OMPI_MCA_mpi_yield_when_idle=1" +
                 " OMPI_MCA_btl_vader_single_copy_mechanism=none\n" + line + "\n");
  const std::string command =
      "cd '" + folder.string() + "' && env -i timeout -s KILL 200 sh line.sh >out.txt 2>err.txt";
  const int status = std::system(command.c_str());
  return {WEXITSTATUS(status), content(folder / "out.txt"), content(folder / "err.txt")};
}

class RanksRun : public TinyRun {
 public:
  Outcome shell(const std::string& line) const { return ::shell(path(), line); }
  // Runs `vcas-train tiny.json arguments` on each.
  Outcome mpirun(int ranks, const std::string& arguments) const {
    return shell(mpirun_of(ranks) + "vcas-train tiny.json " + arguments);
  }
};

// A line of `vcas-train ../tiny.json arguments` on two ranks. Each has a folder, a and b.
inline std::string in_two_folders(const std::string& arguments) {
  const std::string program = " && exec vcas-train ../tiny.json " + arguments;
  return on_two_ranks("cd a" + program, "cd b" + program);
}
