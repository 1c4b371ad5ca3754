// The whole post-LN encoder for inference: packed tokens in, packed tokens out, no Python between the layers.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "fastbert.h"
#include "gemm.h"

namespace fastbert {

struct EncoderSizes {
    DType dtype;      // of hidden states
    DType attention;  // of queries, keys, values and their result: dtype, or with int8 weights also bfloat16
    Activation gelu;
    float eps;        // of the LayerNorms
    int64_t hidden, intermediate, nheads;
    bool int8;     // weights come packed by pack_int8
    DType packed;  // else: the form in which weights are packed
};

// A layer's parameters. Matrices are stored as nn.Linear's, contiguous and in the encoder's dtype, with query, key and value
// concatenated. With int8 they are packed, at addresses that are multiples of 64: query, key and value are then separate, and
// the packed matrices must outlive the encoder, which copies everything else.
struct LayerParameters {
    const void *qkv_weight, *attention_out_weight, *intermediate_weight, *out_weight;
    const void *key_weight, *value_weight;  // with int8, where qkv_weight is the query's; else null
    const float *qkv_bias, *attention_out_bias, *intermediate_bias, *out_bias;
    const float *attention_norm_weight, *attention_norm_bias, *norm_weight, *norm_bias;
};

struct EncoderBatch {
    const void* x;        // (tokens, hidden)
    void* const* states;  // one of (tokens, hidden) for each layer's output; if all are the same, the last remains
    int64_t tokens;
    const int32_t* cu_seqlens;
    int64_t batch_size, max_seqlen;
    RelativeBias bias;  // of every layer's attention
    // The tokens whose last state is wanted, in any order; null for all of them. After its attention, the last layer
    // computes only these, and writes them to chosen (num_rows, hidden) instead of states.
    const int64_t* rows = nullptr;
    int64_t num_rows = 0;
    void* chosen = nullptr;
};

class Encoder {
public:
    // order: the number of each layer's parameters, from 0 on. Layers that share parameters, as ALBERT's do, have the same
    // number, and these parameters are packed and kept once. Throws NoMemory.
    Encoder(const EncoderSizes&, std::vector<int64_t> order);
    void set_parameters(int64_t number, const LayerParameters&);
    size_t layers() const { return order_.size(); }
    // Any number of threads may run at once; each keeps a workspace that only grows. Throws NoMemory.
    void run(const EncoderBatch&) const;

private:
    struct Linear {
        const void* weight;  // packed
        float* bias;
    };
    struct Layer {
        Linear qkv, attention_out, intermediate, out;  // of int8, qkv's weight is the query's
        const void *key, *value;                       // of int8
        bool same_rows;                                // query, key and value quantise their input alike
        float *attention_norm_weight, *attention_norm_bias, *norm_weight, *norm_bias;
    };
    struct Free {
        void operator()(void*) const;
    };

    void project(const Layer&, const void* x, int64_t tokens, char* qkv) const;
    void normalise(const void* x, const float* weight, const float* bias, const struct Workspace&, int64_t rows,
                   void* out) const;
    void attend(const EncoderBatch&, const struct Workspace&) const;
    void feed_forward_int8(const Layer&, const void* a, int64_t rows, void* sum) const;
    // A group's share of EncoderBatch::rows: (token of the group, row of `chosen`), by token.
    using Chosen = std::vector<std::pair<int64_t, int64_t>>;
    void run_group(const EncoderBatch&, const Chosen* chosen, int64_t begin, int64_t end) const;
    void run_layer(const Layer&, const EncoderBatch&, const struct Workspace&, const void* x, void* out) const;
    void run_last_layer(const Layer&, const EncoderBatch&, const struct Workspace&, const void* x, const Chosen&) const;
    // A layer after its attention: rows of the attention's result and of the layer's input -> rows of the next state.
    void finish_layer(const Layer&, const struct Workspace&, const void* context, const void* x, int64_t rows,
                      void* out) const;

    EncoderSizes sizes_;
    std::unique_ptr<char, Free> memory_;
    std::vector<int64_t> order_;
    std::vector<Layer> layers_;  // by number
};

}  // namespace fastbert
