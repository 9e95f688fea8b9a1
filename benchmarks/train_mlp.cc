// train_mlp: one worker of a data-parallel training job (Fashion-MNIST, a five-layer network) on Tally's client library
// alone. Rank and world come from the launcher's variables: tally run -n 4 -- train_mlp --steps 400
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "benchmarks/gradient_recorder.h"
#include "benchmarks/train_mlp_loop.h"
#include "common/allocator.h"
#include "common/config/launcher_variables.h"

namespace tally::mlp {
namespace {

struct Options {
  TrainOptions train;
  ConfigSources config;
  std::string data = kFashionMnistFolder;
  std::string json, bits_out;
  RecordOptions record;
  bool print_sha256 = false;
};

std::string ForRank(std::string path, std::uint32_t rank) {
  const std::string placeholder = "{rank}";
  if (const std::size_t at = path.find(placeholder); at != std::string::npos) {
    path.replace(at, placeholder.size(), std::to_string(rank));
  }
  return path;
}

Status WriteFile(const std::string& path, const std::function<void(std::ostream&)>& write) {
  errno = 0;
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  write(out);
  out.close();
  if (!out) return Unavailable(path + ": " + (errno != 0 ? std::strerror(errno) : "cannot be written"));
  return Status::Ok();
}

Status WriteResults(const Options& options, const Mlp& model, const TrainRecord& record) {
  const auto mine = [&](const std::string& path) { return record.rank == 0 || path.find("{rank}") != std::string::npos; };
  if (!options.json.empty() && mine(options.json)) {
    TALLY_RETURN_IF_ERROR(WriteFile(ForRank(options.json, record.rank),
                                    [&](std::ostream& out) { out << ToJson(record).dump(2) << "\n"; }));
  }
  if (!options.bits_out.empty() && mine(options.bits_out)) {
    TALLY_RETURN_IF_ERROR(WriteFile(ForRank(options.bits_out, record.rank), [&](std::ostream& out) {
      for (std::size_t t = 0; t < kTensors; ++t) {
        const auto bytes = std::as_bytes(model.parameter(t));
        out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      }
    }));
  }
  if (options.print_sha256) std::printf("%s\n", record.weights_sha256.c_str());
  return Status::Ok();
}

Status Run(Options& options) {
  options.config.environment = ProcessEnvironment();
  if (options.config.file.empty()) {
    const auto given = options.config.environment.find(kConfigFileVariable);
    if (given != options.config.environment.end()) options.config.file = given->second;
  }
  TALLY_ASSIGN_OR_RETURN(const LoadedConfig config, LoadConfig(options.config));
  for (const ConfigEntry& entry : config.entries) {
    if (entry.name == "bucket.cap" && entry.origin != "default") options.train.own_buckets = false;
  }
  // The data comes before the job: a rank that cannot read it never makes the others wait.
  const std::uint32_t rank = config.config.worker.rank, workers = std::max(config.config.job.workers, 1u);
  TALLY_ASSIGN_OR_RETURN(const Dataset shard, LoadFashionMnist(Split::kTrain, rank, workers, options.data));
  if (shard.size() == 0) return InvalidArgument("more workers than training pictures");
  Dataset test;
  if (rank == 0) {
    TALLY_ASSIGN_OR_RETURN(test, LoadFashionMnist(Split::kTest, 0, 1, options.data));
    options.train.on_progress = [](std::string_view line) {
      std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
    };
  }
  if (config.config.compression.codec == "dgc") options.train.momentum = 0;  // it has a momentum of its own
  std::optional<GradientRecorder> recorder;
  if (rank == 0 && !options.record.file.empty()) {
    TALLY_ASSIGN_OR_RETURN(recorder, GradientRecorder::Make(options.record, options.train.steps));
    options.train.on_gradients = [&](std::uint64_t step, const auto& gradients) { recorder->Take(step, gradients); };
  }
  TALLY_ASSIGN_OR_RETURN(const auto client, Client::Join(config));
  Mlp model(options.train.seed);
  TALLY_ASSIGN_OR_RETURN(const TrainRecord record, Train(*client, model, shard, test, options.train));
  TALLY_RETURN_IF_ERROR(client->Leave());
  if (recorder) {
    const std::vector<std::byte> bytes = recorder->Bytes();
    TALLY_RETURN_IF_ERROR(WriteFile(options.record.file, [&](std::ostream& out) {
      out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }));
  }
  return WriteResults(options, model, record);
}

int Main(int argc, char** argv) {
  KeepLargeBlocks();
  Options options;
  CLI::App app("One worker of a data-parallel training job: Fashion-MNIST, a five-layer network, SGD with momentum.");
  app.add_option("--steps", options.train.steps, "Steps")->capture_default_str();
  app.add_option("--seed", options.train.seed, "Seed of weights and batches")->capture_default_str();
  app.add_option("--lr", options.train.lr, "Learning rate")->capture_default_str();
  app.add_option("--momentum", options.train.momentum, "Momentum")->capture_default_str();
  app.add_option("--batch", options.train.batch, "Pictures per worker and step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--eval-every", options.train.eval_every, "Steps between points of the accuracy curve; 0 = none")
      ->capture_default_str();
  app.add_option("--target", options.train.target, "Test accuracy whose time is reported, e.g. 0.8")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--lone-exchanges", options.train.lone_exchanges,
                 "After training, time this many exchanges of a gradient with no computation beside them");
  app.add_option("--data", options.data, "Folder of Debian's package dataset-fashion-mnist")->capture_default_str();
  app.add_option("--json", options.json, "Write what was measured; {rank} gives every rank a file, else rank 0 writes")
      ->type_name("FILE");
  app.add_option("--bits-out", options.bits_out, "Write the final weights' bytes; {rank} as above")->type_name("FILE");
  app.add_option("--record-gradients", options.record.file,
                 "Write rank 0's own gradients of some steps, for tally explain")
      ->type_name("FILE");
  app.add_option("--record-from", options.record.from, "First step that is recorded")->capture_default_str();
  app.add_option("--record-steps", options.record.steps, "Steps that are recorded")->capture_default_str();
  app.add_option("--record-tensor", options.record.tensor, "Only this tensor, e.g. fc1.weight");
  app.add_option("--record-rows", options.record.rows, "Only the first rows of a tensor; 0 = all");
  app.add_flag("--record-half", options.record.half, "Record fp16 values");
  app.add_flag("--weights-sha256", options.print_sha256, "Print the SHA-256 of the final weights");
  app.add_option("--config", options.config.file, "The job's TOML file")->type_name("FILE");
  app.add_option("--set", options.config.overrides, "Override one setting; repeatable")
      ->type_name("SECTION.KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);
  app.footer("Example:\n  tally run -n 4 -- train_mlp --steps 400 --set aggregation.mode=ring");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : ExitCode(StatusKind::kInvalidArgument);
  }
  const Status status = Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "train_mlp: %s\n", status.ToString().c_str());
  return ExitCode(status.kind());
}

}  // namespace
}  // namespace tally::mlp

int main(int argc, char** argv) { return tally::mlp::Main(argc, argv); }
