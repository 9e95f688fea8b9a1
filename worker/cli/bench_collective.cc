#include "worker/cli/bench_collective.h"

#include <algorithm>
#include <cstring>

#include "common/reduce/combine.h"

namespace tally::cli {
namespace {

constexpr std::size_t kPeriod = 251;

// One number of a rank, before its type: small enough that every type adds, multiplies and holds it exactly.
std::int64_t Number(const BenchedKind& kind, std::uint32_t rank, std::size_t place) {
  const auto mixed = static_cast<std::int64_t>((7 * place + 31 * rank + place * rank) % kPeriod);
  if (!kind.reduces()) return mixed;
  switch (kind.op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      if (DTypeBytes(kind.dtype) < 4) return mixed % 3 - 1;  // bf16 counts to 256
      return static_cast<std::int64_t>(rank + 1) * (static_cast<std::int64_t>(7 * place % kPeriod) - 125);
    case ReduceOp::kProduct: return mixed % 2 * 2 - 1;
    default: return kind.dtype == DType::kUint8 ? mixed : mixed / 2 - 60;  // in the order that the type has, too
  }
}

std::int64_t Combined(ReduceOp op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean: return a + b;
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kMax: return std::max(a, b);
    case ReduceOp::kProduct: return a * b;
    case ReduceOp::kAnd: return a & b;
    case ReduceOp::kOr: return a | b;
    case ReduceOp::kXor: return a ^ b;
  }
  return 0;
}

template <typename T>
void Store(std::int64_t number, std::uint32_t divisor, std::byte* to) {
  T value{};
  if constexpr (kIsHalf<T>) {
    Narrow(static_cast<float>(number), &value);
  } else {
    value = static_cast<T>(number);
  }
  if constexpr (kIsHalf<T> || std::is_floating_point_v<T>) {
    if (divisor != 1) value = Average(value, divisor);
  }
  std::memcpy(to, &value, sizeof value);
}

void Store(DType type, std::int64_t number, std::uint32_t divisor, std::byte* to) {
  switch (type) {
    case DType::kFloat32: return Store<float>(number, divisor, to);
    case DType::kFloat16: return Store<Float16Bits>(number, divisor, to);
    case DType::kBFloat16: return Store<BFloat16Bits>(number, divisor, to);
    case DType::kFloat64: return Store<double>(number, divisor, to);
    case DType::kInt8: return Store<std::int8_t>(number, divisor, to);
    case DType::kUint8: return Store<std::uint8_t>(number, divisor, to);
    case DType::kInt32: return Store<std::int32_t>(number, divisor, to);
    case DType::kInt64: return Store<std::int64_t>(number, divisor, to);
  }
}

// Runs of numbers that repeat with the period, the first at place `shift`.
template <typename Visit>
void ForPeriods(std::size_t elements, std::size_t shift, const Visit& visit) {
  for (std::size_t j = 0, place = shift % kPeriod; j < elements; place = 0) {
    const std::size_t count = std::min(elements - j, kPeriod - place);
    visit(j, place, count);
    j += count;
  }
}

template <typename Value, typename Name>
Result<Value> ParseName(std::string_view text, const char* option, Value last, const Name& name_of) {
  std::string names;
  for (std::uint8_t i = 0; i <= static_cast<std::uint8_t>(last); ++i) {
    const std::string_view name = name_of(static_cast<Value>(i));
    if (name == text) return static_cast<Value>(i);
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return InvalidArgument(std::string(option) + " \"" + std::string(text) + "\": expected one of " + names);
}

}  // namespace

Result<DType> ParseDType(std::string_view name) { return ParseName(name, "--dtype", kLastDType, DTypeName); }
Result<ReduceOp> ParseReduceOp(std::string_view name) { return ParseName(name, "--op", kLastReduceOp, ReduceOpName); }

const char* NcclTypeName(DType type) {
  constexpr const char* kNames[] = {"float", "half", "bfloat16", "double", "int8", "uint8", "int32", "int64"};
  return kNames[static_cast<std::uint8_t>(type)];
}

double BenchedKind::BusFactor(std::uint32_t ranks) const {
  const double n = ranks;
  if (kind == CollectiveKind::kBroadcast) return 1;
  return (kind == CollectiveKind::kAllReduce ? 2 : 1) * (n - 1) / n;
}

Result<BenchedCollective> BenchedCollective::Make(Client& client, const BenchedKind& kind, std::uint64_t bytes) {
  BenchedCollective made(client, kind);
  made.elements_ = bytes / DTypeBytes(kind.dtype);
  std::uint64_t block = made.elements_;
  if (made.in_blocks()) {
    block = made.elements_ / client.workers();
    made.elements_ = block * client.workers();
  }
  if (kind.arena) {
    TALLY_ASSIGN_OR_RETURN(made.buffer_, client.MakeBuffer(made.elements_));
    return made;
  }
  const std::uint64_t size = DTypeBytes(kind.dtype);
  made.in_.resize(size * (kind.kind == CollectiveKind::kAllGather ? block : made.elements_));
  if (made.in_blocks()) made.out_.resize(size * (kind.kind == CollectiveKind::kAllGather ? made.elements_ : block));
  return made;
}

std::vector<std::byte> BenchedCollective::Contribution(std::uint32_t rank) const {
  const std::size_t size = DTypeBytes(kind_.dtype);
  std::vector<std::byte> period(kPeriod * size);
  for (std::size_t p = 0; p < kPeriod; ++p) Store(kind_.dtype, Number(kind_, rank, p), 1, period.data() + p * size);
  return period;
}

std::vector<std::byte> BenchedCollective::Reduced() const {
  const std::size_t size = DTypeBytes(kind_.dtype);
  std::vector<std::byte> period(kPeriod * size);
  for (std::size_t p = 0; p < kPeriod; ++p) {
    std::int64_t all = Number(kind_, 0, p);
    for (std::uint32_t rank = 1; rank < client_->workers(); ++rank) all = Combined(kind_.op, all, Number(kind_, rank, p));
    Store(kind_.dtype, all, kind_.op == ReduceOp::kMean ? client_->workers() : 1, period.data() + p * size);
  }
  return period;
}

void BenchedCollective::Fill(std::size_t shift) {
  const std::size_t size = DTypeBytes(kind_.dtype);
  const std::vector<std::byte> period = Contribution(client_->rank().value);
  const std::span<std::byte> to = buffer_ != nullptr ? std::as_writable_bytes(buffer_->input()) : std::span(in_);
  ForPeriods(to.size() / size, shift, [&](std::size_t j, std::size_t place, std::size_t count) {
    std::memcpy(to.data() + j * size, period.data() + place * size, count * size);
  });
  std::ranges::fill(out_, std::byte{0xA5});
}

Status BenchedCollective::Call() {
  if (buffer_ != nullptr) return client_->AllReduce(*buffer_, kind_.op);
  const std::size_t size = DTypeBytes(kind_.dtype);
  const NumberView in(in_.data(), in_.size() / size, kind_.dtype), out(out_.data(), out_.size() / size, kind_.dtype);
  switch (kind_.kind) {
    case CollectiveKind::kAllReduce: return client_->AllReduce(in, kind_.op);
    case CollectiveKind::kBroadcast: return client_->Broadcast(in, Rank(0));
    case CollectiveKind::kAllGather: return client_->AllGather(in, out);
    case CollectiveKind::kReduceScatter: return client_->ReduceScatter(in, out, kind_.op);
  }
  return Internal("no such collective");
}

std::uint64_t BenchedCollective::Wrong(std::size_t shift) const {
  const std::size_t size = DTypeBytes(kind_.dtype);
  std::uint64_t wrong = 0;
  const auto compare = [&](std::span<const std::byte> got, std::size_t first, const std::vector<std::byte>& period) {
    ForPeriods(got.size() / size, first, [&](std::size_t j, std::size_t place, std::size_t count) {
      if (std::memcmp(got.data() + j * size, period.data() + place * size, count * size) == 0) return;
      for (std::size_t i = 0; i < count; ++i) {
        wrong += std::memcmp(got.data() + (j + i) * size, period.data() + (place + i) * size, size) != 0 ? 1U : 0U;
      }
    });
  };
  switch (kind_.kind) {
    case CollectiveKind::kAllReduce:
      compare(buffer_ != nullptr ? std::as_bytes(buffer_->output()) : std::span(in_), shift, Reduced());
      break;
    case CollectiveKind::kBroadcast: compare(in_, shift, Contribution(0)); break;
    case CollectiveKind::kAllGather:
      for (std::uint32_t rank = 0; rank < client_->workers(); ++rank) {
        compare(std::span(out_).subspan(rank * in_.size(), in_.size()), shift, Contribution(rank));
      }
      break;
    case CollectiveKind::kReduceScatter:
      compare(out_, shift + client_->rank().value * (out_.size() / size), Reduced());
      break;
  }
  return wrong;
}

}  // namespace tally::cli
