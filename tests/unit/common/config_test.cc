// LoadConfig: sources and their precedence, faults and their texts, what is compared between members.
#include "common/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <random>

#include "common/config/checks.h"

namespace tally {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TempFile {
 public:
  explicit TempFile(const std::string& text) {
    static int count = 0;
    path_ = ::testing::TempDir() + "tally_config_" + std::to_string(getpid()) + "_" + std::to_string(count++) + ".toml";
    std::ofstream(path_) << text;
  }
  ~TempFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

ConfigSources Environment(std::map<std::string, std::string> variables) {
  ConfigSources sources;
  sources.environment = std::move(variables);
  return sources;
}

ConfigSources Overrides(std::vector<std::string> overrides) {
  ConfigSources sources;
  sources.overrides = std::move(overrides);
  return sources;
}

ConfigEntry Entry(const LoadedConfig& loaded, const std::string& name) {
  for (const ConfigEntry& entry : loaded.entries) {
    if (entry.name == name) return entry;
  }
  ADD_FAILURE() << "no entry " << name;
  return {};
}

std::string Fault(const ConfigSources& sources) {
  const Result<LoadedConfig> loaded = LoadConfig(sources);
  if (loaded.ok()) return "(no fault)";
  EXPECT_EQ(loaded.status().kind(), StatusKind::kInvalidArgument);
  return loaded.status().text();
}

TEST(Config, DefaultsAreValidAndCompletelyListed) {
  const Result<LoadedConfig> loaded = LoadConfig({});
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->config.aggregation.mode, Mode::kRing);
  EXPECT_EQ(loaded->config.coordinator.address, "");
  EXPECT_FALSE(loaded->config.worker.rank_set);
  EXPECT_EQ(loaded->entries.front().name, "job.name");
  for (const ConfigEntry& entry : loaded->entries) {
    EXPECT_EQ(entry.origin, "default") << entry.name;
    EXPECT_FALSE(entry.help.empty()) << entry.name;
    EXPECT_FALSE(entry.value.empty()) << entry.name;
  }
  EXPECT_TRUE(Entry(*loaded, "log.level").hot);
}

TEST(Config, EveryShownValueCanBeGivenBack) {
  const Result<LoadedConfig> loaded = LoadConfig({});
  ASSERT_TRUE(loaded.ok());
  std::string text, section;
  for (const ConfigEntry& entry : loaded->entries) {
    const std::size_t dot = entry.name.find('.');
    if (entry.name.substr(0, dot) != section) text += "[" + (section = entry.name.substr(0, dot)) + "]\n";
    text += entry.name.substr(dot + 1) + " = " + entry.value + "\n";
  }
  const TempFile file(text);
  ConfigSources sources;
  sources.file = file.path();
  const Result<LoadedConfig> again = LoadConfig(sources);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  for (std::size_t i = 0; i < again->entries.size(); ++i) {
    EXPECT_EQ(again->entries[i].value, loaded->entries[i].value) << again->entries[i].name;
    EXPECT_THAT(again->entries[i].origin, HasSubstr(".toml:"));
  }
  EXPECT_EQ(again->job_digest, loaded->job_digest);
}

// Each setting by file, environment and flag at once, then without the flag, then without both.
TEST(Config, FlagBeatsEnvironmentBeatsFile) {
  struct Case {
    const char *name, *variable;
    const char *in_file, *in_environment, *in_flag;
    const char *file_shown, *environment_shown, *flag_shown;
  };
  const Case cases[] = {
      {"topology.pin", "TALLY_TOPOLOGY_PIN", "\"none\"", "0-3,8", "auto", "\"none\"", "\"0-3,8\"", "\"auto\""},
      {"link.connections", "TALLY_LINK_CONNECTIONS", "2", "3", "4", "2", "3", "4"},
      {"bucket.cap", "TALLY_BUCKET_CAP", "\"1MiB\"", "2MiB", "4194304", "\"1MiB\"", "\"2MiB\"", "\"4MiB\""},
      {"link.rate", "TALLY_LINK_RATE", "1000000", "100mbit", "2.5gbit", "\"1mbit\"", "\"100mbit\"", "\"2500mbit\""},
      {"step.timeout", "TALLY_STEP_TIMEOUT", "\"1s\"", "200ms", "2min", "\"1s\"", "\"200ms\"", "\"2min\""},
      {"compression.codec", "TALLY_COMPRESSION_CODEC", "\"fp16\"", "bf16", "topk", "\"fp16\"", "\"bf16\"", "\"topk\""},
      {"compression.ratio", "TALLY_COMPRESSION_RATIO", "0.5", "0.25", "1", "0.5", "0.25", "1.0"},
      {"compression.dgc_momentum", "TALLY_COMPRESSION_DGC_MOMENTUM", "0.5", "0", "0.25", "0.5", "0.0", "0.25"},
      {"compression.exclude", "TALLY_COMPRESSION_EXCLUDE", "[\"a\", \"b*\"]", "c,d", "e", "[\"a\", \"b*\"]",
       "[\"c\", \"d\"]", "[\"e\"]"},
      {"compression.error_feedback", "TALLY_COMPRESSION_ERROR_FEEDBACK", "false", "true", "false", "false", "true",
       "false"},
      {"aggregation.local", "TALLY_AGGREGATION_LOCAL", "\"on\"", "off", "auto", "\"on\"", "\"off\"", "\"auto\""},
  };
  for (const Case& c : cases) {
    const std::string name = c.name;
    const std::size_t dot = name.find('.');
    const TempFile file("# one\n[" + name.substr(0, dot) + "]\n" + name.substr(dot + 1) + " = " + c.in_file + "\n");
    ConfigSources sources;
    sources.file = file.path();
    const auto check = [&](const char* shown, const std::string& origin) {
      const Result<LoadedConfig> loaded = LoadConfig(sources);
      ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
      EXPECT_EQ(Entry(*loaded, name).value, shown) << name;
      EXPECT_EQ(Entry(*loaded, name).origin, origin) << name;
    };
    check(c.file_shown, file.path() + ":3");
    sources.environment[c.variable] = c.in_environment;
    check(c.environment_shown, c.variable);
    sources.overrides.push_back(name + "=" + c.in_flag);
    check(c.flag_shown, "--set");
  }
}

TEST(Config, FileFromTheEnvironment) {
  const TempFile file("[job]\nname = \"from_file\"\n");
  const Result<LoadedConfig> loaded = LoadConfig(Environment({{"TALLY_CONFIG", file.path()}}));
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->config.job.name, "from_file");
}

