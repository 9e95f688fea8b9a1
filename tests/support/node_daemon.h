// NodeDaemon: a tally-worker on a socket of its own, for tests whose training processes attach to it. Ends with it.
// Thread: the one that made it.
#pragma once

#include <string>
#include <vector>

#include "worker/cli/launcher.h"

namespace tally::test {

class NodeDaemon {
 public:
  // `file`: of its settings that may change while it runs.
  explicit NodeDaemon(std::vector<std::string> settings = {}, const std::string& file = {});

  const std::string& name() const { return name_; }  // of its local socket
  // What makes a client attach to it.
  std::vector<std::string> attach() const { return {"worker.attach=agent", "worker.agent=" + name_}; }
  cli::Launcher& launcher() { return launcher_; }
  pid_t pid() const { return launcher_.process(0).pid; }
  const std::string& said() const { return said_; }  // so far as the launcher has waited

 private:
  std::string name_, said_;
  cli::Launcher launcher_;
};

}  // namespace tally::test
