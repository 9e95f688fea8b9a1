// CRC32C (Castagnoli, reflected 0x82F63B78), as iSCSI and ext4 use it. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tally {

// Hardware-accelerated where the CPU has it. `seed` = the CRC of the bytes before.
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// The same by tables, for other CPUs (and to test the former against).
std::uint32_t Crc32cPortable(std::span<const std::byte> bytes, std::uint32_t seed = 0);

}  // namespace tally