TEST(Config, AllFaultsAtOnceEachWithItsPlace) {
  const TempFile file(
      "mode = \"ps\"\n[job]\nnam = \"x\"\n[aggregation]\nmode = \"rnig\"\ncodec = \"int8\"\n[compression]\n"
      "codec = \"int9\"\n[agregation]\nlocal = \"on\"\n[membership]\nheartbeat = 5\n");
  ConfigSources sources = Environment({{"TALLY_LINK_RAT", "1"}, {"TALLY_BUCKET_CAP", "25Mb"}});
  sources.file = file.path();
  sources.overrides = {"link.conections=2", "nonsense", "link.connections=65"};
  const std::string fault = Fault(sources);
  const std::string at = file.path() + ":";
  EXPECT_THAT(fault, HasSubstr(at + "1: \"mode\" stands outside of a section"));
  EXPECT_THAT(fault, HasSubstr(at + "3: no setting \"job.nam\"; did you mean 'job.name'?"));
  EXPECT_THAT(fault, HasSubstr(at + "5: aggregation.mode: \"rnig\" is not one of ps, ring, hierarchical, hybrid, "));
  EXPECT_THAT(fault, HasSubstr("did you mean 'ring'?"));
  EXPECT_THAT(fault, HasSubstr(at + "6: no setting \"aggregation.codec\"; did you mean 'compression.codec'?"));
  EXPECT_THAT(fault, HasSubstr(at + "8: compression.codec: \"int9\""));
  EXPECT_THAT(fault, HasSubstr("did you mean 'aggregation.local'?"));
  EXPECT_THAT(fault, HasSubstr(at + "12: membership.heartbeat: 5 has the wrong type"));
  EXPECT_THAT(fault, HasSubstr("TALLY_LINK_RAT: no setting has this variable; did you mean 'TALLY_LINK_RATE'?"));
  EXPECT_THAT(fault, HasSubstr("TALLY_BUCKET_CAP: bucket.cap: \"25Mb\" is not a number of bytes"));
  EXPECT_THAT(fault, HasSubstr("did you mean 'link.connections'?"));
  EXPECT_THAT(fault, HasSubstr("--set nonsense: expected section.key=value"));
  EXPECT_THAT(fault, HasSubstr("--set: link.connections: \"65\" is not a whole number from 0 to 64"));
}

