#include "common/utf8.h"

#include <algorithm>
#include <cstdint>

namespace tally {

std::size_t Utf8Sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) -> std::uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const std::uint32_t first = byte(0);
  if (text.empty()) return 0;
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 0;
  if (length == 0 || first > 0xF4) return 0;
  std::uint32_t point = first & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3F);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // below: an overlong form
  const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
  return point < kLeast[length] || point > 0x10FFFF || surrogate ? 0 : length;
}

std::string_view Utf8Prefix(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  std::size_t end = 0;
  for (;;) {
    const std::size_t next = end + std::max<std::size_t>(Utf8Sequence(text.substr(end)), 1);
    if (next > max_bytes) return text.substr(0, end);
    end = next;
  }
}

bool IsPrintableUtf8(std::string_view text) {
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t length = Utf8Sequence(text);
    if (length == 0 || first < 0x20 || first == 0x7F) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace tally
