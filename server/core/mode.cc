// ExpandMode: what one word in the configuration stands for (DESIGN §2).
#include <string>

#include "common/schedule/schedule.h"
#include "compress/codec.h"
#include "server/core/coordinator.h"

namespace tally {

Result<ModeExpansion> ExpandMode(const Config& config) {
  const bool hierarchical = config.aggregation.mode == Mode::kHierarchical;
  const Mode mode = hierarchical ? config.aggregation.between : config.aggregation.mode;
  const std::string name = ModeName(config.aggregation.mode);
  const bool needs_servers = mode == Mode::kPs || mode == Mode::kHybrid;
  if (needs_servers && config.servers.addresses.empty()) {
    return InvalidArgument("aggregation.mode = " + name + (hierarchical ? " with aggregation.between = ps" : "") +
                           " needs servers: set servers.addresses, or take mode ring or auto, which work without");
  }
  TALLY_ASSIGN_OR_RETURN(const CodecTraits codec, TraitsOfCodec(config.compression.codec, config.compression));

  ModeExpansion expansion;
  // Auto too: bytes that stay inside a node are never more expensive than on its NIC (ways.h prices both).
  expansion.node_stages = config.aggregation.local == LocalStages::kOn ||
                          ((hierarchical || mode == Mode::kAuto) && config.aggregation.local == LocalStages::kAuto);
  expansion.server_shares = needs_servers || (mode == Mode::kAuto && !config.servers.addresses.empty());
  expansion.worker_shares = mode != Mode::kPs;
  if (mode == Mode::kRing && codec.linear) {
    // A ring that re-encodes at every hop would lose N/2 times as much: the others go straight to their owners.
    expansion.exchange = ExchangeKind::kSchedule;
    expansion.schedule = config.aggregation.schedule;
    expansion.server_shares = expansion.worker_shares = false;
  }
  if (mode == Mode::kAuto) {
    expansion.open = true;
    if (codec.linear) expansion.schedule = config.aggregation.schedule;
  }
  if (expansion.schedule.empty() && config.aggregation.schedule != "ring") {
    expansion.warnings.push_back("aggregation.schedule = " + config.aggregation.schedule + " is not used: mode " + name +
                                 " with codec " + config.compression.codec + " sums at owners");
  }
  if (codec.feedback_forced && !config.compression.error_feedback) {
    expansion.warnings.push_back("compression.codec = " + config.compression.codec +
                                 " without error feedback loses for good what it does not send: training gets worse; "
                                 "set compression.error_feedback = true");
  }
  return expansion;
}

std::string DescribeExpansion(const ModeExpansion& expansion) {
  if (expansion.node_stages) {
    ModeExpansion between = expansion;
    between.node_stages = false;
    return "node stages around " + DescribeExpansion(between);
  }
  const std::string schedule =
      expansion.schedule == kScheduleAuto ? "the cheapest schedule" : "schedule " + expansion.schedule;
  if (expansion.exchange == ExchangeKind::kSchedule) return schedule;
  const char* both = expansion.server_shares && expansion.worker_shares ? (expansion.open ? ", workers or both" : " and workers")
                                                                        : "";
  const std::string owners = std::string("owners on ") + (expansion.server_shares ? "servers" : "workers") + both;
  if (!expansion.open) return owners;
  return "auto: " + owners + (expansion.schedule.empty() ? "" : " or " + schedule) + ", for each group";
}

}  // namespace tally
