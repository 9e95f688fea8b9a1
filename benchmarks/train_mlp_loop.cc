#include "benchmarks/train_mlp_loop.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace tally::mlp {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::size_t kCurveStride = 5;  // 2,000 of the 10,000 test pictures for a point of the curve

SteadyTime Now() { return std::chrono::steady_clock::now(); }
double Seconds(SteadyTime from, SteadyTime to) { return std::chrono::duration<double>(to - from).count(); }

std::vector<TensorSpec> TensorSpecs() {
  std::vector<TensorSpec> specs;
  for (std::size_t t = 0; t < kTensors; ++t) {
    specs.push_back({TensorName(t), ElementCount{TensorSize(t)}, DType::kFloat32, TensorShape(t)});
  }
  return specs;
}

// A bucket per layer, last layer first; the last one is a few KB and goes with the one before it.
std::vector<std::vector<std::string>> LayerBuckets() {
  std::vector<std::vector<std::string>> buckets(kLayers - 1);
  for (std::size_t layer = kLayers; layer-- > 0;) {
    auto& bucket = buckets[kLayers - 2 - std::min(layer, kLayers - 2)];
    bucket.push_back(TensorName(2 * layer));
    bucket.push_back(TensorName(2 * layer + 1));
  }
  return buckets;
}

// Submits a bucket when the last of its tensors has been produced.
class BucketFeeder {
 public:
  explicit BucketFeeder(Group& group) : group_(group), missing_(group.bucket_count()) {}

  void StartStep() {
    for (std::uint32_t b = 0; b < missing_.size(); ++b) missing_[b] = group_.bucket(BucketId{b}).size();
    status_ = Status::Ok();
  }
  void Produced(std::size_t tensor) {
    const BucketId bucket = group_.bucket_of(static_cast<std::uint32_t>(tensor));
    if (--missing_[bucket.value] > 0 || !status_.ok()) return;
    status_ = group_.Submit(bucket).status();
  }
  const Status& status() const { return status_; }

 private:
  Group& group_;
  std::vector<std::size_t> missing_;
  Status status_;
};

std::array<std::span<float>, kTensors> Inputs(Group& group) {
  std::array<std::span<float>, kTensors> inputs;
  for (std::uint32_t t = 0; t < kTensors; ++t) inputs[t] = group.Input(t);
  return inputs;
}

// Exchanges the last gradient `times` times in a group of its own, whose residuals are its own too; median in ms.
Result<double> LoneExchanges(Client& client, Group& trained, const GroupOptions& like, std::uint64_t times) {
  GroupOptions options = like;
  options.name = "lone";
  const std::vector<TensorSpec> specs = TensorSpecs();
  TALLY_ASSIGN_OR_RETURN(Group* const group, client.DeclareGroup(specs, options));
  for (std::uint32_t t = 0; t < kTensors; ++t) {
    const std::span<float> from = trained.Input(t), to = group->Input(t);
    std::copy(from.begin(), from.end(), to.begin());
  }
  std::vector<StepTime> spans;
  for (std::uint64_t i = 0; i < times + kWarmUpSteps; ++i) {
    TALLY_RETURN_IF_ERROR(client.Barrier());
    const SteadyTime start = Now();
    for (std::uint32_t b = 0; b < group->bucket_count(); ++b) {
      TALLY_RETURN_IF_ERROR(group->Submit(BucketId{b}).status());
    }
    TALLY_RETURN_IF_ERROR(group->EndStep().status());
    spans.push_back({.total = Seconds(start, Now())});
  }
  return MedianAfterWarmUp(spans, &StepTime::total) * 1e3;
}

}  // namespace

