// RecycledQueue: a queue whose places keep their elements' memory (vectors inside them, for example), so that a warm one
// allocates nothing. Thread: one at a time.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace tally {

template <typename T>
class RecycledQueue {
 public:
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t i) { return places_[(first_ + i) & (places_.size() - 1)]; }
  T& front() { return (*this)[0]; }

  // The new last element, as an earlier user of its place has left it, or value-initialized.
  T& PushBack() {
    if (count_ == places_.size()) {
      std::vector<T> larger(2 * places_.size());
      for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move((*this)[i]);
      places_ = std::move(larger);
      first_ = 0;
    }
    ++count_;
    return (*this)[count_ - 1];
  }
  void PopFront() {
    first_ = (first_ + 1) & (places_.size() - 1);
    --count_;
  }
  void Clear() { first_ = count_ = 0; }

 private:
  std::vector<T> places_ = std::vector<T>(16);  // a power of two
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace tally
