#include "common/config/value_kind.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <system_error>

#include "common/config/config.h"
#include "common/config/nearest.h"
#include "common/topology/cpu_list.h"
#include "common/utf8.h"

namespace tally {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

// Print takes the first unit that divides the value, so each list goes from what should win downwards.
constexpr std::array<Unit, 10> kByteUnits = {{{"TiB", 1099511627776.0},
                                              {"GiB", 1073741824.0},
                                              {"MiB", 1048576.0},
                                              {"KiB", 1024.0},
                                              {"TB", 1e12},
                                              {"GB", 1e9},
                                              {"MB", 1e6},
                                              {"kB", 1e3},
                                              {"KB", 1e3},
                                              {"B", 1}}};
constexpr std::array<Unit, 4> kRateUnits = {{{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}};
constexpr std::array<Unit, 6> kTimeUnits = {
    {{"h", 3600e9}, {"min", 60e9}, {"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}}};

// A number without sign, exponent or spaces, then perhaps one of `units`. False if it is anything else.
template <std::size_t N>
bool ParseWithUnit(std::string_view text, const std::array<Unit, N>& units, double* value, bool* has_unit) {
  const auto last = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view digits = text.substr(0, last);
  std::string_view suffix = text.substr(last);
  if (digits.empty() || digits.front() == '.' || digits.back() == '.') return false;
  if (!suffix.empty() && suffix.front() == ' ') suffix.remove_prefix(1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *value);
  if (error != std::errc() || end != digits.data() + digits.size()) return false;
  *has_unit = !suffix.empty();
  if (suffix.empty()) return last == text.size();
  const auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == suffix; });
  if (unit == units.end()) return false;
  *value *= unit->factor;
  return true;
}

std::string ShortestNumber(double value) {
  std::array<char, 64> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc() ? std::string(buffer.data(), end) : "0";
}

// The value in the first unit that divides it.
template <std::size_t N>
std::string WithUnit(std::uint64_t value, const std::array<Unit, N>& units) {
  for (const Unit& unit : units) {
    const auto factor = static_cast<std::uint64_t>(unit.factor);
    if (value >= factor && value % factor == 0) return std::to_string(value / factor) + std::string(unit.name);
  }
  return std::to_string(value) + std::string(units.back().name);
}

std::string NotA(std::string_view text, std::string_view expected) {
  constexpr std::size_t kShown = 60;
  const std::string_view shown = Utf8Prefix(text, kShown);
  return QuotedToml(shown) + (shown.size() < text.size() ? "…" : "") + " is not " + std::string(expected);
}

constexpr std::size_t kMaxText = 4096;

}  // namespace

std::string QuotedToml(std::string_view text) {
  static constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted += "\\u00";
      quoted += kHex[byte >> 4];
      quoted += kHex[byte & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string Text::Parse(std::string_view text, std::string* value) const {
  if (text.size() > kMaxText || !IsPrintableUtf8(text)) return NotA(text, "printable text of at most 4096 bytes");
  *value = text;
  return "";
}

std::string Name::Parse(std::string_view text, std::string* value) const {
  const bool good = !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '-';
  });
  if (!good) return NotA(text, "a name: 1 to 64 letters, digits, '_', '.' or '-'");
  *value = text;
  return "";
}

std::string Cores::Parse(std::string_view text, std::string* value) const {
  if (text != "auto" && text != "none" && !ParseCpuList(text).ok()) return NotA(text, "auto, none or cores such as 0-3,8");
  *value = text;
  return "";
}

std::string List::Parse(std::string_view text, std::vector<std::string>* value) const {
  if (!IsPrintableUtf8(text)) return NotA(text, "a list of printable names");
  std::vector<std::string> items;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(kListSeparator), text.size());
    std::string_view item = text.substr(0, comma);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    if (item.empty()) return "an empty name in the list";
    if (item.size() > kMaxText) return NotA(item, "a name of at most 4096 bytes");
    items.emplace_back(item);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  *value = std::move(items);
  return "";
}

std::string List::Print(const std::vector<std::string>& value) const {
  std::string text = "[";
  for (const std::string& item : value) text += (text.size() > 1 ? ", " : "") + QuotedToml(item);
  return text + "]";
}

std::string Flag::Parse(std::string_view text, bool* value) const {
  if (text != "true" && text != "false" && text != "1" && text != "0") return NotA(text, "true or false");
  *value = text == "true" || text == "1";
  return "";
}

std::string Count::Parse(std::string_view text, std::uint64_t* value) const {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least_ || number > most_) {
    return NotA(text, "a whole number from " + std::to_string(least_) + " to " + std::to_string(most_));
  }
  *value = number;
  return "";
}

std::string Count::Parse(std::string_view text, std::uint32_t* value) const {
  std::uint64_t number = 0;
  std::string error = Count(least_, std::min<std::uint64_t>(most_, UINT32_MAX)).Parse(text, &number);
  if (error.empty()) *value = static_cast<std::uint32_t>(number);
  return error;
}

std::string Count::Print(std::uint64_t value) const { return std::to_string(value); }

std::string AutoCount::Parse(std::string_view text, std::optional<std::uint64_t>* value) const {
  if (text == "auto") {
    value->reset();
    return "";
  }
  std::uint64_t number = 0;
  const std::string error = count_.Parse(text, &number);
  if (!error.empty()) return error + ", or \"auto\"";
  *value = number;
  return "";
}

