#include <cstdlib>

#include "common/utf8.h"
#include "worker/c_api/boundary.h"
#include "worker/c_api/strided.h"

using tally::InvalidArgument;
using tally::Status;
namespace c_api = tally::c_api;

namespace {

Status ReadTensor(const tally_tensor* first, std::size_t index, tally::TensorSpec* out) {
  tally_tensor tensor;
  TALLY_RETURN_IF_ERROR(c_api::ReadElement(first, index, "tensor", &tensor));
  TALLY_RETURN_IF_ERROR(c_api::NotNull(tensor.name, "a tensor's name"));
  out->name = tensor.name;
  TALLY_RETURN_IF_ERROR(c_api::ReadDType(tensor.dtype, &out->dtype).WithContext("tensor " + out->name));
  std::uint64_t elements = 0;
  TALLY_RETURN_IF_ERROR(
      c_api::CountElements(tensor.dimensions, tensor.shape, &elements).WithContext("tensor " + out->name));
  if (tensor.dimensions > 0) out->shape.assign(tensor.shape, tensor.shape + tensor.dimensions);
  out->elements = tally::ElementCount(elements);
  return Status::Ok();
}

Status ReadOptions(const tally_group_options* options, const std::vector<tally::TensorSpec>& tensors,
                   tally::GroupOptions* out) {
  if (options == nullptr) return Status::Ok();
  tally_group_options given;
  TALLY_RETURN_IF_ERROR(c_api::ReadStruct(options, "group options", &given));
  if (given.name != nullptr) out->name = given.name;
  out->first_step = tally::StepId(given.first_step);
  if (given.bucket_count == 0) return Status::Ok();
  TALLY_RETURN_IF_ERROR(c_api::NotNull(given.bucket_sizes, "bucket_sizes"));
  TALLY_RETURN_IF_ERROR(c_api::NotNull(given.bucket_tensors, "bucket_tensors"));
  std::size_t at = 0;
  for (std::size_t b = 0; b < given.bucket_count; ++b) {
    std::vector<std::string>& bucket = out->buckets.emplace_back();
    for (std::uint32_t i = 0; i < given.bucket_sizes[b]; ++i, ++at) {
      // Each tensor is in one bucket: whoever says more of them also reads beyond the end of the list.
      if (at >= tensors.size()) {
        return InvalidArgument("the buckets hold more tensors than the " + std::to_string(tensors.size()) + " declared");
      }
      if (given.bucket_tensors[at] >= tensors.size()) {
        return InvalidArgument("bucket " + std::to_string(b) + " names tensor " + std::to_string(given.bucket_tensors[at]) +
                               " of " + std::to_string(tensors.size()));
      }
      bucket.push_back(tensors[given.bucket_tensors[at]].name);
    }
  }
  return Status::Ok();
}

Status Declare(tally_client* client, const tally_tensor* first, std::size_t count, const tally_group_options* options,
               tally_group** out) {
  TALLY_RETURN_IF_ERROR(c_api::NotNull(out, "where to put the group"));
  *out = nullptr;
  TALLY_RETURN_IF_ERROR(c_api::InJob(client));
  auto handle = std::make_unique<tally_group>();
  handle->client = client;
  for (std::size_t i = 0; i < count; ++i) {
    TALLY_RETURN_IF_ERROR(ReadTensor(first, i, &handle->tensors.emplace_back()));
  }
  tally::GroupOptions group_options;
  TALLY_RETURN_IF_ERROR(ReadOptions(options, handle->tensors, &group_options));
  client->groups.reserve(client->groups.size() + 1);
  TALLY_ASSIGN_OR_RETURN(handle->group, client->client->DeclareGroup(handle->tensors, group_options));
  *out = handle.get();
  client->groups.push_back(std::move(handle));
  return Status::Ok();
}

bool IsFloat32(const tally_group* group, std::uint32_t tensor) {
  return group->tensors[tensor].dtype == tally::DType::kFloat32;
}

void* OwnInput(tally_group* group, std::uint32_t tensor) {
  if (IsFloat32(group, tensor)) return group->group->Input(tensor).data();
  return group->group->Input16(tensor).data();
}

Status SetInput(tally_group* group, std::uint32_t tensor, const void* memory) {
  const std::size_t elements = group->tensors[tensor].elements.value;
  if (IsFloat32(group, tensor)) return group->group->SetInput(tensor, {static_cast<const float*>(memory), elements});
  return group->group->SetInput16(tensor, {static_cast<const std::uint16_t*>(memory), elements});
}

Status CheckArray(const tally::TensorSpec& tensor, const tally_array& array) {
  tally::DType type;
  TALLY_RETURN_IF_ERROR(c_api::ReadDType(array.dtype, &type));
  if (type != tensor.dtype) {
    return InvalidArgument(std::string("expected ") + tally::DTypeName(tensor.dtype) + ", got " + tally::DTypeName(type));
  }
  if (array.device != TALLY_CPU) {
    return tally::Unsupported("memory of device type " + std::to_string(array.device) +
                              ": this build takes host memory only; copy it there first");
  }
  std::uint64_t elements = 0;
  TALLY_RETURN_IF_ERROR(c_api::CountElements(array.dimensions, array.shape, &elements));
  if (elements > 0) TALLY_RETURN_IF_ERROR(c_api::NotNull(array.data, "data"));
  // A flat array says nothing of the shape; one of other dimensions would be misread.
  const std::vector<std::uint64_t> shape(array.shape, array.shape + array.dimensions);
  const bool flat = array.dimensions == 1 && elements == tensor.elements.value;
  if (flat || (shape == tensor.shape && elements == tensor.elements.value)) return Status::Ok();
  return InvalidArgument("expected shape " + c_api::ShapeText(tensor.shape) + ", got " + c_api::ShapeText(shape));
}

// Nothing is set before all arrays are known to be right.
Status SetInputs(tally_group* group, std::span<const std::uint32_t> tensors, const tally_array* first,
                 std::size_t count) {
  if (first != nullptr && count != tensors.size()) {
    return InvalidArgument("expected an array for each of its " + std::to_string(tensors.size()) + " tensors, got " +
                           std::to_string(count));
  }
  std::vector<tally_array> arrays(first != nullptr ? count : 0);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    TALLY_RETURN_IF_ERROR(c_api::ReadElement(first, i, "array", &arrays[i]));
    const tally::TensorSpec& tensor = group->tensors[tensors[i]];
    TALLY_RETURN_IF_ERROR(CheckArray(tensor, arrays[i]).WithContext("array of " + tensor.name));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool in_place = !arrays.empty() && c_api::IsPlain(arrays[i]);
    TALLY_RETURN_IF_ERROR(SetInput(group, tensors[i], in_place ? arrays[i].data : OwnInput(group, tensors[i])));
    if (!arrays.empty() && !in_place) c_api::Pack(arrays[i], OwnInput(group, tensors[i]));
  }
  return Status::Ok();
}

