// Matrix products with packed weights: c = act(a w^T + bias) + residual, and the products of a backward pass.
//
// A packed weight is cut into panels of 16 columns of the result; its layout is the same at every instruction-set level:
//     float32   [n / 16][k][16]                 bfloat16  [n / 16][k / 2][16][2], k padded to 32
//     float32 in two bfloat16 parts, the larger first: two bfloat16 weights, one after the other
//     float32 for Winograd's inner product: [n / 16][k][16] scaled, with two more rows [16] after every winograd_chunk(k)
//     steps and after the last (csrc/cpu/gemm_winograd.h)
// so that 16 steps of a bfloat16 panel are one AMX tile of 1 KiB. Padding is zero. The buffer starts at a multiple of 64.
//
// As tiles, a matrix (m, k) is [parts][m / 16][k / 32][16][32] bfloat16, m and k padded to 32, in the parts of the packed weight's
// form. Padding of k is zero, of m anything.
//
// Every element of a result is summed by one thread, in an order that depends on k alone: the bits do not depend on the
// number of threads, nor on m and n.
#pragma once
#include <cstdint>

#include "types.h"

namespace fastbert {

enum class Activation : int { none = 0, gelu = 1, gelu_tanh = 2 };

struct GemmArgs {
    DType dtype;  // of the packed weight, and of a, which is float32 for all but bfloat16; sums are float32
    const void* a;
    int64_t lda;  // elements between rows; a row is contiguous
    const void* packed;
    const float* bias;  // (n) or null
    Activation act;
    const void* residual;  // (m, n) of c's dtype and with c's stride, or null; may be c itself
    void* c;
    int64_t ldc;
    DType c_dtype;
    int64_t m, n, k;
    // Whether a and c are tiles, where has_tiles(): c as the next product's a, without a residual. lda and ldc count for nothing.
    bool a_tiles = false, c_tiles = false;
};

struct PackArgs {
    DType dtype;  // of the packed weight
    const void* w;
    DType w_dtype;
    int64_t ldw;
    int64_t n, k;
    bool transposed;  // w is (n, k) as nn.Linear's weight; transposed, it is (k, n)
    void* packed;
};

// dw = dy^T x and db = column sums of dy: dy (m, n), x (m, k), dw (n, k).
struct WeightGradArgs {
    DType dtype;  // of dy and x; bf16x2: they are float32, and multiplied in two parts
    const void* dy;
    int64_t ldy;
    const void* x;
    int64_t ldx;
    void* dw;  // or null
    int64_t ldw;
    DType dw_dtype;
    float* db;  // (n) or null
    int64_t m, n, k;
};

constexpr int64_t PANEL = 16;
// Steps of k, a multiple of three, after which Winograd's sums are closed. At this length a strip of 32 columns takes at most
// a third of a first-level cache of 32 KiB, and rounding errors are as large as in torch's product. They would be 1.2 times as
// large if k were not cut at all, so it is cut in two from 49 on.
constexpr int64_t WINOGRAD_CHUNK = 96;
static inline int64_t winograd_chunk(int64_t k) {
    const int64_t chunks = k > WINOGRAD_CHUNK ? divide_up(k, WINOGRAD_CHUNK) : k > WINOGRAD_CHUNK / 2 ? 2 : 1;
    return k > 0 ? round_up(divide_up(k, chunks), 3) : 3;
}
// Rows of a packed panel for k steps.
static inline int64_t winograd_rows(int64_t k) { return k + 2 * divide_up(k, winograd_chunk(k)); }

// Bytes of a packed weight.
int64_t packed_size(DType dtype, int64_t n, int64_t k);
void pack_weight(const PackArgs& args);
inline void pack_weight(DType dtype, const void* w, int64_t ldw, int64_t n, int64_t k, bool transposed, void* packed) {
    pack_weight(PackArgs{dtype, w, dtype, ldw, n, k, transposed, packed});
}
// Throws std::invalid_argument for a weight of a form that the instruction-set level does not multiply.
void gemm(const GemmArgs& args);
// Whether this level multiplies float32 numbers in two parts, and whether by Winograd's inner product.
bool has_bf16x2();
// Whether its products of bfloat16, and of float32 in two parts, take and give tiles.
inline bool has_tiles() { return has_bf16x2(); }
inline int64_t tiles_size(DType dtype, int64_t m, int64_t k) {
    return round_up(m, 32) * round_up(k, 32) * (dtype == DType::bf16x2 ? 4 : 2);
}
bool has_winograd();
bool has_bf16_attention();
// dx = dy w is gemm() with w packed as transposed.
void weight_grad(const WeightGradArgs& args);

}  // namespace fastbert