TEST(Config, FilesThatCannotBeReadAreNamed) {
  ConfigSources sources;
  sources.file = "/nonexistent/job.toml";
  EXPECT_THAT(Fault(sources), HasSubstr("/nonexistent/job.toml: No such file"));
  const TempFile syntax("[job\nname = 1");
  sources.file = syntax.path();
  EXPECT_THAT(Fault(sources), HasSubstr(syntax.path() + ":1: "));
  const TempFile twice("[job]\nname = \"a\"\nname = \"b\"\n");
  sources.file = twice.path();
  EXPECT_THAT(Fault(sources), HasSubstr(twice.path() + ":3: "));
  const TempFile large(std::string(70000, '#'));
  sources.file = large.path();
  EXPECT_THAT(Fault(sources), HasSubstr("larger than 64 KiB"));
}

TEST(Config, EveryLauncherGivesRankAndSize) {
  const std::map<std::string, std::string> launchers[] = {
      {{"RANK", "2"}, {"WORLD_SIZE", "7"}, {"LOCAL_RANK", "1"}},
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "7"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
      {{"PMI_RANK", "2"}, {"PMI_SIZE", "7"}, {"MPI_LOCALRANKID", "1"}},
      {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "7"}, {"SLURM_LOCALID", "1"}},
  };
  for (const auto& variables : launchers) {
    const Result<LoadedConfig> loaded = LoadConfig(Environment(variables));
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    EXPECT_EQ(loaded->config.worker.rank, 2u);
    EXPECT_EQ(loaded->config.worker.local_rank, 1u);
    EXPECT_EQ(loaded->config.job.workers, 7u);
    EXPECT_TRUE(loaded->config.worker.rank_set);
    EXPECT_TRUE(variables.contains(Entry(*loaded, "worker.rank").origin));
  }
  // torchrun inside of srun: the inner one counts, as a whole.
  const Result<LoadedConfig> both =
      LoadConfig(Environment({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}));
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(both->config.worker.rank, 3u);
  EXPECT_EQ(both->config.job.workers, 4u);
}

TEST(Config, WorkersOfFileAndLauncherMustAgree) {
  const TempFile file("[job]\nworkers = 4\n");
  ConfigSources sources = Environment({{"RANK", "0"}, {"WORLD_SIZE", "4"}});
  sources.file = file.path();
  EXPECT_TRUE(LoadConfig(sources).ok());
  sources.environment["WORLD_SIZE"] = "3";
  EXPECT_THAT(Fault(sources), AllOf(HasSubstr(file.path() + ":2"), HasSubstr("job.workers = 4"),
                                    HasSubstr("WORLD_SIZE = 3")));
  EXPECT_THAT(Fault(Environment({{"RANK", "4"}, {"WORLD_SIZE", "4"}})), HasSubstr("worker.rank: 4 is not below"));
}

