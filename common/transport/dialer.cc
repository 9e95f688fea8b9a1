#include "common/transport/dialer.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <vector>

#include "common/loop_asio.h"
#include "common/transport/handshake.h"
#include "common/transport/unix_sockets.h"

namespace tally {
namespace {

using boost::asio::ip::tcp;
using std::chrono::milliseconds;

constexpr Nanos kFirstPause = milliseconds(20);
constexpr Nanos kLongestPause = milliseconds(500);
// With several addresses a black hole must not hold up the good one (a name with a dead IPv6 address).
constexpr Nanos kTryTimeout = milliseconds(1000);
constexpr std::size_t kMaxAddresses = 16;
// Whoever probes asks again for as long as the answer matters, and lets go of the other addresses once one has given it.
constexpr Nanos kProbeTimeout = milliseconds(1000);

}  // namespace

class Dialer::Attempts : public std::enable_shared_from_this<Attempts> {
 public:
  Attempts(EventLoop* loop, const EndpointParts& endpoint, const LinkIdentity& self, const LinkOptions& options,
           Done done)
      : loop_(loop),
        endpoint_(endpoint),
        target_(endpoint.scheme + "://" + endpoint.host + (endpoint.port.empty() ? "" : ":" + endpoint.port)),
        self_(Name(self)),
        socket_buffer_bytes_(options.socket_buffer_bytes),
        started_(loop->Now()),
        deadline_(started_ + (self.probe ? std::min(options.connect_timeout, kProbeTimeout) : options.connect_timeout)),
        done_(std::move(done)),
        resolver_(loop->impl().io),
        socket_(loop->impl().io) {}

  void Resolve() {
    if (endpoint_.port.empty()) {  // the name of a local socket
      Address local;
      local.length = UnixAddress(endpoint_.host, reinterpret_cast<sockaddr_un*>(&local.address));
      local.text = endpoint_.host;
      if (addresses_.empty()) addresses_.push_back(local);
      next_ = 0;
      // Posted: `done` must not run inside the constructor.
      loop_->Post([self = shared_from_this()] {
        if (!self->cancelled_) self->TryNext();
      });
      return;
    }
    resolver_.async_resolve(
        endpoint_.host, endpoint_.port, tcp::resolver::numeric_service,
        [self = shared_from_this()](const boost::system::error_code& error, const tcp::resolver::results_type& found) {
          self->OnResolved(error, found);
        });
  }

  void Cancel() {
    cancelled_ = true;
    resolver_.cancel();
    CloseSocket();
    loop_->Cancel(timer_);
  }

  void Retry(const std::string& why) {
    if (next_ > 0) Failed(why);
  }

  TimePoint deadline() const { return deadline_; }
  const std::string& target() const { return target_; }

 private:
  struct Address {
    sockaddr_storage address{};
    socklen_t length = 0;
    std::string text;
    std::string error = "not tried";
  };

  void OnResolved(const boost::system::error_code& error, const tcp::resolver::results_type& found) {
    if (cancelled_) return;
    resolve_error_ = error ? error.message() : "";
    std::vector<Address> addresses;
    for (const auto& entry : found) {
      if (addresses.size() == kMaxAddresses) break;
      const tcp::endpoint endpoint = entry.endpoint();
      Address address;
      address.length = static_cast<socklen_t>(endpoint.size());
      std::memcpy(&address.address, endpoint.data(), endpoint.size());
      address.text = AddressText(endpoint.data(), address.length);
      const auto same = [&](const Address& a) { return a.text == address.text; };
      if (std::ranges::any_of(addresses, same)) continue;
      const auto old = std::ranges::find_if(addresses_, same);
      addresses.push_back(old != addresses_.end() ? *old : std::move(address));
    }
    if (!addresses.empty()) addresses_ = std::move(addresses);
    next_ = error ? addresses_.size() : 0;
    TryNext();
  }

  void TryNext() {
    const TimePoint now = loop_->Now();
    if (now >= deadline_ || next_ == addresses_.size()) {
      Pause(now);
      return;
    }
    Address& address = addresses_[next_++];
    ++tries_;
    fd_ = UniqueFd(OpenSocket(address.address.ss_family, socket_buffer_bytes_));
    if (fd_.get() < 0) return Failed(ErrnoText(errno));
    const int result = connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address.address), address.length);
    if (result == 0) return OnConnected();
    if (errno != EINPROGRESS) return Failed(ErrnoText(errno));

