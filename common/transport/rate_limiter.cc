// Virtual clocks: per direction the time at which the NIC is free again, CLOCK_MONOTONIC nanoseconds, moved on by
// compare-and-swap. A shared NIC keeps them in a mapped file of its users; each user holds a shared flock on it.
#include "common/transport/rate_limiter.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

namespace tally {
namespace {

// How far a clock may lag behind `now`: timers wake late, and a NIC that never had a gap must not seem to have one.
constexpr std::int64_t kSlackNs = 1'000'000;
constexpr std::uint64_t kMagic = 0x31'43'49'4E'59'4C'4C'54;  // "TLLYNIC1"
constexpr std::size_t kMaxNicName = 64;

struct Clocks {
  std::uint64_t magic = kMagic;
  double bits_per_second = 0;
  std::atomic<std::int64_t> free_at[2] = {};  // by Direction
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "the clocks are shared between processes");

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Status Failed(const std::string& path, const char* operation, int error) {
  return Unavailable(path + ": " + operation + ": " + std::strerror(error));
}

// The first of these that can be written; all processes of a user on a host come to the same answer.
std::string Directory() {
  const std::string runtime = "/run/user/" + std::to_string(::geteuid());
  for (const std::string& directory : {std::string("/dev/shm"), runtime}) {
    if (::access(directory.c_str(), W_OK | X_OK) == 0) return directory;
  }
  return "/tmp";
}

std::string FilePrefix() { return "tally-nic-" + std::to_string(::geteuid()) + "-"; }

// Whether `path` still names the file behind `fd`.
bool IsLinked(int fd, const std::string& path) {
  struct stat held {}, named {};
  return ::fstat(fd, &held) == 0 && ::lstat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

bool IsOurs(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid();
}

// Removes the file if nobody else holds it. Whoever opened it in the meantime sees that it is no longer linked.
void RemoveIfUnused(int fd, const std::string& path) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0 && IsLinked(fd, path)) ::unlink(path.c_str());
}

// Removes what killed processes left behind.
void Sweep(const std::string& directory) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    if (!entry.path().filename().string().starts_with(FilePrefix())) continue;
    const Descriptor file(::open(entry.path().c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (file.get() >= 0 && IsOurs(file.get())) RemoveIfUnused(file.get(), entry.path());
  }
}

// Called with the exclusive lock: nobody else looks at the file.
Status Initialise(int fd, const std::string& path, double bits_per_second) {
  if (::ftruncate(fd, 0) != 0) return Failed(path, "ftruncate", errno);
  if (const int error = ::posix_fallocate(fd, 0, sizeof(Clocks)); error != 0) {
    return Failed(path, "posix_fallocate", error);
  }
  Clocks clocks;
  clocks.bits_per_second = bits_per_second;
  if (::pwrite(fd, &clocks, sizeof clocks, 0) != static_cast<ssize_t>(sizeof clocks)) {
    return Failed(path, "pwrite", errno);
  }
  return Status::Ok();
}

// Opens or creates the file and returns it with a shared lock held.
Result<Descriptor> OpenShared(const std::string& path, double bits_per_second) {
  // Locks are held exclusively for microseconds only; a second means that a holder was stopped there.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
    if (file.get() < 0) return Failed(path, "open", errno);
    if (!IsOurs(file.get())) return Unavailable(path + ": not a regular file of user " + std::to_string(::geteuid()));
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      TALLY_RETURN_IF_ERROR(Initialise(file.get(), path, bits_per_second));
    }
    if (::flock(file.get(), LOCK_SH | LOCK_NB) == 0 && IsLinked(file.get(), path)) return file;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return Unavailable(path + ": another process keeps it locked");
}

class Nic final : public RateLimiter {
 public:
  explicit Nic(double bits_per_second) : bits_per_second_(bits_per_second) {}
  Nic(double bits_per_second, std::string path, Descriptor file, Clocks* mapped)
      : bits_per_second_(bits_per_second), path_(std::move(path)), file_(std::move(file)), clocks_(mapped) {}
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  ~Nic() override {
    if (clocks_ == &own_) return;
    ::munmap(clocks_, sizeof(Clocks));
    RemoveIfUnused(file_.get(), path_);
  }

  Nanos Reserve(Direction direction, std::uint64_t bytes, TimePoint now) override {
    const std::int64_t now_ns = now.time_since_epoch().count();
    const std::int64_t length = std::llround(static_cast<double>(bytes) * 8e9 / bits_per_second_);
    const std::int64_t earliest = now_ns - kSlackNs - (direction == Direction::kReceive ? length : 0);
    std::atomic<std::int64_t>& free_at = clocks_->free_at[static_cast<std::size_t>(direction)];
    std::int64_t before = free_at.load(std::memory_order_relaxed);
    std::int64_t after = 0;
    do {
      after = std::max(before, earliest) + length;
    } while (!free_at.compare_exchange_weak(before, after, std::memory_order_relaxed));
    return Nanos(std::max<std::int64_t>(0, after - now_ns));
  }

  double bits_per_second() const override { return bits_per_second_; }

 private:
  const double bits_per_second_;
  const std::string path_;
  const Descriptor file_;
  Clocks own_;
  Clocks* const clocks_ = &own_;
};

}  // namespace

Result<std::shared_ptr<RateLimiter>> RateLimiter::Make(double bits_per_second, const std::string& nic) {
  if (!(bits_per_second >= 1) || !std::isfinite(bits_per_second)) {
    return InvalidArgument("a NIC's rate must be at least 1 bit/s");
  }
  if (nic.empty()) return std::shared_ptr<RateLimiter>(std::make_shared<Nic>(bits_per_second));
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-_.").find(c) != std::string_view::npos;
  };
  if (nic.size() > kMaxNicName || !std::ranges::all_of(nic, allowed)) {
    return InvalidArgument("a NIC's name is at most 64 letters, digits, '-', '_' or '.'");
  }
  const std::string directory = Directory();
  Sweep(directory);
  const std::string path = directory + "/" + FilePrefix() + nic;
  TALLY_ASSIGN_OR_RETURN(Descriptor file, OpenShared(path, bits_per_second));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || info.st_size != static_cast<off_t>(sizeof(Clocks))) {
    return Unavailable(path + ": not a file of this version; end the processes that use it");
  }
  void* mapped = ::mmap(nullptr, sizeof(Clocks), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return Failed(path, "mmap", errno);
  Clocks* clocks = std::launder(static_cast<Clocks*>(mapped));
  const auto nic_object = std::make_shared<Nic>(bits_per_second, path, std::move(file), clocks);
  if (clocks->magic != kMagic) return Unavailable(path + ": not a file of this version; end the processes that use it");
  if (clocks->bits_per_second != bits_per_second) {
    return Mismatch("emulated NIC \"" + nic + "\" runs at " + std::to_string(clocks->bits_per_second) +
                    " bit/s, this process asks for " + std::to_string(bits_per_second));
  }
  return std::shared_ptr<RateLimiter>(nic_object);
}

}  // namespace tally
