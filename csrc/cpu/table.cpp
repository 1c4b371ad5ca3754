// The table of one instruction set's kernels.
#include "ops.h"

namespace fastbert {
namespace FASTBERT_ISA {

extern const Kernels kernels;
const Kernels kernels = {
    gelu_forward, gelu_backward, layer_norm_forward,    layer_norm_backward,
    dropout,      keep_mask,     cross_entropy_forward, cross_entropy_backward,
    attention_forward, attention_backward, false,
    gemm_int8,
    pack_panels,  gemm_f32,      gemm_bf16, nullptr, nullptr, weight_grad_f32,
    weight_grad_bf16, nullptr,
    embedding_forward, embedding_backward, adamw, lamb, grad_norm,
    probe,        probe_copy,
};

}  // namespace FASTBERT_ISA
}  // namespace fastbert
