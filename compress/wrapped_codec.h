// WrappedCodec: a codec whose payloads are those of another one, which does all the work but what a derivation adds.
#pragma once

#include <memory>
#include <utility>

#include "compress/owner_sum.h"

namespace tally {

class WrappedCodec : public Codec {
 public:
  CodecTraits traits() const override { return inner_->traits(); }
  std::size_t EncodedBytes(std::size_t n) const override { return inner_->EncodedBytes(n); }

  void Encode(const EncodeKey& key, const float* p, std::size_t n, std::byte* out, float* decoded) const override {
    inner_->Encode(key, p, n, out, decoded);
  }
  bool EncodeWithFeedback(const EncodeKey& key, const float* g, float w, const float* e, float* e_out, std::size_t n,
                          std::byte* out) const override {
    return inner_->EncodeWithFeedback(key, g, w, e, e_out, n, out);
  }

  Status Validate(std::span<const std::byte> payload, std::size_t n) const override {
    return inner_->Validate(payload, n).WithContext(std::string(name()));
  }
  void Decode(std::span<const std::byte> payload, std::size_t n, float* out) const override {
    inner_->Decode(payload, n, out);
  }
  void DecodeAdd(std::span<const std::byte> payload, std::size_t n, float* acc) const override {
    inner_->DecodeAdd(payload, n, acc);
  }
  std::size_t Saturated(std::span<const std::byte> payload, std::size_t n) const override {
    return inner_->Saturated(payload, n);
  }
  std::unique_ptr<OwnerSum> MakeOwnerSum(std::uint32_t workers) const override { return inner_->MakeOwnerSum(workers); }

 protected:
  explicit WrappedCodec(std::unique_ptr<Codec> inner) : inner_(std::move(inner)) {}
  const Codec& inner() const { return *inner_; }

 private:
  std::unique_ptr<Codec> inner_;
};

}  // namespace tally