Status IsBucket(const tally_group* group, std::uint32_t bucket) {
  if (bucket < group->group->bucket_count()) return Status::Ok();
  return InvalidArgument("bucket " + std::to_string(bucket) + " of " + std::to_string(group->group->bucket_count()));
}

Status Submit(tally_group* group, std::uint32_t bucket, const tally_array* arrays, std::size_t count,
              tally_ticket** out) {
  if (out != nullptr) *out = nullptr;
  TALLY_RETURN_IF_ERROR(c_api::InGroup(group));
  TALLY_RETURN_IF_ERROR(IsBucket(group, bucket));
  auto handle = std::make_unique<tally_ticket>();
  handle->in_job = group->client->in_job;
  TALLY_RETURN_IF_ERROR(SetInputs(group, group->group->bucket(tally::BucketId(bucket)), arrays, count)
                            .WithContext("bucket " + std::to_string(bucket)));
  TALLY_ASSIGN_OR_RETURN(handle->ticket, group->group->Submit(tally::BucketId(bucket)));
  if (out != nullptr) *out = handle.release();
  return Status::Ok();
}

Status EndStep(tally_group* group, tally_vote vote, tally_step_result* out) {
  TALLY_RETURN_IF_ERROR(c_api::InGroup(group));
  if (vote != TALLY_COMMIT && vote != TALLY_SKIP) {
    return InvalidArgument("vote " + std::to_string(vote) + ": expected TALLY_COMMIT or TALLY_SKIP");
  }
  std::size_t size = 0;
  if (out != nullptr) TALLY_RETURN_IF_ERROR(c_api::ReadSize(out, "step result", &size));
  TALLY_ASSIGN_OR_RETURN(const tally::StepResult result,
                         group->group->EndStep(vote == TALLY_SKIP ? tally::Vote::kSkip : tally::Vote::kCommit));
  if (out == nullptr) return Status::Ok();
  tally_step_result value{};
  value.step = result.step.value;
  value.committed = result.outcome == tally::Outcome::kCommitted ? 1 : 0;
  const std::string_view reason = tally::Utf8Prefix(result.reason, sizeof value.reason - 1);
  std::copy(reason.begin(), reason.end(), value.reason);
  return c_api::WriteStruct(value, "step result", out);
}

