// The kernels of levels with special instructions; these levels take all other kernels from the level below.
#include "ops.h"

namespace fastbert {
namespace FASTBERT_ISA {

void specialise(Kernels& table);
void specialise(Kernels& table) {
#if defined(FASTBERT_WINOGRAD)
    table.pack_weight = pack_panels;
    table.gemm_f32_winograd = gemm_f32_winograd;
    table.weight_grad_f32 = weight_grad_f32;
#endif
#if defined(FASTBERT_TILES)
    table.pack_weight = pack_panels;
    table.gemm_bf16x2 = gemm_bf16x2;
    table.weight_grad_bf16x2 = weight_grad_bf16x2;
#endif
#if defined(FASTBERT_TILES) || defined(FASTBERT_PAIRS)
    table.attention_forward = attention_forward;
    table.attention_backward = attention_backward;
    table.fast_bf16_attention = true;
    table.gemm_bf16 = gemm_bf16;
    table.weight_grad_bf16 = weight_grad_bf16;
#endif
#if defined(FASTBERT_TILES) || defined(FASTBERT_VNNI) || defined(FASTBERT_NEON_DOT)
    table.gemm_int8 = gemm_int8;
#endif
#if defined(FASTBERT_VNNI) || defined(FASTBERT_LEVEL_AVX512_BF16) || defined(FASTBERT_LEVEL_AMX)
    table.probe = probe;
#endif
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
