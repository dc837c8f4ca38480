#include "core/files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/core/temporary_folder.h"
#include "tests/support/check_error.h"

using namespace vcas;
namespace fs = std::filesystem;

TEST_CASE("files: text goes to disk and comes back", "[files]") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "a.txt";
  const std::string text = std::string("a\0b\n", 4) + std::string(200000, 'x');
  atomic_write(path, "old");
  atomic_write(path, text);
  CHECK(read_file(path) == text);
  atomic_write(path, "");
  CHECK(read_file(path).empty());
  CHECK_FALSE(fs::exists(path.string() + ".tmp"));
}

TEST_CASE("files: errors name the path, the reason and the exit code", "[files]") {
  TemporaryFolder folder;
  const std::string missing = (folder.path() / "no" / "file").string();
  CHECK(error_text([&] { read_file(missing); }, ExitCode::kNoInput) ==
        missing + ": cannot open: No such file or directory");
  CHECK(error_text([&] { atomic_write(missing, "x"); }, ExitCode::kCannotCreate) ==
        missing + ": cannot create: No such file or directory");
  CHECK(error_text([&] { read_file(folder.path()); }, ExitCode::kNoInput) ==
        folder.path().string() + ": not a regular file");
  const fs::path file = folder.path() / "file";
  atomic_write(file, "x");
  CHECK(error_text([&] { AtomicFolder{file / "sub"}; }, ExitCode::kCannotCreate) ==
        file.string() + "/sub.tmp: cannot create: Not a directory");
}

TEST_CASE("files: a write that fails leaves the old file", "[files]") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "a.txt";
  atomic_write(path, "old");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {1000, before.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string got =
      error_text([&] { atomic_write(path, std::string(5000, 'x')); }, ExitCode::kIoError);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  CHECK(got == path.string() + ": cannot write: File too large");
  CHECK(read_file(path) == "old");
  CHECK_FALSE(fs::exists(path.string() + ".tmp"));
}

TEST_CASE("files: a link stays, and a pipe is no file to replace", "[files]") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "a.txt", link = folder.path() / "link",
                 dangling = folder.path() / "dangling", pipe = folder.path() / "pipe";
  atomic_write(path, "old");
  fs::create_symlink("a.txt", link);
  atomic_write(link, "new");
  CHECK(fs::is_symlink(link));
  CHECK(read_file(path) == "new");
  fs::create_symlink("b.txt", dangling);
  atomic_write(dangling, "new");
  CHECK(fs::is_symlink(dangling));
  CHECK(read_file(folder.path() / "b.txt") == "new");
  fs::create_directory(folder.path() / "sub");
  fs::create_symlink("sub/second", folder.path() / "first");
  fs::create_symlink("../c.txt", folder.path() / "sub/second");
  atomic_write(folder.path() / "first", "new");
  CHECK(fs::is_symlink(folder.path() / "first"));
  CHECK(fs::is_symlink(folder.path() / "sub/second"));
  CHECK(read_file(folder.path() / "c.txt") == "new");
  const fs::path loop = folder.path() / "loop", back = folder.path() / "back";
  fs::create_symlink("back", loop);
  fs::create_symlink("loop", back);
  CHECK(error_text([&] { atomic_write(loop, "x"); }, ExitCode::kCannotCreate) ==
        loop.string() + ": links that lead to no end");
  CHECK(fs::is_symlink(loop));
  CHECK(fs::is_symlink(back));
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(error_text([&] { atomic_write(pipe, "x"); }, ExitCode::kCannotCreate) ==
        pipe.string() + ": not a regular file");
  CHECK(fs::is_fifo(pipe));
}

TEST_CASE("files: a folder appears complete or not at all", "[files]") {
  TemporaryFolder parent;
  const fs::path target = parent.path() / "checkpoint-1";
  {
    AtomicFolder folder(target);
    atomic_write(folder.path() / "a", "1");
  }
  CHECK(fs::is_empty(parent.path()));

  for (const char* text : {"first", "second"}) {
    AtomicFolder folder(target / "");
    fs::create_directory(folder.path() / "sub");
    atomic_write(folder.path() / "sub" / "a", text);
    folder.commit();
    CHECK(read_file(target / "sub" / "a") == text);
    CHECK_FALSE(fs::exists(folder.path()));
  }
}

