#include "worker/cli/model_question.h"

#include <charconv>

#include "common/config/config.h"
#include "common/schedule/layout.h"
#include "compress/codec.h"
#include "compress/linear.h"

namespace tally::cli {

Result<double> ParseByteRate(std::string_view text) {
  for (const std::string_view suffix : {"ps", "/s"}) {
    if (!text.ends_with(suffix)) continue;
    TALLY_ASSIGN_OR_RETURN(const std::uint64_t bytes, ParseBytes(text.substr(0, text.size() - suffix.size())));
    return static_cast<double>(bytes);
  }
  TALLY_ASSIGN_OR_RETURN(const double bits, ParseRate(text));
  return bits / 8;
}

Result<Ratios> CodecRatios(const std::string& text, std::uint32_t workers, bool* linear) {
  double ratio = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ratio);
  if (error == std::errc() && end == text.data() + text.size()) {
    if (ratio > 0 && ratio <= 1) return Ratios{ratio, ratio};
    return InvalidArgument("--codec " + text + ": a ratio is in (0, 1]");
  }
  Config::Compression compression;
  compression.codec = text;
  TALLY_ASSIGN_OR_RETURN(const CodecTraits traits, TraitsOfCodec(text, compression));
  if (text == "powersgd") {
    return Unsupported("--codec powersgd: its size depends on the shapes of the tensors, and it takes two rounds");
  }
  *linear = traits.linear;
  TALLY_ASSIGN_OR_RETURN(const TravelBytes bytes,
                         TensorBytes({"", ElementCount(std::uint64_t{kMaxSlabElements} * workers)}, workers, compression));
  const double fp32 = 4.0 * kMaxSlabElements * workers;
  return Ratios{static_cast<double>(bytes.push) / fp32, static_cast<double>(bytes.reply) / fp32};
}

}  // namespace tally::cli
