// FlushDenormals: while one lives, this thread treats fp32 operands and results below 2^-126 as signed zero and rounds
// to nearest even; afterwards the caller's floating-point mode is what it was (CODECS: denormals inside codecs).
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#error "no way known to flush denormals on this processor"
#endif

namespace tally {

class FlushDenormals {
 public:
  FlushDenormals() : saved_(Read()) { Write(kMode); }
  ~FlushDenormals() { Write(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  using Mode = std::uint32_t;
  static constexpr Mode kMode = 0x9FC0;  // MXCSR: FTZ | DAZ | all exceptions masked, nearest even
  static Mode Read() { return _mm_getcsr(); }
  static void Set(Mode mode) { _mm_setcsr(mode); }
#else
  using Mode = std::uint64_t;
  static constexpr Mode kMode = Mode{1} << 24;  // FPCR.FZ, nearest even
  static Mode Read() {
    Mode mode = 0;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void Set(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#endif
  // The clobbers keep the arithmetic between its loads and stores, and those on this side of the switch.
  static void Write(Mode mode) {
    asm volatile("" : : : "memory");
    Set(mode);
    asm volatile("" : : : "memory");
  }

  Mode saved_;
};

}  // namespace tally
