// What forward and backward of bfloat16 attention on tiles share.
//
// Scores of 32 queries lie in squares of 32 keys, as the tiles give them: [keys / 32][32][32]. A left factor made of them
// has the layout [row tile][32 keys][16][32].
#pragma once
#include <initializer_list>

#include "attention_common.h"
#include "gemm_tile.h"

namespace fastbert {
// The level below computes float32, and what has a bias in bfloat16 too.
#if defined(FASTBERT_LEVEL_AMX) || defined(FASTBERT_PAIRS)
namespace below = avx512;
namespace avx512 {
#else
namespace below = scalar;
namespace scalar {
#endif
void attention_forward(const AttentionArgs&);
void attention_backward(const AttentionBackwardArgs&);
}

namespace FASTBERT_ISA {
namespace {

constexpr int64_t QUERIES = STRIP, KEY_BLOCK = 512, SQUARE = STRIP * STRIP;

// Cuts this thread's scratch up; each piece begins at a cache line.
template <class T> struct Piece {
    T** to;
    int64_t elements;
};
inline void hand_out(std::initializer_list<Piece<bf16>> halves, std::initializer_list<Piece<float>> floats) {
    Arena all, each;
    for (const auto& piece : halves) all.reserve(divide_up(piece.elements, 2));
    for (const auto& piece : floats) all.reserve(piece.elements);
    float* base = all.allocate();
    for (const auto& piece : halves)
        *piece.to = reinterpret_cast<bf16*>(base + each.reserve(divide_up(piece.elements, 2)));
    for (const auto& piece : floats) *piece.to = base + each.reserve(piece.elements);
}

// Products of up to 32 packed rows with `count` keys (or values), which begin at a panel; depth is head_dim filled up.
// Rows past the last tile and columns past the last panel stay as they were.
template <class Done>
inline void multiply_keys(const bf16* left, int64_t rows, const bf16* keys, int64_t count, int64_t depth,
                          float* squares, Done&& done) {
    const int64_t panel = depth * PANEL;
    for (int64_t k = 0; k < count; k += STRIP) {
        const Factors factors{left, keys + k / PANEL * panel, depth * EDGE, panel, 0, 0};
        multiply_block(rows <= EDGE, count - k <= EDGE, factors, depth / STEP, true, squares + k * STRIP);
        done();
    }
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
