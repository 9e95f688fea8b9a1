// Logger: one line per event, logfmt or JSON (spdlog inside log.cc). Made once by a program's main and passed down.
// Any thread. Text from peers is escaped; a field's value is at most 1,024 bytes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/config/config.h"
#include "common/status.h"

namespace tally {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarn, kError, kOff };

struct LogField {
  std::string_view key;  // of letters, digits and _; a literal
  std::string value;
  bool is_number = false;  // JSON writes it without quotes

  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(v) {}
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  LogField(std::string_view k, Number v) : key(k), value(std::to_string(v)), is_number(v - v == Number{}) {}
  LogField(std::string_view k, bool v) : key(k), value(v ? "true" : "false"), is_number(true) {}
};

class Logger {
 public:
  // Errors: kInvalidArgument (level), kUnavailable (file, with errno text).
  static Result<std::unique_ptr<Logger>> Make(const Config::Log& options);
  ~Logger();

  void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});
  void Debug(std::string_view m, std::initializer_list<LogField> f = {}) { Log(LogLevel::kDebug, m, f); }
  void Info(std::string_view m, std::initializer_list<LogField> f = {}) { Log(LogLevel::kInfo, m, f); }
  void Warn(std::string_view m, std::initializer_list<LogField> f = {}) { Log(LogLevel::kWarn, m, f); }
  void Error(std::string_view m, std::initializer_list<LogField> f = {}) { Log(LogLevel::kError, m, f); }

  // Fields that every later line carries, e.g. rank. Call before other threads use the logger.
  void SetContext(std::initializer_list<LogField> fields);
  // Errors: kInvalidArgument with the list of levels.
  Status SetLevel(std::string_view level);

 private:
  Logger();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tally
