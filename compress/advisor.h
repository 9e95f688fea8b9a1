// What compression.codec = auto stands for: of the own type, bf16 and int8 the one with which an exchange is predicted to
// take least time, and the own type unless another gains a tenth (CODECS §3). Predicted are the bytes of the busiest NIC plus what the
// busiest process encodes, decodes and adds, at speeds measured on this machine; nothing is taken to overlap.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/config/config.h"
#include "common/units.h"

namespace tally {

// Per element of a gradient: bytes each way, seconds on one core.
struct CodecCost {
  std::string_view codec;
  double bytes = 0, encode_s = 0, decode_s = 0, decode_add_s = 0;
};

// Of the codec that is called so, as workers and owners run it; takes some 10 ms. Of a linear one the bytes are those of
// its first vector, and adding is that of numbers. Errors: kInvalidArgument: no such codec, an option.
Result<CodecCost> MeasureCodecCost(std::string_view name, const Config::Compression& options, const Clock& clock);

// Of all codecs that auto chooses among, with `options` besides; takes some 0.1 s.
std::vector<CodecCost> MeasureCodecCosts(const Config::Compression& options, const Clock& clock);

struct AdviceQuestion {
  double bytes_per_s = 0;  // of a NIC in each direction; 0: the job stays on one machine
  std::uint32_t workers = 1, servers = 0;
  bool server_shares = false, worker_shares = false;  // who owns slabs, in equal shares
};

struct Advice {
  std::string codec;
  std::string reason;  // for people: the predicted times
};

// What the busiest process takes for coding, per element.
double CodecSeconds(const AdviceQuestion& question, const CodecCost& cost);

// `costs`: first those of going without a codec.
Advice AdviseCodec(const AdviceQuestion& question, std::span<const CodecCost> costs);

// One choice for each type that a tensor's numbers can have.
struct AutoCodecs {
  std::string fp32 = "none", fp16 = "fp16", bf16 = "bf16";  // as if nothing compressed them

  const std::string& For(DType type) const;
};

// `costs` as MeasureCodecCosts gives them; the reason is that of fp32.
struct AutoAdvice {
  AutoCodecs codecs;
  std::string reason;
};
AutoAdvice AdviseCodecs(const AdviceQuestion& question, std::span<const CodecCost> costs);

}  // namespace tally
