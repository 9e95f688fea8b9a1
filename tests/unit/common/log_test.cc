#include "common/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <regex>
#include <sstream>

namespace tally {
namespace {

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { std::remove(path_.c_str()); }

  std::unique_ptr<Logger> Make(LogFormat format, std::string level = "info") {
    Config::Log options;
    options.level = std::move(level);
    options.format = format;
    options.file = path_;
    Result<std::unique_ptr<Logger>> made = Logger::Make(options);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return std::move(made).value();
  }

  // The file's text with each time replaced by T.
  std::string Written() const {
    std::ifstream in(path_);
    std::ostringstream text;
    text << in.rdbuf();
    return std::regex_replace(text.str(), std::regex("\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{3}Z"), "T");
  }

  std::string path_ = ::testing::TempDir() + "tally_log_" + std::to_string(getpid()) + ".log";
};

TEST_F(LogTest, Logfmt) {
  const auto log = Make(LogFormat::kLogfmt);
  log->SetContext({{"rank", 2}});
  log->Debug("not shown");
  log->Info("joined", {{"peer", "tcp://127.0.0.1:7"}, {"text", "two words"}, {"empty", ""}, {"ok", true}});
  log->Warn("a \"quoted\"\nline", {{"bytes", std::string("a\0=\x1b\xff", 5)}, {"utf8", "é"}});
  EXPECT_EQ(Written(),
            "ts=T level=info msg=\"joined\" peer=tcp://127.0.0.1:7 text=\"two words\" empty=\"\" ok=true rank=2\n"
            "ts=T level=warn msg=\"a \\\"quoted\\\"\\nline\" bytes=\"a\\x00=\\x1b\\xff\" utf8=\"é\" rank=2\n");
}

TEST_F(LogTest, Json) {
  const auto log = Make(LogFormat::kJson);
  log->SetContext({{"rank", 2}});
  log->Error("a \"b\"\n",
             {{"n", 17u}, {"x", 0.5}, {"nan", std::nan("")}, {"s", std::string("\x01\xff")}, {"f", false}});
  EXPECT_EQ(Written(),
            "{\"ts\":\"T\",\"level\":\"error\",\"msg\":\"a \\\"b\\\"\\n\",\"n\":17,\"x\":0.500000,\"nan\":\"nan\","
            "\"s\":\"\\u0001\\ufffd\",\"f\":false,\"rank\":2}\n");
}

TEST_F(LogTest, ValuesAreBounded) {
  const auto log = Make(LogFormat::kLogfmt);
  log->Info("m", {{"v", std::string(1023, 'a') + "é" + std::string(5000, 'b')}});
  EXPECT_EQ(Written(), "ts=T level=info msg=\"m\" v=\"" + std::string(1023, 'a') + "…\"\n");
}

TEST_F(LogTest, LevelCanChange) {
  const auto log = Make(LogFormat::kLogfmt, "warn");
  log->Info("1");
  EXPECT_TRUE(log->SetLevel("debug").ok());
  log->Debug("2");
  EXPECT_TRUE(log->SetLevel("off").ok());
  log->Error("3");
  EXPECT_EQ(Written(), "ts=T level=debug msg=\"2\"\n");
  const Status wrong = log->SetLevel("loud");
  EXPECT_EQ(wrong.kind(), StatusKind::kInvalidArgument);
  EXPECT_NE(wrong.text().find("debug, info, warn, error, off"), std::string::npos);
}

TEST_F(LogTest, FileThatCannotBeOpened) {
  Config::Log options;
  options.file = "/proc/nowhere/x.log";
  const Result<std::unique_ptr<Logger>> made = Logger::Make(options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().kind(), StatusKind::kUnavailable);
  EXPECT_NE(made.status().text().find("/proc/nowhere/x.log"), std::string::npos);
}

}  // namespace
}  // namespace tally
