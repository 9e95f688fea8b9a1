// Compiled with AVX2 and FMA (see CMakeLists.txt); called only on a machine that has them.
#if defined(__x86_64__)
#define Eigen EigenAvx2
#define TALLY_GEMM kGemmAvx2
#define TALLY_GEMM_NAME "avx2"
#include "benchmarks/mlp/gemm_kernels.inc"
#endif
