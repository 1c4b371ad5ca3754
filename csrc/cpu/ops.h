// The functions of one instruction set, one file an op; table.cpp gathers them. The arguments are in fastbert.h.
#pragma once
#include "fastbert.h"

namespace fastbert {
namespace FASTBERT_ISA {

void gelu_forward(const GeluArgs&, void* out);
void gelu_backward(const GeluArgs&, const void* dout, void* dx, float* dbias, float* workspace);
void layer_norm_forward(const LayerNormForwardArgs&);
void layer_norm_backward(const LayerNormBackwardArgs&);
void dropout(DType, const void* x, void* out, int64_t rows, int64_t cols, const Dropout&);
void keep_mask(const int64_t* row_numbers, int64_t num_rows, int64_t cols, const Dropout&, bool* keep);
int64_t cross_entropy_forward(const CrossEntropyArgs&, float* loss, float* statistics);
int64_t cross_entropy_backward(const CrossEntropyArgs&, const float* dloss, const float* statistics, void* dlogits);
void attention_forward(const AttentionArgs&);
void attention_backward(const AttentionBackwardArgs&);
void gemm_int8(const GemmInt8Args&);
int64_t embedding_forward(const EmbeddingArgs&, void* out, float* total, float* mean, float* rstd);
int64_t embedding_backward(const EmbeddingBackwardArgs&);
void adamw(const OptimizerArgs&);
void lamb(const OptimizerArgs&);
double grad_norm(const GradNormTensor* tensors, int64_t count);

void pack_panels(const PackArgs&);
void gemm_f32(const GemmArgs&);
void gemm_bf16(const GemmArgs&);
void gemm_bf16x2(const GemmArgs&);
void gemm_f32_winograd(const GemmArgs&);
void weight_grad_f32(const WeightGradArgs&);
void weight_grad_bf16(const WeightGradArgs&);
void weight_grad_bf16x2(const WeightGradArgs&);
double probe(Probe, int64_t iterations, double* seconds);
double probe_copy(const void* from, void* to, int64_t bytes);

}  // namespace FASTBERT_ISA
}  // namespace fastbert
