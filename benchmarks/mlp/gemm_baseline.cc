// The instructions that every machine of this architecture has.
#define TALLY_GEMM kGemmBaseline
#define TALLY_GEMM_NAME "baseline"
#include "benchmarks/mlp/gemm_kernels.inc"
