#include "ops.h"
namespace fastbert {
namespace FASTBERT_ISA {
void gemm_bf16(const GemmArgs& g) { scalar::kernels.gemm_bf16(g); }
void weight_grad_bf16(const WeightGradArgs& g) { scalar::kernels.weight_grad_bf16(g); }
}  // namespace FASTBERT_ISA
}  // namespace fastbert
