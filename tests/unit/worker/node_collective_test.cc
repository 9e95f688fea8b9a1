#include "worker/node_collective.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace tally {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 15, 16, 17, 255, 8191, 8192, 8193, 100003, 262145, 540001};

// Ranks of a node as threads: the same memory, each with a NodeCollective of its own.
class Node {
 public:
  explicit Node(std::uint32_t ranks, Nanos timeout = std::chrono::seconds(60), Nanos spin = Nanos{0})
      : ranks_(ranks), shared_(NodeCollective::StagingBytes(ranks)) {
    std::vector<std::span<std::byte>> staging;
    for (std::uint32_t r = 0; r < ranks; ++r) staging_.emplace_back(shared_.size());
    for (auto& memory : staging_) staging.push_back(Aligned(memory));
    for (std::uint32_t r = 0; r < ranks; ++r) {
      NodeCollective::Options options{r, ranks, spin, timeout, [this](Nanos) {
                                        return alive ? Status::Ok() : PeerLost("rank 1 is gone");
                                      }};
      collectives_.push_back(std::make_unique<NodeCollective>(options, staging, Aligned(shared_)));
    }
  }

  template <typename Body>
  std::vector<Status> Run(const Body& body) {
    std::vector<Status> statuses(ranks_);
    std::vector<std::thread> threads;
    for (std::uint32_t r = 0; r < ranks_; ++r) {
      threads.emplace_back([&, r] { statuses[r] = body(*collectives_[r], r); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  static std::string Failures(const std::vector<Status>& statuses) {
    std::string text;
    for (const Status& status : statuses) text += status.ok() ? "" : status.ToString() + "\n";
    return text;
  }

  std::atomic<bool> alive{true};

 private:
  struct alignas(4096) Page {
    std::byte bytes[4096];
  };
  class Memory {
   public:
    explicit Memory(std::size_t bytes) : size_(bytes), pages_((bytes + 4095) / 4096) {
      std::memset(static_cast<void*>(pages_.data()), 0, pages_.size() * sizeof(Page));
    }
    std::size_t size() const { return size_; }
    std::span<std::byte> bytes() { return {pages_.data()->bytes, size_}; }

   private:
    std::size_t size_;
    std::vector<Page> pages_;
  };
  static std::span<std::byte> Aligned(Memory& memory) { return memory.bytes(); }

  const std::uint32_t ranks_;
  Memory shared_;
  std::vector<Memory> staging_;
  std::vector<std::unique_ptr<NodeCollective>> collectives_;
};

float Value(std::uint32_t rank, std::size_t element, std::uint64_t call) {
  return static_cast<float>((rank + 1) * ((element * 7 + call * 13) % 251));
}
float Sum(std::uint32_t ranks, std::size_t element, std::uint64_t call) {
  float sum = 0;
  for (std::uint32_t r = 0; r < ranks; ++r) sum += Value(r, element, call);
  return sum;
}

class NodeCollectiveByRanks : public testing::TestWithParam<std::uint32_t> {};

TEST_P(NodeCollectiveByRanks, SumsExactlyInCallsOfAnySizeOneAfterTheOther) {
  const std::uint32_t ranks = GetParam();
  for (const Nanos spin : {Nanos{0}, Nanos{std::chrono::microseconds(20)}}) {
    Node node(ranks, std::chrono::seconds(60), spin);
    const auto statuses = node.Run([&](NodeCollective& collective, std::uint32_t rank) -> Status {
      std::uint64_t call = 0;
      for (int repeat = 0; repeat < 2; ++repeat) {
        for (const std::size_t n : kSizes) {
          ++call;
          const bool mean = call % 3 == 0;
          std::vector<float> data(n + 1, 77);
          for (std::size_t j = 0; j < n; ++j) data[j] = Value(rank, j, call);
          const std::span<float> all(data.data(), n);
          TALLY_RETURN_IF_ERROR(collective.AllReduce(
              all, all, {n, DType::kFloat32, mean ? ReduceOp::kMean : ReduceOp::kSum, call}));
          for (std::size_t j = 0; j < n; ++j) {
            const float expected = Sum(ranks, j, call) / (mean ? static_cast<float>(ranks) : 1.0F);
            if (data[j] != expected) {
              return Internal("n " + std::to_string(n) + ", element " + std::to_string(j) + ": expected " +
                              std::to_string(expected) + ", got " + std::to_string(data[j]));
            }
          }
          if (data[n] != 77) return Internal("wrote beyond the end");
        }
      }
      return Status::Ok();
    });
    EXPECT_EQ(Node::Failures(statuses), "");
  }
}

TEST_P(NodeCollectiveByRanks, SharedBuffersGiveTheSameBitsAndKeepTheirInputs) {
  const std::uint32_t ranks = GetParam();
  Node node(ranks);
  for (const std::size_t n : {std::size_t{1}, std::size_t{8192}, std::size_t{8193}, std::size_t{300001}}) {
    std::vector<std::vector<float>> inputs(ranks, std::vector<float>(n));
    std::vector<float> out(n);
    std::vector<const float*> places;
    for (const auto& input : inputs) places.push_back(input.data());
    const auto statuses = node.Run([&](NodeCollective& collective, std::uint32_t rank) -> Status {
      for (std::uint64_t call = 0; call < 3; ++call) {
        const auto value = [&](std::size_t j) { return std::sin(static_cast<float>(j * 7 + rank * 13 + call)) * 1e3F; };
        for (std::size_t j = 0; j < n; ++j) inputs[rank][j] = value(j);
        std::vector<float> staged = inputs[rank];
        TALLY_RETURN_IF_ERROR(collective.AllReduceShared(places, out, {n, DType::kFloat32, ReduceOp::kMean, 2 * call}, 1));
        TALLY_RETURN_IF_ERROR(collective.AllReduce(staged, staged, {n, DType::kFloat32, ReduceOp::kMean, 2 * call + 1}));
        if (std::memcmp(staged.data(), out.data(), n * sizeof(float)) != 0) return Internal("other bits");
        for (std::size_t j = 0; j < n; j += 97) {
          if (inputs[rank][j] != value(j)) return Internal("the input was changed");
        }
      }
      return Status::Ok();
    });
    EXPECT_EQ(Node::Failures(statuses), "") << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, NodeCollectiveByRanks, testing::Values(1U, 2U, 3U, 4U, 7U));

TEST(NodeCollective, AnotherCallIsAnErrorOnAllRanksThatNamesBoth) {
  for (const CollectiveShape other : {CollectiveShape{100, DType::kFloat32, ReduceOp::kMean, 5},
                                      CollectiveShape{99, DType::kFloat32, ReduceOp::kSum, 5}}) {
    Node node(3);
    const auto statuses = node.Run([&](NodeCollective& collective, std::uint32_t rank) {
      const CollectiveShape shape = rank == 1 ? other : CollectiveShape{100, DType::kFloat32, ReduceOp::kSum, 5};
      std::vector<float> data(shape.elements);
      return collective.AllReduce(data, data, shape);
    });
    for (const Status& status : statuses) {
      EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
      EXPECT_NE(status.text().find("rank 1"), std::string::npos) << status.text();
      EXPECT_NE(status.text().find("the sum of 100"), std::string::npos) << status.text();
    }
  }
}

TEST(NodeCollective, AnotherBufferIsAnErrorOnAllRanksThoughItIsAsLong) {
  constexpr std::size_t kElements = 10000;
  Node node(2);
  std::vector<std::vector<float>> inputs(2, std::vector<float>(kElements));
  std::vector<float> out(kElements);
  const auto statuses = node.Run([&](NodeCollective& collective, std::uint32_t rank) {
    const CollectiveShape shape{kElements, DType::kFloat32, ReduceOp::kSum, 5};
    if (rank == 1) return collective.AllReduce(inputs[1], inputs[1], shape);
    return collective.AllReduceShared(std::vector<const float*>{inputs[0].data(), inputs[1].data()}, out, shape, 7);
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
    EXPECT_NE(status.text().find("buffer 7"), std::string::npos) << status.text();
  }
}

TEST(NodeCollective, NoCallSucceedsAfterAnError) {
  Node node(2, std::chrono::milliseconds(30));
  const auto statuses = node.Run([&](NodeCollective& collective, std::uint32_t rank) {
    std::vector<float> data(10);
    const CollectiveShape shape{10, DType::kFloat32, ReduceOp::kSum, 1};
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const Status first = collective.AllReduce(data, data, shape);
    return rank == 0 ? collective.AllReduce(data, data, shape) : first;
  });
  EXPECT_EQ(statuses[0].kind(), StatusKind::kTimeout);
}

TEST(NodeCollective, AWaitEndsWithItsTimeoutAndSaysWhoDidNotCome) {
  Node node(3, std::chrono::milliseconds(50));
  const auto statuses = node.Run([&](NodeCollective& collective, std::uint32_t rank) -> Status {
    if (rank == 2) return Status::Ok();
    std::vector<float> data(10);
    return collective.AllReduce(data, data, {10, DType::kFloat32, ReduceOp::kSum, 1});
  });
  EXPECT_EQ(statuses[0].kind(), StatusKind::kTimeout);
  EXPECT_NE(statuses[1].text().find("rank 2 did not come"), std::string::npos) << statuses[1].text();
}

TEST(NodeCollective, AWaitEndsWhenTheJobHasFailed) {
  Node node(2);
  const auto statuses = node.Run([&](NodeCollective& collective, std::uint32_t rank) -> Status {
    if (rank == 1) {
      node.alive = false;
      return Status::Ok();
    }
    std::vector<float> data(10);
    return collective.AllReduce(data, data, {10, DType::kFloat32, ReduceOp::kSum, 1});
  });
  EXPECT_EQ(statuses[0].kind(), StatusKind::kPeerLost);
}

}  // namespace
}  // namespace tally