TEST(Config, CoordinatorByDefault) {
  const auto coordinator = [](const ConfigSources& sources) {
    const Result<LoadedConfig> loaded = LoadConfig(sources);
    return loaded.ok() ? loaded->config.coordinator.address : loaded.status().text();
  };
  std::map<std::string, std::string> torchrun = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(coordinator(Environment(torchrun)), "tcp://127.0.0.1:29501");
  torchrun["MASTER_ADDR"] = "::1";
  EXPECT_EQ(coordinator(Environment(torchrun)), "tcp://[::1]:29501");
  torchrun["MASTER_PORT"] = "65535";
  EXPECT_THAT(coordinator(Environment(torchrun)), HasSubstr("MASTER_PORT"));
  torchrun["TALLY_SERVERS_ADDRESSES"] = "tcp://127.0.0.1:7070,tcp://127.0.0.1:7071";
  EXPECT_EQ(coordinator(Environment(torchrun)), "tcp://127.0.0.1:7070");
  torchrun["TALLY_COORDINATOR_ADDRESS"] = "tcp://127.0.0.1:9";
  EXPECT_EQ(coordinator(Environment(torchrun)), "tcp://127.0.0.1:9");
  EXPECT_EQ(coordinator(Overrides({"job.workers=1"})), "tcp://127.0.0.1:0");
}

TEST(Config, ModeByDefaultAndModeWithoutServers) {
  const Result<LoadedConfig> with_servers = LoadConfig(Overrides({"servers.addresses=tcp://127.0.0.1:7070"}));
  ASSERT_TRUE(with_servers.ok());
  EXPECT_EQ(with_servers->config.aggregation.mode, Mode::kPs);
  EXPECT_THAT(Fault(Overrides({"aggregation.mode=ps"})), HasSubstr("servers.addresses names none"));
  EXPECT_THAT(Fault(Overrides({"aggregation.mode=hybrid"})), HasSubstr("servers.addresses names none"));
  ConfigSources own = Overrides({"aggregation.mode=ps"});
  own.own_server = true;
  EXPECT_TRUE(LoadConfig(own).ok());
}

TEST(Config, OffLoopbackNeedsInsecure) {
  for (const char* setting :
       {"servers.addresses=tcp://10.0.0.1:7070", "coordinator.address=tcp://[2001:db8::1]:7", "worker.bind=0.0.0.0",
        "server.listen=tcp://0.0.0.0:7070", "server.data_bind=10.1.2.3"}) {
    EXPECT_THAT(Fault(Overrides({setting})), AllOf(HasSubstr("not on the loopback"), HasSubstr("--insecure")));
    EXPECT_TRUE(LoadConfig(Overrides({setting, "network.insecure=true"})).ok()) << setting;
  }
  EXPECT_THAT(Fault(Environment({{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}})),
              HasSubstr("MASTER_ADDR, MASTER_PORT + 1: coordinator.address"));
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"10.0.0.1", "0.0.0.0", "::", "*", "", "128.0.0.1", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

TEST(Config, AddressesAreChecked) {
  EXPECT_THAT(Fault(Overrides({"servers.addresses=127.0.0.1:7070"})), HasSubstr("expected tcp://host:port"));
  EXPECT_THAT(Fault(Overrides({"servers.addresses=tcp://127.0.0.1:0"})), HasSubstr("port 0"));
  EXPECT_THAT(Fault(Overrides({"servers.addresses=tcp://127.0.0.1:5,tcp://127.0.0.1:5"})), HasSubstr("stands twice"));
  EXPECT_THAT(Fault(Overrides({"server.listen=http://127.0.0.1:5"})), HasSubstr("tcp://host:port"));
}

TEST(Config, ValuesThatDoNotGoTogether) {
  EXPECT_THAT(Fault(Overrides({"membership.heartbeat=1s", "membership.dead=1s"})), HasSubstr("at least twice"));
  EXPECT_THAT(Fault(Overrides({"link.credit=64KiB", "link.frame=128KiB"})), HasSubstr("link.credit"));
  EXPECT_THAT(Fault(Overrides({"link.nic=a"})), HasSubstr("needs link.rate"));
  for (const char* ratio : {"0", "1.5", "-0.1", "nan", "inf", "", "0.1x"}) {
    EXPECT_THAT(Fault(Overrides({std::string("compression.ratio=") + ratio})), HasSubstr("a share in (0, 1]")) << ratio;
  }
}

TEST(Config, JobTextIsTheSameForAllSpellings) {
  const TempFile file("[bucket]\ncap = 1048576\n[compression]\nratio = 1\nexclude = [\"a\",\"b\"]\n[link]\nrate = 5\n");
  ConfigSources sources;
  sources.file = file.path();
  const Result<LoadedConfig> one = LoadConfig(sources);
  const Result<LoadedConfig> two = LoadConfig(Environment({{"TALLY_BUCKET_CAP", "1024 KiB"},
                                                           {"TALLY_COMPRESSION_RATIO", "1.00"},
                                                           {"TALLY_COMPRESSION_EXCLUDE", "a, b"},
                                                           {"TALLY_LOG_LEVEL", "debug"},
                                                           {"TALLY_AGGREGATION_MODE", "ring"}}));
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(one->job_text, two->job_text);
  EXPECT_EQ(one->job_digest, two->job_digest);
  EXPECT_THAT(one->job_text, AllOf(HasSubstr("[bucket]\ncap = \"1MiB\"\n"), Not(HasSubstr("[log]"))));

  const Result<LoadedConfig> other = LoadConfig(Overrides({"compression.codec=int8"}));
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->job_digest, one->job_digest);
}

