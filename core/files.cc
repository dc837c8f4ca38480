#include "core/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/read_json.h"

namespace vcas {
namespace fs = std::filesystem;
namespace {

constexpr const char* kManifestName = "manifest.json";

fs::path temporary_name(const fs::path& path) { return without_slash(path) += ".tmp"; }

// `create` makes PATH.tmp, else PATH.tmp-2 and so on: what is there may be anybody's.
// Where it fails otherwise, the result is false, and errno tells why.
template <class Create>
bool make_temporary(fs::path& temporary, const Create& create) {
  const std::string first = temporary.string();
  for (int number = 2; !create(); ++number) {
    if (errno != EEXIST) return false;
    temporary = fmt::format("{}-{}", first, number);
  }
  return true;
}

// A signal may come while the system waits for a disk.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

void sync(const FileDescriptor& file, const fs::path& path) {
  // Some network file systems cannot sync a folder and say EINVAL.
  if (uninterrupted([&] { return ::fsync(file.get()); }) != 0 && errno != EINVAL)
    fail_errno(ExitCode::kIoError, path, "cannot write to disk");
}

void sync_path(const fs::path& path) {
  const FileDescriptor file = open_file(path, O_RDONLY);
  if (file.get() < 0) fail_errno(ExitCode::kIoError, path, "cannot write to disk");
  sync(file, path);
}

// A rename is on disk only once the folder that holds the name is.
void sync_parent(const fs::path& path) {
  sync_path(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

// Size and CRC-32 of a file, as the manifest has them.
struct FileSummary {
  std::uint64_t bytes = 0;
  std::string crc32;
};

FileSummary summary_of(const fs::path& path) {
  FileSummary summary;
  uLong crc = 0;
  InputFile(path).read_pieces([&](std::span<const std::byte> piece) {
    summary.bytes += piece.size();
    crc = ::crc32_z(crc, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
  });
  summary.crc32 = fmt::format("{:08x}", crc);
  return summary;
}

constexpr const char* kOtherName = "give a name that may be made or replaced";

// A link stays, and what it leads to is replaced.
fs::path without_links(fs::path path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error == std::errc::too_many_symbolic_link_levels)
    throw Error(ExitCode::kCannotCreate, path.string() + ": links that lead to no end", kOtherName);
  if (fs::exists(status)) return fs::is_symlink(path) ? fs::canonical(path) : path;
  while (fs::is_symlink(path, error)) path = path.parent_path() / fs::read_symlink(path);
  return path;
}

// Devices and pipes are not replaced.
fs::path file_to_replace(fs::path path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status))
    throw Error(ExitCode::kCannotCreate, path.string() + ": not a regular file", kOtherName);
  return without_links(std::move(path));
}

fs::path folder_to_replace(const fs::path& given) {
  fs::path path = without_slash(given);
  std::error_code ignored;
  if (fs::exists(path, ignored) && !fs::is_directory(path, ignored))
    throw Error(ExitCode::kCannotCreate, path.string() + ": not a folder", kOtherName);
  return without_links(std::move(path));
}

std::string hint_of(int number) {
  if (number == EFBIG) return "raise the limit of the size of files (ulimit -f)";
  if (number != ENOSPC && number != EDQUOT) return {};
  return "make room there, or choose another place; a run goes on from its last checkpoint by "
         "--resume";
}

[[noreturn]] void fail_manifest(const fs::path& path, const std::string& why) {
  throw Error(ExitCode::kBadData, path.string() + ": " + why,
              "the folder is incomplete or damaged; use an earlier one");
}

}  // namespace

fs::path without_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

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
  throw Error(
      code, fmt::format("{}: {}: {}", path.string(), what, std::generic_category().message(number)),
      hint_of(number));
}

void fail_listing(const fs::filesystem_error& error) {
  throw Error(ExitCode::kNoInput,
              fmt::format("{}: {}", error.path1().string(), error.code().message()),
              "the folder must be there and may be read");
}

FileDescriptor open_file(const fs::path& path, int flags) {
  return FileDescriptor(
      uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); }));
}

