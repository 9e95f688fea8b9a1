// Console: how commands talk to a person. Data on stdout, messages and progress on stderr; NO_COLOR, TERM=dumb and
// outputs that are no terminal are respected.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "common/status.h"

namespace tally::cli {

enum class Color : unsigned char { kNone, kBold, kDim, kRed, kGreen, kYellow };

class Console {
 public:
  Console() = default;  // neither colours nor progress
  explicit Console(const std::map<std::string, std::string>& environment);

  bool stdout_is_terminal() const { return stdout_is_terminal_; }
  bool stderr_is_terminal() const { return stderr_is_terminal_; }
  // `text` in that colour where stdout (stderr) shows colours, else unchanged.
  std::string Paint(Color color, std::string_view text) const;
  std::string PaintError(Color color, std::string_view text) const;

  // One line on stdout.
  void Print(std::string_view text);
  // One line on stderr.
  void Note(std::string_view text);
  void Warn(std::string_view text);
  // "tally: <status>" on stderr; returns the exit code of its kind.
  [[nodiscard]] int Fail(const Status& status);

  // A line on stderr that the next one overwrites; nothing if stderr is no terminal.
  void Progress(std::string_view text);
  // Takes the progress line away. Print, Note, Warn and Fail do so themselves.
  void EndProgress();

 private:
  bool stdout_is_terminal_ = false;
  bool stderr_is_terminal_ = false;
  bool colors_ = false;
  bool progress_shown_ = false;
};

}  // namespace tally::cli
