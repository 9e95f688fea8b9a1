// Both ends of links in one loop, for the tests of transports: runs the loop until a condition, records what comes.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "common/loop.h"
#include "common/transport/link.h"

namespace tally::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Runs `loop` on this thread until `done()`; false when `limit` passed first.
inline bool RunUntil(EventLoop& loop, const std::function<bool()>& done, Nanos limit = seconds(20)) {
  const TimePoint end = loop.Now() + limit;
  EventLoop::TimerId timer = 0;
  std::function<void()> check = [&] {
    if (done() || loop.Now() >= end) return loop.Stop();
    timer = loop.After(milliseconds(1), check);
  };
  loop.Restart();
  loop.Post(check);
  loop.Run();
  loop.Cancel(timer);
  return done();
}

// Differs by seed and by place, so that a swapped or shifted byte shows.
inline std::vector<std::byte> Pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + i / 251 + seed * 31 + 1);
  return data;
}

struct Received {
  FrameHeader header;
  std::vector<std::byte> payload;
};

// One end: keeps the link, what it delivered and how it ended.
class End : public LinkHandler {
 public:
  void OnFrame(Link& from, Frame& frame) override {
    frames.push_back({frame.header, {frame.payload.begin(), frame.payload.end()}});
    if (on_frame) on_frame(from, frame);
  }
  void OnClosed(Link&, const Status& why) override {
    closed = why;
    if (on_closed) on_closed();
  }
  void Take(std::unique_ptr<Link> made) {
    link = std::move(made);
    link->handler = this;
  }

  std::unique_ptr<Link> link;
  std::vector<Received> frames;
  Status closed;
  std::function<void(Link&, Frame&)> on_frame;
  std::function<void()> on_closed;
};

// A listener that takes every peer, or refuses with `verdict`.
class Server : public Acceptor {
 public:
  Status OnHello(const LinkIdentity& peer) override {
    hellos.push_back(peer);
    return verdict;
  }
  void OnAccepted(std::unique_ptr<Link> link) override {
    ends.push_back(std::make_unique<End>());
    ends.back()->Take(std::move(link));
  }
  void OnRejected(const Status& why) override { rejected.push_back(why); }

  Status verdict;
  std::vector<LinkIdentity> hellos;
  std::vector<std::unique_ptr<End>> ends;
  std::vector<Status> rejected;
};

inline LinkIdentity Identity(Role role, std::uint32_t index) {
  LinkIdentity identity;
  identity.job_hash = 0x1122334455667788;
  identity.epoch = EpochId{3};
  identity.incarnation = 0x9900AA0000 + index;
  identity.role = role;
  identity.index = index;
  return identity;
}

class LinkTest : public ::testing::Test {
 protected:
  void Use(const std::string& name, const LinkOptions& options = {}) {
    auto made = MakeTransport(name, &loop, &pool, options);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    transport = std::move(made).value();
  }
  std::string Listen(const std::string& endpoint) {
    auto at = transport->Listen(endpoint, Identity(Role::kServer, 0), &server);
    EXPECT_TRUE(at.ok()) << at.status().ToString();
    return at.ok() ? *at : "";
  }
  // Dials and waits; the status of Connect.
  Status Connect(const std::string& endpoint, End* end, const LinkIdentity& self = Identity(Role::kWorker, 2)) {
    bool done = false;
    Status status;
    transport->Connect(endpoint, self, [&](Result<std::unique_ptr<Link>> link) {
      done = true;
      status = link.status();
      if (link.ok()) end->Take(std::move(link).value());
    });
    EXPECT_FALSE(done) << "called back from inside Connect";
    EXPECT_TRUE(RunUntil(loop, [&] { return done; }));
    return status;
  }
  void OpenPair(const std::string& endpoint) {
    bound = Listen(endpoint);
    const Status status = Connect(bound, &client);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_TRUE(RunUntil(loop, [&] { return !server.ends.empty(); }));
  }

  // Sends `payload`, which must live on, and counts its release.
  Status Send(End& from, std::uint64_t step, std::span<const std::byte> payload) {
    FrameHeader header;
    header.kind = FrameKind::kPush;
    header.group = GroupId{7};
    header.step = StepId{step};
    header.slabs = {1, 5, 9};
    header.weight = 0.5;
    return from.link->Send(header, payload, {[](void* counter, std::uint64_t) { ++*static_cast<int*>(counter); },
                                             &releases, step});
  }

  EventLoop loop;
  BufferPool pool;
  Server server;
  End client;
  std::string bound;
  int releases = 0;
  std::unique_ptr<Transport> transport;  // last: goes before the links' owners
};

}  // namespace tally::testing
