// AdamW and LAMB over all parameters in one call, and the L2 norm of all gradients.
#pragma once
#include "types.h"

namespace fastbert {

// Tensors are updated, and their sums kept, in chunks of so many elements.
constexpr int64_t OPTIMIZER_CHUNK = 1 << 14;

// One parameter with its state; all arrays are contiguous, of `size` elements.
struct OptimizerTensor {
    void* param;       // bfloat16 where there is a master, else float32
    const void* grad;
    float* master;     // float32 weights behind a bfloat16 parameter, or null
    float* first;      // moving average of the gradient
    float* second;     // and of its square
    int64_t size;
    DType grad_dtype;
    // A byte for each chunk: 0 where the gradient is zero throughout, so that it need not be read. Null: read it all.
    const uint8_t* written;
    float lr, eps, weight_decay;
    float rate1, rate2;     // 1 - beta of the two averages
    float first_correction, second_correction;  // what m and sqrt(v) are multiplied by
    // LAMB: the trust ratio |p| / |u| is kept within these; nothing is scaled where has_trust is false.
    bool has_trust;
    float least_trust, most_trust;
};

struct OptimizerArgs {
    const OptimizerTensor* tensors;
    int64_t count;
    float grad_scale;  // gradients are multiplied by it before anything else
};

struct GradNormTensor {
    const void* grad;
    int64_t size;
    DType dtype;
    const uint8_t* written;  // as above
};

}  // namespace fastbert
