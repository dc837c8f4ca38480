// The file that a fuzz target gives to what reads files. One for each process and target.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>

#include "core/error.h"

inline std::filesystem::path fuzz_path(const std::string& target) {
  return std::filesystem::temp_directory_path() /
         ("vcas-fuzz-" + target + "-" + std::to_string(::getpid()));
}

inline void write_fuzz_file(const std::filesystem::path& path, const std::uint8_t* data,
                            std::size_t size) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
}

// Calls `read`. An Error with another code than these is a finding.
template <class Read>
void fuzz_read(const Read& read, std::initializer_list<vcas::ExitCode> allowed) {
  try {
    read();
  } catch (const vcas::Error& error) {
    for (const vcas::ExitCode code : allowed)
      if (error.code() == code) return;
    std::abort();
  }
}
