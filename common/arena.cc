#include "common/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tally {

Arena::Arena(Arena&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

Result<Arena> Arena::Make(const std::string& name, std::uint64_t bytes) {
  Arena arena;
  if (bytes == 0) return arena;
  const auto fail = [&](const char* what) {
    const int error = errno;
    struct sysinfo info {};
    sysinfo(&info);
    return Unavailable("arena " + name + ": " + what + " of " + std::to_string(bytes) + " bytes failed: " +
                       std::strerror(error) + "; free memory " +
                       std::to_string(static_cast<std::uint64_t>(info.freeram) * info.mem_unit) + " bytes");
  };
  arena.fd_ = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (arena.fd_ < 0) return fail("memfd_create");
  if (ftruncate(arena.fd_, static_cast<off_t>(bytes)) != 0) return fail("ftruncate");
  if (const int error = posix_fallocate(arena.fd_, 0, static_cast<off_t>(bytes)); error != 0) {
    errno = error;
    return fail("reserving");
  }
  if (fcntl(arena.fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return fail("sealing");
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena.fd_, 0);
  if (data == MAP_FAILED) return fail("mmap");
  arena.data_ = static_cast<std::byte*>(data);
  arena.size_ = bytes;
  return arena;
}

Mapping::Mapping(Mapping&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

Result<Mapping> Mapping::Make(int fd, std::uint64_t bytes, bool writable, bool populate) {
  struct Closer {
    int fd;
    ~Closer() {
      if (fd >= 0) close(fd);
    }
  } closer{fd};
  // Seals first: a size that is still open could change after it was looked at.
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (const int seals = fcntl(fd, F_GET_SEALS); seals < 0 || (seals & kSeals) != kSeals) {
    return Corrupt("shared memory: its size is not sealed");
  }
  struct stat info {};
  if (fstat(fd, &info) != 0) return Unavailable(std::string("shared memory: fstat: ") + std::strerror(errno));
  if (info.st_size < 0 || static_cast<std::uint64_t>(info.st_size) != bytes) {
    return Mismatch("shared memory: expected " + std::to_string(bytes) + " bytes, got " + std::to_string(info.st_size));
  }
  Mapping mapping;
  if (bytes == 0) return mapping;
  // Populated, as faulting it in page by page would cost the first step more than it saves.
  void* data = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                    MAP_SHARED | (populate ? MAP_POPULATE : 0), fd, 0);
  if (data == MAP_FAILED) {
    return Unavailable("shared memory: mmap of " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
  }
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = bytes;
  if (writable) mapping.fd_ = std::exchange(closer.fd, -1);
  return mapping;
}

}  // namespace tally
