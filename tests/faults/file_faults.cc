// Preloaded into a program: faults of the file operations by which it changes anything.
//
// VCAS_FAULT_LIST=FILE    each operation adds a line to this file, in order
// VCAS_FAULT_AT=N         the fault comes instead of operation N, counted from 1
// VCAS_FAULT=kill         the process is killed; a write has then written its first half (default)
// VCAS_SIGNAL_AT=NAME     SIGTERM comes where a file is opened whose path ends so
// VCAS_FAULT=ERRNO        the operation fails with this number, and all after it too
// VCAS_FAULT=-SIGNAL      the process gets this signal, and the operation is done
// VCAS_INTERRUPT=1        operations that a signal may interrupt are, every other time, and writes
//                         are short
// VCAS_CLOCK=1            the time of day jumps by a year to and fro
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

std::atomic<long> operations = 0;

long number(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::atol(text) : 0;
}

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

void note(const char* operation, const char* path) {
  const char* list = std::getenv("VCAS_FAULT_LIST");
  if (!list) return;
  char line[512];
  const int size = std::snprintf(line, sizeof line, "%s %s\n", operation, path);
  static const int file =
      real<int (*)(const char*, int, ...)>("open")(list, O_WRONLY | O_APPEND | O_CREAT, 0666);
  static const auto write = real<ssize_t (*)(int, const void*, size_t)>("write");
  if (write(file, line, static_cast<size_t>(size)) != size) std::abort();
}

// Whether the operation must fail; errno is set. `half`: done before the process is killed.
template <class Half>
bool fails(const char* operation, const char* path, const Half& half) {
  const long at = number("VCAS_FAULT_AT"), error = number("VCAS_FAULT");
  const long count = ++operations;
  note(operation, path);
  if (at == 0 || count < at || (error < 0 && count > at)) return false;
  if (error < 0) {
    ::raise(static_cast<int>(-error));
    return false;
  }
  if (error == 0) {
    half();
    ::kill(::getpid(), SIGKILL);
  }
  errno = static_cast<int>(error);
  return true;
}
bool fails(const char* operation, const char* path) {
  return fails(operation, path, [] {});
}

// Every other call of each thread, if that is wanted.
bool is_interrupted() {
  static const bool wanted = number("VCAS_INTERRUPT") != 0;
  static thread_local bool now = false;
  if (!wanted) return false;
  now = !now;
  if (now) errno = EINTR;
  return now;
}

// Messages to terminals and logs of tests are no operations on files of the run.
bool is_own_file(int file) {
  struct stat status {};
  return file > 2 && ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
}

bool changes(int flags) { return (flags & (O_CREAT | O_TRUNC)) != 0; }

}  // namespace

#define VCAS_PASS(name, type, ...)              \
  {                                             \
    static const auto pass = real<type>(#name); \
    return pass(__VA_ARGS__);                   \
  }

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (const char* name = std::getenv("VCAS_SIGNAL_AT"))
    if (std::string_view(path).ends_with(name)) ::raise(SIGTERM);
  if (is_interrupted()) return -1;
  if (changes(flags) && fails("open", path)) return -1;
  VCAS_PASS(open, int (*)(const char*, int, ...), path, flags, mode)
}

FILE* fopen64(const char* path, const char* mode) {
  if (std::strpbrk(mode, "wa") && fails("fopen", path)) return nullptr;
  VCAS_PASS(fopen64, FILE * (*)(const char*, const char*), path, mode)
}

ssize_t write(int file, const void* bytes, size_t size) {
  static const auto pass = real<ssize_t (*)(int, const void*, size_t)>("write");
  const auto half = [&] { pass(file, bytes, size / 2); };
  if (!is_own_file(file)) return pass(file, bytes, size);
  if (is_interrupted()) return -1;
  if (fails("write", "", half)) return -1;
  return pass(file, bytes, number("VCAS_INTERRUPT") != 0 ? (size + 1) / 2 : size);
}

ssize_t writev(int file, const iovec* pieces, int count) {
  if (is_own_file(file) && fails("writev", "")) return -1;
  VCAS_PASS(writev, ssize_t(*)(int, const iovec*, int), file, pieces, count)
}

ssize_t read(int file, void* bytes, size_t size) {
  if (is_own_file(file) && is_interrupted()) return -1;
  VCAS_PASS(read, ssize_t(*)(int, void*, size_t), file, bytes, size)
}

int clock_gettime(clockid_t clock, timespec* time) {
  static const auto pass = real<int (*)(clockid_t, timespec*)>("clock_gettime");
  const int result = pass(clock, time);
  static const bool jumps = number("VCAS_CLOCK") != 0;
  static std::atomic<bool> ahead = false;
  constexpr long kYear = 365L * 24 * 3600;
  if (jumps && clock == CLOCK_REALTIME) time->tv_sec += ahead.exchange(!ahead) ? kYear : -kYear;
  return result;
}

time_t time(time_t* to) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}

int fsync(int file) {
  if (is_interrupted()) return -1;
  if (fails("fsync", "")) return -1;
  VCAS_PASS(fsync, int (*)(int), file)
}

int ftruncate(int file, off_t size) {
  if (is_interrupted()) return -1;
  if (fails("ftruncate", "")) return -1;
  VCAS_PASS(ftruncate, int (*)(int, off_t), file, size)
}

int rename(const char* from, const char* to) {
  if (fails("rename", to)) return -1;
  VCAS_PASS(rename, int (*)(const char*, const char*), from, to)
}

int renameat2(int a, const char* from, int b, const char* to, unsigned flags) {
  if (fails("renameat2", to)) return -1;
  VCAS_PASS(renameat2, int (*)(int, const char*, int, const char*, unsigned), a, from, b, to, flags)
}

int mkdir(const char* path, mode_t mode) {
  if (fails("mkdir", path)) return -1;
  VCAS_PASS(mkdir, int (*)(const char*, mode_t), path, mode)
}

int symlink(const char* target, const char* path) {
  if (fails("symlink", path)) return -1;
  VCAS_PASS(symlink, int (*)(const char*, const char*), target, path)
}

int unlink(const char* path) {
  if (fails("unlink", path)) return -1;
  VCAS_PASS(unlink, int (*)(const char*), path)
}

int unlinkat(int folder, const char* path, int flags) {
  if (fails("unlinkat", path)) return -1;
  VCAS_PASS(unlinkat, int (*)(int, const char*, int), folder, path, flags)
}

int rmdir(const char* path) {
  if (fails("rmdir", path)) return -1;
  VCAS_PASS(rmdir, int (*)(const char*), path)
}

int remove(const char* path) {
  if (fails("remove", path)) return -1;
  VCAS_PASS(remove, int (*)(const char*), path)
}

}  // extern "C"
