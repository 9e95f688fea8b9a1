// tally plan: the solved shares in JSON, the choice, probe files; tally probe over loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/run_command.h"
#include "worker/cli/command.h"
#include "worker/cli/link_probe.h"

namespace tally::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Ran Tally(const std::vector<std::string>& arguments) {
  CommandContext context;
  context.environment = {{"PATH", "/usr/bin:/bin"}};
  context.version = "1.2.3";
  return RunCommand(arguments, std::move(context));
}

Json PlanOf(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  arguments.insert(arguments.end(), {"--json", "-"});
  const Ran ran = Tally(arguments);
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  Json plan = Json::parse(ran.out, nullptr, false);
  EXPECT_TRUE(plan.is_object()) << ran.out;
  return plan;
}

Json RowOf(const Json& plan, const std::string& mode) {
  for (const Json& row : plan["rows"]) {
    if (row["mode"] == mode) return row;
  }
  return {};
}

// 10^9 bytes at 10^9 bytes per second and no cost of a round: times are the formulas' factors.
const std::vector<std::string> kBase = {"--workers", "4",      "--bytes", "1GB",
                                        "--rate",    "1GBps", "--alpha", "0us"};

std::vector<std::string> With(std::vector<std::string> more, const std::string& servers = "2") {
  more.insert(more.begin(), kBase.begin(), kBase.end());
  more.insert(more.end(), {"--servers", servers});
  return more;
}

TEST(Plan, GivesTheFormulasAndTheShares) {
  const Json plan = PlanOf(With({}));
  const auto near = [](const Json& value, double expected) { EXPECT_NEAR(value.get<double>(), expected, 1e-9); };
  near(RowOf(plan, "ps")["predicted_s"], 2);
  near(RowOf(plan, "direct")["predicted_s"], 1.5);
  near(RowOf(plan, "ring")["predicted_s"], 1.5);
  near(RowOf(plan, "tree")["predicted_s"], 2);
  near(RowOf(plan, "halving_doubling")["predicted_s"], 1.5);
  near(RowOf(plan, "hierarchical")["predicted_s"], 1.5);
  near(RowOf(plan, "hybrid")["predicted_s"], 1.2);
  near(plan["bound_s"], 1.2);
  EXPECT_EQ(plan["chosen"], "hybrid");
  EXPECT_THAT(plan["reason"].get<std::string>(), HasSubstr("hybrid 1.20 s"));
  const Json shares = RowOf(plan, "hybrid")["shares"];
  ASSERT_EQ(shares.size(), 6U);
  near(shares["server 1"], 0.3);
  near(shares["worker 3"], 0.1);
  EXPECT_EQ(RowOf(plan, "ring")["shares"], Json::object());
  for (const Json& row : plan["rows"]) {
    EXPECT_EQ(row.size(), 5U);
    EXPECT_EQ(row["codec"], "none");
    EXPECT_TRUE(row["busiest_nic"].is_string());
  }
  EXPECT_THAT(RowOf(plan, "ps")["busiest_nic"].get<std::string>(), HasSubstr("server 0"));
}

TEST(Plan, UnequalAndSharedNics) {
  const Json slow = PlanOf(With({"--nics", "1GBps,300MBps,1GBps,1GBps"}));
  EXPECT_NEAR(slow["bound_s"].get<double>(), 1 / 0.3, 1e-6) << "what the slow one must push";
  EXPECT_FALSE(RowOf(slow, "hybrid")["shares"].contains("worker 1"));
  EXPECT_EQ(RowOf(slow, "ring")["busiest_nic"], "worker 1, sending");
  const Json slow_server = PlanOf(With({"--nics", "1GBps,1GBps,1GBps,1GBps,1GBps,500MBps"}));
  EXPECT_NEAR(RowOf(slow_server, "ps")["shares"]["server 1"].get<double>(), 1.0 / 3, 1e-6);
  const Json shared = PlanOf(With({"--ps-placement", "colocated"}, "4"));
  EXPECT_NEAR(RowOf(shared, "ps")["predicted_s"].get<double>(), 1.5, 1e-6);
  EXPECT_THAT(RowOf(shared, "ps")["busiest_nic"].get<std::string>(), HasSubstr("worker 0 and server 0"));
  const Json nodes = PlanOf(With({"--workers-per-node", "2"}, "0"));
  EXPECT_NEAR(RowOf(nodes, "hierarchical")["predicted_s"].get<double>(), 1, 1e-6);
  EXPECT_NEAR(RowOf(nodes, "ring")["predicted_s"].get<double>(), 1.5, 1e-6);
  EXPECT_EQ(nodes["chosen"], "hierarchical");
  EXPECT_EQ(PlanOf(With({"--workers-per-node", "2", "--set", "aggregation.local=off"}, "0"))["chosen"], "ring");
  EXPECT_EQ(RowOf(nodes, "ps"), Json());
  EXPECT_THAT(Tally({"plan", "--nics", "1GBps,1GBps"}).err, HasSubstr("--nics: expected 4 rates"));
}