Status Export(const tally_group* group, void** state, std::size_t* bytes) {
  TALLY_RETURN_IF_ERROR(c_api::NotNull(state, "where to put the state"));
  TALLY_RETURN_IF_ERROR(c_api::NotNull(bytes, "where to put its length"));
  *state = nullptr;
  *bytes = 0;
  TALLY_RETURN_IF_ERROR(c_api::InGroup(group));
  TALLY_ASSIGN_OR_RETURN(const std::vector<std::byte> saved, group->group->ExportState());
  void* memory = std::malloc(std::max<std::size_t>(saved.size(), 1));
  if (memory == nullptr) return tally::Unavailable("out of memory");
  std::copy(saved.begin(), saved.end(), static_cast<std::byte*>(memory));
  *state = memory;
  *bytes = saved.size();
  return Status::Ok();
}

template <typename Span, typename Pointer>
Status Give(Span numbers, Pointer* data, std::size_t* size, std::size_t unit) {
  TALLY_RETURN_IF_ERROR(c_api::NotNull(data, "where to put the address"));
  if (size != nullptr) *size = numbers.size() * unit;
  *data = numbers.data();
  return Status::Ok();
}

}  // namespace

tally_status tally_declare_group(tally_client* client, const tally_tensor* tensors, size_t count,
                                 const tally_group_options* options, tally_group** group) {
  return c_api::Guard([&] { return Declare(client, tensors, count, options, group); });
}

size_t tally_bucket_count(const tally_group* group) { return group->group->bucket_count(); }

tally_status tally_bucket(const tally_group* group, uint32_t bucket, const uint32_t** tensors, size_t* count) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::NotNull(group, "group"));
    TALLY_RETURN_IF_ERROR(IsBucket(group, bucket));
    return Give(group->group->bucket(tally::BucketId(bucket)), tensors, count, 1);
  });
}

tally_status tally_input(tally_group* group, uint32_t tensor, void** data, size_t* bytes) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::InGroup(group));
    TALLY_RETURN_IF_ERROR(c_api::IsTensor(group, tensor));
    if (IsFloat32(group, tensor)) return Give(group->group->Input(tensor), data, bytes, sizeof(float));
    return Give(group->group->Input16(tensor), data, bytes, sizeof(std::uint16_t));
  });
}

tally_status tally_output(const tally_group* group, uint32_t tensor, const void** data, size_t* bytes) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::IsTensor(group, tensor));
    if (IsFloat32(group, tensor)) return Give(group->group->Output(tensor), data, bytes, sizeof(float));
    return Give(group->group->Output16(tensor), data, bytes, sizeof(std::uint16_t));
  });
}

tally_status tally_output_float(const tally_group* group, uint32_t tensor, const float** data, size_t* elements) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::IsTensor(group, tensor));
    return Give(group->group->Output(tensor), data, elements, 1);
  });
}

tally_status tally_set_weight(tally_group* group, float weight) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::InGroup(group));
    return group->group->SetWeight(weight);
  });
}

tally_status tally_set_loss_scale(tally_group* group, float scale) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::InGroup(group));
    return group->group->SetLossScale(scale);
  });
}

tally_status tally_set_learning_rate(tally_group* group, float rate) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::InGroup(group));
    return group->group->SetLearningRate(rate);
  });
}

tally_status tally_keep(tally_group* group, uint32_t tensor) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::InGroup(group));
    TALLY_RETURN_IF_ERROR(c_api::IsTensor(group, tensor));
    return group->group->Keep(tensor);
  });
}

tally_status tally_submit(tally_group* group, uint32_t bucket, const tally_array* arrays, size_t count,
                          tally_ticket** ticket) {
  return c_api::Guard([&] { return Submit(group, bucket, arrays, count, ticket); });
}

tally_status tally_wait(tally_ticket* ticket) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::NotNull(ticket, "ticket"));
    if (!*ticket->in_job) return tally::Unavailable("the ticket's client has left its job");
    return ticket->ticket.Wait();
  });
}

tally_status tally_test(const tally_ticket* ticket, int* done) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::NotNull(ticket, "ticket"));
    TALLY_RETURN_IF_ERROR(c_api::NotNull(done, "where to put the answer"));
    *done = ticket->ticket.done() ? 1 : 0;
    return Status::Ok();
  });
}

void tally_ticket_free(tally_ticket* ticket) { delete ticket; }

tally_status tally_end_step(tally_group* group, tally_vote vote, tally_step_result* result) {
  return c_api::Guard([&] { return EndStep(group, vote, result); });
}

uint64_t tally_step(const tally_group* group) { return group->group->step().value; }

tally_status tally_export_state(const tally_group* group, void** state, size_t* bytes) {
  return c_api::Guard([&] { return Export(group, state, bytes); });
}

tally_status tally_import_state(tally_group* group, const void* state, size_t bytes) {
  return c_api::Guard([&]() -> Status {
    TALLY_RETURN_IF_ERROR(c_api::InGroup(group));
    TALLY_RETURN_IF_ERROR(c_api::NotNull(state, "state"));
    return group->group->ImportState({static_cast<const std::byte*>(state), bytes});
  });
}

void tally_free(void* memory) { std::free(memory); }
