/* A job of one rank, in C: what tally.h promises, from an installed library. */
#include <stdio.h>
#include <string.h>
#include <tally.h>

static int failed(const char *what, tally_status status) {
  fprintf(stderr, "%s: %s: %s\n", what, tally_status_name(status), tally_last_error());
  return 1;
}

#define TRY(call)                                              \
  do {                                                         \
    tally_status status_ = (call);                             \
    if (status_ != TALLY_OK) return failed(#call, status_);    \
  } while (0)

int main(void) {
  static const char *const settings[] = {"job.workers=1", "worker.rank=0", "aggregation.mode=ring", "log.level=error"};
  static const uint64_t shape[] = {2, 3};
  float gradient[6] = {1, 2, 3, 4, 5, 6};
  const void *mean = NULL;
  size_t bytes = 0;
  tally_client *client = NULL;
  tally_group *group = NULL;
  tally_join_options join = TALLY_INIT(tally_join_options);
  tally_tensor tensor = TALLY_INIT(tally_tensor);
  tally_array array = TALLY_INIT(tally_array);
  tally_step_result result = TALLY_INIT(tally_step_result);

  join.settings = settings;
  join.settings_count = sizeof settings / sizeof *settings;
  TRY(tally_join(&join, &client));
  tensor.name = "weight";
  tensor.dtype = TALLY_FLOAT32;
  tensor.dimensions = array.dimensions = 2;
  tensor.shape = array.shape = shape;
  array.data = gradient;
  array.dtype = TALLY_FLOAT32;
  TRY(tally_declare_group(client, &tensor, 1, NULL, &group));
  TRY(tally_submit(group, 0, &array, 1, NULL));
  TRY(tally_end_step(group, TALLY_COMMIT, &result));
  TRY(tally_output(group, 0, &mean, &bytes));
  if (!result.committed || bytes != sizeof gradient || memcmp(mean, gradient, bytes) != 0) return 1;
  TRY(tally_leave(client));
  tally_close(client);
  printf("tally %s: rank 0 of 1\n", tally_version());
  return 0;
}
