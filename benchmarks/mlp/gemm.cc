#include "benchmarks/mlp/gemm.h"

namespace tally::mlp {

const Gemm& MachineGemm() {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2) return kGemmAvx2;
#endif
  return kGemmBaseline;
}

}  // namespace tally::mlp
