#include "benchmarks/gates/training_run.h"

#include <array>
#include <nlohmann/json.hpp>

#include "benchmarks/gates/simulated_exchange.h"
#include "benchmarks/mlp/model.h"
#include "compress/codec.h"

namespace tally::gates {
namespace {

constexpr std::size_t kCurveStride = 5;  // 2,000 of the 10,000 test pictures for a point of the curve

mlp::Dataset Rows(const mlp::Dataset& data, mlp::Range range) {
  const auto at = [](const auto& values, std::size_t index) {
    return values.begin() + static_cast<std::ptrdiff_t>(index);
  };
  mlp::Dataset part;
  part.pixels.assign(at(data.pixels, range.begin * mlp::kInputs), at(data.pixels, range.end * mlp::kInputs));
  part.labels.assign(at(data.labels, range.begin), at(data.labels, range.end));
  return part;
}

std::vector<TensorSpec> TensorSpecs() {
  std::vector<TensorSpec> specs;
  for (std::size_t t = 0; t < mlp::kTensors; ++t) {
    specs.push_back({mlp::TensorName(t), ElementCount{mlp::TensorSize(t)}, DType::kFloat32, mlp::TensorShape(t)});
  }
  return specs;
}

}  // namespace

Result<TrainingData> LoadTrainingData(std::uint32_t workers, const std::string& folder) {
  TrainingData data;
  TALLY_ASSIGN_OR_RETURN(const mlp::Dataset all, LoadFashionMnist(mlp::Split::kTrain, 0, 1, folder));
  if (workers == 0 || workers > all.size()) {
    return InvalidArgument(std::to_string(workers) + " workers for " + std::to_string(all.size()) + " pictures");
  }
  for (std::uint32_t w = 0; w < workers; ++w) data.shards.push_back(Rows(all, mlp::ShardOf(all.size(), w, workers)));
  TALLY_ASSIGN_OR_RETURN(data.test, LoadFashionMnist(mlp::Split::kTest, 0, 1, folder));
  return data;
}

nlohmann::json ToJson(const TrainingResult& result) {
  return {{"codec", result.codec},       {"error_feedback", result.error_feedback},
          {"workers", result.workers},   {"seed", result.seed},
          {"steps", result.steps},       {"push_bytes", result.push_bytes},
          {"accuracy", result.accuracy}, {"reply_bytes", result.reply_bytes},
          {"loss", result.loss},         {"curve", result.curve}};
}

Result<TrainingResult> TrainingResultFromJson(const nlohmann::json& json) {
  try {
    TrainingResult result;
    json.at("codec").get_to(result.codec);
    json.at("error_feedback").get_to(result.error_feedback);
    json.at("workers").get_to(result.workers);
    json.at("seed").get_to(result.seed);
    json.at("steps").get_to(result.steps);
    json.at("push_bytes").get_to(result.push_bytes);
    json.at("reply_bytes").get_to(result.reply_bytes);
    json.at("accuracy").get_to(result.accuracy);
    json.at("loss").get_to(result.loss);
    json.at("curve").get_to(result.curve);
    return result;
  } catch (const nlohmann::json::exception& error) {
    return Corrupt(std::string("a row of results: ") + error.what());
  }
}

Result<TrainingResult> RunTraining(const TrainingData& data, const TrainingJob& job,
                                   const cli::CodecSetting& setting, std::uint64_t seed,
                                   const std::function<bool()>& stopped) {
  const std::vector<TensorSpec> specs = TensorSpecs();
  const auto workers = static_cast<std::uint32_t>(data.shards.size());
  TALLY_ASSIGN_OR_RETURN(const auto exchange, SimulatedExchange::Make(specs, workers, setting.compression));
  std::array<std::span<float>, mlp::kTensors> gradients;
  for (std::uint32_t t = 0; t < mlp::kTensors; ++t) gradients[t] = exchange->Input(t);

  TrainingResult result{.codec = setting.text,
                        .error_feedback = setting.compression.error_feedback,
                        .workers = workers,
                        .seed = seed,
                        .steps = job.steps};
  const auto lr = static_cast<float>(job.lr);
  TALLY_ASSIGN_OR_RETURN(const CodecTraits traits, TraitsOfCodec(setting.compression.codec, setting.compression));
  const float momentum = traits.momentum ? 0.0f : static_cast<float>(job.momentum);  // else the codec has its own
  mlp::Mlp model(seed);  // one for all workers: they would hold the same bits
  mlp::Batch batch;
  for (std::uint64_t step = 0; step < job.steps; ++step) {
    if (stopped && stopped()) return Unavailable("stopped");
    for (std::uint32_t worker = 0; worker < workers; ++worker) {
      mlp::DrawBatch(data.shards[worker], seed, worker, step, job.batch, batch);
      model.Backward(batch, gradients, [](std::size_t) {});
      TALLY_RETURN_IF_ERROR(exchange->Push(worker));
    }
    TALLY_RETURN_IF_ERROR(exchange->EndStep());
    for (std::uint32_t t = 0; t < mlp::kTensors; ++t) model.Update(t, exchange->Output(t), lr, momentum);
    if (job.eval_every > 0 && (step + 1) % job.eval_every == 0) {
      result.curve.emplace_back(step + 1, model.Evaluate(data.test, kCurveStride).accuracy);
    }
  }
  const mlp::Score score = model.Evaluate(data.test);
  result.accuracy = score.accuracy;
  result.loss = score.loss;
  result.push_bytes = exchange->push_bytes();
  result.reply_bytes = exchange->reply_bytes();
  return result;
}

}  // namespace tally::gates
