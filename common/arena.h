// Arena: one block of shared-capable memory (memfd, its size sealed against growing and shrinking), zeroed, page-aligned.
// Gradients and results live in arenas so that other processes of the node can map them.
// Owner: whoever made it; spans into it die with it. Errors name size and errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/status.h"

namespace tally {

class Arena {
 public:
  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  // `bytes` may be 0 (an empty arena). Memory is reserved up front, so that a full machine is an error here
  // (kUnavailable with needed and available bytes), not a bus error later.
  static Result<Arena> Make(const std::string& name, std::uint64_t bytes);

  std::span<std::byte> bytes() const { return {data_, size_}; }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Mapping: memory of another process's arena, as long as this lives (the other process may die meanwhile).
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  // Maps what `fd` refers to and closes it, or keeps it if writable. Errors: kMismatch (another size than `bytes`),
  // kCorrupt (not sealed against growing and shrinking: reading could then end this process), kUnavailable (errno).
  // `populate`: its pages are mapped at once, else as they are touched.
  static Result<Mapping> Make(int fd, std::uint64_t bytes, bool writable, bool populate = true);

  std::span<std::byte> bytes() const { return {data_, size_}; }  // to be read only, unless made writable
  bool empty() const { return size_ == 0; }
  int fd() const { return fd_; }  // of a writable one, to be handed on to a further process; else -1

 private:
  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tally
