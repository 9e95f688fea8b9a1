// Jobs whose ranks go by the C interface alone: means, votes, collectives, errors with their text, strided memory, state.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cluster.h"
#include "worker/c_api/tally.h"

namespace tally::test {
namespace {

constexpr std::uint64_t kRows = 5, kColumns = 7, kElements = kRows * kColumns;

// A rank's failure is its text; "" if all went well.
using Body = std::function<std::string(tally_client*, std::uint32_t rank)>;

#define C_OK(call)                                                                              \
  do {                                                                                          \
    if (const tally_status failed = (call); failed != TALLY_OK) {                               \
      return std::string(#call) + ": " + tally_status_name(failed) + ": " + tally_last_error(); \
    }                                                                                           \
  } while (false)

#define C_HOLDS(condition) \
  do {                     \
    if (!(condition)) return std::string("not so: ") + #condition; \
  } while (false)

std::vector<std::string> RunJob(const ClusterOptions& options, const Body& body) {
  TestCluster cluster(options);
  std::vector<std::string> failures(options.workers);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < options.workers; ++rank) {
    threads.emplace_back([&, rank] {
      const auto run = [&]() -> std::string {
        const std::vector<std::string> texts = cluster.WorkerSettings(rank);
        std::vector<const char*> settings;
        for (const std::string& text : texts) settings.push_back(text.c_str());
        auto join = TALLY_INIT(tally_join_options);
        join.settings = settings.data();
        join.settings_count = settings.size();
        tally_client* client = nullptr;
        C_OK(tally_join(&join, &client));
        const std::string failure = body(client, rank);
        tally_close(client);
        return failure;
      };
      failures[rank] = run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

ClusterOptions Job(std::uint32_t workers, std::uint32_t servers, const char* mode) {
  ClusterOptions options;
  options.workers = workers;
  options.servers = servers;
  options.settings = {std::string("aggregation.mode=") + mode};
  return options;
}

void ExpectAll(const std::vector<std::string>& failures) {
  for (std::size_t rank = 0; rank < failures.size(); ++rank) EXPECT_EQ(failures[rank], "") << "rank " << rank;
}

constexpr std::uint64_t kShape[] = {kRows, kColumns};
constexpr std::uint64_t kFlat[] = {11};

// "matrix" of 5 x 7 and "vector" of 11, each in a bucket of its own.
std::string Declare(tally_client* client, tally_group** group, tally_dtype dtype = TALLY_FLOAT32) {
  tally_tensor tensors[2] = {TALLY_INIT(tally_tensor), TALLY_INIT(tally_tensor)};
  tensors[0].name = "matrix";
  tensors[0].dimensions = 2;
  tensors[0].shape = kShape;
  tensors[1].name = "vector";
  tensors[1].dimensions = 1;
  tensors[1].shape = kFlat;
  tensors[0].dtype = tensors[1].dtype = dtype;
  const std::uint32_t sizes[] = {1, 1}, members[] = {0, 1};
  auto options = TALLY_INIT(tally_group_options);
  options.bucket_sizes = sizes;
  options.bucket_tensors = members;
  options.bucket_count = 2;
  C_OK(tally_declare_group(client, tensors, 2, &options, group));
  return "";
}

tally_array Array(void* data, std::uint32_t dimensions, const std::uint64_t* shape, const std::int64_t* strides = nullptr) {
  auto array = TALLY_INIT(tally_array);
  array.data = data;
  array.dimensions = dimensions;
  array.shape = shape;
  array.strides = strides;
  return array;
}

float Value(std::uint32_t rank, std::uint64_t row, std::uint64_t column) {
  return static_cast<float>((rank + 1) * (row * 10 + column));
}

std::string CheckMatrix(tally_group* group, float factor) {
  const void* data = nullptr;
  size_t bytes = 0;
  C_OK(tally_output(group, 0, &data, &bytes));
  C_HOLDS(bytes == kElements * sizeof(float));
  for (std::uint64_t i = 0; i < kElements; ++i) {
    const float expected = factor * Value(0, i / kColumns, i % kColumns);
    const float got = static_cast<const float*>(data)[i];
    if (got != expected) {
      return "element " + std::to_string(i) + ": " + std::to_string(got) + ", expected " + std::to_string(expected);
    }
  }
  return "";
}

// In place, own memory, transposed, with gaps, backwards, misaligned: the same mean.
TEST(CApi, TakesMemoryOfAnyLayout) {
  for (const char* mode : {"ps", "ring"}) {
    const bool ps = std::strcmp(mode, "ps") == 0;
    ExpectAll(RunJob(Job(3, ps ? 1U : 0U, mode), [](tally_client* client, std::uint32_t rank) {
      const auto run = [&]() -> std::string {
        C_HOLDS(tally_rank(client) == rank && tally_size(client) == 3 && tally_local_rank(client) == rank);
        tally_group* group = nullptr;
        if (std::string failed = Declare(client, &group); !failed.empty()) return failed;
        std::vector<float> memory(4 * kElements + 1);
        for (int layout = 0; layout < 6; ++layout) {
          std::vector<std::int64_t> strides;
          auto* data = memory.data();
          char* base = reinterpret_cast<char*>(memory.data());
          switch (layout) {
            case 0: strides = {}; break;
            case 1: strides = {kColumns, 1}; break;
            case 2: strides = {1, kRows}; break;
            case 3: strides = {2 * kColumns + 1, 2}; break;
            case 4: strides = {-static_cast<std::int64_t>(kColumns), -1}; data += kElements - 1; break;
            default: base += 1; strides = {kColumns, 1};
          }
          char* first = layout == 5 ? base : reinterpret_cast<char*>(data);
          for (std::uint64_t i = 0; i < kRows; ++i) {
            for (std::uint64_t j = 0; j < kColumns; ++j) {
              const std::int64_t at = strides.empty() ? static_cast<std::int64_t>(i * kColumns + j)
                                                      : static_cast<std::int64_t>(i) * strides[0] +
                                                            static_cast<std::int64_t>(j) * strides[1];
              const float value = Value(rank, i, j);
              std::memcpy(first + at * static_cast<std::int64_t>(sizeof value), &value, sizeof value);
            }
          }
          const tally_array array = Array(first, 2, kShape, strides.empty() ? nullptr : strides.data());
          tally_ticket* ticket = nullptr;
          C_OK(tally_submit(group, 0, &array, 1, &ticket));
          C_OK(tally_wait(ticket));
          int done = 0;
          C_OK(tally_test(ticket, &done));
          tally_ticket_free(ticket);
          C_HOLDS(done == 1);
          auto result = TALLY_INIT(tally_step_result);
          C_OK(tally_end_step(group, TALLY_COMMIT, &result));
          C_HOLDS(result.committed == 1 && result.step == static_cast<std::uint64_t>(layout));
          if (std::string failed = CheckMatrix(group, 2); !failed.empty()) {
            return "layout " + std::to_string(layout) + ": " + failed;
          }
        }
        // The library's own memory again, after the caller's.
        void* own = nullptr;
        size_t bytes = 0;
        C_OK(tally_input(group, 0, &own, &bytes));
        for (std::uint64_t i = 0; i < kElements; ++i) {
          static_cast<float*>(own)[i] = 3 * Value(rank, i / kColumns, i % kColumns);
        }
        C_OK(tally_submit(group, 0, nullptr, 0, nullptr));
        C_OK(tally_end_step(group, TALLY_COMMIT, nullptr));
        return CheckMatrix(group, 6);
      };
      return run();
    }));
  }
}

TEST(CApi, RefusesWhatItWouldMisread) {
  ExpectAll(RunJob(Job(1, 0, "ring"), [](tally_client* client, std::uint32_t) {
    const auto run = [&]() -> std::string {
      tally_group* group = nullptr;
      if (std::string failed = Declare(client, &group); !failed.empty()) return failed;
      std::vector<float> memory(kElements);
      const auto refused = [&](tally_array array, tally_status with, const char* text) {
        const tally_status status = tally_submit(group, 0, &array, 1, nullptr);
        return status == with && std::strstr(tally_last_error(), text) != nullptr;
      };
      const std::uint64_t turned[] = {kColumns, kRows}, larger[] = {kElements + 1};
      C_HOLDS(refused(Array(memory.data(), 2, turned), TALLY_INVALID_ARGUMENT, "expected shape 5x7, got 7x5"));
      C_HOLDS(refused(Array(memory.data(), 1, larger), TALLY_INVALID_ARGUMENT, "got 36"));
      C_HOLDS(refused(Array(nullptr, 2, kShape), TALLY_INVALID_ARGUMENT, "data"));
      tally_array array = Array(memory.data(), 2, kShape);
      array.dtype = TALLY_FLOAT64;
      C_HOLDS(refused(array, TALLY_INVALID_ARGUMENT, "expected fp32"));
      array.dtype = 77;
      C_HOLDS(refused(array, TALLY_INVALID_ARGUMENT, "dtype 77"));
      array = Array(memory.data(), 2, kShape);
      array.device = TALLY_CUDA;
      C_HOLDS(refused(array, TALLY_UNSUPPORTED, "host memory"));
      array = Array(memory.data(), 17, kShape);
      C_HOLDS(refused(array, TALLY_INVALID_ARGUMENT, "17 dimensions"));
      array = Array(memory.data(), 2, kShape);
      array.struct_size = 0;
      C_HOLDS(refused(array, TALLY_INVALID_ARGUMENT, "TALLY_INIT"));
      C_HOLDS(tally_submit(group, 2, nullptr, 0, nullptr) == TALLY_INVALID_ARGUMENT);
      C_HOLDS(tally_keep(group, 9) == TALLY_INVALID_ARGUMENT);
      C_HOLDS(tally_set_weight(group, NAN) == TALLY_INVALID_ARGUMENT);
      C_HOLDS(tally_end_step(group, 7, nullptr) == TALLY_INVALID_ARGUMENT);
      C_HOLDS(tally_submit(nullptr, 0, nullptr, 0, nullptr) == TALLY_INVALID_ARGUMENT);
      // Nothing was handed over by all that.
      for (std::uint64_t i = 0; i < kElements; ++i) memory[i] = Value(0, i / kColumns, i % kColumns);
      array = Array(memory.data(), 2, kShape);
      C_OK(tally_submit(group, 0, &array, 1, nullptr));
      C_HOLDS(refused(array, TALLY_INVALID_ARGUMENT, "submitted"));
      C_OK(tally_end_step(group, TALLY_COMMIT, nullptr));
      return CheckMatrix(group, 1);
    };
    return run();
  }));
}

// A struct of an older, shorter program is taken; one that says what this library does not know is not.
TEST(CApi, StructsMayBeOlderButNotSayMore) {
  struct Newer {
    tally_join_options known;
    std::uint64_t unknown;
  };
  Newer newer = {TALLY_INIT(tally_join_options), 1};
  newer.known.struct_size = sizeof newer;
  tally_client* client = nullptr;
  EXPECT_EQ(tally_join(&newer.known, &client), TALLY_UNSUPPORTED);
  EXPECT_NE(std::string(tally_last_error()).find("newer"), std::string::npos);
  const char* wrong[] = {"aggregation.mod=ring"};
  newer.unknown = 0;
  newer.known.settings = wrong;
  newer.known.settings_count = 1;
  EXPECT_EQ(tally_join(&newer.known, &client), TALLY_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tally_last_error()).find("aggregation.mode"), std::string::npos) << tally_last_error();
  EXPECT_EQ(client, nullptr);
  ExpectAll(RunJob(Job(1, 0, "ring"), [](tally_client* joined, std::uint32_t) -> std::string {
    auto stats = TALLY_INIT(tally_stats);
    stats.struct_size = offsetof(tally_stats, steps_committed);
    stats.steps_committed = 4711;
    C_OK(tally_get_stats(joined, &stats));
    C_HOLDS(stats.steps_committed == 4711);  // beyond what the caller has room for
    return "";
  }));
}

TEST(CApi, VotesStateAndHalves) {
  ExpectAll(RunJob(Job(2, 0, "ring"), [](tally_client* client, std::uint32_t rank) {
    const auto run = [&]() -> std::string {
      tally_group* group = nullptr;
      if (std::string failed = Declare(client, &group, TALLY_BFLOAT16); !failed.empty()) return failed;
      void* own = nullptr;
      size_t bytes = 0;
      C_OK(tally_input(group, 1, &own, &bytes));
      C_HOLDS(bytes == 22);
      for (int i = 0; i < 11; ++i) static_cast<std::uint16_t*>(own)[i] = rank == 0 ? 0x3F80 : 0x4040;  // 1 and 3
      C_OK(tally_submit(group, 1, nullptr, 0, nullptr));
      auto result = TALLY_INIT(tally_step_result);
      C_OK(tally_end_step(group, TALLY_COMMIT, &result));
      C_HOLDS(result.committed == 1);
      const void* out = nullptr;
      C_OK(tally_output(group, 1, &out, &bytes));
      C_HOLDS(bytes == 22 && static_cast<const std::uint16_t*>(out)[10] == 0x4000);
      const float* numbers = nullptr;
      size_t elements = 0;
      C_OK(tally_output_float(group, 1, &numbers, &elements));
      C_HOLDS(elements == 11 && numbers[0] == 2);
      C_OK(tally_end_step(group, rank == 1 ? TALLY_SKIP : TALLY_COMMIT, &result));
      C_HOLDS(result.committed == 0 && std::string(result.reason) == "rank 1 voted skip");
      void* state = nullptr;
      C_OK(tally_export_state(group, &state, &bytes));
      C_HOLDS(tally_import_state(group, state, bytes - 1) == TALLY_CORRUPT);
      C_OK(tally_import_state(group, state, bytes));
      tally_free(state);
      C_OK(tally_end_step(group, TALLY_COMMIT, &result));
      C_HOLDS(result.committed == 1 && tally_step(group) == 3);
      return "";
    };
    return run();
  }));
}

TEST(CApi, Collectives) {
  ExpectAll(RunJob(Job(3, 0, "ring"), [](tally_client* client, std::uint32_t rank) {
    const auto run = [&]() -> std::string {
      std::int64_t number = 1 << rank;
      C_OK(tally_all_reduce(client, &number, 1, TALLY_INT64, TALLY_OR));
      C_HOLDS(number == 7);
      double place = rank;
      C_OK(tally_broadcast(client, &place, 1, TALLY_FLOAT64, 2));
      C_HOLDS(place == 2);
      const std::int32_t mine = static_cast<std::int32_t>(rank) - 1;
      std::int32_t all[3] = {};
      C_OK(tally_all_gather(client, &mine, 1, TALLY_INT32, all));
      C_HOLDS(all[0] == -1 && all[1] == 0 && all[2] == 1);
      std::int32_t part = 0;
      C_OK(tally_reduce_scatter(client, all, 1, TALLY_INT32, TALLY_SUM, &part));
      C_HOLDS(part == 3 * mine);
      C_HOLDS(tally_all_reduce(client, &number, 1, TALLY_INT64, 8) == TALLY_INVALID_ARGUMENT);
      C_HOLDS(tally_all_gather(client, &mine, SIZE_MAX, TALLY_INT32, all) == TALLY_INVALID_ARGUMENT);
      C_OK(tally_barrier(client));
      C_OK(tally_leave(client));
      C_HOLDS(tally_barrier(client) == TALLY_UNAVAILABLE);
      return "";
    };
    return run();
  }));
}

TEST(CApi, AbortNamesRankAndReason) {
  const auto failures = RunJob(Job(2, 0, "ring"), [](tally_client* client, std::uint32_t rank) {
    const auto run = [&]() -> std::string {
      tally_group* group = nullptr;
      if (std::string failed = Declare(client, &group); !failed.empty()) return failed;
      if (rank == 1) {
        C_OK(tally_abort(client, "the data set is gone"));
        return "";
      }
      C_OK(tally_end_step(group, TALLY_COMMIT, nullptr));
      return "";
    };
    return run();
  });
  EXPECT_EQ(failures[1], "");
  EXPECT_NE(failures[0].find("rank 1"), std::string::npos) << failures[0];
  EXPECT_NE(failures[0].find("the data set is gone"), std::string::npos) << failures[0];
  EXPECT_NE(failures[0].find("unavailable"), std::string::npos) << failures[0];
}

}  // namespace
}  // namespace tally::test
