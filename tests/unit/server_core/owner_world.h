// What the owner tests share: an owner with a layout and codecs of its own, pushes made from values, replies decoded.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/schedule/layout.h"
#include "server/core/owner.h"

namespace tally {

struct TestTensor {
  std::string name;
  std::uint64_t elements = 0;
  std::string codec = "none";
};

// Value of element i of slab u at a position.
using ValueOf = std::function<float(std::uint32_t position, std::uint32_t slab, std::size_t i)>;

class OwnerWorld {
 public:
  OwnerWorld(std::uint32_t workers, const std::vector<TestTensor>& tensors, OwnerOptions options = {},
             const Config::Compression& compression = {}) {
    std::vector<TensorSpec> specs;
    std::vector<std::vector<std::uint32_t>> buckets(1);
    for (const TestTensor& tensor : tensors) {
      buckets[0].push_back(static_cast<std::uint32_t>(specs.size()));
      specs.push_back({tensor.name, ElementCount(tensor.elements)});
      codecs_.push_back(MakeCodec(tensor.codec, compression).value());
      tensor_codec_.push_back(codecs_.back().get());
    }
    layout = MakeLayout(specs, buckets, workers).value();
    all.resize(layout.slabs.size());
    std::iota(all.begin(), all.end(), 0u);
    options.job_hash = 77;
    options.epoch = EpochId(5);
    options.group = GroupId(2);
    options.workers = workers;
    options_ = options;
    Restart(all);
  }

  // A fresh owner of these slabs only.
  void Restart(std::vector<std::uint32_t> owned) {
    owned_ = std::move(owned);
    owner = std::make_unique<Owner>(options_, layout, owned_, tensor_codec_, &pool);
  }

  std::uint32_t workers() const { return options_.workers; }
  const Codec& codec(std::uint32_t slab) const { return *tensor_codec_[layout.slabs[slab].tensor]; }
  std::size_t elements(std::uint32_t slab) const { return layout.slabs[slab].elements; }

  std::vector<float> Values(std::uint32_t position, std::uint32_t slab, const ValueOf& value) const {
    std::vector<float> values(elements(slab));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(position, slab, i);
    return values;
  }

  // A push of these slabs. `misaligned` shifts the payload by one byte within its buffer.
  Frame Push(std::uint32_t position, const std::vector<std::uint32_t>& slabs, const ValueOf& value,
             std::uint64_t step = 0, std::uint16_t flags = 0, double weight = 1, bool misaligned = false) {
    Frame frame;
    frame.header.job_hash = options_.job_hash;
    frame.header.epoch = options_.epoch;
    frame.header.group = options_.group;
    frame.header.step = StepId(step);
    frame.header.position = position;
    frame.header.codec = codec(slabs.front()).id();
    frame.header.weight = weight;
    frame.header.slabs = slabs;
    frame.header.flags = flags;
    if (step > 0 && (flags & kFlagPreviousSkipped) == 0) frame.header.flags |= kFlagPreviousCommitted;
    if ((flags & (kFlagNonFinite | kFlagKeep)) != 0) return frame;
    std::size_t bytes = 0;
    for (const std::uint32_t u : slabs) bytes += codec(u).EncodedBytes(elements(u));
    const std::size_t shift = misaligned ? 1 : 0;
    frame.hold = pool.Get(bytes + shift);
    frame.payload = frame.hold.bytes().subspan(shift);
    std::byte* out = frame.payload.data();
    for (const std::uint32_t u : slabs) {
      const std::vector<float> values = Values(position, u, value);
      codec(u).Encode({}, values.data(), values.size(), out, nullptr);
      out += codec(u).EncodedBytes(values.size());
    }
    return frame;
  }

  // Hands a push over; the replies are added to `replies`.
  Status Send(Frame frame) {
    RecycledList<ReplyFrame> made;
    const Status status = owner->OnPush(frame, &made);
    replies.insert(replies.end(), made.begin(), made.end());
    return status;
  }

  // The replied slabs decoded (flagged ones are empty), with their weights; each must have been replied once.
  struct Decoded {
    std::vector<float> values;
    double weight = 0;
    bool non_finite = false;
    bool kept = false;
  };
  std::map<std::uint32_t, Decoded> Replies() const {
    std::map<std::uint32_t, Decoded> result;
    for (const ReplyFrame& reply : replies) {
      EXPECT_EQ(reply.header.kind, FrameKind::kReply);
      const bool non_finite = (reply.header.flags & kFlagNonFinite) != 0;
      std::span<const std::byte> rest = reply.payload;
      for (const std::uint32_t u : reply.header.slabs) {
        EXPECT_EQ(reply.header.codec, codec(u).id());
        EXPECT_FALSE(result.contains(u)) << "slab " << u << " replied twice";
        Decoded& decoded = result[u];
        decoded.weight = reply.header.weight;
        decoded.non_finite = non_finite;
        decoded.kept = (reply.header.flags & kFlagKeep) != 0;
        if (non_finite || decoded.kept) continue;
        const std::size_t bytes = codec(u).EncodedBytes(elements(u));
        EXPECT_TRUE(codec(u).Validate(rest.first(bytes), elements(u)).ok());
        decoded.values.resize(elements(u));
        codec(u).Decode(rest.first(bytes), elements(u), decoded.values.data());
        rest = rest.subspan(bytes);
      }
      EXPECT_TRUE(rest.empty());
    }
    return result;
  }

  // Sum in the slab's order, in fp32, and the weights in double.
  std::vector<float> OrderedSum(std::uint32_t slab, const std::vector<std::uint32_t>& order,
                                const ValueOf& value) const {
    std::vector<float> sum = Values(order.front(), slab, value);
    for (std::size_t k = 1; k < order.size(); ++k) {
      const std::vector<float> next = Values(order[k], slab, value);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + next[i];
    }
    return sum;
  }
  std::vector<std::uint32_t> SlabOrder(std::uint32_t slab) const {
    std::vector<std::uint32_t> order;
    for (std::uint32_t k = 1; k <= workers(); ++k) order.push_back((slab + k) % workers());
    return order;
  }
  std::vector<float> Residual(std::uint32_t slab) const {
    const auto residual = owner->Residual(SlabId(slab));
    return {residual.begin(), residual.end()};
  }

  Layout layout;
  std::vector<std::uint32_t> all;
  BufferPool pool;
  std::vector<ReplyFrame> replies;
  std::unique_ptr<Owner> owner;

 private:
  OwnerOptions options_;
  std::vector<std::unique_ptr<Codec>> codecs_;
  std::vector<const Codec*> tensor_codec_;
  std::vector<std::uint32_t> owned_;
};

inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// Small integers that differ by position, slab and place.
inline float IntegerValue(std::uint32_t position, std::uint32_t slab, std::size_t i) {
  return static_cast<float>(static_cast<int>((position + 1) * (i % 13 + 1)) - static_cast<int>(slab * 3 + i % 7));
}

// Numbers whose sum depends on the order.
inline float OrderedValue(std::uint32_t position, std::uint32_t slab, std::size_t i) {
  const std::uint32_t mixed = (position * 2654435761u) ^ (static_cast<std::uint32_t>(i) * 40503u + slab * 977u);
  return std::ldexp(static_cast<float>(mixed % 8388593u) - 4194296.0f, static_cast<int>(mixed % 29u) - 20);
}

}  // namespace tally
