// Processes of MPI against threads that stand for them.
#include "core/mpi/mpi_ranks.h"

#include "tests/mpi/mpirun.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace vcas;

namespace {

// Rank 0 writes what it has trained, exactly and sampled, to the file.
void train_and_write(const std::shared_ptr<Ranks>& ranks, const std::string& file) {
  std::string bytes;
  for (const char* method : {"exact", "vcas"}) {
    TrainerOptions options = TrainerFixture::defaults();
    options.batch = 24;
    options.micro_batch = 4;
    options.method.type = method;
    options.optimizer.kind.type = "adamw";
    options.ranks = ranks;
    if (options.method.type == "vcas") vcas_of(options).s_step = 0.1;
    TrainerFixture f(options, 0.1);
    f.run(20);
    const std::vector<float> weights = f.weights();
    bytes.append(reinterpret_cast<const char*>(weights.data()), weights.size() * sizeof(float));
  }
  if (ranks->is_first()) write_text(file, bytes);
}

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

void check_functions(Ranks& ranks) {
  const auto [rank, size, local_rank, local_size] = ranks.place();
  require(local_rank == rank && local_size == size, "place");
  const double mine[] = {rank + 0.5, -1.0 * rank};
  std::vector<double> all(2 * static_cast<std::size_t>(size));
  ranks.gather_all(mine, all);
  for (int r = 0; r < size; ++r)
    require(all[2 * r] == r + 0.5 && all[2 * r + 1] == -r, "gather_all");
  const std::vector<std::byte> own(1000 * rank, static_cast<std::byte>(rank));  // none of rank 0
  const auto parts = ranks.gather(own);
  require(parts.size() == static_cast<std::size_t>(rank == 0 ? size : 0), "gather");
  for (std::size_t r = 0; r < parts.size(); ++r)
    require(parts[r] == std::vector<std::byte>(1000 * r, static_cast<std::byte>(r)), "gather");
  for (const std::size_t bytes : {0, 77}) {
    std::vector<std::byte> sent(rank == 0 ? bytes : 3, static_cast<std::byte>(rank + 1));
    ranks.broadcast(sent);
    require(sent == std::vector<std::byte>(bytes, std::byte{1}), "broadcast");
  }
  constexpr std::size_t kEach = 5;
  std::vector<std::byte> from, to(kEach * size), slab(kEach * size);
  for (int r = 0; r < size; ++r)
    from.insert(from.end(), kEach, static_cast<std::byte>(10 * rank + r));
  ranks.all_to_all(to.data(), from.data(), kEach);
  std::fill_n(slab.begin() + rank * kEach, kEach, static_cast<std::byte>(rank + 7));
  ranks.all_gather(slab.data(), kEach);
  for (int r = 0; r < size; ++r)
    for (std::size_t i = 0; i < kEach; ++i) {
      require(to[r * kEach + i] == static_cast<std::byte>(10 * r + rank), "all_to_all");
      require(slab[r * kEach + i] == static_cast<std::byte>(r + 7), "all_gather");
    }
  ranks.barrier();
}

}  // namespace

// What mpirun starts: not by itself.
TEST_CASE("a process of MPI", "[.process]") {
  const auto ranks = ranks_of_environment();
  REQUIRE(ranks->size() > 1);
  check_functions(*ranks);
  train_and_write(ranks, "processes");
}

TEST_CASE("threads in its place", "[.threads]") {
  on_thread_ranks(std::atoi(std::getenv("RANKS")), [](const std::shared_ptr<Ranks>& ranks) {
    check_functions(*ranks);
    train_and_write(ranks, "threads");
  });
}

TEST_CASE("a launcher of one process in a job of more tasks starts a run") {
  const auto ranks = one_rank();
  ::setenv("SLURM_NTASKS", "4", 1);
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    CHECK_THROWS_WITH(check_launcher(*ranks),
                      Catch::Matchers::StartsWith("SLURM_NTASKS=4, but this process would train"));
    ::setenv(variable, "1", 1);
    CHECK_NOTHROW(check_launcher(*ranks));
    ::setenv("WORLD_SIZE", "4", 1);
    CHECK_THROWS_WITH(check_launcher(*ranks),
                      Catch::Matchers::StartsWith("WORLD_SIZE=4, but this process would train"));
    ::unsetenv("WORLD_SIZE");
    ::unsetenv(variable);
  }
  ::unsetenv("SLURM_NTASKS");
}

TEST_CASE("processes of MPI train with the bits of threads", "[mpi]") {
  if (lacks_mpi()) return;
  const RanksRun folder;
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    const Outcome processes = folder.shell(mpirun_of(ranks) + "vcas_mpi_tests '[.process]'");
    INFO(processes.out << processes.err);
    REQUIRE(processes.code == 0);
    const Outcome threads =
        folder.shell("RANKS=" + std::to_string(ranks) + " vcas_mpi_tests '[.threads]'");
    INFO(threads.out << threads.err);
    REQUIRE(threads.code == 0);
    CHECK_FALSE(content(folder.path() / "threads").empty());
    CHECK(content(folder.path() / "processes") == content(folder.path() / "threads"));
  }
}
