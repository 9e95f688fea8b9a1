// The valid name that a mistyped one was probably meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tally {

// The candidate with the least edit distance (insert, delete, replace, swap of neighbours) to `text`, case ignored, or
// "" if none is nearer than half of `text`'s length. Ties: the first.
std::string NearestName(std::string_view text, const std::vector<std::string>& candidates);

// "; did you mean 'x'?" or "".
std::string DidYouMean(std::string_view text, const std::vector<std::string>& candidates);

}  // namespace tally