TEST(JobConfig, RoundTrip) {
  const Result<LoadedConfig> loaded =
      LoadConfig(Overrides({"job.workers=3", "compression.codec=int8", "compression.exclude=x*", "step.timeout=3s",
                            "servers.addresses=tcp://127.0.0.1:7070", "log.level=debug"}));
  ASSERT_TRUE(loaded.ok());
  const Result<Config> parsed = ParseJobConfig(loaded->job_text);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->job.workers, 3u);
  EXPECT_EQ(parsed->aggregation.mode, Mode::kPs);
  EXPECT_EQ(parsed->compression.codec, "int8");
  EXPECT_EQ(parsed->compression.exclude, std::vector<std::string>{"x*"});
  EXPECT_EQ(parsed->step.timeout, std::chrono::seconds(3));
  EXPECT_EQ(parsed->log.level, "info");
}

TEST(JobConfig, HostileTextIsRefused) {
  for (const std::string& text :
       {std::string("[log]\nlevel = \"debug\""), std::string("[job]\nfoo = 1"), std::string("[job]\nworkers = \"x\""),
        std::string("x"), std::string("[job]\nworkers = [[[1]]]"), std::string(1 << 17, ' '),
        "a = " + std::string(60000, '['), std::string("[job]\nname = \"\xff\xfe\""), std::string("[job]\nworkers=-1"),
        std::string("[[job]]\nworkers=1"), std::string("[compression]\nratio = nan")}) {
    const Result<Config> parsed = ParseJobConfig(text);
    ASSERT_FALSE(parsed.ok()) << text.substr(0, 50);
    EXPECT_EQ(parsed.status().kind(), StatusKind::kCorrupt);
  }
}

TEST(JobConfig, DamagedTextNeverCrashes) {
  const Result<LoadedConfig> loaded = LoadConfig({});
  ASSERT_TRUE(loaded.ok());
  std::mt19937 random(7);
  for (std::size_t i = 0; i < 600; ++i) {
    std::string text = loaded->job_text;
    if (i % 2 == 1) text.resize(random() % text.size());
    for (int flips = 0; flips < 3 && !text.empty(); ++flips) text[random() % text.size()] = static_cast<char>(random());
    const Result<Config> parsed = ParseJobConfig(text);
    (void)parsed.ok();
    (void)DiffJobConfig(loaded->job_text, text);
  }
}

