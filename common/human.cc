#include "common/human.h"

#include <array>
#include <cstdio>

namespace tally {

std::string HumanSeconds(double seconds) {
  const bool whole = seconds >= 1, thousandth = seconds >= 1e-3;
  const double value = whole ? seconds : seconds * (thousandth ? 1e3 : 1e6);
  std::array<char, 400> text{};
  std::snprintf(text.data(), text.size(), "%.*f%s", value >= 100 ? 0 : value >= 10 ? 1 : 2, value,
                whole ? " s" : thousandth ? " ms" : " us");
  return text.data();
}

}  // namespace tally
