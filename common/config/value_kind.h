// Kinds of values: each parses the text of a setting, checks its range, and prints it as TOML in one canonical way.
// Parse returns what was expected, "" if the text is good; the target is changed only then.
// Print(Parse(x)) is the same text for all spellings x of one value: configurations are compared by it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"

namespace tally {

// How TOML may write a value of a kind, other than as a string.
enum class TomlType : std::uint8_t { kStringOnly, kInteger, kNumber, kBoolean, kArray };

// A TOML basic string, quoted and escaped.
std::string QuotedToml(std::string_view text);

// The list's parts in one text, as environment and flags give them: "a,b"; no part may hold a comma.
inline constexpr char kListSeparator = ',';

class Text {
 public:
  static constexpr TomlType kToml = TomlType::kStringOnly;
  std::string Parse(std::string_view text, std::string* value) const;
  std::string Print(const std::string& value) const { return QuotedToml(value); }
};

class Name {  // 1 to 64 of letters, digits and _ . -
 public:
  static constexpr TomlType kToml = TomlType::kStringOnly;
  std::string Parse(std::string_view text, std::string* value) const;
  std::string Print(const std::string& value) const { return QuotedToml(value); }
};

class Cores {  // auto, none, or numbers and ranges below 4096: "0-3,8"
 public:
  static constexpr TomlType kToml = TomlType::kStringOnly;
  std::string Parse(std::string_view text, std::string* value) const;
  std::string Print(const std::string& value) const { return QuotedToml(value); }
};

class List {
 public:
  static constexpr TomlType kToml = TomlType::kArray;
  std::string Parse(std::string_view text, std::vector<std::string>* value) const;
  std::string Print(const std::vector<std::string>& value) const;
};

class Flag {
 public:
  static constexpr TomlType kToml = TomlType::kBoolean;
  std::string Parse(std::string_view text, bool* value) const;
  std::string Print(bool value) const { return value ? "true" : "false"; }
};

class Count {
 public:
  static constexpr TomlType kToml = TomlType::kInteger;
  constexpr Count(std::uint64_t least, std::uint64_t most) : least_(least), most_(most) {}
  std::string Parse(std::string_view text, std::uint64_t* value) const;
  std::string Parse(std::string_view text, std::uint32_t* value) const;
  std::string Print(std::uint64_t value) const;

 private:
  std::uint64_t least_, most_;
};

class AutoCount {  // "auto", or as Count
 public:
  static constexpr TomlType kToml = TomlType::kInteger;
  constexpr AutoCount(std::uint64_t least, std::uint64_t most) : count_(least, most) {}
  std::string Parse(std::string_view text, std::optional<std::uint64_t>* value) const;
  std::string Print(const std::optional<std::uint64_t>& value) const;

 private:
  Count count_;
};

class Fraction {  // in (0, 1]
 public:
  static constexpr TomlType kToml = TomlType::kNumber;
  std::string Parse(std::string_view text, double* value) const;
  std::string Print(double value) const;
};

class Fractions {  // a list of them
 public:
  static constexpr TomlType kToml = TomlType::kArray;
  std::string Parse(std::string_view text, std::vector<double>* value) const;
  std::string Print(const std::vector<double>& value) const;
};

class Decimal {
 public:
  static constexpr TomlType kToml = TomlType::kNumber;
  constexpr Decimal(double least, double most) : least_(least), most_(most) {}
  std::string Parse(std::string_view text, double* value) const;
  std::string Print(double value) const;

 private:
  double least_, most_;
};

class Bytes {
 public:
  static constexpr TomlType kToml = TomlType::kInteger;
  constexpr explicit Bytes(std::uint64_t least = 0, std::uint64_t most = std::uint64_t{1} << 50)
      : least_(least), most_(most) {}
  std::string Parse(std::string_view text, std::uint64_t* value) const;
  std::string Print(std::uint64_t value) const;

 private:
  std::uint64_t least_, most_;
};

class Rate {
 public:
  static constexpr TomlType kToml = TomlType::kNumber;
  std::string Parse(std::string_view text, double* value) const;
  std::string Print(double value) const;
};

class Duration {
 public:
  static constexpr TomlType kToml = TomlType::kStringOnly;
  constexpr Duration(std::string_view least, std::string_view most) : least_(least), most_(most) {}
  std::string Parse(std::string_view text, Nanos* value) const;
  std::string Print(Nanos value) const;

 private:
  std::string_view least_, most_;
};

// One of the words; the field is the word itself or an enum whose values count the words from 0.
class Choice {
 public:
  static constexpr TomlType kToml = TomlType::kStringOnly;
  constexpr explicit Choice(std::string_view words) : words_(words) {}

  std::string Parse(std::string_view text, std::string* value) const;
  template <typename Enum>
  std::string Parse(std::string_view text, Enum* value) const {
    const int index = IndexOf(text);
    if (index >= 0) *value = static_cast<Enum>(index);
    return index >= 0 ? "" : Expected(text);
  }
  std::string Print(const std::string& value) const { return QuotedToml(value); }
  template <typename Enum>
  std::string Print(Enum value) const {
    return QuotedToml(Word(static_cast<int>(value)));
  }

 private:
  int IndexOf(std::string_view text) const;
  std::string_view Word(int index) const;
  std::string Expected(std::string_view text) const;

  std::string_view words_;
};

}  // namespace tally
