// A collective that `tally bench` times: its memory, numbers with a known result for every type and operation, the
// call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "worker/client.h"

namespace tally::cli {

struct CollectiveKindName {
  CollectiveKind kind;
  const char* command;  // "allreduce"
  const char* what;     // "all-reduces"
};
inline constexpr CollectiveKindName kCollectives[] = {
    {CollectiveKind::kAllReduce, "allreduce", "all-reduces"},
    {CollectiveKind::kBroadcast, "broadcast", "broadcasts"},
    {CollectiveKind::kAllGather, "allgather", "all-gathers"},
    {CollectiveKind::kReduceScatter, "reducescatter", "reduce-scatters"},
};

// As the command line and nccl-tests call them. Errors: kInvalidArgument with the names.
Result<DType> ParseDType(std::string_view name);
Result<ReduceOp> ParseReduceOp(std::string_view name);
const char* NcclTypeName(DType type);

struct BenchedKind {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool arena = false;  // of an fp32 all-reduce: Tally's own buffers

  bool reduces() const { return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter; }
  // busbw / algbw of nccl-tests.
  double BusFactor(std::uint32_t ranks) const;
};

class BenchedCollective {
 public:
  // `bytes`: of the whole buffer, as nccl-tests count; rounded down to a multiple of ranks where there are blocks.
  static Result<BenchedCollective> Make(Client& client, const BenchedKind& kind, std::uint64_t bytes);

  std::uint64_t bytes() const { return elements_ * DTypeBytes(kind_.dtype); }
  std::uint64_t elements() const { return elements_; }
  // Numbers differ by rank, place and `shift`; sums are exact for up to 64 ranks.
  void Fill(std::size_t shift);
  Status Call();
  std::uint64_t Wrong(std::size_t shift) const;

 private:
  BenchedCollective(Client& client, const BenchedKind& kind) : client_(&client), kind_(kind) {}
  bool in_blocks() const {
    return kind_.kind == CollectiveKind::kAllGather || kind_.kind == CollectiveKind::kReduceScatter;
  }
  std::vector<std::byte> Contribution(std::uint32_t rank) const;  // a period of what the rank gives
  std::vector<std::byte> Reduced() const;                        // a period of what comes of all

  Client* client_;
  BenchedKind kind_;
  std::uint64_t elements_ = 0;  // of the whole buffer
  std::vector<std::byte> in_, out_;
  Buffer* buffer_ = nullptr;
};

}  // namespace tally::cli
