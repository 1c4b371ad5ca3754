// Attention of sequences laid end to end: O = dropout(softmax(softmax_scale Q K^T + bias)) V within each sequence and head.
#pragma once
#include "types.h"

namespace fastbert {

// Element zero + j - i of a head's row is added to the scaled score of query i and key j of a sequence (Raffel et al. 2020,
// section 2.1). The 15 elements after the last one of a row that is needed must be readable: the widest vector ends there.
struct RelativeBias {
    const float* rows = nullptr;  // (nheads, stride); null for no bias
    int64_t stride = 0, zero = 0;
};

// q, k, v, out: (T, nheads, head_dim) with a stride, in elements, from token to token; heads of a token are adjacent.
// So one (T, 3 nheads head_dim) matrix of fused queries, keys and values is read in place.
struct AttentionArgs {
    DType dtype;
    const void *q, *k, *v;
    int64_t q_stride, k_stride, v_stride;
    void* out;  // written by forward, read by backward
    int64_t out_stride;
    float* lse;                 // (nheads, T) log of the sum of e^score; null in a forward without a backward
    const int32_t* cu_seqlens;  // (batch_size + 1), ascending from 0 to T; equal neighbours are an empty sequence
    int64_t batch_size, max_seqlen, nheads, head_dim;
    float softmax_scale;
    bool causal;      // a token sees only itself and those before it
    Dropout dropout;  // row = token * nheads + head, column = the key's index within its sequence
    RelativeBias bias;
};

struct AttentionBackwardArgs {
    AttentionArgs forward;  // as the forward had it, with out and lse filled
    const void* dout;
    int64_t dout_stride;
    void *dq, *dk, *dv;
    int64_t dq_stride, dk_stride, dv_stride;
    float* dbias;  // (batch_size, nheads, stride of the bias), added to; null if it is not needed
};

inline int64_t longest_sequence(const int32_t* cu_seqlens, int64_t batch_size) {
    int64_t longest = 0;
    for (int64_t b = 0; b < batch_size; ++b) {
        const int64_t length = int64_t(cu_seqlens[b + 1]) - cu_seqlens[b];
        longest = length > longest ? length : longest;
    }
    return longest;
}

// Larger heads are not served.
constexpr int64_t ATTENTION_MAX_HEAD_DIM = 512;

}  // namespace fastbert
