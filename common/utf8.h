// UTF-8: where text from outside is checked before it is printed or sent on.
#pragma once

#include <cstddef>
#include <string_view>

namespace tally {

// The length of the well-formed sequence that `text` begins with (1 to 4), or 0 if it begins with none.
std::size_t Utf8Sequence(std::string_view text);

// The longest prefix of at most `max_bytes` that cuts no well-formed sequence.
std::string_view Utf8Prefix(std::string_view text, std::size_t max_bytes);

// All of it is well-formed and holds no control characters.
bool IsPrintableUtf8(std::string_view text);

}  // namespace tally
