// The C interface (C99) of libtally: join a job, declare gradients, hand them over bucket by bucket, take the means, end the
// step; and collectives. What can fail returns a tally_status, 0 if it succeeded; tally_last_error says what went wrong.
// Structs begin with their size as the caller knows it (TALLY_INIT), so a program may be older than the library.
// Threads: one at a time for a client and one at a time for each of its groups; tally_wait and tally_test from any. With
// worker.attach = agent calls are served in the order in which they are made, which then must be that of all ranks.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TALLY_API __attribute__((visibility("default")))
#else
#define TALLY_API
#endif

#ifdef __cplusplus
template <typename Struct>
inline Struct tally_sized() {
  Struct value{};
  value.struct_size = sizeof value;
  return value;
}
#define TALLY_INIT(type) tally_sized<type>()
extern "C" {
#else
#define TALLY_INIT(type) ((type){.struct_size = sizeof(type)})
#endif

/* ---- errors ---- */

typedef int32_t tally_status;
enum {
  TALLY_OK = 0,
  TALLY_INVALID_ARGUMENT = 1, /* the caller's input or configuration is wrong: change it */
  TALLY_UNAVAILABLE = 2,      /* not there now: retry or give another address */
  TALLY_PEER_LOST = 3,        /* a member of the job died or went silent */
  TALLY_CORRUPT = 4,          /* bytes from a peer or a file failed validation */
  TALLY_TIMEOUT = 5,          /* a deadline passed */
  TALLY_UNSUPPORTED = 6,      /* this build, machine or combination cannot do it */
  TALLY_MISMATCH = 7,         /* ranks disagree on version, configuration, layout or call */
  TALLY_INTERNAL = 8          /* a fault of the library's own */
};

/* "peer lost"; "unknown status" for other numbers. Never fails. */
TALLY_API const char *tally_status_name(tally_status status);
/* What the calling thread's latest failing call said: who, what, expected, got, what to do. "" if none failed. Valid until
 * the thread's next failing call. */
TALLY_API const char *tally_last_error(void);
/* "0.1.0" */
TALLY_API const char *tally_version(void);

/* ---- a member of a job ---- */

typedef struct tally_client tally_client;
typedef struct tally_group tally_group;
typedef struct tally_ticket tally_ticket;

typedef struct {
  size_t struct_size;
  const char *config_file;      /* TOML; NULL: none but what the environment names */
  const char *const *settings;  /* "section.key=value", stronger than the file and the environment */
  size_t settings_count;
} tally_join_options;

/* Joins and waits until every member is there, at most membership.join_timeout. `options` may be NULL. On success *client
 * is to be given to tally_close. */
TALLY_API tally_status tally_join(const tally_join_options *options, tally_client **client);
/* Leaves in good order: the others are told, and what they still need is sent on: memory of an open step stays as it is
 * until this has returned. The client then only answers questions and takes tally_close. */
TALLY_API tally_status tally_leave(tally_client *client);
/* Ends the job on all members with an error that names this rank and `reason` (NULL: "no reason given"). */
TALLY_API tally_status tally_abort(tally_client *client, const char *reason);
/* Leaves if that was not done, and frees the client with its groups. No other call on them may be under way; tickets that
 * are still held are freed by their holder. NULL is fine. */
TALLY_API void tally_close(tally_client *client);

TALLY_API uint32_t tally_rank(const tally_client *client);
TALLY_API uint32_t tally_size(const tally_client *client);       /* workers */
TALLY_API uint32_t tally_local_rank(const tally_client *client); /* among the workers on this node */
TALLY_API uint32_t tally_servers(const tally_client *client);
TALLY_API uint64_t tally_epoch(const tally_client *client);
/* "schedule ring over tcp". Valid until the next call of it with this client. */
TALLY_API const char *tally_describe(tally_client *client);

/* Counters since the join; bytes at the sockets, headers included. */
typedef struct {
  size_t struct_size;
  uint64_t bytes_sent, bytes_received;
  uint64_t frames_sent, frames_received;
  uint64_t steps_committed, steps_skipped;
  uint64_t pool_allocations; /* blocks taken from the system */
  double engine_cpu_seconds;
  uint64_t saturated;        /* numbers beyond their codec's 16 bits */
  double residual_l1;
  uint64_t residual_bytes;
} tally_stats;
TALLY_API tally_status tally_get_stats(const tally_client *client, tally_stats *stats);

/* ---- numbers ---- */

typedef int32_t tally_dtype;
enum {
  TALLY_FLOAT32 = 0,
  TALLY_FLOAT16 = 1,
  TALLY_BFLOAT16 = 2,
  TALLY_FLOAT64 = 3,
  TALLY_INT8 = 4,
  TALLY_UINT8 = 5,
  TALLY_INT32 = 6,
  TALLY_INT64 = 7
};

typedef int32_t tally_device;
enum { TALLY_CPU = 0, TALLY_CUDA = 1 };

enum { TALLY_MAX_DIMENSIONS = 16 };

/* Numbers in the caller's memory. */
typedef struct {
  size_t struct_size;
  void *data;
  tally_dtype dtype;
  tally_device device;    /* TALLY_CUDA is refused with TALLY_UNSUPPORTED: this build takes host memory only */
  uint32_t dimensions;    /* at most TALLY_MAX_DIMENSIONS; 0: one number */
  const uint64_t *shape;
  const int64_t *strides; /* in elements; NULL: row-major without gaps */
} tally_array;

/* ---- gradients ---- */

typedef struct {
  size_t struct_size;
  const char *name; /* unique in its group, printable, at most 128 bytes */
  tally_dtype dtype; /* TALLY_FLOAT32, TALLY_FLOAT16 or TALLY_BFLOAT16 */
  uint32_t dimensions;
  const uint64_t *shape;
} tally_tensor;

typedef struct {
  size_t struct_size;
  const char *name;              /* NULL: "default" */
  /* The caller's own buckets, equal on all ranks: bucket b is the next bucket_sizes[b] of bucket_tensors, which are
   * numbers of tensors. bucket_count 0: by bucket.cap, in the reverse order of declaration. */
  const uint32_t *bucket_sizes;
  size_t bucket_count;
  const uint32_t *bucket_tensors;
  uint64_t first_step;           /* where a job goes on that was saved between steps */
} tally_group_options;

/* All ranks declare the same groups in the same order; tensors may come in any order but agree in name, shape and type.
 * `tensors` are `count` structs of tensors[0].struct_size bytes each. `options` may be NULL. The group lives as long as its
 * client. */
TALLY_API tally_status tally_declare_group(tally_client *client, const tally_tensor *tensors, size_t count,
                                           const tally_group_options *options, tally_group **group);

TALLY_API size_t tally_bucket_count(const tally_group *group);
/* Tensor numbers of a bucket, in its order; they live as long as the group. */
TALLY_API tally_status tally_bucket(const tally_group *group, uint32_t bucket, const uint32_t **tensors, size_t *count);

/* The library's own memory for a tensor's gradient (zero at first), of the tensor's type: what is written there is handed
 * over without a copy. Not to be written between tally_submit of its bucket and the end of tally_end_step. */
TALLY_API tally_status tally_input(tally_group *group, uint32_t tensor, void **data, size_t *bytes);
/* The mean over the ranks, of the tensor's type. Valid after tally_wait until the next step's first tally_submit. */
TALLY_API tally_status tally_output(const tally_group *group, uint32_t tensor, const void **data, size_t *bytes);
/* The mean as fp32, also of tensors of 16 bits. */
TALLY_API tally_status tally_output_float(const tally_group *group, uint32_t tensor, const float **data,
                                          size_t *elements);

/* For the step that begins: this rank's weight (default 1), the scale that its loss was multiplied by (default 1, equal on
 * all ranks), the learning rate that the means are applied with. Before the step's first tally_submit. */
TALLY_API tally_status tally_set_weight(tally_group *group, float weight);
TALLY_API tally_status tally_set_loss_scale(tally_group *group, float scale);
TALLY_API tally_status tally_set_learning_rate(tally_group *group, float rate);
/* This rank has no gradient of the tensor in this step, and its residual stays as it is. */
TALLY_API tally_status tally_keep(tally_group *group, uint32_t tensor);

/* Hands a bucket over; does not wait for others. `arrays`: one for each tensor of the bucket, in its order, structs of
 * arrays[0].struct_size bytes; NULL: what was written to tally_input. Memory without gaps and aligned to its type is read
 * where it lies and must stay as it is until tally_end_step; other memory is copied before this returns. An array of
 * another shape, type or device is refused, and nothing was handed over. *ticket (may be NULL) is to be freed. */
TALLY_API tally_status tally_submit(tally_group *group, uint32_t bucket, const tally_array *arrays, size_t count,
                                    tally_ticket **ticket);
/* Waits until the bucket's means are there, at most step.timeout. They count once the step has ended. */
TALLY_API tally_status tally_wait(tally_ticket *ticket);
/* *done: whether tally_wait would return at once. */
TALLY_API tally_status tally_test(const tally_ticket *ticket, int *done);
TALLY_API void tally_ticket_free(tally_ticket *ticket);

typedef int32_t tally_vote;
enum { TALLY_COMMIT = 0, TALLY_SKIP = 1 };

typedef struct {
  size_t struct_size;
  uint64_t step;
  int32_t committed;  /* 0: skipped, as if the step had not been */
  char reason[256];   /* of a skip: "rank 1: non-finite value in fc1.weight"; cut if longer */
} tally_step_result;

/* Hands nothing more over in this step (a bucket that was not submitted counts as zeros), waits for all means and for the
 * verdict. `result` may be NULL. */
TALLY_API tally_status tally_end_step(tally_group *group, tally_vote vote, tally_step_result *result);
TALLY_API uint64_t tally_step(const tally_group *group); /* the number of the open step */

/* What this rank's codecs carry from step to step, for a checkpoint; between steps only. *state is to be freed with
 * tally_free. */
TALLY_API tally_status tally_export_state(const tally_group *group, void **state, size_t *bytes);
/* On all ranks or on none, each its own; on an error nothing has changed. */
TALLY_API tally_status tally_import_state(tally_group *group, const void *state, size_t bytes);
TALLY_API void tally_free(void *memory);

/* ---- collectives: all ranks, in the same order, with equal arguments but the numbers ---- */

typedef int32_t tally_op;
enum {
  TALLY_SUM = 0,
  TALLY_MEAN = 1, /* of floating numbers */
  TALLY_MIN = 2,
  TALLY_MAX = 3,
  TALLY_PRODUCT = 4,
  TALLY_AND = 5, /* bits of integers */
  TALLY_OR = 6,
  TALLY_XOR = 7
};

/* Memory without gaps, any alignment. On failure the contents of what was to be written are undefined. */
TALLY_API tally_status tally_all_reduce(tally_client *client, void *data, size_t elements, tally_dtype dtype,
                                        tally_op op);
TALLY_API tally_status tally_broadcast(tally_client *client, void *data, size_t elements, tally_dtype dtype,
                                       uint32_t root);
/* `out` holds tally_size times `elements`, in the order of ranks; `in` may be this rank's place in it. */
TALLY_API tally_status tally_all_gather(tally_client *client, const void *in, size_t elements, tally_dtype dtype,
                                        void *out);
/* `in` holds tally_size times `elements`; `out` becomes this rank's place of the sum. */
TALLY_API tally_status tally_reduce_scatter(tally_client *client, const void *in, size_t elements, tally_dtype dtype,
                                            tally_op op, void *out);
TALLY_API tally_status tally_barrier(tally_client *client);

#ifdef __cplusplus
}
#endif
