// CRC32C two ways: SSE4.2 in three interleaved lanes (the instruction takes 3 cycles and starts every cycle, so one
// lane alone would leave two thirds of it idle), and slicing by 8 tables.
#include "common/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tally {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format and this file assume little-endian");

constexpr std::uint32_t kPolynomial = 0x82F63B78;

constexpr std::uint32_t AppendZeroBit(std::uint32_t crc) { return (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0); }

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// kSlicing[k][b]: the register after byte b and k zero bytes.
constexpr Tables kSlicing = [] {
  Tables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (auto& table : tables) {
      for (int bit = 0; bit < 8; ++bit) crc = AppendZeroBit(crc);
      table[b] = crc;
    }
  }
  return tables;
}();

std::uint64_t Load(const std::byte* p) {
  std::uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

#if defined(__x86_64__)

constexpr std::size_t kLane = 1024;  // bytes per lane; a frame's slab is mostly 64 KiB and more

// kShift[k][b]: the register b << 8k after kLane zero bytes.
constexpr auto kShift = [] {
  std::array<std::uint32_t, 32> column{};
  for (unsigned bit = 0; bit < 32; ++bit) {
    std::uint32_t crc = std::uint32_t{1} << bit;
    for (std::size_t i = 0; i < 8 * kLane; ++i) crc = AppendZeroBit(crc);
    column[bit] = crc;
  }
  std::array<std::array<std::uint32_t, 256>, 4> tables{};
  for (unsigned k = 0; k < 4; ++k) {
    for (unsigned b = 0; b < 256; ++b) {
      for (unsigned bit = 0; bit < 8; ++bit) {
        if ((b >> bit & 1) != 0) tables[k][b] ^= column[8 * k + bit];
      }
    }
  }
  return tables;
}();

std::uint32_t ShiftLane(std::uint64_t crc) {
  return kShift[0][crc & 255] ^ kShift[1][crc >> 8 & 255] ^ kShift[2][crc >> 16 & 255] ^ kShift[3][crc >> 24 & 255];
}

__attribute__((target("sse4.2"))) std::uint32_t Crc32cSse42(std::span<const std::byte> bytes, std::uint32_t seed) {
  const std::byte* p = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t crc = ~seed;
  for (; left >= 3 * kLane; left -= 3 * kLane, p += 3 * kLane) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      crc = _mm_crc32_u64(crc, Load(p + i));
      second = _mm_crc32_u64(second, Load(p + kLane + i));
      third = _mm_crc32_u64(third, Load(p + 2 * kLane + i));
    }
    crc = ShiftLane(crc) ^ second;
    crc = ShiftLane(crc) ^ third;
  }
  for (; left >= 8; left -= 8, p += 8) crc = _mm_crc32_u64(crc, Load(p));
  std::uint32_t narrow = static_cast<std::uint32_t>(crc);
  for (; left > 0; --left, ++p) narrow = _mm_crc32_u8(narrow, std::to_integer<std::uint8_t>(*p));
  return ~narrow;
}

#endif

}  // namespace

std::uint32_t Crc32cPortable(std::span<const std::byte> bytes, std::uint32_t seed) {
  const std::byte* p = bytes.data();
  std::size_t left = bytes.size();
  std::uint32_t crc = ~seed;
  for (; left >= 8; left -= 8, p += 8) {
    const std::uint64_t word = Load(p) ^ crc;
    crc = 0;
    for (unsigned k = 0; k < 8; ++k) crc ^= kSlicing[7 - k][word >> 8 * k & 255];
  }
  for (; left > 0; --left, ++p) crc = (crc >> 8) ^ kSlicing[0][(crc ^ std::to_integer<std::uint32_t>(*p)) & 255];
  return ~crc;
}

std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t seed) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return Crc32cSse42(bytes, seed);
#endif
  return Crc32cPortable(bytes, seed);
}

}  // namespace tally
