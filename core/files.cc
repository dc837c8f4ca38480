#include "core/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

namespace vcas {
namespace fs = std::filesystem;
namespace {

constexpr const char* kManifestName = "manifest.json";
constexpr const char* kLockName = "lock";

fs::path temporary_name(fs::path path) {
  if (!path.has_filename()) path = path.parent_path();  // "folder/"
  return path += ".tmp";
}

FileDescriptor open_to_read(const fs::path& path, int more_flags = 0) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | more_flags));
  if (file.get() < 0) fail_errno(ExitCode::kNoInput, path, "cannot open");
  return file;
}

void sync(const FileDescriptor& file, const fs::path& path) {
  // Some network file systems cannot sync a folder and say EINVAL.
  if (::fsync(file.get()) != 0 && errno != EINVAL) {
    fail_errno(ExitCode::kIoError, path, "cannot write to disk");
  }
}

void sync_path(const fs::path& path) { sync(open_to_read(path), path); }

// A rename is on disk only once the folder that holds the name is.
void sync_parent(const fs::path& path) {
  sync_path(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

std::uint32_t file_crc32(const MappedFile& file) {
  return static_cast<std::uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(file.bytes().data()), file.bytes().size()));
}

[[noreturn]] void fail_manifest(const fs::path& path, const std::string& why) {
  throw Error(ExitCode::kBadData, path.string() + ": " + why,
              "the folder is incomplete or damaged; use an earlier one");
}

}  // namespace

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

void fail_errno(ExitCode code, const fs::path& path, std::string_view what) {
  const int number = errno;
  throw Error(code, fmt::format("{}: {}: {}", path.string(), what,
                                std::generic_category().message(number)));
}

void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_errno(ExitCode::kIoError, path, "cannot write");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

std::string read_file(const fs::path& path) {
  const FileDescriptor file = open_to_read(path);
  std::string text;
  char chunk[1 << 16];
  for (;;) {
    const ssize_t count = ::read(file.get(), chunk, sizeof(chunk));
    if (count < 0) {
      if (errno == EINTR) continue;
      fail_errno(errno == EISDIR ? ExitCode::kNoInput : ExitCode::kIoError, path, "cannot read");
    }
    if (count == 0) return text;
    text.append(chunk, static_cast<std::size_t>(count));
  }
}

MappedFile::MappedFile(const fs::path& path) {
  const FileDescriptor file = open_to_read(path, O_NONBLOCK);  // a pipe would let us wait
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_errno(ExitCode::kIoError, path, "cannot read");
  if (!S_ISREG(status.st_mode)) {
    throw Error(ExitCode::kNoInput, path.string() + ": not a regular file");
  }
  const std::size_t size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // mmap refuses empty files
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) fail_errno(ExitCode::kIoError, path, "cannot map");
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

AtomicFile::AtomicFile(fs::path path)
    : path_(std::move(path)),
      temporary_(temporary_name(path_)),
      file_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (file_.get() < 0) fail_errno(ExitCode::kCannotCreate, path_, "cannot create");
}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicFile::commit() {
  sync(file_, path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail_errno(ExitCode::kCannotCreate, path_, "cannot create");
  }
  committed_ = true;
  sync_parent(path_);
}

void atomic_write(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

AtomicFolder::AtomicFolder(fs::path folder)
    : folder_(folder.has_filename() ? std::move(folder) : folder.parent_path()),
      temporary_(temporary_name(folder_)) {
  std::error_code error;
  fs::remove_all(temporary_, error);  // left by a run that was killed
  if (!error) fs::create_directories(temporary_, error);
  if (error) {
    throw Error(ExitCode::kCannotCreate,
                fmt::format("{}: cannot create: {}", temporary_.string(), error.message()));
  }
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(temporary_)) {
    if (!entry.is_symlink()) sync_path(entry.path());
  }
  sync_path(temporary_);
  std::error_code ignored;
  if (fs::exists(folder_, ignored)) {
    // Exchanged first and removed second, so that a complete folder has the name at any time; where
    // the file system cannot exchange, the old one goes first.
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, folder_.c_str(), RENAME_EXCHANGE) ==
        0) {
      committed_ = true;
      sync_parent(folder_);
      fs::remove_all(temporary_, ignored);
      return;
    }
    fs::remove_all(folder_, ignored);
  }
  if (::rename(temporary_.c_str(), folder_.c_str()) != 0) {
    fail_errno(ExitCode::kCannotCreate, folder_, "cannot create");
  }
  committed_ = true;
  sync_parent(folder_);
}

void write_manifest(const fs::path& folder) {
  nlohmann::json files = nlohmann::json::object();
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).generic_string();
    if (!entry.is_regular_file() || name == kManifestName) continue;
    const MappedFile file(entry.path());
    files[name] = {{"bytes", file.bytes().size()},
                   {"crc32", fmt::format("{:08x}", file_crc32(file))}};
  }
  atomic_write(folder / kManifestName, nlohmann::json{{"files", files}}.dump(2) + "\n");
}

void check_manifest(const fs::path& folder) {
  const fs::path manifest = folder / kManifestName;
  if (!fs::exists(manifest)) fail_manifest(manifest, "missing");
  struct Expected {
    std::uint64_t bytes;
    std::string crc32;
  };
  std::map<std::string, Expected> expected;
  try {
    const nlohmann::json document = nlohmann::json::parse(read_file(manifest));
    for (const auto& [name, entry] : document.at("files").items()) {
      expected[name] = {entry.at("bytes"), entry.at("crc32")};
    }
  } catch (const nlohmann::json::exception& error) {
    fail_manifest(manifest, error.what());
  }
  for (const auto& [name, want] : expected) {
    const fs::path path = folder / name;
    if (!fs::exists(path)) fail_manifest(path, "missing, but manifest.json lists it");
    const MappedFile file(path);
    if (file.bytes().size() != want.bytes) {
      fail_manifest(path, fmt::format("{} bytes, but manifest.json says {}", file.bytes().size(),
                                      want.bytes));
    }
    const std::string got = fmt::format("{:08x}", file_crc32(file));
    if (got != want.crc32) {
      fail_manifest(path, fmt::format("CRC-32 is {}, but manifest.json says {}", got, want.crc32));
    }
  }
}

FolderLock::FolderLock(const fs::path& folder) {
  const fs::path path = folder / kLockName;
  file_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (file_.get() < 0) fail_errno(ExitCode::kCannotCreate, path, "cannot create");
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) fail_errno(ExitCode::kCannotCreate, path, "cannot lock");
    std::string owner = read_file(path);
    while (!owner.empty() && owner.back() == '\n') owner.pop_back();
    throw Error(ExitCode::kCannotCreate,
                fmt::format("{}: another run is using this folder ({})", folder.string(), owner),
                "wait for it to end, or choose another folder");
  }
  if (::ftruncate(file_.get(), 0) != 0) fail_errno(ExitCode::kIoError, path, "cannot write");
  const std::string owner = fmt::format("process {}\n", ::getpid());
  write_all(file_, std::as_bytes(std::span(owner)), path);
}

}  // namespace vcas
