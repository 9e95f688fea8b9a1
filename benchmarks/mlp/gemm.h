// The three matrix products of a fully connected layer, row-major fp32, with the widest instructions of this machine.
// gemm_kernels.inc is compiled once per instruction set; MachineGemm chooses among them.
#pragma once

#include <cstddef>

namespace tally::mlp {

struct Gemm {
  const char* name;
  // c[m x n] = a[m x k] * b[n x k]^T
  void (*times_transposed)(const float* a, const float* b, float* c, std::size_t m, std::size_t n, std::size_t k);
  // c[m x n] = a[m x k] * b[k x n]
  void (*times)(const float* a, const float* b, float* c, std::size_t m, std::size_t n, std::size_t k);
  // c[m x n] = a[k x m]^T * b[k x n]
  void (*transposed_times)(const float* a, const float* b, float* c, std::size_t m, std::size_t n, std::size_t k);
};

extern const Gemm kGemmBaseline;
extern const Gemm kGemmAvx2;

const Gemm& MachineGemm();

}  // namespace tally::mlp
