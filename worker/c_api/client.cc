#include <cmath>

#include "common/version.h"
#include "worker/c_api/boundary.h"

using tally::InvalidArgument;
using tally::Status;
namespace c_api = tally::c_api;

namespace {

Status ReadSources(const tally_join_options* options, tally::ConfigSources* sources) {
  sources->environment = tally::ProcessEnvironment();
  if (options == nullptr) return Status::Ok();
  tally_join_options given;
  TALLY_RETURN_IF_ERROR(c_api::ReadStruct(options, "join options", &given));
  if (given.config_file != nullptr) sources->file = given.config_file;
  if (given.settings_count > 0) TALLY_RETURN_IF_ERROR(c_api::NotNull(given.settings, "settings"));
  for (std::size_t i = 0; i < given.settings_count; ++i) {
    TALLY_RETURN_IF_ERROR(c_api::NotNull(given.settings[i], "a setting"));
    sources->overrides.emplace_back(given.settings[i]);
  }
  return Status::Ok();
}

Status Join(const tally_join_options* options, tally_client** out) {
  TALLY_RETURN_IF_ERROR(c_api::NotNull(out, "where to put the client"));
  *out = nullptr;
  tally::ConfigSources sources;
  TALLY_RETURN_IF_ERROR(ReadSources(options, &sources));
  TALLY_ASSIGN_OR_RETURN(const tally::LoadedConfig config, tally::LoadConfig(sources));
  auto handle = std::make_unique<tally_client>();
  TALLY_ASSIGN_OR_RETURN(handle->client, tally::Client::Join(config));
  *out = handle.release();
  return Status::Ok();
}

Status Collective(tally_client* client, tally_dtype dtype, tally::DType* type) {
  TALLY_RETURN_IF_ERROR(c_api::InJob(client));
  return c_api::ReadDType(dtype, type);
}

Status ReadOp(tally_op op, tally::ReduceOp* out) {
  if (op < 0 || op > static_cast<tally_op>(tally::kLastReduceOp)) {
    return InvalidArgument("op " + std::to_string(op) + ": expected 0 to " +
                           std::to_string(static_cast<tally_op>(tally::kLastReduceOp)) + " (TALLY_SUM …)");
  }
  *out = static_cast<tally::ReduceOp>(op);
  return Status::Ok();
}

// In all ranks' numbers; refused where a multiplication would wrap.
Status AllRanks(const tally_client* client, std::size_t elements, std::size_t* all) {
  if (!__builtin_mul_overflow(elements, std::size_t{client->client->workers()}, all)) return Status::Ok();
  return InvalidArgument("a collective of " + std::to_string(elements) + " elements per rank: too many");
}

}  // namespace

const char* tally_version() { return tally::kVersion; }

tally_status tally_join(const tally_join_options* options, tally_client** client) {
  return c_api::Guard([&] { return Join(options, client); });
}

tally_status tally_leave(tally_client* client) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::NotNull(client, "client"));
    *client->in_job = false;
    return client->client->Leave();
  });
}

tally_status tally_abort(tally_client* client, const char* reason) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::InJob(client));
    client->client->Abort(reason != nullptr ? reason : "no reason given");
    return Status::Ok();
  });
}

void tally_close(tally_client* client) {
  if (client == nullptr) return;
  *client->in_job = false;
  delete client;
}

uint32_t tally_rank(const tally_client* client) { return client->client->rank().value; }
uint32_t tally_size(const tally_client* client) { return client->client->workers(); }
uint32_t tally_local_rank(const tally_client* client) { return client->client->local_rank(); }
uint32_t tally_servers(const tally_client* client) { return client->client->servers(); }
uint64_t tally_epoch(const tally_client* client) { return client->client->epoch().value; }

const char* tally_describe(tally_client* client) {
  client->description = client->client->Describe();
  return client->description.c_str();
}

tally_status tally_get_stats(const tally_client* client, tally_stats* out) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::NotNull(client, "client"));
    const tally::ClientStats stats = client->client->stats();
    tally_stats value{};
    value.bytes_sent = stats.bytes_sent;
    value.bytes_received = stats.bytes_received;
    value.frames_sent = stats.frames_sent;
    value.frames_received = stats.frames_received;
    value.steps_committed = stats.steps_committed;
    value.steps_skipped = stats.steps_skipped;
    value.pool_allocations = stats.pool_allocations;
    value.engine_cpu_seconds = stats.engine_cpu_s;
    value.saturated = stats.saturated;
    value.residual_l1 = stats.residual_l1;
    value.residual_bytes = stats.residual_bytes;
    return c_api::WriteStruct(value, "stats", out);
  });
}

tally_status tally_all_reduce(tally_client* client, void* data, size_t elements, tally_dtype dtype, tally_op op) {
  return c_api::Guard([&]() -> Status {
    tally::DType type;
    tally::ReduceOp reduce;
    TALLY_RETURN_IF_ERROR(Collective(client, dtype, &type));
    TALLY_RETURN_IF_ERROR(ReadOp(op, &reduce));
    return client->client->AllReduce(tally::NumberView(data, elements, type), reduce);
  });
}

tally_status tally_broadcast(tally_client* client, void* data, size_t elements, tally_dtype dtype, uint32_t root) {
  return c_api::Guard([&]() -> Status {
    tally::DType type;
    TALLY_RETURN_IF_ERROR(Collective(client, dtype, &type));
    return client->client->Broadcast(tally::NumberView(data, elements, type), tally::Rank(root));
  });
}

tally_status tally_all_gather(tally_client* client, const void* in, size_t elements, tally_dtype dtype, void* out) {
  return c_api::Guard([&]() -> Status {
    tally::DType type;
    std::size_t all = 0;
    TALLY_RETURN_IF_ERROR(Collective(client, dtype, &type));
    TALLY_RETURN_IF_ERROR(AllRanks(client, elements, &all));
    return client->client->AllGather(tally::ConstNumberView(in, elements, type), tally::NumberView(out, all, type));
  });
}

tally_status tally_reduce_scatter(tally_client* client, const void* in, size_t elements, tally_dtype dtype, tally_op op,
                                  void* out) {
  return c_api::Guard([&]() -> Status {
    tally::DType type;
    tally::ReduceOp reduce;
    std::size_t all = 0;
    TALLY_RETURN_IF_ERROR(Collective(client, dtype, &type));
    TALLY_RETURN_IF_ERROR(ReadOp(op, &reduce));
    TALLY_RETURN_IF_ERROR(AllRanks(client, elements, &all));
    return client->client->ReduceScatter(tally::ConstNumberView(in, all, type), tally::NumberView(out, elements, type),
                                         reduce);
  });
}

tally_status tally_barrier(tally_client* client) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::InJob(client));
    return client->client->Barrier();
  });
}
