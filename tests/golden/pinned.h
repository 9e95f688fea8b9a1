// Pinned bytes lie beside this file, one *.hex per message. To change them on purpose, raise kProtocolVersion where old
// peers could misread them, then run
//   TALLY_GOLDEN_OUT=<this folder> golden
// which writes the files anew, and commit them with the reason.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally {

// 16 bytes a line.
inline std::string ToHex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto value = std::to_integer<unsigned>(bytes[i]);
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
    text += (i + 1) % 16 == 0 || i + 1 == bytes.size() ? '\n' : ' ';
  }
  return text;
}

inline std::vector<std::byte> FromHex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 3) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// Compares with the pinned bytes and returns those, for reading back.
inline std::vector<std::byte> Pinned(const std::string& name, std::span<const std::byte> bytes) {
  const std::string hex = ToHex(bytes);
  if (const char* out = std::getenv("TALLY_GOLDEN_OUT"); out != nullptr) {
    std::ofstream(std::string(out) + "/" + name + ".hex") << hex;
  }
  std::ifstream file(std::string(TALLY_GOLDEN_DIR) + "/" + name + ".hex");
  const std::string pinned{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(hex, pinned) << name << ": the bytes on the wire have changed; the head of pinned.h says what to do";
  return FromHex(pinned);
}

}  // namespace tally