TEST_CASE("files: a link to a folder stays, and the folder is replaced", "[files]") {
  TemporaryFolder parent;
  const fs::path target = parent.path() / "target", link = parent.path() / "link";
  fs::create_directory(target);
  fs::create_symlink("target", link);
  fs::create_symlink("sub/new", parent.path() / "dangling");
  for (const fs::path& name : {link, link / "", parent.path() / "dangling"}) {
    AtomicFolder folder(name);
    atomic_write(folder.path() / "a", name.string());
    folder.commit();
    CHECK(read_file(name / "a") == name.string());
  }
  CHECK(fs::is_symlink(link));
  CHECK(read_file(target / "a") == (link / "").string());
  CHECK(fs::exists(parent.path() / "sub/new/a"));
}

TEST_CASE("files: what a new folder cannot replace stays as it is", "[files]") {
  TemporaryFolder parent;
  const fs::path target = parent.path() / "x", file = parent.path() / "file";
  fs::create_directory(target);
  atomic_write(target / "thesis", "years of work");
  check_error([&] { AtomicFolder{target / "."}.commit(); }, ExitCode::kCannotCreate,
              "x/.: cannot be replaced: Device or resource busy",
              "for a mount point or \".\", one inside it");
  CHECK(read_file(target / "thesis") == "years of work");
  CHECK(std::distance(fs::directory_iterator(target), {}) == 1);
  atomic_write(file, "a file");
  check_error([&] { AtomicFolder{file}; }, ExitCode::kCannotCreate, "file: not a folder",
              "give a name that may be made or replaced");
}

TEST_CASE("files: a file or link that somebody has beside the new one stays", "[files]") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "x", theirs = folder.path() / "x.tmp",
                 link = folder.path() / "x.tmp-2", target = folder.path() / "thesis";
  atomic_write(target, "years of work");
  atomic_write(theirs, "of the user");
  fs::create_symlink("thesis", link);
  fs::create_symlink("nowhere", folder.path() / "x.tmp-3");
  for (const char* text : {"first", "second"}) {
    {
      AtomicFile file(path);
      file.write("left");
      CHECK(read_file(folder.path() / "x.tmp-4") == "left");
    }
    atomic_write(path, text);
    CHECK(read_file(path) == text);
  }
  CHECK(read_file(theirs) == "of the user");
  CHECK(fs::is_symlink(link));
  CHECK(read_file(target) == "years of work");
  CHECK_FALSE(fs::exists(folder.path() / "nowhere"));
  CHECK_FALSE(fs::exists(folder.path() / "x.tmp-4"));
}

TEST_CASE("files: two writers of one file each write their own", "[files]") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "x";
  AtomicFile first(path), second(path);
  first.write("first");
  second.write("second");
  second.commit();
  CHECK(read_file(path) == "second");
  first.commit();
  CHECK(read_file(path) == "first");
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("files: names of unfinished files are told from those of users", "[files]") {
  CHECK(finished_name("x.json.tmp") == "x.json");
  CHECK(finished_name("x.tmp-12") == "x");
  CHECK(finished_name("x.tmp.tmp") == "x.tmp");
  for (const char* name : {"", "x", "x.tmp-", "x.tmp-backup", "x.tmp-2b", "x.tmp2", "x.tmp.old"})
    CHECK(finished_name(name).empty());
}

TEST_CASE("files: a folder that somebody has beside the new one stays", "[files]") {
  TemporaryFolder parent;
  const fs::path target = parent.path() / "x", theirs = parent.path() / "x.tmp";
  fs::create_directories(theirs);
  atomic_write(theirs / "thesis", "years of work");
  atomic_write(parent.path() / "x.tmp-2", "a file");
  for (const bool commits : {false, true}) {
    AtomicFolder folder(target);
    CHECK(folder.path() == parent.path() / "x.tmp-3");
    if (commits) folder.commit();
  }
  CHECK(read_file(theirs / "thesis") == "years of work");
  CHECK(fs::exists(parent.path() / "x.tmp-2"));
  CHECK(fs::exists(target));
  CHECK_FALSE(fs::exists(parent.path() / "x.tmp-3"));
}

