// tally explain: recorded gradients as bytes (hostile ones too), the numbers on gradients small enough to work out by
// hand, and the report.
#include "worker/cli/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/crc32c.h"
#include "tests/support/run_command.h"
#include "worker/cli/command.h"
#include "worker/cli/explain_report.h"

namespace tally::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Coordinate 1 is small and steady, coordinate 0 large and alternating.
RecordedGradients Alternating(std::size_t steps) {
  RecordedGradients gradients;
  gradients.tensors = {{"w", 1, 2}};
  for (std::size_t s = 0; s < steps; ++s) gradients.steps.push_back({s % 2 == 0 ? 100.0f : -100.0f, 1.0f});
  return gradients;
}

RecordedGradients Two() {
  RecordedGradients gradients;
  gradients.tensors = {{"fc1.weight", 2, 3}, {"fc1.bias", 2, 1}};
  gradients.steps = {{1, -2, 3, 0, 0.5f, -0.25f, 8, 16}, {0, 0, 0, 0, 0, 0, 0, -0.0f}};
  return gradients;
}

TEST(GradientFile, RoundTripsInBothTypes) {
  for (const DType type : {DType::kFloat32, DType::kFloat16}) {
    const auto read = DecodeGradients(EncodeGradients(Two(), type));
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    ASSERT_EQ(read->tensors.size(), 2u);
    EXPECT_EQ(read->tensors[0].name, "fc1.weight");
    EXPECT_EQ(read->tensors[0].rows, 2u);
    EXPECT_EQ(read->tensors[0].columns, 3u);
    EXPECT_EQ(read->steps, Two().steps);
  }
}

TEST(GradientFile, EveryCutAndEveryChangedByteIsRefused) {
  const std::vector<std::byte> good = EncodeGradients(Two(), DType::kFloat32);
  for (std::size_t length = 0; length < good.size(); ++length) {
    const auto read = DecodeGradients(std::span(good).first(length));
    ASSERT_FALSE(read.ok()) << length;
    EXPECT_EQ(read.status().kind(), StatusKind::kCorrupt);
  }
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const std::byte mask : {std::byte{1}, std::byte{0xff}}) {
      std::vector<std::byte> bad = good;
      bad[i] ^= mask;
      EXPECT_FALSE(DecodeGradients(bad).ok()) << i;
    }
  }
}

TEST(GradientFile, ErrorsNameTheField) {
  const std::vector<std::byte> good = EncodeGradients(Two(), DType::kFloat32);
  const auto with = [&](std::size_t at, std::uint32_t value) {
    std::vector<std::byte> bad = good;
    std::memcpy(bad.data() + at, &value, sizeof value);
    const std::uint32_t checksum = Crc32c(std::span(bad).first(bad.size() - 4));
    std::memcpy(bad.data() + bad.size() - 4, &checksum, sizeof checksum);
    return DecodeGradients(bad).status().text();
  };
  EXPECT_THAT(with(0, 7), HasSubstr("does not begin with TALLYGRD"));
  EXPECT_THAT(with(8, 2), HasSubstr("version: expected 1"));
  EXPECT_THAT(with(12, 2), HasSubstr("type: expected 0 to 1, got 2"));
  EXPECT_THAT(with(16, 0), HasSubstr("steps"));
  EXPECT_THAT(with(20, 0), HasSubstr("tensors"));
  EXPECT_THAT(with(24, 0), HasSubstr("rows"));
  EXPECT_THAT(with(24, 1u << 24), HasSubstr("values: expected 2 steps"));
  EXPECT_THAT(with(32, 100000), HasSubstr("length of a name"));
  EXPECT_THAT(with(good.size() - 8, 0x7f800000), HasSubstr("finite"));  // the last value
}

