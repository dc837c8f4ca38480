#include "core/mapped_file.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>

#include "core/files.h"

namespace vcas {

// The handler finds the mappings in a list. They are in it until after they are unmapped.
struct MappedFile::Mapping {
  std::span<const std::byte> bytes;
  std::string failure;  // made beforehand: a handler allocates nothing
  std::atomic<Mapping*> next = nullptr;

  Mapping(const std::filesystem::path& path, std::span<const std::byte> its_bytes);
  ~Mapping();
  static void handle(int signal, siginfo_t* info, void*);
  static std::atomic<Mapping*> newest;
  static std::mutex mutex;  // of changes of the list
};

std::atomic<MappedFile::Mapping*> MappedFile::Mapping::newest = nullptr;
std::mutex MappedFile::Mapping::mutex;

void MappedFile::Mapping::handle(int signal, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  for (const Mapping* mapping = newest; mapping; mapping = mapping->next) {
    if (at < mapping->bytes.data() || at >= mapping->bytes.data() + mapping->bytes.size()) continue;
    [[maybe_unused]] const ssize_t written =
        ::write(STDERR_FILENO, mapping->failure.data(), mapping->failure.size());
    ::_exit(static_cast<int>(ExitCode::kIoError));
  }
  ::signal(signal, SIG_DFL);  // not ours: it comes again
}

MappedFile::Mapping::Mapping(const std::filesystem::path& path,
                             std::span<const std::byte> its_bytes)
    : bytes(its_bytes),
      failure(fmt::format("error: {}: cannot read: the file became shorter, or its disk failed\n",
                          path.string())) {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO;
    return ::sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  VCAS_CHECK(installed, "no handler of SIGBUS");
  const std::lock_guard lock(mutex);
  next = newest.load();
  newest = this;
}

MappedFile::Mapping::~Mapping() {
  ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
  const std::lock_guard lock(mutex);
  std::atomic<Mapping*>* link = &newest;
  while (*link != this) link = &link->load()->next;
  *link = next.load();
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const InputFile file(path);
  if (file.size() == 0) return;  // mmap refuses empty files
  void* data = ::mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.descriptor().get(), 0);
  if (data == MAP_FAILED) fail_errno(ExitCode::kIoError, path, "cannot map");
  mapping_ =
      std::make_unique<Mapping>(path, std::span(static_cast<const std::byte*>(data), file.size()));
}

MappedFile::MappedFile(MappedFile&& other) noexcept = default;
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept = default;
MappedFile::~MappedFile() = default;

std::span<const std::byte> MappedFile::bytes() const {
  return mapping_ ? mapping_->bytes : std::span<const std::byte>();
}

}  // namespace vcas
