// Codec auto in the coordinator: who is asked, and what the layouts say.
#include <gtest/gtest.h>

#include "compress/half_numbers.h"
#include "tests/unit/server_core/coordinator_fixture.h"

namespace tally {
namespace {

TEST(CoordinatorAuto, IsAskedOncePerJobAndTravelsInTheLayouts) {
  int asked = 0;
  CoordinatorFixture f([&asked](const Config& job, std::uint32_t workers) {
    ++asked;
    EXPECT_EQ(job.compression.codec, "auto");
    EXPECT_EQ(workers, 2U);
    return [] { return AutoCodecs{.fp32 = "int8", .fp16 = "fp16", .bf16 = "int8"}; };
  });
  const auto start = [](CoordinatorFixture* fixture) {
    for (std::uint32_t r = 0; r < 2; ++r) {
      fixture->Say(100 + r, CoordinatorFixture::WorkerJoin(
                                r, 2, JobText("ring", 0, "[compression]\ncodec = \"auto\"\n")));
    }
  };
  start(&f);
  for (const char* group : {"first", "second"}) {
    f.Forget();
    std::vector<TensorSpec> tensors(4, CoordinatorFixture::Tensor("large", 65536));
    tensors[1] = CoordinatorFixture::Tensor("small", 10);
    tensors[2] = {"half", ElementCount(65536), DType::kFloat16};
    tensors[3] = {"brain", ElementCount(65536), DType::kBFloat16};
    for (std::uint32_t r = 0; r < 2; ++r) f.Say(100 + r, CoordinatorFixture::Declare(tensors, group));
    const LayoutMessage layout = f.Only<LayoutMessage>(101);
    EXPECT_EQ(layout.codecs, (std::vector<std::uint8_t>{3, 0, PlainCodec(DType::kFloat16), 3})) << group;
    EXPECT_EQ(layout.exchange, ExchangeKind::kOwners) << group;
  }
  EXPECT_EQ(asked, 1);
  CoordinatorFixture nobody_advises;
  start(&nobody_advises);
  nobody_advises.DeclareAll(2, 65536);
  EXPECT_EQ(nobody_advises.Only<LayoutMessage>(100).codecs, (std::vector<std::uint8_t>{0}));
}

}  // namespace
}  // namespace tally
