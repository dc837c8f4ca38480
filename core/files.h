// Files and folders that are either complete or absent: readers never meet a half-written one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"

namespace vcas {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }

 private:
  int fd_;
};

// Throws "PATH: <what>: <errno as text>".
[[noreturn]] void fail_errno(ExitCode code, const std::filesystem::path& path,
                             std::string_view what);
// What std::filesystem says of a folder that cannot be listed, as kNoInput.
[[noreturn]] void fail_listing(const std::filesystem::filesystem_error& error);

// These go on after signals. `open_file` adds O_CLOEXEC; a descriptor below 0 tells that it failed,
// and errno why. The others throw kIoError.
FileDescriptor open_file(const std::filesystem::path& path, int flags);
void shorten(const FileDescriptor& file, std::size_t size, const std::filesystem::path& path);
void write_all(const FileDescriptor& file, std::span<const std::byte> bytes,
               const std::filesystem::path& path);

// "folder" of "folder/".
std::filesystem::path without_slash(const std::filesystem::path& path);

// A regular file, read from its beginning to its end. A pipe might never end: others are kNoInput.
// A disk that fails is kIoError.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);

  // In bytes, when it was opened.
  std::size_t size() const { return size_; }
  const FileDescriptor& descriptor() const { return file_; }
  // Fills `out` from its front. Returns how much of it: less than its size only at the end.
  std::size_t read(std::span<std::byte> out);
  // Gives the rest to `take`, piece by piece.
  void read_pieces(const std::function<void(std::span<const std::byte>)>& take);

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::size_t size_ = 0;
};

std::string read_file(const std::filesystem::path& path);

// Writes a new file beside PATH; `commit` syncs it to disk and renames it to PATH. Without a commit
// the old PATH stays as it was. The new file is PATH.tmp, else PATH.tmp-2 and so on: what it finds
// there may be anybody's.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes) { write_all(file_, bytes, path_); }
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  FileDescriptor file_;
  bool committed_ = false;
};

void atomic_write(const std::filesystem::path& path, std::string_view text);

// The same for a folder: fill `path()`, then `commit`. A folder already there is replaced, but
// no mount point is. `path()` is new: FOLDER.tmp, else FOLDER.tmp-2 and so on.
class AtomicFolder {
 public:
  explicit AtomicFolder(std::filesystem::path folder);
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  ~AtomicFolder();

  const std::filesystem::path& path() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path folder_, temporary_;
  bool committed_ = false;
};

// "x" of "x.tmp" and "x.tmp-2", as killed processes leave them; empty for other names.
std::string finished_name(const std::string& name);

// Removes such files of names with this prefix that were not written to for an hour: a process
// that lives writes to its file all the time. For folders that many processes share.
void remove_abandoned(const std::filesystem::path& folder, std::string_view prefix);

// manifest.json: size and CRC-32 of every file of the folder. Written last, so a folder without
// one is incomplete. `check_manifest` throws kBadData and names the first file that differs.
void write_manifest(const std::filesystem::path& folder);
void check_manifest(const std::filesystem::path& folder);

inline constexpr const char* kLockFile = "lock";

// Keeps a run folder to one process; the system drops the lock when the process ends, however it
// ends.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  FileDescriptor file_;
};

// Whether a process has the folder to itself.
bool is_locked(const std::filesystem::path& folder);

}  // namespace vcas
