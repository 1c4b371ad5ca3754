#include "ops.h"
namespace fastbert {
namespace FASTBERT_ISA {
void gemm_bf16(const GemmArgs& g) { avx512::kernels.gemm_bf16(g); }
}  // namespace FASTBERT_ISA
}  // namespace fastbert
