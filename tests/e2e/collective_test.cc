// Standalone collectives of every kind, type and operation over real sockets, in every mode; ranks that call something
// else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#include "server/core/collective_calls.h"
#include "tests/support/cluster.h"
#include "worker/cli/bench_collective.h"

namespace tally::test {
namespace {

using cli::BenchedCollective;
using cli::BenchedKind;
using cli::kCollectives;

const std::vector<JobSetting>& Jobs() {
  static const std::vector<JobSetting> jobs = {
      {"ring", 0, {"aggregation.mode=ring"}},
      {"ring_tree", 0, {"aggregation.mode=ring", "aggregation.schedule=tree"}},
      {"ring_halving_doubling", 0, {"aggregation.mode=ring", "aggregation.schedule=halving_doubling"}},
      {"ring_zmq", 0, {"aggregation.mode=ring", "link.transport=zmq", "link.connections=2"}},
      {"ring_tight", 0, {"aggregation.mode=ring", "link.frame=64KiB", "link.credit=64KiB"}},
      {"ps", 2, {"aggregation.mode=ps"}},
      {"ps_zmq", 1, {"aggregation.mode=ps", "link.transport=zmq"}},
      {"hierarchical", 0, {"aggregation.mode=hierarchical"}},
      {"hierarchical_nodes", 0, {"aggregation.mode=hierarchical"}, true, 2},
      {"hybrid", 1, {"aggregation.mode=hybrid"}},
  };
  return jobs;
}

class Collectives : public testing::TestWithParam<std::tuple<std::size_t, std::uint32_t>> {
 protected:
  ClusterOptions Options() const { return Jobs()[std::get<0>(GetParam())].Options(std::get<1>(GetParam())); }
};

Status Checked(Client& client, const BenchedKind& kind, std::size_t elements, std::size_t shift) {
  const bool blocks = kind.kind == CollectiveKind::kAllGather || kind.kind == CollectiveKind::kReduceScatter;
  TALLY_ASSIGN_OR_RETURN(BenchedCollective collective,
                         BenchedCollective::Make(client, kind, elements * (blocks ? client.workers() : 1) * DTypeBytes(kind.dtype)));
  collective.Fill(shift);
  TALLY_RETURN_IF_ERROR(collective.Call());
  const std::uint64_t wrong = collective.Wrong(shift);
  if (wrong == 0) return Status::Ok();
  return Internal(std::string(kCollectives[static_cast<std::size_t>(kind.kind)].command) + " of " +
                  std::to_string(elements) + " " + DTypeName(kind.dtype) + " " + ReduceOpName(kind.op) + ": " +
                  std::to_string(wrong) + " wrong");
}

// Every kind, type and operation at two sizes, then more sizes.
TEST_P(Collectives, GiveTheExactResult) {
  TestCluster cluster(Options());
  const auto statuses = cluster.Run([](Client& client, std::uint32_t) -> Status {
    std::size_t shift = 0;
    for (const auto& named : kCollectives) {
      for (std::uint8_t t = 0; t <= static_cast<std::uint8_t>(kLastDType); ++t) {
        for (std::uint8_t o = 0; o <= static_cast<std::uint8_t>(kLastReduceOp); ++o) {
          const BenchedKind kind{named.kind, static_cast<DType>(t), static_cast<ReduceOp>(o)};
          if (kind.reduces() ? !Reducible(kind.dtype, kind.op) : o != 0) continue;
          TALLY_RETURN_IF_ERROR(Checked(client, kind, 17, ++shift));
          TALLY_RETURN_IF_ERROR(Checked(client, kind, 4097, ++shift));
          if (kind.op != ReduceOp::kSum && kind.op != ReduceOp::kMax) continue;
          for (const std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{65535}, std::size_t{65536},
                                             std::size_t{65537}}) {
            TALLY_RETURN_IF_ERROR(Checked(client, kind, elements, ++shift));
          }
        }
        // More than the credit of a few ranks.
        TALLY_RETURN_IF_ERROR(Checked(client, {named.kind, static_cast<DType>(t), ReduceOp::kMin}, 400009, ++shift));
      }
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

INSTANTIATE_TEST_SUITE_P(Jobs, Collectives,
                         testing::Combine(testing::Range(std::size_t{0}, Jobs().size()), testing::Values(1U, 2U, 3U, 4U, 7U)),
                         [](const auto& place) {
                           return std::string(Jobs()[std::get<0>(place.param)].name) + "_" +
                                  std::to_string(std::get<1>(place.param));
                         });

// The checks above can fail.
TEST(CollectiveCheck, SeesWhatIsWrong) {
  TestCluster cluster(Jobs().front().Options(2));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t) -> Status {
    for (const auto& named : kCollectives) {
      const BenchedKind kind{named.kind, DType::kInt32, ReduceOp::kSum};
      TALLY_ASSIGN_OR_RETURN(BenchedCollective collective, BenchedCollective::Make(client, kind, 8000));
      collective.Fill(5);
      TALLY_RETURN_IF_ERROR(collective.Call());
      if (collective.Wrong(5) != 0) return Internal("a right result is called wrong");
      if (collective.Wrong(6) == 0) return Internal(std::string(named.command) + ": a wrong result is called right");
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

// Written out, without the bench's patterns; in place, and at an odd address.
TEST(CollectiveCheck, ByHand) {
  for (const JobSetting& job : Jobs()) {
    TestCluster cluster(job.Options(3));
    const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
      std::vector<std::int64_t> all(6, -1);
      all[2 * rank] = 10 * rank;
      all[2 * rank + 1] = 10 * rank + 1;
      TALLY_RETURN_IF_ERROR(client.AllGather(std::span(all).subspan(2 * rank, 2), std::span(all)));
      if (all != std::vector<std::int64_t>{0, 1, 10, 11, 20, 21}) return Internal("all-gather in place");
      for (std::int64_t& x : all) x += rank;
      TALLY_RETURN_IF_ERROR(client.ReduceScatter(std::span(all), std::span(all).subspan(2 * rank, 2), ReduceOp::kMax));
      if (all[2 * rank] != 10 * rank + 2 || all[2 * rank + 1] != 10 * rank + 3) return Internal("reduce-scatter in place");
      std::vector<std::byte> odd(1 + 4 * 5);
      const std::int32_t mine = 7 + static_cast<std::int32_t>(rank);
      for (int i = 0; i < 5; ++i) std::memcpy(odd.data() + 1 + 4 * i, &mine, 4);
      TALLY_RETURN_IF_ERROR(client.AllReduce(NumberView(odd.data() + 1, 5, DType::kInt32), ReduceOp::kProduct));
      std::int32_t product = 0;
      std::memcpy(&product, odd.data() + 1 + 16, 4);
      if (product != 7 * 8 * 9) return Internal("an all-reduce at an odd address");
      std::uint8_t small[3] = {1, 2, static_cast<std::uint8_t>(rank)};
      for (std::uint32_t root = 0; root < 3; ++root) {
        small[2] = static_cast<std::uint8_t>(rank);
        TALLY_RETURN_IF_ERROR(client.Broadcast(std::span(small, 3).first(3), Rank(root)));
        if (small[2] != root) return Internal("a broadcast");
      }
      double mean = 1.5 + rank;
      TALLY_RETURN_IF_ERROR(client.AllReduce(NumberView(&mean, 1, DType::kFloat64), ReduceOp::kMean));
      if (mean != 2.5) return Internal("a mean of fp64");
      float sum = 1;  // those that go as gradients may come in between
      TALLY_RETURN_IF_ERROR(client.AllReduce(NumberView(&sum, 1, DType::kFloat32), ReduceOp::kSum));
      if (sum != 3) return Internal("a sum of fp32");
      return client.Barrier();
    });
    EXPECT_EQ(Failures(statuses), "") << job.name;
  }
}

// A reduce-scatter and an all-gather make an all-reduce, bit by bit, whatever the order of addition does to it.
TEST(CollectiveCheck, SumsHaveTheBitsOfGradients) {
  TestCluster cluster(Jobs().front().Options(4));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    constexpr std::size_t kBlock = 1000;  // one slab of the all-reduce would be owned by one rank: blocks are, here
    std::vector<float> in(4 * kBlock), block(kBlock), parts(4 * kBlock);
    for (std::size_t j = 0; j < in.size(); ++j) {
      in[j] = static_cast<float>((j * 2654435761U + rank * 40503U) % 10007) * (rank % 2 == 0 ? 1e-3F : 1e3F);
    }
    TALLY_RETURN_IF_ERROR(client.ReduceScatter(std::span(in), std::span(block), ReduceOp::kSum));
    TALLY_RETURN_IF_ERROR(client.AllGather(std::span(block), std::span(parts)));
    for (std::uint32_t owner = 0; owner < 4; ++owner) {
      // In the order owner+1, …, owner, as slabs of gradients are added.
      std::vector<float> gathered(4 * 4 * kBlock);
      TALLY_RETURN_IF_ERROR(client.AllGather(std::span(in), std::span(gathered)));
      for (std::size_t j = owner * kBlock; j < (owner + 1) * kBlock; ++j) {
        float sum = gathered[(owner + 1) % 4 * in.size() + j];
        for (std::uint32_t k = 2; k <= 4; ++k) sum += gathered[(owner + k) % 4 * in.size() + j];
        if (sum != parts[j]) return Internal("element " + std::to_string(j) + " was added in another order");
      }
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

TEST(CollectiveCheck, ArgumentsThatMakeNoSense) {
  TestCluster cluster(Jobs().front().Options(2));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t) -> Status {
    std::vector<std::int32_t> four(4), two(2);
    std::vector<float> floats(4);
    for (const Status& status : {client.AllReduce(std::span(four), ReduceOp::kMean),
                                 client.AllReduce(NumberView(floats.data(), 4, DType::kFloat32), ReduceOp::kXor),
                                 client.ReduceScatter(std::span(four), std::span(two), ReduceOp::kMean),
                                 client.ReduceScatter(std::span(four), std::span(four), ReduceOp::kSum),
                                 client.AllGather(std::span(four), std::span(four)),
                                 client.AllGather(std::span(two), std::span(floats)),
                                 client.Broadcast(std::span(four), Rank(2)),
                                 client.Broadcast(NumberView(nullptr, 4, DType::kInt8), Rank(0))}) {
      if (status.kind() != StatusKind::kInvalidArgument) return Internal("got " + status.ToString());
    }
    const TensorSpec tensor{"w", ElementCount(4), DType::kFloat64};
    if (client.DeclareGroup(std::span(&tensor, 1)).status().kind() != StatusKind::kInvalidArgument) {
      return Internal("gradients of fp64");
    }
    // Nothing was sent: the next call is the first one.
    return client.Broadcast(std::span(four), Rank(1));
  });
  EXPECT_EQ(Failures(statuses), "");
}

// What one rank calls while the others call something else.
struct Misfit {
  const char* name;
  CollectiveShape others, mine;
};

CollectiveShape Shape(CollectiveKind kind, std::uint64_t elements, DType dtype = DType::kInt32,
                      ReduceOp op = ReduceOp::kSum, std::uint32_t root = 0) {
  return {.elements = elements, .dtype = dtype, .op = op, .call = 0, .kind = kind, .root = root};
}

Status CallOf(Client& client, const CollectiveShape& shape) {
  std::vector<std::byte> block(shape.elements * DTypeBytes(shape.dtype)), all(block.size() * client.workers());
  const NumberView one(block.data(), shape.elements, shape.dtype);
  const NumberView of_all(all.data(), shape.elements * client.workers(), shape.dtype);
  switch (shape.kind) {
    case CollectiveKind::kAllReduce: return client.AllReduce(one, shape.op);
    case CollectiveKind::kBroadcast: return client.Broadcast(one, Rank(shape.root));
    case CollectiveKind::kAllGather: return client.AllGather(one, of_all);
    case CollectiveKind::kReduceScatter: return client.ReduceScatter(of_all, one, shape.op);
  }
  return Internal("no such kind");
}

const std::vector<Misfit>& Misfits() {
  using enum CollectiveKind;
  static const std::vector<Misfit> misfits = {
      {"Size", Shape(kAllReduce, 100), Shape(kAllReduce, 200)},
      {"LargeSize", Shape(kAllReduce, 1000003), Shape(kAllReduce, 1000000)},
      {"Type", Shape(kAllReduce, 100), Shape(kAllReduce, 100, DType::kInt64)},
      {"TypeOfOneSize", Shape(kAllGather, 100, DType::kInt8), Shape(kAllGather, 100, DType::kUint8)},
      {"Op", Shape(kReduceScatter, 100), Shape(kReduceScatter, 100, DType::kInt32, ReduceOp::kMin)},
      {"Root", Shape(kBroadcast, 100), Shape(kBroadcast, 100, DType::kInt32, ReduceOp::kSum, 1)},
      {"OtherRoot", Shape(kBroadcast, 100), Shape(kBroadcast, 100, DType::kInt32, ReduceOp::kSum, 2)},
      {"BroadcastSize", Shape(kBroadcast, 100), Shape(kBroadcast, 101)},
      {"LargeBroadcast", Shape(kBroadcast, 3000003), Shape(kBroadcast, 3000000)},
      {"Kind", Shape(kAllGather, 100), Shape(kReduceScatter, 100)},
      {"KindAndRoot", Shape(kAllGather, 100), Shape(kBroadcast, 100, DType::kInt32, ReduceOp::kSum, 1)},
      {"Nothing", Shape(kAllGather, 0), Shape(kAllGather, 1)},
      {"NothingToBroadcast", Shape(kBroadcast, 0), Shape(kBroadcast, 1)},
      {"Gradients", Shape(kBroadcast, 100), Shape(kAllReduce, 100, DType::kFloat32)},
      {"OthersGradients", Shape(kAllReduce, 100, DType::kFloat32), Shape(kBroadcast, 100)},
      {"OthersGradientsNoRoot", Shape(kAllReduce, 100, DType::kFloat32), Shape(kReduceScatter, 100)},
  };
  return misfits;
}

class MisfitIn : public testing::TestWithParam<std::tuple<std::size_t, std::string, bool>> {};

TEST_P(MisfitIn, IsAnErrorOnEveryRankThatNamesBoth) {
  const auto& [index, mode, warm] = GetParam();
  const Misfit& misfit = Misfits()[index];
  ClusterOptions options;
  options.workers = 3;
  options.servers = mode == "ps" ? 1 : 0;
  options.settings = {"aggregation.mode=" + mode};
  TestCluster cluster(options);
  const auto statuses = cluster.Run([&misfit, warm = warm](Client& client, std::uint32_t rank) -> Status {
    if (warm) {  // links and groups are there already
      TALLY_RETURN_IF_ERROR(CallOf(client, Shape(CollectiveKind::kBroadcast, 10)));
      TALLY_RETURN_IF_ERROR(CallOf(client, Shape(CollectiveKind::kAllReduce, 100, DType::kFloat32)));
    }
    return CallOf(client, rank == 1 ? misfit.mine : misfit.others);
  });
  // On a node a first sum of fp32 finds out about memory: that is what ranks are then told of.
  const bool probes = mode == "hierarchical" && !warm && std::string(misfit.name).find("Gradients") != std::string::npos;
  for (const Status& status : statuses) {
    EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
    if (probes) continue;
    for (const CollectiveShape& shape : {misfit.mine, misfit.others}) {
      EXPECT_NE(status.text().find(DescribeCollective(shape)), std::string::npos)
          << DescribeCollective(shape) << " in: " << status.text();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, MisfitIn,
                         testing::Combine(testing::Range(std::size_t{0}, Misfits().size()),
                                          testing::Values("ring", "ps", "hierarchical"), testing::Bool()),
                         [](const auto& place) {
                           return std::string(Misfits()[std::get<0>(place.param)].name) + "_" + std::get<1>(place.param) +
                                  (std::get<2>(place.param) ? "_warm" : "");
                         });

TEST(Misfit, EveryRankTakesItselfForTheRoot) {
  for (const std::uint32_t workers : {2U, 4U}) {
    TestCluster cluster(Jobs().front().Options(workers));
    const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
      return CallOf(client, Shape(CollectiveKind::kBroadcast, 10, DType::kInt8, ReduceOp::kSum, rank));
    });
    for (const Status& status : statuses) EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
  }
}

TEST(Misfit, EveryRankTakesAnotherForTheRoot) {
  TestCluster cluster(Jobs().front().Options(3));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    return CallOf(client, Shape(CollectiveKind::kBroadcast, 10, DType::kInt8, ReduceOp::kSum, (rank + 1) % 3));
  });
  for (const Status& status : statuses) EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
}

// What sends no frames itself, on rank 1: the others' frames say that they are in another call.
struct Otherwise {
  const char* name;
  const char* said;
  std::function<Status(Client& client)> make;
};

const std::vector<Otherwise>& Others() {
  static const std::vector<Otherwise> others = {
      {"Declares", "rank 1 declares group late",
       [](Client& client) {
         const TensorSpec tensor{"w", ElementCount(100)};
         GroupOptions options;
         options.name = "late";
         return client.DeclareGroup(std::span(&tensor, 1), options).status();
       }},
      {"MakesABuffer", "rank 1 makes a buffer of 100 elements",
       [](Client& client) { return client.MakeBuffer(100).status(); }},
      {"IsRefused", "rank 1 was refused its call: a broadcast from rank 9",
       [](Client& client) -> Status {
         std::int32_t number = 0;
         const Status status = client.Broadcast(std::span(&number, 1), Rank(9));
         if (status.kind() != StatusKind::kInvalidArgument) return Internal("got " + status.ToString());
         return CallOf(client, Shape(CollectiveKind::kBroadcast, 10));  // its next one
       }},
  };
  return others;
}

class OtherwiseIn : public testing::TestWithParam<std::tuple<std::size_t, std::string, bool>> {};

TEST_P(OtherwiseIn, IsAnErrorOnEveryRankThatNamesBoth) {
  const auto& [index, mode, sum] = GetParam();
  const Otherwise& otherwise = Others()[index];
  ClusterOptions options;
  options.workers = 3;
  options.servers = mode == "ps" ? 1 : 0;
  options.settings = {"aggregation.mode=" + mode};
  TestCluster cluster(options);
  const CollectiveShape call = sum ? Shape(CollectiveKind::kAllReduce, 100, DType::kFloat32)
                                   : Shape(CollectiveKind::kAllGather, 100);
  const auto statuses = cluster.Run([&, index = index](Client& client, std::uint32_t rank) -> Status {
    TALLY_RETURN_IF_ERROR(CallOf(client, call));  // links, groups and memory are there
    return rank == 1 ? Others()[index].make(client) : CallOf(client, call);
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
    EXPECT_NE(status.text().find(otherwise.said), std::string::npos) << status.text();
    EXPECT_NE(status.text().find(DescribeCollective(call)), std::string::npos) << status.text();
  }
}

// Sums that go as gradients do say what they are only when they have waited for seconds.
INSTANTIATE_TEST_SUITE_P(Calls, OtherwiseIn,
                         testing::Values(std::tuple(0U, "ring", false), std::tuple(1U, "ring", false),
                                         std::tuple(2U, "ring", false), std::tuple(0U, "ring", true),
                                         std::tuple(2U, "ring", true), std::tuple(0U, "ps", false),
                                         std::tuple(1U, "ps", false), std::tuple(2U, "ps", false),
                                         std::tuple(1U, "ps", true), std::tuple(2U, "ps", true),
                                         std::tuple(0U, "hierarchical", false), std::tuple(0U, "hierarchical", true),
                                         std::tuple(1U, "hierarchical", true), std::tuple(2U, "hierarchical", true)),
                         [](const auto& place) {
                           return std::string(Others()[std::get<0>(place.param)].name) + "_" + std::get<1>(place.param) +
                                  (std::get<2>(place.param) ? "_sum" : "");
                         });

// A rank that comes late finds what was sent to it; what exceeds the credit waits at its sender.
TEST(Collective, ALateRankIsWaitedForWithinTheCredit) {
  ClusterOptions options = Jobs().front().Options(3);
  options.settings.insert(options.settings.end(), {"link.frame=64KiB", "link.credit=64KiB"});
  TestCluster cluster(options);
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    for (const auto& named : kCollectives) {
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(150));
      TALLY_RETURN_IF_ERROR(Checked(client, {named.kind, DType::kInt64, ReduceOp::kSum}, 700001, 3));
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

// Rank 1 has all of a broadcast at once and needs four seconds to send it on; it leaves meanwhile. The coordinator, which
// waits for leavers no longer than membership.dead, is a server here.
TEST(Collective, ALeaverSendsOnWhatItHas) {
  ClusterOptions options = JobSetting{"", 1, {"aggregation.mode=ps", "membership.dead=3s"}}.Options(3);
  options.rank_settings = [](std::uint32_t rank) {
    return rank == 1 ? std::vector<std::string>{"link.rate=2mbit"} : std::vector<std::string>{};
  };
  TestCluster cluster(options);
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    std::vector<std::uint8_t> bytes(1 << 20, rank == 0 ? 7 : 0);
    TALLY_RETURN_IF_ERROR(client.Broadcast(std::span(bytes), Rank(0)));
    return std::ranges::count(bytes, 7) == 1 << 20 ? Status::Ok() : Internal("wrong bytes");
  });
  EXPECT_EQ(Failures(statuses), "");
}

TEST(Collective, ARankThatLeftIsNamed) {
  for (const JobSetting& job : Jobs()) {
    if (job.name != std::string("ring") && job.name != std::string("ps")) continue;
    TestCluster cluster(job.Options(3));
    const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
      for (int call = 0; call < (rank == 1 ? 1 : 2); ++call) {
        TALLY_RETURN_IF_ERROR(CallOf(client, Shape(CollectiveKind::kAllGather, 100)));
      }
      return Status::Ok();
    });
    EXPECT_TRUE(statuses[1].ok()) << job.name << ": " << statuses[1].text();
    for (const std::uint32_t rank : {0U, 2U}) {
      EXPECT_EQ(statuses[rank].kind(), StatusKind::kUnavailable) << job.name << ": " << statuses[rank].ToString();
      EXPECT_NE(statuses[rank].text().find("rank 1"), std::string::npos) << statuses[rank].text();
    }
  }
}

}  // namespace
}  // namespace tally::test
