// The interface of the kernels: raw pointers and sizes, and a table of functions for each instruction set.
//
// Every tensor is contiguous, rows x cols, row-major. Parameters (bias, weight) and statistics are float32; activations
// are float32 or bfloat16. Nothing here knows torch or Python, allocates anything but scratch (scratch.h) or throws anything
// but NoMemory.
#pragma once
#include "attention.h"
#include "embedding.h"
#include "gemm.h"
#include "gemm_int8.h"
#include "optimizer.h"
#include "probe.h"
#include "scratch.h"
#include "types.h"

namespace fastbert {

struct GeluArgs {
    DType dtype;
    bool tanh;          // google-research/bert's approximation instead of the error function
    const void* x;      // (rows, cols)
    const float* bias;  // (cols) or null
    int64_t rows, cols;
};

struct LayerNormForwardArgs {
    DType dtype;
    const void* x;         // (rows, cols)
    const float* x_bias;   // (cols) or null
    const void* residual;  // (rows, cols) or null
    const float* weight;   // (cols)
    const float* bias;     // (cols)
    float eps;
    Dropout dropout;
    void* out;    // (rows, cols)
    float* sum;   // (rows, cols) the LayerNorm's input, or null where the caller does not want it
    float* mean;  // (rows)
    float* rstd;  // (rows)
    int64_t rows, cols;
};

struct LayerNormBackwardArgs {
    DType dtype;
    const void* dout;    // (rows, cols)
    const float* sum;    // (rows, cols)
    const float* mean;   // (rows)
    const float* rstd;   // (rows)
    const float* weight; // (cols)
    Dropout dropout;
    void* dresidual;   // (rows, cols) or null
    void* dx;          // (rows, cols) or null; differs from dresidual only under dropout
    float* dweight;    // (cols)
    float* dbias;      // (cols)
    float* dx_bias;    // (cols) or null
    float* workspace;  // reduction_chunks(rows) * 3 * cols
    int64_t rows, cols;
};

struct CrossEntropyArgs {
    DType dtype;
    const void* logits;     // (rows, cols)
    const int64_t* labels;  // (rows)
    int64_t ignore_index;
    int64_t rows, cols;
};

struct Kernels {
    void (*gelu_forward)(const GeluArgs&, void* out);
    // dbias and its workspace (reduction_chunks(rows) * cols) are null where there is no bias.
    void (*gelu_backward)(const GeluArgs&, const void* dout, void* dx, float* dbias, float* workspace);
    void (*layer_norm_forward)(const LayerNormForwardArgs&);
    void (*layer_norm_backward)(const LayerNormBackwardArgs&);
    void (*dropout)(DType, const void* x, void* out, int64_t rows, int64_t cols, const Dropout&);
    // keep (num_rows, cols) is 1 where the element at (row_numbers[r], c) is kept.
    void (*keep_mask)(const int64_t* row_numbers, int64_t num_rows, int64_t cols, const Dropout&, bool* keep);
    // statistics (rows, 2) are kept for backward. Both return -1, or the first row whose label is neither ignored nor a column;
    // they have then done nothing else.
    int64_t (*cross_entropy_forward)(const CrossEntropyArgs&, float* loss, float* statistics);
    int64_t (*cross_entropy_backward)(const CrossEntropyArgs&, const float* dloss, const float* statistics, void* dlogits);
    void (*attention_forward)(const AttentionArgs&);
    void (*attention_backward)(const AttentionBackwardArgs&);
    bool fast_bf16_attention;  // it multiplies bfloat16 numbers faster than floats
    void (*gemm_int8)(const GemmInt8Args&);
    void (*pack_weight)(const PackArgs&);
    void (*gemm_f32)(const GemmArgs&);
    void (*gemm_bf16)(const GemmArgs&);
    void (*gemm_bf16x2)(const GemmArgs&);  // null at levels without tiles
    void (*gemm_f32_winograd)(const GemmArgs&);  // null at levels without it
    void (*weight_grad_f32)(const WeightGradArgs&);
    void (*weight_grad_bf16)(const WeightGradArgs&);
    void (*weight_grad_bf16x2)(const WeightGradArgs&);  // null at levels without tiles
    // Both return -1, or the first token with an id that is out of range; they have then done nothing else.
    int64_t (*embedding_forward)(const EmbeddingArgs&, void* out, float* total, float* mean, float* rstd);
    int64_t (*embedding_backward)(const EmbeddingBackwardArgs&);
    void (*adamw)(const OptimizerArgs&);
    void (*lamb)(const OptimizerArgs&);
    double (*grad_norm)(const GradNormTensor* tensors, int64_t count);
    // Operations done by all threads, 0 where this level has no such instruction; seconds is the slowest thread's.
    double (*probe)(Probe, int64_t iterations, double* seconds);
    double (*probe_copy)(const void* from, void* to, int64_t bytes);  // seconds
};

// Sums over rows are cut into chunks by the number of rows alone, never by the number of threads: the bits of a
// gradient do not depend on how many threads computed it.
static inline int64_t rows_per_chunk(int64_t rows) { return rows <= 1024 ? 16 : divide_up(rows, 64); }
static inline int64_t reduction_chunks(int64_t rows) { return divide_up(rows, rows_per_chunk(rows)); }

// What the build left out is declared and not defined.
namespace scalar {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}

// Levels with special versions of some ops: each puts its own into the table of the level below (csrc/cpu/special.cpp).
namespace avx2_vnni {
void specialise(Kernels&);
}
namespace avx2_vnni_evex {
void specialise(Kernels&);
}
namespace avx512_vnni {
void specialise(Kernels&);
}
namespace avx512_bf16 {
void specialise(Kernels&);
}
namespace avx512_bf16_pairs {
void specialise(Kernels&);
}
namespace avx512_winograd {
void specialise(Kernels&);
}
namespace avx512_winograd_registers {
void specialise(Kernels&);
}
namespace neon_dot {
void specialise(Kernels&);
}
namespace amx {
void specialise(Kernels&);
}
namespace amx_emulated {
void specialise(Kernels&);
}

}  // namespace fastbert
