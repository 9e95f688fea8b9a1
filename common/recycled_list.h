// RecycledList: a list whose elements keep their memory (vectors inside them, for example) when it is cleared, so that
// filling it again allocates nothing. Thread: one at a time.
#pragma once

#include <cstddef>
#include <vector>

namespace tally {

template <typename T>
class RecycledList {
 public:
  // The new last element, as an earlier user of its place has left it, or value-initialized.
  T& Add() {
    if (size_ == elements_.size()) elements_.emplace_back();
    return elements_[size_++];
  }
  void RemoveLast() { --size_; }
  void Clear() { size_ = 0; }

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return elements_[i]; }
  const T& operator[](std::size_t i) const { return elements_[i]; }
  T& back() { return elements_[size_ - 1]; }
  T* begin() { return elements_.data(); }
  T* end() { return elements_.data() + size_; }
  const T* begin() const { return elements_.data(); }
  const T* end() const { return elements_.data() + size_; }

 private:
  std::vector<T> elements_;
  std::size_t size_ = 0;
};

}  // namespace tally
