// The variables in which launchers tell a process its rank: torchrun, OpenMPI, PMI, SLURM. The first launcher of this
// list that says anything is believed, whole: what runs inside (torchrun under srun) stands before what runs outside.
#pragma once

#include <array>

namespace tally {

struct LauncherNames {
  const char* rank;
  const char* size;
  const char* local_rank;
};

inline constexpr std::array<LauncherNames, 4> kLaunchers = {{
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
}};
// What SLURM says of a host's place (common/topology/switch_map.h) and name.
inline constexpr const char* kSlurmAddress = "SLURM_TOPOLOGY_ADDR";
inline constexpr const char* kSlurmAddressPattern = "SLURM_TOPOLOGY_ADDR_PATTERN";
inline constexpr const char* kSlurmNodeName = "SLURMD_NODENAME";
inline constexpr const char* kMasterAddress = "MASTER_ADDR";
inline constexpr const char* kMasterPort = "MASTER_PORT";

// The job's file for a process that was not given one by its caller; `tally run --config` sets it.
inline constexpr const char* kConfigFileVariable = "TALLY_CONFIG";

}  // namespace tally
