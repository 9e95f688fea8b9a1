#include "common/config/nearest.h"

#include <algorithm>
#include <cctype>

namespace tally {
namespace {

constexpr std::size_t kMaxLength = 64;  // what a typing error is looked for in; longer names get no suggestion

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// Optimal string alignment distance.
std::size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

}  // namespace

std::string NearestName(std::string_view text, const std::vector<std::string>& candidates) {
  if (text.size() > kMaxLength) return "";
  const std::string lower = Lower(text);
  std::string nearest;
  std::size_t least = (text.size() + 1) / 2;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = Distance(lower, Lower(candidate));
    if (distance < least || (distance == least && nearest.empty() && distance < text.size())) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string DidYouMean(std::string_view text, const std::vector<std::string>& candidates) {
  const std::string nearest = NearestName(text, candidates);
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

}  // namespace tally
