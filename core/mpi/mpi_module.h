// What libvcas_mpi.so gives the program: MPI behind a table of C functions.
// The module links MPI. The program loads it, so that it starts where MPI is not installed.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include <stddef.h>

// Every function returns 0, or an error code of MPI, which `text` explains.
struct vcas_mpi_table {
  // Initialises MPI for calls from one thread.
  int (*start)(void);
  int (*finish)(void);
  int (*place)(int* rank, int* size, int* local_rank, int* local_size);
  int (*gather_all)(const double* mine, int count, double* all);
  // `sizes` [ranks] and `all`, one after another, of rank 0 alone.
  int (*gather_sizes)(size_t mine, size_t* sizes);
  int (*gather)(const void* mine, size_t bytes, void* all, const size_t* sizes);
  int (*broadcast)(void* bytes, size_t count);
  int (*all_to_all)(const void* from, void* to, size_t bytes_each);
  int (*all_gather)(void* all, size_t bytes_each);
  int (*barrier)(void);
  void (*abort)(int code);
  void (*text)(int error, char* text, size_t bytes);
};

extern const struct vcas_mpi_table vcas_mpi;

#ifdef __cplusplus
}
#endif
