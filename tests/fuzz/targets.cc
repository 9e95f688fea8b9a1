#include "tests/fuzz/target.h"

namespace tally {

std::vector<FuzzTarget> FuzzTargets() {
  std::vector<FuzzTarget> targets;
  AddCodecTargets(&targets);
  targets.push_back({"frame", FuzzFrame, FrameSeeds});
  targets.push_back({"control", FuzzControl, ControlSeeds});
  targets.push_back({"config", FuzzConfig, ConfigSeeds});
  targets.push_back({"switches", FuzzSwitches, SwitchesSeeds});
  targets.push_back({"nccl", FuzzNccl, NcclSeeds});
  targets.push_back({"shm_note", FuzzShmNote, ShmNoteSeeds});
  targets.push_back({"owner", FuzzOwner, OwnerSeeds});
  targets.push_back({"agent", FuzzAgent, AgentSeeds});
  targets.push_back({"state", FuzzState, StateSeeds});
  return targets;
}

}  // namespace tally