    socket_.assign(fd_.get());
    socket_.async_wait(boost::asio::posix::descriptor_base::wait_write,
                       [self = shared_from_this(), attempt = tries_](const boost::system::error_code& error) {
                         if (!error && !self->cancelled_ && attempt == self->tries_) self->OnWritable();
                       });
    const Nanos limit = addresses_.size() > 1 ? std::min(kTryTimeout, deadline_ - now) : deadline_ - now;
    timer_ = loop_->After(limit, [self = shared_from_this()] { self->Failed("no answer"); });
  }

  void OnWritable() {
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error != 0) return Failed(ErrnoText(error));
    OnConnected();
  }

  void OnConnected() {
    // A free port of the ephemeral range can connect to itself; nobody listens there.
    if (LocalAddress(fd_.get()) == RemoteAddress(fd_.get())) return Failed(ErrnoText(ECONNREFUSED));
    loop_->Cancel(timer_);
    DetachSocket();
    TuneConnection(fd_.get());
    Finish(std::move(fd_));
  }

  void Failed(const std::string& why) {
    loop_->Cancel(timer_);
    addresses_[next_ - 1].error = why;
    if (fd_.get() >= 0) {
      const std::string local = LocalAddress(fd_.get());
      if (!endpoint_.port.empty() && !local.empty() && !local.ends_with(":0")) addresses_[next_ - 1].error += " (from " + local + ")";
    }
    CloseSocket();
    // Posted, so that a list of addresses that all fail at once neither recurses nor calls `done` inside the caller.
    loop_->Post([self = shared_from_this()] {
      if (!self->cancelled_) self->TryNext();
    });
  }

  void Pause(TimePoint now) {
    const Nanos left = deadline_ - now;
    if (left <= Nanos::zero()) return Finish(Unavailable(Describe(now)));
    timer_ = loop_->After(std::min(pause_, left), [self = shared_from_this()] { self->Resolve(); });
    pause_ = std::min(2 * pause_, kLongestPause);
  }

  void Finish(Result<UniqueFd> result) {
    // `done` may end this object's owner, and Retry may come again: neither moved from nor run by reference.
    const Done done = done_;
    done(std::move(result));
  }

  std::string Describe(TimePoint now) const {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.1f", std::chrono::duration<double>(now - started_).count());
    std::string text = self_ + ": connect to " + target_ + " failed after " + seconds + " s and " +
                       std::to_string(tries_) + " tries: ";
    if (!resolve_error_.empty()) text += "looking up \"" + endpoint_.host + "\": " + resolve_error_ + "; ";
    for (const Address& address : addresses_) text += address.text + ": " + address.error + "; ";
    return text + (addresses_.empty() ? "check the host's name" : "check that the peer runs and listens there");
  }

  // The descriptor object only watches: fd_ owns.
  void DetachSocket() {
    if (socket_.is_open()) (void)socket_.release();
  }
  void CloseSocket() {
    DetachSocket();
    fd_ = UniqueFd();
  }

  EventLoop* const loop_;
  const EndpointParts endpoint_;
  const std::string target_;
  const std::string self_;
  const std::uint32_t socket_buffer_bytes_;
  const TimePoint started_;
  const TimePoint deadline_;
  Done done_;
  tcp::resolver resolver_;
  boost::asio::posix::stream_descriptor socket_;
  UniqueFd fd_;
  std::vector<Address> addresses_;
  std::string resolve_error_;
  std::size_t next_ = 0;  // the address to try; those before it have failed in this round
  unsigned tries_ = 0;
  Nanos pause_ = kFirstPause;
  EventLoop::TimerId timer_ = 0;
  bool cancelled_ = false;
};

Dialer::Dialer(EventLoop* loop, const EndpointParts& endpoint, const LinkIdentity& self, const LinkOptions& options,
               Done done)
    : attempts_(std::make_shared<Attempts>(loop, endpoint, self, options, std::move(done))) {
  attempts_->Resolve();
}
Dialer::~Dialer() { attempts_->Cancel(); }
void Dialer::Retry(const std::string& why) { attempts_->Retry(why); }
TimePoint Dialer::deadline() const { return attempts_->deadline(); }
const std::string& Dialer::target() const { return attempts_->target(); }

}  // namespace tally
