// Which instruction set the vector loops of codecs made now use.
#pragma once

#include <string_view>

namespace tally {

std::string_view SimdTarget();  // "AVX2", …; "SCALAR" where there are only the plain loops

}  // namespace tally
