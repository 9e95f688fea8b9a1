// Codec dgc (Lin et al., ICLR 2018): topk on momentum-corrected velocity. u = m*u + c with c = w*g; v += u (Nesterov:
// v += c + m*u); the largest k of v are sent, u and v cleared there. v is the residual, u the velocity: whatever was
// added to v is sent once or still in v. Bytes, replies and the owners' residual are topk's.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "compress/flush_denormals.h"
#include "compress/wrapped_codec.h"

namespace tally {

std::unique_ptr<Codec> MakeTopkCodec(const Config::Compression& options);

namespace {

class DgcCodec final : public WrappedCodec {
 public:
  explicit DgcCodec(const Config::Compression& options)
      : WrappedCodec(MakeTopkCodec(options)),
        bytes_per_kept_(inner().EncodedBytes(1)),
        momentum_(static_cast<float>(options.dgc_momentum)),
        nesterov_(options.dgc_nesterov),
        clip_(options.dgc_clip) {}

  std::uint8_t id() const override { return 7; }
  std::string_view name() const override { return "dgc"; }
  CodecTraits traits() const override {
    CodecTraits traits = WrappedCodec::traits();
    traits.momentum = true;
    return traits;
  }

  bool EncodeWithMomentum(const EncodeKey& key, const float* g, float w, const float* u, float* u_out, const float* v,
                          float* v_out, std::size_t n, std::byte* out) const override {
    const FlushDenormals flush;
    for (std::size_t i = 0; i < n; ++i) u_out[i] = momentum_ * u[i] + w * g[i];
    const float* added = u_out;
    if (nesterov_) {
      thread_local std::vector<float> scratch;  // kept, so that a warm step allocates nothing
      if (scratch.size() < n) scratch.resize(n);
      for (std::size_t i = 0; i < n; ++i) scratch[i] = w * g[i] + momentum_ * u_out[i];
      added = scratch.data();
    }
    if (!inner().EncodeWithFeedback(key, added, 1.0F, v, v_out, n, out)) return false;
    for (std::size_t j = 0, kept = EncodedBytes(n) / bytes_per_kept_; j < kept; ++j) {
      std::uint16_t index = 0;
      std::memcpy(&index, out + j * sizeof index, sizeof index);
      u_out[index] = 0.0F;
    }
    return true;
  }

  // min(1, c * N^(-1/2) / ||g||); 1 for a norm that is 0 or not finite, which shows in the sum.
  float ClipFactor(const float* g, std::size_t n, double scale, std::uint32_t workers) const override {
    if (clip_ == 0) return 1.0F;
    constexpr std::size_t kLanes = 8;
    double squares[kLanes] = {};
    for (std::size_t i = 0; i < n; ++i) {
      const auto x = static_cast<double>(g[i]);
      squares[i % kLanes] += x * x;
    }
    double sum = 0;
    for (const double s : squares) sum += s;
    const double factor = clip_ * scale / std::sqrt(static_cast<double>(workers)) / std::sqrt(sum);
    return factor < 1 ? static_cast<float>(factor) : 1.0F;
  }

 private:
  std::size_t bytes_per_kept_;  // k indices of 16 bits come first
  float momentum_;
  bool nesterov_;
  double clip_;
};

}  // namespace

std::unique_ptr<Codec> MakeDgcCodec(const Config::Compression& options) { return std::make_unique<DgcCodec>(options); }

}  // namespace tally
