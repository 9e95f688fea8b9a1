// What stands between C and C++: handles, statuses, structs whose size the caller says. No exception gets past Guard.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "common/status.h"
#include "worker/c_api/tally.h"
#include "worker/client.h"

struct tally_group {
  tally_client* client = nullptr;
  tally::Group* group = nullptr;
  std::vector<tally::TensorSpec> tensors;
};

struct tally_client {
  std::unique_ptr<tally::Client> client;
  std::vector<std::unique_ptr<tally_group>> groups;
  std::string description;
  // Shared with the tickets, which may outlive the client: whether it is still there and in its job.
  std::shared_ptr<std::atomic<bool>> in_job = std::make_shared<std::atomic<bool>>(true);
};

struct tally_ticket {
  std::shared_ptr<const std::atomic<bool>> in_job;
  tally::Ticket ticket;
};

namespace tally::c_api {

inline constexpr std::size_t kMaxStructBytes = 4096;

// Keeps the text for tally_last_error, and gives the number.
tally_status Report(const Status& status);

// Runs `body`, which returns a Status; whatever it throws (the system's memory is all it can be) becomes one.
template <typename Body>
tally_status Guard(Body&& body) noexcept {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return Report(Unavailable("out of memory"));
  } catch (const std::exception& e) {
    return Report(Internal(e.what()));
  }
}

inline Status NotNull(const void* pointer, const char* what) {
  return pointer != nullptr ? Status::Ok() : InvalidArgument(std::string(what) + ": expected a pointer, got NULL");
}

Status InJob(const tally_client* client);
// The group and its client are there, and `tensor` is one of its tensors.
Status InGroup(const tally_group* group);
Status IsTensor(const tally_group* group, std::uint32_t tensor);

// What a caller says that its struct is long. Errors: kInvalidArgument if it did not.
template <typename Struct>
Status ReadSize(const Struct* from, const std::string& name, std::size_t* size) {
  TALLY_RETURN_IF_ERROR(NotNull(from, name.c_str()));
  std::memcpy(size, from, sizeof *size);
  if (*size >= sizeof *size && *size <= kMaxStructBytes) return Status::Ok();
  return InvalidArgument(name + ": struct_size is " + std::to_string(*size) + "; begin with TALLY_INIT");
}

// A caller's struct as this library knows it: what an older caller does not say is zero. Errors: those of ReadSize;
// kUnsupported if a newer caller says what this library does not know.
template <typename Struct>
Status ReadStruct(const Struct* from, const std::string& name, Struct* out) {
  std::size_t size = 0;
  TALLY_RETURN_IF_ERROR(ReadSize(from, name, &size));
  *out = Struct{};
  std::memcpy(out, from, std::min(size, sizeof *out));
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (std::size_t i = sizeof *out; i < size; ++i) {
    if (bytes[i] != 0) {
      return Unsupported(name + " says more than this library knows: the program was built for a newer one");
    }
  }
  return Status::Ok();
}

// One of an array of structs that lie as far apart as the first one says that they are long.
template <typename Struct>
Status ReadElement(const Struct* first, std::size_t index, const char* name, Struct* out) {
  std::size_t size = 0;
  TALLY_RETURN_IF_ERROR(ReadSize(first, name, &size));
  const auto* at = reinterpret_cast<const Struct*>(reinterpret_cast<const unsigned char*>(first) + index * size);
  const std::string which = std::string(name) + " " + std::to_string(index);
  TALLY_RETURN_IF_ERROR(ReadStruct(at, which, out));
  if (out->struct_size == size) return Status::Ok();
  return InvalidArgument(which + ": struct_size is " + std::to_string(out->struct_size) + ", that of the first one " +
                         std::to_string(size));
}

// Fills what the caller has room for, and leaves its size as it was.
template <typename Struct>
Status WriteStruct(Struct value, const char* name, Struct* out) {
  TALLY_RETURN_IF_ERROR(ReadSize(out, name, &value.struct_size));
  std::memcpy(out, &value, std::min(value.struct_size, sizeof value));
  return Status::Ok();
}

Status ReadDType(tally_dtype dtype, DType* out);

}  // namespace tally::c_api