void shorten(const FileDescriptor& file, std::size_t size, const fs::path& path) {
  if (uninterrupted([&] { return ::ftruncate(file.get(), static_cast<off_t>(size)); }) != 0)
    fail_errno(ExitCode::kIoError, path, "cannot shorten");
}

void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written =
        uninterrupted([&] { return ::write(file.get(), bytes.data(), bytes.size()); });
    if (written < 0) fail_errno(ExitCode::kIoError, path, "cannot write");
    bytes = bytes.subspan(written);
  }
}

InputFile::InputFile(fs::path path)
    : path_(std::move(path)),
      file_(open_file(path_, O_RDONLY | O_NONBLOCK)) {  // a pipe would let us wait
  if (file_.get() < 0)
    fail_errno(errno == EIO ? ExitCode::kIoError : ExitCode::kNoInput, path_, "cannot open");
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail_errno(ExitCode::kIoError, path_, "cannot read");
  if (!S_ISREG(status.st_mode))
    throw Error(ExitCode::kNoInput, path_.string() + ": not a regular file",
                "name a file; what a pipe gives must be written to one first");
  size_ = static_cast<std::size_t>(status.st_size);
}

std::size_t InputFile::read(std::span<std::byte> out) {
  std::size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t count = uninterrupted(
        [&] { return ::read(file_.get(), out.data() + filled, out.size() - filled); });
    if (count < 0) fail_errno(ExitCode::kIoError, path_, "cannot read");
    if (count == 0) break;
    filled += static_cast<std::size_t>(count);
  }
  return filled;
}

void InputFile::read_pieces(const std::function<void(std::span<const std::byte>)>& take) {
  std::vector<std::byte> piece(1 << 18);
  while (const std::size_t count = read(piece)) take(std::span(piece).first(count));
}

std::string read_file(const fs::path& path) {
  InputFile file(path);
  std::string text;
  text.reserve(file.size());
  file.read_pieces([&](std::span<const std::byte> piece) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return text;
}

AtomicFile::AtomicFile(fs::path path)
    : path_(file_to_replace(std::move(path))), temporary_(temporary_name(path_)) {
  const auto create = [&] {
    file_ = open_file(temporary_, O_WRONLY | O_CREAT | O_EXCL);  // follows no link
    return file_.get() >= 0;
  };
  if (!make_temporary(temporary_, create))
    fail_errno(ExitCode::kCannotCreate, path_, "cannot create");
}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicFile::commit() {
  sync(file_, path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail_errno(ExitCode::kCannotCreate, path_, "cannot create");
  committed_ = true;
  sync_parent(path_);
}

void atomic_write(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

AtomicFolder::AtomicFolder(fs::path folder)
    : folder_(folder_to_replace(std::move(folder))), temporary_(temporary_name(folder_)) {
  std::error_code error;
  if (temporary_.has_parent_path()) fs::create_directories(temporary_.parent_path(), error);
  errno = error.value();
  const auto create = [&] { return ::mkdir(temporary_.c_str(), 0777) == 0; };
  if (error || !make_temporary(temporary_, create))
    fail_errno(ExitCode::kCannotCreate, temporary_, "cannot create");
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(temporary_))
    if (!entry.is_symlink()) sync_path(entry.path());
  sync_path(temporary_);
  std::error_code ignored;
  if (fs::exists(folder_, ignored)) {
    // The folders are exchanged first, and the old one is removed second.
    // So a complete folder has the name at any time.
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, folder_.c_str(), RENAME_EXCHANGE) ==
        0) {
      committed_ = true;
      sync_parent(folder_);
      fs::remove_all(temporary_, ignored);
      return;
    }
    if (errno != EINVAL && errno != EXDEV)  // EXDEV: a folder of a container's image
      throw Error(ExitCode::kCannotCreate,
                  fmt::format("{}: cannot be replaced: {}", folder_.string(),
                              std::generic_category().message(errno)),
                  "give another folder; for a mount point or \".\", one inside it");
    // The file system cannot exchange them. So the old folder goes first.
    fs::remove_all(folder_, ignored);
  }
  if (::rename(temporary_.c_str(), folder_.c_str()) != 0)
    fail_errno(ExitCode::kCannotCreate, folder_, "cannot create");
  committed_ = true;
  sync_parent(folder_);
}