std::string AutoCount::Print(const std::optional<std::uint64_t>& value) const {
  return value.has_value() ? count_.Print(*value) : QuotedToml("auto");
}

std::string Fraction::Parse(std::string_view text, double* value) const {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number > 0 && number <= 1)) {
    return NotA(text, "a share in (0, 1]");
  }
  *value = number;
  return "";
}

std::string Fraction::Print(double value) const {
  const std::string text = ShortestNumber(value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string Fractions::Parse(std::string_view text, std::vector<double>* value) const {
  std::vector<std::string> items;
  std::string error = List().Parse(text, &items);
  std::vector<double> numbers(items.size());
  for (std::size_t i = 0; i < items.size() && error.empty(); ++i) error = Fraction().Parse(items[i], &numbers[i]);
  if (error.empty()) *value = std::move(numbers);
  return error;
}

std::string Fractions::Print(const std::vector<double>& value) const {
  std::string text = "[";
  for (const double number : value) text += (text.size() > 1 ? ", " : "") + Fraction().Print(number);
  return text + "]";
}

std::string Decimal::Parse(std::string_view text, double* value) const {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number >= least_ && number <= most_)) {
    return NotA(text, "a number from " + ShortestNumber(least_) + " to " + ShortestNumber(most_));
  }
  *value = number;
  return "";
}

std::string Decimal::Print(double value) const { return Fraction().Print(value); }

std::string Bytes::Parse(std::string_view text, std::uint64_t* value) const {
  const Result<std::uint64_t> parsed = ParseBytes(text);
  if (!parsed.ok()) return parsed.status().text();
  if (*parsed < least_ || *parsed > most_) {
    return NotA(text, "from " + WithUnit(least_, kByteUnits) + " to " + WithUnit(most_, kByteUnits));
  }
  *value = *parsed;
  return "";
}

std::string Bytes::Print(std::uint64_t value) const {
  return value == 0 ? "0" : QuotedToml(WithUnit(value, kByteUnits));
}

std::string Rate::Parse(std::string_view text, double* value) const {
  const Result<double> parsed = ParseRate(text);
  if (parsed.ok()) *value = *parsed;
  return parsed.ok() ? "" : parsed.status().text();
}

std::string Rate::Print(double value) const {
  return value == 0 ? "0" : QuotedToml(WithUnit(static_cast<std::uint64_t>(value), kRateUnits));
}

std::string Duration::Parse(std::string_view text, Nanos* value) const {
  const Result<Nanos> parsed = ParseDuration(text);
  if (!parsed.ok()) return parsed.status().text();
  if (*parsed < *ParseDuration(least_) || *parsed > *ParseDuration(most_)) {
    return NotA(text, "from " + std::string(least_) + " to " + std::string(most_));
  }
  *value = *parsed;
  return "";
}

std::string Duration::Print(Nanos value) const {
  return QuotedToml(WithUnit(static_cast<std::uint64_t>(value.count()), kTimeUnits));
}

std::string Choice::Parse(std::string_view text, std::string* value) const {
  if (IndexOf(text) < 0) return Expected(text);
  *value = text;
  return "";
}

int Choice::IndexOf(std::string_view text) const {
  for (int i = 0; !Word(i).empty(); ++i) {
    if (Word(i) == text) return i;
  }
  return -1;
}

std::string_view Choice::Word(int index) const {
  std::string_view rest = words_;
  for (; index > 0 && !rest.empty(); --index) rest.remove_prefix(std::min(rest.find(' '), rest.size() - 1) + 1);
  return rest.substr(0, rest.find(' '));
}

std::string Choice::Expected(std::string_view text) const {
  std::vector<std::string> words;
  std::string list;
  for (int i = 0; !Word(i).empty(); ++i) {
    words.emplace_back(Word(i));
    list += (i > 0 ? ", " : "") + words.back();
  }
  return NotA(text, "one of " + list) + DidYouMean(text, words);
}

Result<std::uint64_t> ParseBytes(std::string_view text) {
  double value = 0;
  bool has_unit = false;
  std::uint64_t exact = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), exact);
  if (error == std::errc() && end == text.data() + text.size()) return exact;
  if (!ParseWithUnit(text, kByteUnits, &value, &has_unit) || value != std::floor(value) || value >= 0x1p63) {
    return InvalidArgument(NotA(text, "a number of bytes, as 65536, \"25MiB\" or \"1.5GB\""));
  }
  return static_cast<std::uint64_t>(value);
}

Result<double> ParseRate(std::string_view text) {
  double value = 0;
  bool has_unit = false;
  if (!ParseWithUnit(text, kRateUnits, &value, &has_unit) || value > 1e15) {
    return InvalidArgument(NotA(text, "bits per second, as \"1gbit\", \"100mbit\" or 1000000"));
  }
  return std::round(value);
}

Result<Nanos> ParseDuration(std::string_view text) {
  double value = 0;
  bool has_unit = false;
  if (!ParseWithUnit(text, kTimeUnits, &value, &has_unit) || !has_unit) {
    return InvalidArgument(NotA(text, "a time with its unit, as \"200ms\", \"5s\" or \"2min\""));
  }
  if (value > 1e18) return InvalidArgument("\"" + std::string(text) + "\" is out of range: more than 30 years");
  return Nanos(static_cast<std::int64_t>(std::llround(value)));
}

}  // namespace tally