TEST(Plan, CodecsOfTheConfiguration) {
  const Json int8 = PlanOf(With({"--set", "compression.codec=int8"}));
  EXPECT_NEAR(RowOf(int8, "ps")["predicted_s"].get<double>(), 2 * 257.0 / 1024, 1e-4);
  EXPECT_EQ(RowOf(int8, "ps")["codec"], "int8");
  EXPECT_EQ(RowOf(int8, "ring")["codec"], "none") << "a ring cannot carry it";
  EXPECT_EQ(RowOf(int8, "hierarchical")["codec"], "int8");
  const Json randomk = PlanOf(With({"--set", "compression.codec=randomk"}));
  EXPECT_EQ(RowOf(randomk, "tree")["codec"], "randomk");
  EXPECT_THAT(Tally({"plan", "--set", "compression.codec=powersgd"}).err, HasSubstr("shapes"));
}

TEST(Plan, WhatIsWrongIsNamed) {
  EXPECT_THAT(Tally({"plan", "--workers", "0"}).err, HasSubstr("--workers"));
  EXPECT_THAT(Tally({"plan", "--workers", "4000", "--servers", "97"}).err, HasSubstr("4096"));
  EXPECT_THAT(Tally({"plan", "--probe", "/nonexistent"}).err, HasSubstr("/nonexistent"));
  EXPECT_THAT(Tally({"plan", "--help"}).out, HasSubstr("Examples:"));
  EXPECT_THAT(Tally({"probe", "--help"}).out, HasSubstr("Examples:"));
}

std::string WriteProbe(const std::string& text) {
  const std::string path = ::testing::TempDir() + "tally_probe_" + std::to_string(getpid()) + ".json";
  std::ofstream(path) << text;
  return path;
}

// A probe's figures replace what is not given, and a fast link leaves codec auto with none, a slow one with int8.
TEST(Plan, TakesAProbesFigures) {
  const auto probe = [](double bytes_per_s) {
    const auto codec = [](const char* name, double bytes, double seconds) {
      return Json{{"codec", name}, {"bytes_per_element", bytes}, {"encode_s", seconds}, {"decode_s", seconds},
                  {"decode_add_s", seconds}};
    };
    return WriteProbe(Json{{"peer", "h:1"},
                           {"links", {{{"transport", "tcp"}, {"alpha_s", 1e-3}, {"one_way_bytes_per_s", bytes_per_s},
                                       {"both_ways_bytes_per_s", bytes_per_s}}}},
                           {"copy_bytes_per_s", 1e10},
                           {"add_bytes_per_s", 1e10},
                           {"codecs", {codec("none", 4, 1e-10), codec("fp16", 2, 1e-9), codec("bf16", 2, 1e-9),
                                       codec("int8", 1.01, 1e-9), codec("of a later version", 1, 1)}}}
                          .dump());
  };
  const std::vector<std::string> base = {"--workers", "4", "--servers", "4", "--bytes", "1GB", "--set", "compression.codec=auto"};
  const auto plan = [&](const std::string& path) {
    std::vector<std::string> arguments = base;
    arguments.insert(arguments.end(), {"--probe", path});
    return PlanOf(arguments);
  };
  const Json slow = plan(probe(125e6));
  EXPECT_EQ(RowOf(slow, "ps")["codec"], "int8");
  EXPECT_EQ(RowOf(slow, "ring")["codec"], "none");
  EXPECT_GT(RowOf(slow, "ps")["predicted_s"].get<double>(), 1e9 / 125e6 * 257 / 1024);
  const std::string fast = probe(1e12);
  EXPECT_EQ(RowOf(plan(fast), "ps")["codec"], "none");

  const auto model = [](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"model", "--workers", "4", "--servers", "1", "--bytes", "1GB", "--json", "-"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Json::parse(Tally(arguments).out, nullptr, false)["rows"][0]["direct_s"].get<double>();
  };
  EXPECT_NEAR(model({"--probe", fast}), 1.5e9 / 1e12 + 2e-3, 1e-9);
  EXPECT_NEAR(model({"--probe", fast, "--rate", "1GBps", "--alpha", "0us"}), 1.5, 1e-9);
  const auto with_links = [](const std::string& links) {
    return R"({"peer":null,"copy_bytes_per_s":1,"add_bytes_per_s":1,"codecs":[],"links":[)" + links + "]}";
  };
  const std::string link = R"("transport":"tcp","one_way_bytes_per_s":1,"both_ways_bytes_per_s":1,"alpha_s":)";
  for (const std::string& wrong : {std::string(), std::string("[]"), std::string("{}"), with_links(""),
                                   with_links("{" + link + "-1}"), with_links("{" + link + "\"fast\"}")}) {
    EXPECT_EQ(Tally({"plan", "--probe", WriteProbe(wrong)}).exit_code, 2) << wrong;
  }
  EXPECT_EQ(Tally({"plan", "--probe", WriteProbe(with_links("{" + link + "1e-5}"))}).exit_code, 0);
  unlink(fast.c_str());
}

