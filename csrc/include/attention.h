// Attention of sequences laid end to end: O = dropout(softmax(softmax_scale Q K^T)) V within each sequence and head.
#pragma once
#include "types.h"

namespace fastbert {

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
};

struct AttentionBackwardArgs {
    AttentionArgs forward;  // as the forward had it, with out and lse filled
    const void* dout;
    int64_t dout_stride;
    void *dq, *dk, *dv;
    int64_t dq_stride, dk_stride, dv_stride;
};

// Larger heads are not served.
constexpr int64_t ATTENTION_MAX_HEAD_DIM = 512;

}  // namespace fastbert
