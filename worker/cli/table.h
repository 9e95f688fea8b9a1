// Table: rows of text printed in aligned columns. Numbers stand right, text stands left; a wide character counts one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tally::cli {

class Table {
 public:
  enum class Align : unsigned char { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Requires as many cells as columns.
  void AddRow(std::vector<std::string> cells);
  // Title line, then the rows; two spaces between columns, no trailing spaces, each line ended.
  std::string Text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// `value` with `digits` after the point: "1.50".
std::string Fixed(double value, int digits);
// "25 MiB", "1.5 GiB", "512 B".
std::string HumanBytes(double bytes);

}  // namespace tally::cli
