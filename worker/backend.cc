#include "worker/backend.h"

#include "server/core/group_tables.h"
#include "worker/agent/attached.h"
#include "worker/embedded.h"

namespace tally {

Status CheckDeclaration(std::span<const TensorSpec> tensors, const GroupOptions& options) {
  if (options.name.empty() || options.name.starts_with(kCollectivePrefix)) {
    return InvalidArgument("group name \"" + options.name +
                           "\": expected a name that does not begin with collective.");
  }
  for (const TensorSpec& tensor : tensors) {
    if (!IsGradientType(tensor.dtype)) {
      return InvalidArgument("tensor " + tensor.name + ": expected a gradient of fp32, fp16 or bf16, got " +
                             DTypeName(tensor.dtype) + "; other types go by standalone collectives");
    }
    if (!ShapeFits(tensor)) {
      return InvalidArgument("tensor " + tensor.name + ": expected a shape of up to " +
                             std::to_string(kMaxDimensions) + " dimensions whose product is " +
                             std::to_string(tensor.elements.value));
    }
  }
  return Status::Ok();
}

Result<std::unique_ptr<Backend>> Backend::Start(const LoadedConfig& config) {
  if (config.config.worker.attach == "agent") return agent::AttachedBackend::Start(config);
  TALLY_ASSIGN_OR_RETURN(std::unique_ptr<EmbeddedBackend> backend, EmbeddedBackend::Start(config));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace tally