TEST(Config, CodecOptionsThatDoNotGoTogetherAreNamedWithAllElse) {
  const TempFile file("[aggregation]\nmode = \"ring\"\n[compression]\ncodec = \"int8\"\nwarmup = [0.5]\n"
                      "reply = \"union\"\n[membership]\ndead = \"1ms\"\n");
  ConfigSources sources;
  sources.file = file.path();
  const std::string text = Fault(sources);
  EXPECT_THAT(text, HasSubstr(file.path() + ":5: compression.warmup"));
  EXPECT_THAT(text, HasSubstr(file.path() + ":6: compression.reply"));
  EXPECT_THAT(text, HasSubstr(file.path() + ":8: membership.dead"));
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"compression.codec=topk", "compression.warmup=0.5"},
           {"compression.codec=topk", "compression.warmup_steps=5"},
           {"compression.codec=dgc", "compression.error_feedback=false"},
           {"compression.codec=randomk", "compression.randomk_scale=stratum"},
           {"compression.codec=int8_shared", "compression.scale=absmax"},
           {"compression.codec=int8_shared", "compression.rounding=stochastic"}}) {
    EXPECT_THAT(Fault(Overrides(wrong)), HasSubstr("compression.")) << wrong[1];
  }
}

TEST(JobConfig, DifferencesNameTheKeysWithBothValues) {
  const Result<LoadedConfig> ours = LoadConfig(Overrides({"compression.codec=int8", "compression.exclude=a,b"}));
  const Result<LoadedConfig> theirs = LoadConfig(Overrides({"bucket.cap=1MiB"}));
  ASSERT_TRUE(ours.ok() && theirs.ok());
  EXPECT_THAT(DiffJobConfig(ours->job_text, ours->job_text), ::testing::IsEmpty());
  EXPECT_THAT(DiffJobConfig(ours->job_text, theirs->job_text),
              ::testing::ElementsAre("bucket.cap: the job has \"25MiB\", the member \"1MiB\"",
                                     "compression.codec: the job has \"int8\", the member \"none\"",
                                     "compression.exclude: the job has [a,b], the member []"));
  EXPECT_THAT(DiffJobConfig(ours->job_text, "[job"), ::testing::SizeIs(1));
  EXPECT_THAT(DiffJobConfig("[job]\nnew = 1\n", ""), ::testing::ElementsAre("job.new: the job has 1, the member (absent)"));
}

TEST(Values, Bytes) {
  const std::pair<const char*, std::uint64_t> good[] = {{"0", 0},           {"65536", 65536},      {"25MiB", 25u << 20},
                                                        {"1.5GB", 1500000000}, {"1 KiB", 1024},    {"2kB", 2000},
                                                        {"2KB", 2000},         {"3MB", 3000000},   {"7B", 7},
                                                        {"18446744073709551615", UINT64_MAX}};
  for (const auto& [text, value] : good) {
    const Result<std::uint64_t> parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, value) << text;
  }
  for (const char* text : {"", "x", "-1", "1Mb", "1.5", "0.1KiB", "1e3", "1..2MiB", ".5MiB", "5.MiB", "99999999TiB",
                           "+1", " 1", "1  KiB", "18446744073709551616", "nan"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(Values, RateAndDuration) {
  EXPECT_EQ(*ParseRate("1gbit"), 1e9);
  EXPECT_EQ(*ParseRate("2.5gbit"), 2.5e9);
  EXPECT_EQ(*ParseRate("100mbit"), 1e8);
  EXPECT_EQ(*ParseRate("10kbit"), 1e4);
  EXPECT_EQ(*ParseRate("1000000"), 1e6);
  for (const char* text : {"", "1GB", "-1gbit", "inf", "1gbits"}) EXPECT_FALSE(ParseRate(text).ok()) << text;
  EXPECT_EQ(*ParseDuration("200ms"), std::chrono::milliseconds(200));
  EXPECT_EQ(*ParseDuration("5s"), std::chrono::seconds(5));
  EXPECT_EQ(*ParseDuration("2min"), std::chrono::minutes(2));
  EXPECT_EQ(*ParseDuration("50us"), std::chrono::microseconds(50));
  EXPECT_EQ(*ParseDuration("1.5s"), std::chrono::milliseconds(1500));
  for (const char* text : {"", "5", "5m", "-5s", "s", "1e9s", "99999999999999h"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
}

}  // namespace
}  // namespace tally