TEST_CASE("files: a pipe is refused, not waited for", "[files]") {
  TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(error_text([&] { read_file(pipe); }, ExitCode::kNoInput) ==
        pipe.string() + ": not a regular file");
  fs::rename(pipe, folder.path() / "manifest.json");
  CHECK(error_of([&] { check_manifest(folder.path()); }).code() == ExitCode::kNoInput);
}

// The first page of this file is not mapped, so reading it is an I/O error.
TEST_CASE("files: a disk that fails while it is read is an error with a name", "[files]") {
  TemporaryFolder folder;
  CHECK(error_text([] { read_file("/proc/self/mem"); }, ExitCode::kIoError) ==
        "/proc/self/mem: cannot read: Input/output error");
  atomic_write(folder.path() / "a", "1");
  write_manifest(folder.path());
  fs::remove(folder.path() / "a");
  fs::create_symlink("/proc/self/mem", folder.path() / "a");
  CHECK(error_text([&] { check_manifest(folder.path()); }, ExitCode::kIoError) ==
        (folder.path() / "a").string() + ": cannot read: Input/output error");
}

TEST_CASE("files: the manifest finds missing, short and changed files", "[files]") {
  TemporaryFolder folder;
  const auto check = [&] {
    return error_text([&] { check_manifest(folder.path()); }, ExitCode::kBadData);
  };
  const auto bad = [&](const std::string& text) { return folder.path().string() + "/" + text; };
  CHECK(check() == bad("manifest.json: missing"));
  fs::create_directory(folder.path() / "sub");
  atomic_write(folder.path() / "a", "123456789");
  atomic_write(folder.path() / "sub" / "b", "");
  write_manifest(folder.path());
  CHECK_THAT(read_file(folder.path() / "manifest.json"), ContainsSubstring("\"cbf43926\""));
  CHECK(check().empty());
  write_manifest(folder.path());  // does not list itself
  CHECK(check().empty());

  atomic_write(folder.path() / "a", "123456780");
  CHECK(check() == bad("a: CRC-32 is b2288182, but manifest.json says cbf43926"));
  atomic_write(folder.path() / "a", "12345678");
  CHECK(check() == bad("a: 8 bytes, but manifest.json says 9"));
  fs::remove(folder.path() / "a");
  CHECK(check() == bad("a: missing, but manifest.json lists it"));
  for (const char* text : {"", "{", "[]", "{\"files\": {\"a\": 1}}", "{\"files\": {\"a\": {}}}"}) {
    atomic_write(folder.path() / "manifest.json", text);
    CHECK_FALSE(check().empty());
  }
}

TEST_CASE("files: a run folder belongs to one process", "[files]") {
  TemporaryFolder folder;
  {
    const FolderLock lock(folder.path());
    CHECK(error_text([&] { FolderLock{folder.path()}; }, ExitCode::kCannotCreate) ==
          folder.path().string() + ": another run is using this folder (process " +
              std::to_string(::getpid()) + ")");
    const pid_t child = ::fork();
    if (child == 0) {
      const Error refused = error_of([&] { FolderLock{folder.path()}; });
      ::_exit(refused.code() == ExitCode::kCannotCreate ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  CHECK_NOTHROW(FolderLock{folder.path()});
}

TEST_CASE("files: who looks whether a run folder is locked keeps no run out", "[files]") {
  TemporaryFolder folder;
  atomic_write(folder.path() / kLockFile, "");
  FileDescriptor reader = open_file(folder.path() / kLockFile, O_RDONLY);
  REQUIRE(::flock(reader.get(), LOCK_SH) == 0);
  std::jthread leaves([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    reader = FileDescriptor();
  });
  CHECK_NOTHROW(FolderLock{folder.path()});
}

TEST_CASE("files: a lock that is a link is refused, and what it leads to stays", "[files]") {
  TemporaryFolder folder;
  atomic_write(folder.path() / "thesis", "years of work");
  fs::create_symlink("thesis", folder.path() / kLockFile);
  check_error([&] { FolderLock{folder.path()}; }, ExitCode::kCannotCreate,
              "lock: a link, and a run writes to no file outside its folder",
              "remove the link, or choose another folder");
  CHECK(read_file(folder.path() / "thesis") == "years of work");
}