TEST(Explain, LossyWithoutFeedbackNeverMovesTheSmallCoordinate) {
  const auto top = Explain(Alternating(200), 200, "topk:ratio=0.5");  // one of the two
  ASSERT_TRUE(top.ok()) << top.status().ToString();
  EXPECT_EQ(top->bytes, 6u);
  EXPECT_DOUBLE_EQ(top->ratio, 8.0 / 6);
  ASSERT_EQ(top->steps.size(), 200u);
  EXPECT_EQ(top->decoded, (std::vector<float>{100, 0}));
  EXPECT_EQ(top->residual, (std::vector<float>{0, 1}));
  EXPECT_NEAR(top->steps[0].error, 1 / std::sqrt(10001.0), 1e-12);
  EXPECT_NEAR(top->steps[0].cosine, 100 / std::sqrt(10001.0), 1e-12);
  EXPECT_NEAR(top->steps[0].energy_sent, 10000 / 10001.0, 1e-12);
  EXPECT_NEAR(top->steps[1].residual, 2 / std::sqrt(10001.0), 1e-12);
  // The alternating parts cancel, the small ones add up to 200: all of that is lost without feedback.
  EXPECT_DOUBLE_EQ(top->lost_without, 1);
  EXPECT_LT(top->lost, 0.6);
}

TEST(Explain, NoneLosesNothingAndInt8Little) {
  const auto none = Explain(Two(), 2, "none");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->bytes, 32u);
  EXPECT_EQ(none->ratio, 1);
  EXPECT_EQ(none->error, 0);
  EXPECT_EQ(none->lost_without, 0);
  EXPECT_EQ(none->steps[1].energy_sent, 1);  // of a gradient of zeros
  const auto int8 = Explain(Alternating(2), 2, "int8");
  ASSERT_TRUE(int8.ok());
  EXPECT_EQ(int8->decoded, (std::vector<float>{100, 1}));
}

TEST(Explain, LinearCodecs) {
  // A matrix of rank one is what PowerSGD delivers exactly once its subspace has found it; a vector travels as it is.
  RecordedGradients gradients;
  gradients.tensors = {{"m", 16, 16}, {"b", 16, 1}};
  std::vector<float> step(16 * 16 + 16, 1);
  for (std::size_t i = 0; i < 256; ++i) step[i] = static_cast<float>(i / 16 + 1) * (i % 2 == 0 ? 1.0f : -2.0f);
  gradients.steps.assign(4, step);
  const auto low_rank = Explain(gradients, 4, "powersgd:powersgd_rank=1");
  ASSERT_TRUE(low_rank.ok()) << low_rank.status().ToString();
  EXPECT_EQ(low_rank->bytes, (16u + 16 + 16) * 4);
  EXPECT_LT(low_rank->steps[3].error, 1e-3);
  // One of each four elements, known to all: with feedback nothing stays behind for long.
  const auto some = Explain(gradients, 4, "randomk:ratio=0.25");
  ASSERT_TRUE(some.ok()) << some.status().ToString();
  EXPECT_EQ(some->bytes, 68u * 4);
  EXPECT_NEAR(some->energy_sent, 0.25, 0.2);
}

TEST(Explain, CountsNonZeros) {
  EXPECT_DOUBLE_EQ(NonZeroShare(Two()), 7.0 / 16);
  EXPECT_EQ(NonZeroShare(Alternating(3)), 1);
}

TEST(Explain, RefusesUnknownCodecsAndOptions) {
  for (const char* codec : {"", "zip", "dgc", "topk:ratio=2", "topk:rati=0.1", "topk:", "int8:scale"}) {
    const auto result = Explain(Alternating(1), 1, codec);
    ASSERT_FALSE(result.ok()) << codec;
    EXPECT_EQ(result.status().kind(), StatusKind::kInvalidArgument) << codec;
  }
}

TEST(Explain, WarnsOfSparseGradients) {
  RecordedGradients gradients;
  gradients.tensors = {{"embedding", 4, 25}};
  gradients.steps.assign(2, std::vector<float>(100));
  gradients.steps[0][7] = 1;
  const auto sparse = Explain(gradients, 2, "onebit");
  ASSERT_TRUE(sparse.ok()) << sparse.status().ToString();
  ASSERT_EQ(sparse->warnings.size(), 1u);
  EXPECT_THAT(sparse->warnings[0], HasSubstr("1 % of the elements"));
  EXPECT_TRUE(Explain(gradients, 2, "int8")->warnings.empty());
  EXPECT_TRUE(Explain(Alternating(1), 1, "onebit")->warnings.empty());
}

