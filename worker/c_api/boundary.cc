#include "worker/c_api/boundary.h"

namespace tally::c_api {
namespace {

thread_local std::string last_error;

}  // namespace

tally_status Report(const Status& status) {
  if (!status.ok()) last_error = status.text();
  return static_cast<tally_status>(status.kind());
}

Status InJob(const tally_client* client) {
  TALLY_RETURN_IF_ERROR(NotNull(client, "client"));
  return *client->in_job ? Status::Ok() : Unavailable("the client has left its job");
}

Status InGroup(const tally_group* group) {
  TALLY_RETURN_IF_ERROR(NotNull(group, "group"));
  return InJob(group->client);
}

Status IsTensor(const tally_group* group, std::uint32_t tensor) {
  TALLY_RETURN_IF_ERROR(NotNull(group, "group"));
  if (tensor < group->tensors.size()) return Status::Ok();
  return InvalidArgument("tensor " + std::to_string(tensor) + ": the group has " +
                         std::to_string(group->tensors.size()));
}

Status ReadDType(tally_dtype dtype, DType* out) {
  if (dtype < 0 || dtype > static_cast<tally_dtype>(kLastDType)) {
    return InvalidArgument("dtype " + std::to_string(dtype) + ": expected 0 to " +
                           std::to_string(static_cast<tally_dtype>(kLastDType)) + " (TALLY_FLOAT32 …)");
  }
  *out = static_cast<DType>(dtype);
  return Status::Ok();
}

}  // namespace tally::c_api

const char* tally_status_name(tally_status status) {
  if (status < TALLY_OK || status > TALLY_INTERNAL) return "unknown status";
  return tally::ToString(static_cast<tally::StatusKind>(status)).data();
}

const char* tally_last_error() { return tally::c_api::last_error.c_str(); }
