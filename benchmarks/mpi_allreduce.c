/* One question for compare_peers.py: how long do MPI_Allreduce calls in place take, slowest rank? Arguments: bytes,
   iterations, warm-up. Prints one line of JSON. Every element is checked; data are whole numbers that differ by rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static double BusySeconds(void) {
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0;
  FILE* stat = fopen("/proc/stat", "r");
  if (stat == NULL) return 0;
  if (fscanf(stat, "cpu %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle, &wait, &irq, &soft) != 7) user = 0;
  fclose(stat);
  return (user + nice + system + irq + soft) / 100.0;
}

static int Compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return x < y ? -1 : x > y;
}

int main(int argc, char** argv) {
  int rank = 0, ranks = 1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const long bytes = argc > 1 ? atol(argv[1]) : 1024;
  const int iterations = argc > 2 ? atoi(argv[2]) : 9, warmup = argc > 3 ? atoi(argv[3]) : 2;
  const long count = bytes / 4;
  float* data = malloc((size_t)bytes + 4);
  double* times = malloc(sizeof(double) * (size_t)iterations);
  if (data == NULL || times == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  double busy = 0;
  long wrong = 0;
  for (int i = 0; i < iterations + warmup; ++i) {
    for (long j = 0; j < count; ++j) data[j] = (float)((rank + 1) * (7 * ((j + i) % 251) % 251 - 125));
    MPI_Barrier(MPI_COMM_WORLD);
    const double busy_before = BusySeconds(), begin = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double took = MPI_Wtime() - begin;
    if (i >= warmup) busy += BusySeconds() - busy_before;
    MPI_Barrier(MPI_COMM_WORLD);
    const float all = (float)(ranks * (ranks + 1) / 2);
    for (long j = 0; j < count; ++j) wrong += data[j] != all * (float)(7 * ((j + i) % 251) % 251 - 125);
    MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (i >= warmup) times[i - warmup] = took;
  }
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  qsort(times, (size_t)iterations, sizeof(double), Compare);
  if (rank == 0) {
    printf("{\"time_s\": %.9f, \"wrong\": %ld, \"cpu_s_per_gb\": %.4f}\n", times[iterations / 2], wrong,
           busy / (1e-9 * (double)bytes * iterations));
  }
  MPI_Finalize();
  return 0;
}
