#include "tests/conformance/transport_harness.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>

namespace tally {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);

std::byte PatternByte(std::uint64_t number, std::size_t i) {
  return static_cast<std::byte>((number * 31 + i + (i >> 8) * 7) & 0xFF);
}

}  // namespace

const std::vector<std::string>& TransportNames() {
  static const std::vector<std::string> names = {
#define TALLY_TRANSPORT(name, factory) name,
#include "common/transport/transports.inc"
#undef TALLY_TRANSPORT
  };
  return names;
}

bool HasPorts(const std::string& transport) { return !ParseEndpoint(transport + "://name").ok(); }

std::string FreshAddress(const std::string& transport) {
  if (HasPorts(transport)) return transport + "://127.0.0.1:0";
  static std::atomic<int> next{0};
  return transport + "://conformance-" + std::to_string(::getpid()) + "-" + std::to_string(next++);
}

Host::Host(const std::string& name, const LinkOptions& options) {
  auto made = MakeTransport(name, &loop, &pool, options);
  EXPECT_TRUE(made.ok()) << made.status().text();
  transport = std::move(made).value();
  thread_ = std::thread([this] { loop.Run(); });
}

Host::~Host() {
  DestroyTransport();
  loop.Stop();
  thread_.join();
}

bool Host::WaitFor(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    if (Do(condition)) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  return false;
}

Result<std::unique_ptr<Link>> Host::Dial(const std::string& endpoint, const LinkIdentity& self, LinkHandler* handler) {
  // Shared: an answer that comes after the patience is over must find it.
  auto answer = std::make_shared<std::promise<Result<std::unique_ptr<Link>>>>();
  auto future = answer->get_future();
  loop.Post([this, endpoint, self, handler, answer] {
    transport->Connect(endpoint, self, [handler, answer](Result<std::unique_ptr<Link>> made) {
      if (made.ok()) made.value()->handler = handler;
      answer->set_value(std::move(made));
    });
  });
  if (future.wait_for(kPatience) != std::future_status::ready) return Timeout("Connect never answered");
  return future.get();
}

Status Outbox::Send(Link& link, std::size_t bytes) { return Send(link, bytes, FrameHeader{}); }

Status Outbox::Send(Link& link, std::size_t bytes, FrameHeader header) {
  const std::uint64_t number = payloads_.size();
  auto& payload = *payloads_.emplace_back(std::make_unique<Payload>());
  payload.bytes.resize(bytes);
  for (std::size_t i = 0; i < bytes; ++i) payload.bytes[i] = PatternByte(number, i);
  header.step = StepId{number};
  return link.Send(header, payload.bytes,
                   {[](void* context, std::uint64_t) {
                      auto* released = static_cast<Payload*>(context);
                      ++released->releases;
                      std::ranges::fill(released->bytes, std::byte{0xDD});
                    },
                    &payload, number});
}

std::size_t Outbox::released() const {
  return static_cast<std::size_t>(std::ranges::count_if(payloads_, [](const auto& p) { return p->releases > 0; }));
}

bool Outbox::EachReleasedOnce() const {
  return std::ranges::all_of(payloads_, [](const auto& p) { return p->releases == 1; });
}

bool IsPayload(std::uint64_t number, std::span<const std::byte> payload) {
  for (std::size_t i = 0; i < payload.size(); ++i) {
    if (payload[i] != PatternByte(number, i)) return false;
  }
  return true;
}

std::vector<std::byte> Wire(const FrameHeader& header, std::span<const std::byte> payload, std::optional<std::uint64_t> says) {
  FrameHeader stamped = header;
  stamped.payload_bytes = says.value_or(payload.size());
  stamped.payload_crc = Crc32c(payload);
  stamped.has_crc = true;
  std::vector<std::byte> encoded;
  EncodeHeader(stamped, &encoded);
  std::vector<std::byte> wire(kPreambleBytes);
  EncodePreamble({static_cast<std::uint32_t>(encoded.size()), static_cast<std::uint32_t>(payload.size())}, encoded,
                 std::span<std::byte, kPreambleBytes>(wire.data(), kPreambleBytes));
  wire.insert(wire.end(), encoded.begin(), encoded.end());
  wire.insert(wire.end(), payload.begin(), payload.end());
  return wire;
}

std::string CaseName(const testing::TestParamInfo<std::tuple<std::string, bool>>& info) {
  return std::get<0>(info.param) + (std::get<1>(info.param) ? "_two_loops" : "_one_loop");
}

TransportTest::~TransportTest() {
  if (client != nullptr) client->Do([&] { link.reset(); });
  if (server != nullptr) server->Do([&] { door.links.clear(); });
  own_client_.reset();
  server.reset();
}

void TransportTest::Start(const LinkOptions& server_options, std::optional<LinkOptions> client_options) {
  server = std::make_unique<Host>(transport(), server_options);
  client = server.get();
  // Different options need a transport of their own.
  if (std::get<1>(GetParam()) || client_options.has_value()) {
    own_client_ = std::make_unique<Host>(transport(), client_options.value_or(server_options));
    client = own_client_.get();
  }
}

void TransportTest::Listen() {
  auto bound = server->Do([&] { return server->transport->Listen(FreshAddress(transport()), Server(0), &door); });
  ASSERT_TRUE(bound.ok()) << bound.status().text();
  endpoint = bound.value();
}

std::unique_ptr<Link> TransportTest::Dial(std::uint32_t worker) {
  const std::size_t before = server->Do([&] { return door.links.size(); });
  auto made = client->Dial(endpoint, Worker(worker), &inbox);
  EXPECT_TRUE(made.ok()) << made.status().text();
  if (!made.ok()) return nullptr;
  EXPECT_TRUE(server->WaitFor([&] { return door.links.size() > before; }));
  return std::move(made).value();
}

void TransportTest::StartPair(const LinkOptions& server_options, std::optional<LinkOptions> client_options) {
  Start(server_options, std::move(client_options));
  Listen();
  link = Dial();
  if (link == nullptr) throw std::runtime_error("no link: the test ends here");  // a fatal failure would not end it
}

}  // namespace tally
