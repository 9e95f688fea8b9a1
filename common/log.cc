#include "common/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "common/utf8.h"

namespace tally {
namespace {

constexpr std::size_t kMaxValue = 1024;
constexpr std::size_t kMaxMessage = 8192;
constexpr std::array<std::string_view, 5> kLevels = {"debug", "info", "warn", "error", "off"};

Result<LogLevel> ParseLevel(std::string_view text) {
  for (std::size_t i = 0; i < kLevels.size(); ++i) {
    if (kLevels[i] == text) return static_cast<LogLevel>(i);
  }
  return InvalidArgument("log level \"" + std::string(Utf8Prefix(text, 60)) +
                         "\" is not one of debug, info, warn, error, off");
}

// `text` between double quotes. Both formats escape alike, except that what is not UTF-8 is \xNN in logfmt and the
// replacement character in JSON, which has no way to write it.
void AppendQuoted(std::string_view text, std::size_t max_bytes, LogFormat format, std::string* line) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  const std::string_view kept = Utf8Prefix(text, max_bytes);
  const bool cut = kept.size() < text.size();
  *line += '"';
  for (std::size_t i = 0; i < kept.size();) {
    const auto byte = static_cast<unsigned char>(kept[i]);
    const std::size_t length = Utf8Sequence(kept.substr(i));
    const bool hex = length == 0 || byte < 0x20 || byte == 0x7F;
    if (byte == '"' || byte == '\\') {
      *line += '\\';
      *line += kept[i];
    } else if (byte == '\n' || byte == '\r' || byte == '\t') {
      *line += byte == '\n' ? "\\n" : byte == '\r' ? "\\r" : "\\t";
    } else if (hex && format == LogFormat::kJson && length == 0) {
      *line += "\\ufffd";
    } else if (hex) {
      *line += format == LogFormat::kJson ? "\\u00" : "\\x";
      *line += kHex[byte >> 4];
      *line += kHex[byte & 15];
    } else {
      *line += kept.substr(i, length);
    }
    i += std::max<std::size_t>(length, 1);
  }
  if (cut) *line += "…";
  *line += '"';
}

bool NeedsQuotes(std::string_view text) {
  if (text.empty() || text.size() > kMaxValue) return true;
  for (const char c : text) {
    if (c <= ' ' || c > '~' || c == '"' || c == '\\' || c == '=') return true;
  }
  return false;
}

void AppendField(const LogField& field, LogFormat format, std::string* line) {
  if (format == LogFormat::kJson) {
    *line += ",\"" + std::string(field.key) + "\":";
    if (field.is_number) {
      *line += field.value;
    } else {
      AppendQuoted(field.value, kMaxValue, format, line);
    }
    return;
  }
  *line += " " + std::string(field.key) + "=";
  if (NeedsQuotes(field.value)) {
    AppendQuoted(field.value, kMaxValue, format, line);
  } else {
    *line += field.value;
  }
}

}  // namespace

struct Logger::Impl {
  std::unique_ptr<spdlog::logger> logger;  // our own: not in spdlog's registry
  LogFormat format = LogFormat::kLogfmt;
  std::atomic<LogLevel> level = LogLevel::kInfo;
  std::string context;  // the fields that every line ends with, written out
};

Logger::Logger() : impl_(std::make_unique<Impl>()) {}
Logger::~Logger() = default;

Result<std::unique_ptr<Logger>> Logger::Make(const Config::Log& options) {
  std::unique_ptr<Logger> made(new Logger);
  Impl& impl = *made->impl_;
  TALLY_RETURN_IF_ERROR(made->SetLevel(options.level));
  impl.format = options.format;
  spdlog::sink_ptr sink;
  if (options.file.empty()) {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  } else {
    try {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
    } catch (const spdlog::spdlog_ex& error) {
      return Unavailable(std::string("log.file: ") + error.what());
    }
  }
  impl.logger = std::make_unique<spdlog::logger>("tally", std::move(sink));
  const char* pattern = impl.format == LogFormat::kJson ? "{\"ts\":\"%Y-%m-%dT%H:%M:%S.%eZ\",%v}"
                                                        : "ts=%Y-%m-%dT%H:%M:%S.%eZ %v";
  impl.logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(pattern, spdlog::pattern_time_type::utc));
  impl.logger->set_level(spdlog::level::trace);  // what passes was decided before
  impl.logger->flush_on(spdlog::level::trace);
  return made;
}

void Logger::Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (level < impl_->level.load(std::memory_order_relaxed) || level == LogLevel::kOff) return;
  const LogFormat format = impl_->format;
  const std::string_view name = kLevels[static_cast<std::size_t>(level)];
  std::string line;
  if (format == LogFormat::kJson) {
    line = "\"level\":\"" + std::string(name) + "\",\"msg\":";
  } else {
    line = "level=" + std::string(name) + " msg=";
  }
  AppendQuoted(message, kMaxMessage, format, &line);
  for (const LogField& field : fields) AppendField(field, format, &line);
  line += impl_->context;
  impl_->logger->log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

void Logger::SetContext(std::initializer_list<LogField> fields) {
  impl_->context.clear();
  for (const LogField& field : fields) AppendField(field, impl_->format, &impl_->context);
}

Status Logger::SetLevel(std::string_view level) {
  TALLY_ASSIGN_OR_RETURN(const LogLevel parsed, ParseLevel(level));
  impl_->level.store(parsed, std::memory_order_relaxed);
  return Status::Ok();
}

}  // namespace tally
