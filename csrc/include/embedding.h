// BERT's input: dropout(LN(word[id] + token_type[type] + position[place])) and its gradients.
#pragma once
#include "types.h"

namespace fastbert {

// The three tables, in this order: words, token types, positions.
struct EmbeddingArgs {
    DType dtype;                // of the tables and of the output
    const int64_t* ids[3];      // (rows) each
    const void* tables[3];      // (table_rows[i], cols)
    int64_t table_rows[3];
    const float* weight;        // (cols)
    const float* bias;          // (cols)
    float eps;
    Dropout dropout;
    int64_t rows, cols;
};

struct EmbeddingBackwardArgs {
    EmbeddingArgs forward;  // as the forward had it, without tables and bias
    const float* total;     // (rows, cols), the sums of the forward
    const void* dout;       // (rows, cols)
    const float* mean;      // (rows)
    const float* rstd;      // (rows)
    void* dtables[3];       // (table_rows[i], cols), zeros on entry; null if it is not needed
    int64_t padding_idx;    // the row of the words that gets no gradient, or -1
    float* dweight;         // (cols)
    float* dbias;           // (cols)
    float* workspace;       // reduction_chunks(rows) * 2 * cols
    float* dsum;            // (rows, cols) workspace
    int32_t* order;         // rows + the most rows of a table + 1: workspace
};

}  // namespace fastbert
