// Hosts, peers and payloads for the transport tests: every host runs its loop on a thread of its own and is asked from
// the test's thread by Do. Waits are bounded, and long: they only end a test that would hang.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "common/shared_memory.h"
#include "common/transport/link.h"

namespace tally {

// Those of transports.inc.
const std::vector<std::string>& TransportNames();

// Whether endpoints of this transport are "host:port" and not a name.
bool HasPorts(const std::string& transport);

// An address that Listen accepts and nobody else uses.
std::string FreshAddress(const std::string& transport);

// A loop on its own thread with a pool and a transport.
class Host {
 public:
  Host(const std::string& transport, const LinkOptions& options);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Runs `body` on the loop and returns what it returns.
  template <typename Body>
  auto Do(Body body) {
    std::promise<decltype(body())> promise;
    auto answer = promise.get_future();
    loop.Post([&] {
      if constexpr (std::is_void_v<decltype(body())>) {
        body();
        promise.set_value();
      } else {
        promise.set_value(body());
      }
    });
    return answer.get();
  }

  // Asks `condition` on the loop until it holds. False after half a minute.
  bool WaitFor(const std::function<bool()>& condition);

  // Connects and waits for the answer; `handler` is set on the link.
  Result<std::unique_ptr<Link>> Dial(const std::string& endpoint, const LinkIdentity& self, LinkHandler* handler);

  void DestroyTransport() {
    Do([&] { transport.reset(); });
  }

  EventLoop loop;
  BufferPool pool{std::uint64_t{1} << 30, std::make_shared<SharedMemory>()};
  std::unique_ptr<Transport> transport;

 private:
  std::thread thread_;
};

// Whether `payload` is what Outbox (below) made for frame `number`.
bool IsPayload(std::uint64_t number, std::span<const std::byte> payload);

// Keeps what comes in. Touched on its host's loop only.
struct Inbox : LinkHandler {
  struct Entry {
    FrameHeader header;
    std::vector<std::byte> payload;
  };
  void OnFrame(Link& link, Frame& frame) override {
    ++frames;
    if (on_frame) return on_frame(link, frame);
    entries.push_back({frame.header, {frame.payload.begin(), frame.payload.end()}});
  }
  void OnClosed(Link& link, const Status& why) override {
    closed.push_back(why);
    if (on_closed) on_closed(link, why);
  }
  // Entries are the Outbox's frames 0, 1, …, every byte of them.
  bool IsInOrder() const {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].header.step.value != i || !IsPayload(i, entries[i].payload)) return false;
    }
    return true;
  }

  std::function<void(Link&, Frame&)> on_frame;  // instead of keeping the frame
  std::function<void(Link&, const Status&)> on_closed;
  std::size_t frames = 0;
  std::vector<Entry> entries;
  std::vector<Status> closed;
};

// Accepts everybody, unless `decide` says otherwise.
struct Door : Acceptor {
  Status OnHello(const LinkIdentity& peer) override {
    hellos.push_back(peer);
    return decide ? decide(peer) : Status::Ok();
  }
  void OnAccepted(std::unique_ptr<Link> link) override {
    link->handler = &inbox;
    links.push_back(std::move(link));
    if (on_accepted) on_accepted(*links.back());
  }
  void OnRejected(const Status& why) override { rejected.push_back(why); }

  std::function<Status(const LinkIdentity&)> decide;
  std::function<void(Link&)> on_accepted;
  std::vector<LinkIdentity> hellos;
  std::vector<Status> rejected;
  std::vector<std::unique_ptr<Link>> links;
  Inbox inbox;
};

// Payloads whose bytes say which frame they belong to. Each is spoilt when its release runs, so that a transport that
// still reads it then is found out. Touched on the sender's loop only.
class Outbox {
 public:
  Status Send(Link& link, std::size_t bytes);                     // frame number = step
  Status Send(Link& link, std::size_t bytes, FrameHeader header);  // its step is overwritten

  std::size_t sent() const { return payloads_.size(); }
  std::size_t released() const;
  bool EachReleasedOnce() const;  // everything that was sent

 private:
  struct Payload {
    std::vector<std::byte> bytes;
    int releases = 0;
  };
  std::vector<std::unique_ptr<Payload>> payloads_;
};

inline LinkIdentity Worker(std::uint32_t index) { return {77, EpochId{3}, 1000 + index, Role::kWorker, index, false}; }
inline LinkIdentity Server(std::uint32_t index) { return {77, EpochId{3}, 2000 + index, Role::kServer, index, false}; }

// Every transport; both ends on one loop, and each on its own.
class TransportTest : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  ~TransportTest() override;

  std::string transport() const { return std::get<0>(GetParam()); }
  bool has_ports() const { return HasPorts(transport()); }

  // Call once, before anything else; a test that does not care gets the defaults.
  void Start(const LinkOptions& server_options = {}, std::optional<LinkOptions> client_options = {});
  // Start, then a listener (`door`) and a link to it from worker 1 (`link`, `inbox`).
  void StartPair(const LinkOptions& server_options = {}, std::optional<LinkOptions> client_options = {});
  std::unique_ptr<Link> Dial(std::uint32_t worker = 1);
  void Listen();
  // The server's end of the link made last.
  Link& accepted() { return *door.links.back(); }

  std::unique_ptr<Host> server;
  Host* client = nullptr;
  std::string endpoint;
  Door door;
  Inbox inbox;
  std::unique_ptr<Link> link;
  Outbox out;   // of the client
  Outbox back;  // of the server

 private:
  std::unique_ptr<Host> own_client_;
};

// A frame's bytes as stream sockets carry them. `says`: the header's length of the payload, if it is another.
std::vector<std::byte> Wire(const FrameHeader& header, std::span<const std::byte> payload = {},
                            std::optional<std::uint64_t> says = {});

// "tcp_two_loops"
std::string CaseName(const testing::TestParamInfo<std::tuple<std::string, bool>>& info);

// The transports that `wanted` accepts, for suites that do not concern all.
inline std::vector<std::string> TransportsThat(bool (*wanted)(const std::string&)) {
  std::vector<std::string> names;
  for (const std::string& name : TransportNames()) {
    if (wanted(name)) names.push_back(name);
  }
  return names;
}

#define TALLY_TRANSPORT_SUITE(Suite, names, loops) \
  INSTANTIATE_TEST_SUITE_P(Every, Suite, testing::Combine(testing::ValuesIn(names), loops), CaseName)
#define TALLY_EVERY_TRANSPORT(Suite) TALLY_TRANSPORT_SUITE(Suite, TransportNames(), testing::Bool())

}  // namespace tally