Result<TrainRecord> Train(Client& client, Mlp& model, const Dataset& shard, const Dataset& test,
                          const TrainOptions& options) {
  const std::vector<TensorSpec> specs = TensorSpecs();
  GroupOptions group_options;
  if (options.own_buckets) group_options.buckets = LayerBuckets();
  TALLY_ASSIGN_OR_RETURN(Group* const group, client.DeclareGroup(specs, group_options));
  const std::array<std::span<float>, kTensors> gradients = Inputs(*group);
  BucketFeeder feeder(*group);
  const std::uint32_t rank = client.rank().value;

  TrainRecord record;
  record.rank = rank;
  record.workers = client.workers();
  record.servers = client.servers();
  record.exchange = client.Describe();
  record.seed = options.seed;
  record.batch = options.batch;
  record.lr = options.lr;
  record.momentum = options.momentum;
  record.target = options.target;
  record.exchanges = options.steps + (options.lone_exchanges > 0 ? options.lone_exchanges + kWarmUpSteps : 0);
  for (const TensorSpec& spec : specs) record.tensor_elements.push_back(spec.elements.value);
  for (std::uint32_t b = 0; b < group->bucket_count(); ++b) {
    const std::span<const std::uint32_t> bucket = group->bucket(BucketId{b});
    record.buckets.emplace_back(bucket.begin(), bucket.end());
  }

  const auto lr = static_cast<float>(options.lr), momentum = static_cast<float>(options.momentum);
  const ClientStats before = client.stats();
  double trained_s = 0, last_losses = 0, loss = 0;
  Batch batch;
  const auto evaluate = [&](std::uint64_t steps_done) {
    const Score score = model.Evaluate(test, kCurveStride);
    record.curve.push_back({trained_s, steps_done, score.accuracy});
    if (options.target > 0 && score.accuracy >= options.target && record.time_to_target_s < 0) {
      record.time_to_target_s = trained_s;
    }
    if (!options.on_progress) return;
    std::array<char, 128> line{};
    std::snprintf(line.data(), line.size(), "step %llu/%llu  loss %.3f  test accuracy %.1f %%",
                  static_cast<unsigned long long>(steps_done), static_cast<unsigned long long>(options.steps), loss,
                  score.accuracy * 100);
    options.on_progress(line.data());
  };

  TALLY_RETURN_IF_ERROR(client.Barrier());
  for (std::uint64_t step = 0; step < options.steps; ++step) {
    const SteadyTime start = Now();
    DrawBatch(shard, options.seed, rank, step, options.batch, batch);
    feeder.StartStep();
    loss = model.Backward(batch, gradients, [&](std::size_t layer) {
      feeder.Produced(2 * layer);
      feeder.Produced(2 * layer + 1);
    });
    TALLY_RETURN_IF_ERROR(feeder.status());
    const SteadyTime computed = Now();
    TALLY_ASSIGN_OR_RETURN(const StepResult result, group->EndStep());
    const SteadyTime delivered = Now();
    if (result.outcome == Outcome::kCommitted) {
      for (std::uint32_t t = 0; t < kTensors; ++t) model.Update(t, group->Output(t), lr, momentum);
    } else {
      ++record.skipped;
    }
    const SteadyTime end = Now();
    record.times.push_back({.total = Seconds(start, end),
                            .compute = Seconds(start, computed) + Seconds(delivered, end),
                            .exposed = Seconds(computed, delivered)});
    trained_s += record.times.back().total;
    if (step >= options.steps - options.steps / 10) last_losses += loss;
    if (options.on_gradients) options.on_gradients(step, gradients);

    if (options.eval_every > 0 && (step + 1) % options.eval_every == 0) {
      if (rank == 0) evaluate(step + 1);
      TALLY_RETURN_IF_ERROR(client.Barrier());
    }
  }
  record.steps = options.steps;
  const std::uint64_t averaged = options.steps / 10;
  record.train_loss = averaged > 0 ? last_losses / static_cast<double>(averaged) : loss;

  const ClientStats after = client.stats();
  if (options.steps > 0) {
    const auto per_step = [&](std::uint64_t total) { return static_cast<double>(total) / static_cast<double>(options.steps); };
    record.sent_bytes_per_step = per_step(after.bytes_sent - before.bytes_sent);
    record.received_bytes_per_step = per_step(after.bytes_received - before.bytes_received);
  }
  record.residual_bytes = after.residual_bytes;
  record.comm_cpu_s = after.engine_cpu_s - before.engine_cpu_s;
  record.weights_sha256 = model.Sha256();

  if (rank == 0 && test.size() > 0) {
    const Score score = model.Evaluate(test);
    record.test_loss = score.loss;
    record.test_accuracy = score.accuracy;
  }
  if (options.lone_exchanges > 0) {
    TALLY_ASSIGN_OR_RETURN(record.lone_comm_ms, LoneExchanges(client, *group, group_options, options.lone_exchanges));
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  record.process_cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  record.peak_rss_mb = static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
  return record;
}

}  // namespace tally::mlp