std::string finished_name(const std::string& name) {
  static const std::regex kTemporary("(.*)\\.tmp(-[0-9]+)?");
  std::smatch parts;
  return std::regex_match(name, parts, kTemporary) ? parts[1].str() : "";
}

void remove_abandoned(const fs::path& folder, std::string_view prefix) {
  const auto oldest = fs::file_time_type::clock::now() - std::chrono::hours(1);
  std::error_code ignored;  // somebody else may have removed it
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = finished_name(entry.path().filename().string());
    if (!name.empty() && name.starts_with(prefix) && entry.last_write_time(ignored) < oldest)
      fs::remove(entry.path(), ignored);
  }
}

void write_manifest(const fs::path& folder) {
  nlohmann::json files = nlohmann::json::object();
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).generic_string();
    if (!entry.is_regular_file() || name == kManifestName) continue;
    const FileSummary summary = summary_of(entry.path());
    files[name] = {{"bytes", summary.bytes}, {"crc32", summary.crc32}};
  }
  atomic_write(folder / kManifestName, nlohmann::json{{"files", files}}.dump(2) + "\n");
}

void check_manifest(const fs::path& folder) {
  const fs::path manifest = folder / kManifestName;
  if (!fs::exists(manifest)) fail_manifest(manifest, "missing");
  std::map<std::string, FileSummary> expected;
  try {
    const nlohmann::json document = read_json(manifest);
    for (const auto& [name, entry] : document.at("files").items())
      expected[name] = {entry.at("bytes"), entry.at("crc32")};
  } catch (const nlohmann::json::exception& error) {
    fail_manifest(manifest, error.what());
  }
  for (const auto& [name, want] : expected) {
    const fs::path path = folder / name;
    if (!fs::exists(path)) fail_manifest(path, "missing, but manifest.json lists it");
    const FileSummary got = summary_of(path);
    if (got.bytes != want.bytes)
      fail_manifest(path,
                    fmt::format("{} bytes, but manifest.json says {}", got.bytes, want.bytes));
    if (got.crc32 != want.crc32)
      fail_manifest(path,
                    fmt::format("CRC-32 is {}, but manifest.json says {}", got.crc32, want.crc32));
  }
}

// Readers share the lock for a moment, to see whether a process has it. A start waits for them.
static bool lock_alone(const FileDescriptor& file) {
  const auto lock = [&](int kind) {
    return uninterrupted([&] { return ::flock(file.get(), kind | LOCK_NB); }) == 0;
  };
  for (int tries = 100;; --tries) {
    if (lock(LOCK_EX)) return true;
    if (errno != EWOULDBLOCK || tries == 0 || !lock(LOCK_SH)) return false;
    lock(LOCK_UN);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

FolderLock::FolderLock(const fs::path& folder) {
  const fs::path path = folder / kLockFile;
  file_ = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (file_.get() < 0 && errno == ELOOP)
    throw Error(ExitCode::kCannotCreate,
                path.string() + ": a link, and a run writes to no file outside its folder",
                "remove the link, or choose another folder");
  if (file_.get() < 0) fail_errno(ExitCode::kCannotCreate, path, "cannot create");
  if (!lock_alone(file_)) {
    if (errno != EWOULDBLOCK) fail_errno(ExitCode::kCannotCreate, path, "cannot lock");
    std::string owner = read_file(path);
    while (!owner.empty() && owner.back() == '\n') owner.pop_back();
    throw Error(ExitCode::kCannotCreate,
                fmt::format("{}: another run is using this folder ({})", folder.string(), owner),
                "wait for it to end, or choose another folder");
  }
  shorten(file_, 0, path);
  const std::string owner = fmt::format("process {}\n", ::getpid());
  write_all(file_, std::as_bytes(std::span(owner)), path);
}

bool is_locked(const fs::path& folder) {
  const FileDescriptor file = open_file(folder / kLockFile, O_RDONLY);
  return file.get() >= 0 &&
         uninterrupted([&] { return ::flock(file.get(), LOCK_SH | LOCK_NB); }) != 0 &&
         errno == EWOULDBLOCK;
}

}  // namespace vcas
