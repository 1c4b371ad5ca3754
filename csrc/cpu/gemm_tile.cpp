// c = act(a w^T + bias) + residual on tiles: bfloat16, and float32 in two bfloat16 parts.
#include "ops.h"

#include "gemm_epilogue.h"
#include "gemm_tile.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// The two parts of up to 32 numbers, of which `inside` are there; the others are zero.
void split_step(const float* x, int64_t inside, bf16* first, bf16* second) {
#if defined(FASTBERT_LEVEL_AVX512)
    const Vec low = inside >= W ? load(x) : load(x, int(inside));
    const Vec high = inside >= STEP ? load(x + W) : inside > W ? load(x + W, int(inside - W)) : set(0.0f);
    // What rounding would make infinite, infinities and NaN.
    const auto large = [](Vec v) { return _mm512_cmp_ps_mask(abs(v).v, set(0x1.ffp127f).v, _CMP_NLT_UQ); };
    if (!(large(low) | large(high))) {
        const auto halves = [](Vec v, bf16* whole, bf16* rest) {
            const __m256i rounded = narrow(v);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(whole), rounded);
            store(rest, v - widen(rounded));
        };
        halves(low, first, second);
        return halves(high, first + W, second + W);
    }
#endif
    for (int c = 0; c < STEP; ++c) split(c < inside ? x[c] : 0.0f, first[c].bits, second[c].bits);
}

// Rows of float32 as tiles [k / 32][16][32], their two parts `part` elements apart.
void pack_parts(const float* a, int64_t lda, int rows, int64_t k, bf16* out, int64_t part) {
    for (int64_t k0 = 0; k0 < k; k0 += STEP, out += TILE) {
        for (int r = 0; r < rows; ++r)
            split_step(a + r * lda + k0, k - k0, out + r * STEP, out + part + r * STEP);
        for (bf16* to : {out, out + part})
            std::memset(static_cast<void*>(to + rows * STEP), 0, size_t(EDGE - rows) * STEP * sizeof(bf16));
    }
}

}  // namespace

void gemm_bf16(const GemmArgs& g) {
    const bf16* a = static_cast<const bf16*>(g.a);
    const FinishRows finish = finish_for(g);
    multiply_tiles<1>(
        g.m, g.n, g.k, g.packed,
        [&](int64_t row, int rows, bf16* out, int64_t) { pack_rows(a + row * g.lda, g.lda, rows, g.k, out); },
        [&](const float* sums, int64_t row, int rows, int64_t column) {
            finish(g, sums, STRIP, row, rows, column, STRIP);
        });
}

void gemm_bf16x2(const GemmArgs& g) {
    const float* a = static_cast<const float*>(g.a);
    const FinishRows finish = finish_for(g);
    multiply_tiles<2>(
        g.m, g.n, g.k, g.packed,
        [&](int64_t row, int rows, bf16* out, int64_t part) {
            pack_parts(a + row * g.lda, g.lda, rows, g.k, out, part);
        },
        [&](const float* sums, int64_t row, int rows, int64_t column) {
            finish(g, sums, STRIP, row, rows, column, STRIP);
        });
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
