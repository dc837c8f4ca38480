#include "core/mapped_file.h"

#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "core/files.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/catch.h"

using namespace vcas;
namespace fs = std::filesystem;

namespace {

// How a child ends, and what it says on standard error, which goes to `said`.
// The child empties the file at `path`, then reads the last byte of `file`.
std::pair<int, std::string> read_shortened(const MappedFile& file, const fs::path& path,
                                           const fs::path& said) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!std::freopen(said.c_str(), "w", stderr)) ::_exit(1);
    fs::resize_file(path, 0);
    const volatile std::byte last = file.bytes().back();
    ::_exit(last == std::byte{0} ? 2 : 3);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read_file(said)};
}

}  // namespace

TEST_CASE("mapped_file: a file is seen as it is", "[files]") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "a";
  atomic_write(path, "abc");
  MappedFile file(path), other(path);
  file = std::move(other);
  CHECK(file.bytes().size() == 3);
  CHECK(file.bytes()[1] == std::byte{'b'});
  atomic_write(path, "");
  CHECK(MappedFile(path).bytes().empty());
  CHECK_THROWS_AS(MappedFile(folder.path()), Error);
  CHECK_THROWS_AS(MappedFile(folder.path() / "no"), Error);
}

TEST_CASE("mapped_file: one that became shorter ends the process with its name", "[files]") {
  TemporaryFolder folder;
  const fs::path a = folder.path() / "a", b = folder.path() / "b", said = folder.path() / "said";
  const auto message = [](const fs::path& path) {
    return "error: " + path.string() +
           ": cannot read: the file became shorter, or its disk failed\n";
  };
  for (const fs::path& path : {a, b}) atomic_write(path, std::string(10000, 'x'));
  std::optional<MappedFile> first(a), second(b);
  CHECK(read_shortened(*second, b, said) == std::pair{74, message(b)});
  second.reset();
  CHECK(read_shortened(*first, a, said) == std::pair{74, message(a)});
}