// On one machine with two cores: four workers' frames, bytes and numbers, by hand.
TEST(Plan, PricesCpuTimeOfAProbe) {
  const auto probe = [](double byte_cpu_s) {
    const Json codec = {{"codec", "none"}, {"bytes_per_element", 4}, {"encode_s", 1e-12}, {"decode_s", 1e-12},
                        {"decode_add_s", 1e-12}};
    return WriteProbe(Json{{"peer", nullptr},
                           {"links", {{{"transport", "tcp"}, {"alpha_s", 1e-9}, {"one_way_bytes_per_s", 1e9},
                                       {"both_ways_bytes_per_s", 1e9}, {"frame_cpu_s", 1e-12},
                                       {"byte_cpu_s", byte_cpu_s}}}},
                           {"copy_bytes_per_s", 1e10},
                           {"add_bytes_per_s", 1e10},
                           {"cores", 2},
                           {"codecs", {codec}}}.dump());
  };
  const auto ring = [](const std::string& path, std::vector<std::string> more) {
    std::vector<std::string> arguments = With({"--probe", path}, "0");
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RowOf(PlanOf(arguments), "ring")["predicted_s"].get<double>();
  };
  const std::string slow = probe(2e-9);
  EXPECT_NEAR(ring(slow, {}), 3, 0.01) << "each process sends and receives 1.5 GB on a core of its own";
  EXPECT_NEAR(ring(slow, {"--one-machine"}), 6, 0.01) << "6 GB at 2 s a GB on two cores";
  EXPECT_NEAR(ring(probe(1e-12), {"--one-machine"}), 1.5, 0.01) << "the wire is slower";
  EXPECT_EQ(Tally({"plan", "--one-machine"}).exit_code, 2);
  EXPECT_EQ(Tally({"plan", "--probe", probe(-1)}).exit_code, 2);
  unlink(slow.c_str());
}

TEST(Probe, MeasuresLoopbackMemoryAndCodecs) {
  const Ran ran = Tally({"probe", "--time", "10ms", "--json", "-"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const Json probe = Json::parse(ran.out, nullptr, false);
  ASSERT_TRUE(probe.is_object()) << ran.out;
  EXPECT_TRUE(probe["peer"].is_null());
  ASSERT_EQ(probe["links"].size(), 3U);
  EXPECT_EQ(probe["links"][0]["transport"], "tcp");
  EXPECT_EQ(probe["links"][1]["transport"], "zmq");
  EXPECT_EQ(probe["links"][2]["transport"], "shm");
  EXPECT_GT(probe["cores"], 0.0);
  for (const Json& link : probe["links"]) {
    for (const char* key : {"alpha_s", "one_way_bytes_per_s", "both_ways_bytes_per_s", "frame_cpu_s"}) {
      EXPECT_GT(link[key], 0.0) << key;
    }
  }
  EXPECT_GT(probe["copy_bytes_per_s"], 0.0);
  EXPECT_GT(probe["add_bytes_per_s"], 0.0);
  EXPECT_EQ(probe["codecs"].size(), 4U);
  const std::string path = WriteProbe(ran.out);
  EXPECT_EQ(Tally({"plan", "--probe", path}).exit_code, 0);
  unlink(path.c_str());
}

TEST(Probe, MeasuresAPeerThatListens) {
  auto responder = ProbeResponder::Listen("127.0.0.1", 0).value();
  Status served;
  std::thread thread([&] { served = responder->Serve(std::chrono::seconds(60)); });
  const std::string place = responder->endpoint().substr(6);
  const Ran ran = Tally({"probe", "--to", place, "--time", "10ms", "--json", "-"});
  thread.join();  // it ends once the one that measured has gone
  EXPECT_TRUE(served.ok()) << served.ToString();
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(Json::parse(ran.out, nullptr, false)["peer"], place);
}

TEST(Probe, WhatIsWrongIsNamed) {
  EXPECT_THAT(Tally({"probe", "--to", "nonsense"}).err, HasSubstr("HOST:PORT"));
  EXPECT_THAT(Tally({"probe", "--to", "192.0.2.1:7171"}).err, HasSubstr("--insecure"));
  EXPECT_THAT(Tally({"probe", "--listen", "192.0.2.1:7171"}).err, HasSubstr("--insecure"));
  EXPECT_EQ(Tally({"probe", "--time", "0s"}).exit_code, 2);
  EXPECT_EQ(Tally({"probe", "--listen", "127.0.0.1:0", "--wait", "10ms"}).exit_code, 3);
}

}  // namespace
}  // namespace tally::cli