Ran TallyExplain(std::vector<std::string> arguments) {
  CommandContext context;
  context.version = "1.2.3";
  arguments.insert(arguments.begin(), "explain");
  return RunCommand(arguments, std::move(context));
}

class ExplainCommand : public ::testing::Test {
 protected:
  void Write(std::span<const std::byte> bytes) const {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  void TearDown() override {
    std::remove(path_.c_str());
    std::remove(report_.c_str());
  }
  const std::string path_ = ::testing::TempDir() + "tally_explain_" + std::to_string(getpid()) + ".gradients";
  const std::string report_ = path_ + ".html";
};

TEST_F(ExplainCommand, UsageAndBadFiles) {
  const Ran help = TallyExplain({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("Examples:"));
  EXPECT_EQ(TallyExplain({"--gradient", "/nonexistent/x"}).exit_code, 1);
  EXPECT_EQ(TallyExplain({"--steps", "0"}).exit_code, 2);
  EXPECT_EQ(TallyExplain({"--report", "/nonexistent/x.html"}).exit_code, 2);
  Write(std::as_bytes(std::span("this is no gradient", 19)));
  const Ran bad = TallyExplain({"--gradient", path_});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr(path_ + ": not a file of recorded gradients"));
  Write(EncodeGradients(Alternating(3), DType::kFloat32));
  EXPECT_THAT(TallyExplain({"--gradient", path_, "--steps", "4"}).err, HasSubstr("holds 3"));
  EXPECT_EQ(TallyExplain({"--gradient", path_, "--steps", "4"}).exit_code, 2);
  EXPECT_EQ(TallyExplain({"--gradient", path_, "--codec", "zip"}).exit_code, 2);
}

TEST_F(ExplainCommand, JsonAndReport) {
  Write(EncodeGradients(Alternating(3), DType::kFloat16));
  const Ran ran = TallyExplain({"--gradient", path_, "--codec", "int8,topk:ratio=0.5", "--steps", "2", "--json", "-",
                                "--report", report_});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const nlohmann::json json = nlohmann::json::parse(ran.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << ran.out;
  EXPECT_EQ(json["gradient"]["elements"], 2);
  EXPECT_EQ(json["gradient"]["steps"], 2);
  EXPECT_EQ(json["gradient"]["nonzero_share"], 1.0);
  EXPECT_EQ(json["gradient"]["tensors"][0]["name"], "w");
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][1]["codec"], "topk:ratio=0.5");
  EXPECT_EQ(json["rows"][1]["bytes"], 6);
  EXPECT_EQ(json["rows"][1]["lost_without_feedback"], 1.0);
  for (const char* field : {"ratio", "relative_error", "cosine", "lost"}) {
    EXPECT_TRUE(json["rows"][0][field].is_number()) << field;
  }
  for (const char* field : {"energy_sent", "residual_norm"}) EXPECT_EQ(json["rows"][0][field].size(), 2u) << field;
  std::ifstream in(report_);
  const std::string html{std::istreambuf_iterator<char>(in), {}};
  EXPECT_THAT(html, HasSubstr("</html>"));
  EXPECT_THAT(html, HasSubstr("topk:ratio=0.5"));
  for (const char* outside : {"http", "<script", "src=", "href=", "nan", "inf\""}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
}

TEST(ExplainReport, GradientsOfZerosAndOddShapes) {
  RecordedGradients gradients;
  gradients.tensors = {{"empty <rows>", 3, 1}, {"wide", 1, 300}};
  gradients.steps = {std::vector<float>(303)};
  const std::vector<Explanation> codecs = {Explain(gradients, 1, "int8").value(),
                                           Explain(gradients, 1, "topk").value()};
  const std::string html = ExplainReport({gradients, 1, "<file>", "1"}, codecs);
  EXPECT_THAT(html, HasSubstr("&lt;file&gt;"));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace tally::cli
