// What a link between two processes costs: small frames there and back, large ones one way and both ways, over our own
// transports. One side listens and answers, the other measures. Thread: each side runs an event loop on the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "worker/cli/probe_file.h"

namespace tally::cli {

// Answers probes on tcp and zmq, and of this machine on shm.
class ProbeResponder {
 public:
  // Binds `host`:`port` for tcp (0: a free one) and a free port for zmq, which probes are told. Errors: kUnavailable.
  static Result<std::unique_ptr<ProbeResponder>> Listen(const std::string& host, std::uint16_t port);
  virtual ~ProbeResponder() = default;

  virtual std::string endpoint() const = 0;  // "tcp://10.0.0.2:7171"
  // Answers until a peer that measured has gone, or for `limit`. Errors: kTimeout if nobody came.
  virtual Status Serve(Nanos limit) = 0;
  // Answers all who come until Stop, or for `limit`, one after the other or at once.
  virtual void ServeAll(Nanos limit) = 0;
  // From any thread: Serve and ServeAll end.
  virtual void Stop() = 0;
};

struct LinkProbeOptions {
  bool in_process = false;  // the responder is a thread of this process: shm is measured too
  Nanos each = std::chrono::milliseconds(400);  // of each measurement, after a tenth of it for warming up
  std::function<void(const std::string&)> progress;
};

// Measures each transport to a responder's tcp endpoint. Errors: of connecting; kTimeout: no answer within 10 s.
Result<std::vector<LinkRates>> ProbeLinks(const std::string& endpoint, const LinkProbeOptions& options);
// Payload bytes per second in each direction, both at once, over one tcp connection. Errors as above.
Result<double> ProbeBothWays(const std::string& endpoint, Nanos time);
// All of it to another thread of this process over loopback, and in shared memory.
Result<std::vector<LinkRates>> ProbeLoopback(LinkProbeOptions options);

}  // namespace tally::cli
