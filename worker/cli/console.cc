#include "worker/cli/console.h"

#include <unistd.h>

#include <cstdio>

namespace tally::cli {
namespace {

std::string Painted(bool on, Color color, std::string_view text) {
  static constexpr const char* kCodes[] = {"", "\033[1m", "\033[2m", "\033[31m", "\033[32m", "\033[33m"};
  if (!on || color == Color::kNone) return std::string(text);
  return kCodes[static_cast<int>(color)] + std::string(text) + "\033[0m";
}

void WriteLine(std::FILE* out, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), out);
  if (text.empty() || text.back() != '\n') std::fputc('\n', out);
  std::fflush(out);
}

}  // namespace

Console::Console(const std::map<std::string, std::string>& environment)
    : stdout_is_terminal_(isatty(STDOUT_FILENO) == 1), stderr_is_terminal_(isatty(STDERR_FILENO) == 1) {
  const auto no_color = environment.find("NO_COLOR");
  const auto term = environment.find("TERM");
  colors_ = (no_color == environment.end() || no_color->second.empty()) && term != environment.end() &&
            term->second != "dumb";
}

std::string Console::Paint(Color color, std::string_view text) const {
  return Painted(colors_ && stdout_is_terminal_, color, text);
}

std::string Console::PaintError(Color color, std::string_view text) const {
  return Painted(colors_ && stderr_is_terminal_, color, text);
}

void Console::Print(std::string_view text) {
  EndProgress();
  WriteLine(stdout, text);
}

void Console::Note(std::string_view text) {
  EndProgress();
  WriteLine(stderr, text);
}

void Console::Warn(std::string_view text) { Note(PaintError(Color::kYellow, "warning: ") + std::string(text)); }

int Console::Fail(const Status& status) {
  std::string text = status.ToString();
  if (text.find('\n') != std::string::npos) {  // a list: one fault a line, below the kind
    text = std::string(ToString(status.kind())) + ":\n" + status.text();
    for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 3) text.insert(at + 1, "  ");
  }
  Note(PaintError(Color::kRed, "tally: ") + text);
  return ExitCode(status.kind());
}

void Console::Progress(std::string_view text) {
  if (!stderr_is_terminal_) return;
  std::fprintf(stderr, "\r\033[K%.*s", static_cast<int>(text.size()), text.data());
  std::fflush(stderr);
  progress_shown_ = true;
}

void Console::EndProgress() {
  if (!progress_shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  progress_shown_ = false;
}

}  // namespace tally::cli
