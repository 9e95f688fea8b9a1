// The table of schedules, from schedules.inc.
#include "common/schedule/schedule.h"

#include <array>

namespace tally {

#define TALLY_SCHEDULE(id, name, generate, busiest_link_slabs, seconds, ring_order) \
  void generate(Position owner, Position self, std::uint32_t positions, std::vector<ScheduleStep>* out); \
  std::uint64_t busiest_link_slabs(std::uint32_t positions); \
  double seconds(double bytes, double bytes_per_s, double alpha_s, std::uint32_t positions);
#include "common/schedule/schedules.inc"
#undef TALLY_SCHEDULE

namespace {

#define TALLY_SCHEDULE(id, name, generate, busiest_link_slabs, seconds, ring_order) \
  ScheduleEntry{id, name, generate, busiest_link_slabs, seconds, ring_order},
constexpr std::array kSchedules = {
#include "common/schedule/schedules.inc"
};
#undef TALLY_SCHEDULE

constexpr bool IdsAndNamesAreUnique() {
  for (std::size_t i = 0; i < kSchedules.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (kSchedules[i].id == kSchedules[j].id || kSchedules[i].name == kSchedules[j].name) return false;
    }
  }
  return true;
}
static_assert(IdsAndNamesAreUnique(), "schedules.inc gives an id or a name twice");

}  // namespace

std::span<const ScheduleEntry> Schedules() { return kSchedules; }

Result<const ScheduleEntry*> FindSchedule(std::string_view name) {
  std::string names;
  for (const ScheduleEntry& entry : kSchedules) {
    if (entry.name == name) return &entry;
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  return InvalidArgument("unknown schedule \"" + std::string(name) + "\"; schedules are: " + names);
}

}  // namespace tally
