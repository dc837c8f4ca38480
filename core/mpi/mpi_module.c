#include "core/mpi/mpi_module.h"

#include <mpi.h>
#include <stdio.h>

// Counts of MPI are int: larger messages go in pieces.
static const size_t kMostBytes = (size_t)1 << 30;

static int rank, size;

static int start(void) {
  int provided;
  int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (error == MPI_SUCCESS) error = MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(MPI_COMM_WORLD, &size);
  return error;
}

static int place(int* own_rank, int* own_size, int* local_rank, int* local_size) {
  MPI_Comm machine;
  int error =
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine);
  if (error == MPI_SUCCESS) error = MPI_Comm_rank(machine, local_rank);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(machine, local_size);
  if (error == MPI_SUCCESS) error = MPI_Comm_free(&machine);
  *own_rank = rank;
  *own_size = size;
  return error;
}

static int gather_all(const double* mine, int count, double* all) {
  return MPI_Allgather(mine, count, MPI_DOUBLE, all, count, MPI_DOUBLE, MPI_COMM_WORLD);
}

static int gather_sizes(size_t mine, size_t* sizes) {
  unsigned long long own = mine;
  return MPI_Gather(&own, 1, MPI_UNSIGNED_LONG_LONG, sizes, 1, MPI_UNSIGNED_LONG_LONG, 0,
                    MPI_COMM_WORLD);
}

static size_t piece(size_t left) { return left < kMostBytes ? left : kMostBytes; }

static int transfer(char* bytes, size_t count, int partner, int sends) {
  int error = MPI_SUCCESS;
  for (size_t done = 0; done < count && error == MPI_SUCCESS; done += piece(count - done)) {
    const int part = (int)piece(count - done);
    error = sends ? MPI_Send(bytes + done, part, MPI_BYTE, partner, 0, MPI_COMM_WORLD)
                  : MPI_Recv(bytes + done, part, MPI_BYTE, partner, 0, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE);
  }
  return error;
}

static int gather(const void* mine, size_t bytes, void* all, const size_t* sizes) {
  if (rank != 0) return transfer((char*)mine, bytes, 0, 1);
  char* to = (char*)all + sizes[0];  // the caller has its own
  int error = MPI_SUCCESS;
  for (int from = 1; from < size && error == MPI_SUCCESS; to += sizes[from++])
    error = transfer(to, sizes[from], from, 0);
  return error;
}

static int broadcast(void* bytes, size_t count) {
  int error = MPI_SUCCESS;
  for (size_t done = 0; done < count && error == MPI_SUCCESS; done += piece(count - done))
    error = MPI_Bcast((char*)bytes + done, (int)piece(count - done), MPI_BYTE, 0, MPI_COMM_WORLD);
  return error;
}

// Parts of more than `kMostBytes` go in pieces; a strided type skips the rest of each part.
static int part_type(size_t part, size_t bytes_each, MPI_Datatype* type) {
  MPI_Datatype bytes;
  int error = MPI_Type_contiguous((int)part, MPI_BYTE, &bytes);
  if (error == MPI_SUCCESS) error = MPI_Type_create_resized(bytes, 0, (MPI_Aint)bytes_each, type);
  if (error == MPI_SUCCESS) error = MPI_Type_commit(type);
  if (error == MPI_SUCCESS) error = MPI_Type_free(&bytes);
  return error;
}

// From MPI_IN_PLACE: a gather of what lies in `to`.
static int exchange(const void* from, void* to, int count, MPI_Datatype type) {
  if (from == MPI_IN_PLACE)
    return MPI_Allgather(from, 0, MPI_DATATYPE_NULL, to, count, type, MPI_COMM_WORLD);
  return MPI_Alltoall(from, count, type, to, count, type, MPI_COMM_WORLD);
}

static int exchange_parts(const void* from, void* to, size_t bytes_each) {
  if (bytes_each <= kMostBytes)  // a type of MPI's own is faster
    return exchange(from, to, (int)bytes_each, MPI_BYTE);
  int error = MPI_SUCCESS;
  for (size_t done = 0; done < bytes_each && error == MPI_SUCCESS;
       done += piece(bytes_each - done)) {
    const void* const rest = from == MPI_IN_PLACE ? from : (const char*)from + done;
    MPI_Datatype type;
    error = part_type(piece(bytes_each - done), bytes_each, &type);
    if (error == MPI_SUCCESS) error = exchange(rest, (char*)to + done, 1, type);
    if (error == MPI_SUCCESS) error = MPI_Type_free(&type);
  }
  return error;
}

static int all_to_all(const void* from, void* to, size_t bytes_each) {
  return exchange_parts(from, to, bytes_each);
}

static int all_gather(void* all, size_t bytes_each) {
  return exchange_parts(MPI_IN_PLACE, all, bytes_each);
}

static int barrier(void) { return MPI_Barrier(MPI_COMM_WORLD); }

static void end(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

static void explain(int error, char* text, size_t bytes) {
  char whole[MPI_MAX_ERROR_STRING];
  int length;
  if (MPI_Error_string(error, whole, &length) != MPI_SUCCESS) length = 0;
  snprintf(text, bytes, "%.*s", length, whole);
}

const struct vcas_mpi_table vcas_mpi = {start,        MPI_Finalize, place,     gather_all,
                                        gather_sizes, gather,       broadcast, all_to_all,
                                        all_gather,   barrier,      end,       explain};
