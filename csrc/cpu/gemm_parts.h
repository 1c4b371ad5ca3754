// Float32 numbers as the sums of two bfloat16 numbers (split() in gemm_pack.h), packed as tiles and as panels.
#pragma once
#include "gemm_pack.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

constexpr int64_t PARTS_STEP = 32;  // numbers of a tile's row

#if defined(FASTBERT_LEVEL_AVX512)
// Infinities, NaN and what rounding would make infinite.
inline __mmask16 too_large(Vec v) { return _mm512_cmp_ps_mask(abs(v).v, set(0x1.ffp127f).v, _CMP_NLT_UQ); }

// False, and nothing is written, if a number is too large.
inline bool split_step(Vec low, Vec high, bf16* first, bf16* second) {
    if (too_large(low) | too_large(high)) return false;
    const auto halves = [](Vec v, bf16* whole, bf16* rest) {
        const __m256i rounded = narrow(v);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(whole), rounded);
        store(rest, v - widen(rounded));
    };
    halves(low, first, second);
    halves(high, first + W, second + W);
    return true;
}
#endif

// The two parts of up to 32 numbers, of which `inside` are there; the others are zero.
inline void split_step(const float* x, int64_t inside, bf16* first, bf16* second) {
#if defined(FASTBERT_LEVEL_AVX512)
    const Vec low = inside >= W ? load(x) : load(x, int(inside));
    const Vec high = inside >= PARTS_STEP ? load(x + W) : inside > W ? load(x + W, int(inside - W)) : set(0.0f);
    if (split_step(low, high, first, second)) return;
#endif
    for (int c = 0; c < PARTS_STEP; ++c) split(c < inside ? x[c] : 0.0f, first[c].bits, second[c].bits);
}

// Two rows of up to 16 numbers, of which `columns` are there, as 16 words: an element of `even` and the one of `odd` beside it.
// A row may be null, which is zeros.
inline void split_pairs(const float* even, const float* odd, int columns, float* first, float* second) {
#if defined(FASTBERT_LEVEL_AVX512)
    const auto row = [&](const float* p) { return !p ? set(0.0f) : columns == W ? load(p) : load(p, columns); };
    const auto words = [](__m256i low, __m256i high, float* out) {
        _mm512_storeu_si512(out, _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16)));
    };
    const Vec e = row(even), o = row(odd);
    if (!(too_large(e) | too_large(o))) {
        const __m256i rounded_e = narrow(e), rounded_o = narrow(o);
        words(rounded_e, rounded_o, first);
        return words(narrow(e - widen(rounded_e)), narrow(o - widen(rounded_o)), second);
    }
#endif
    bf16 parts[2][2 * PANEL];
    for (int c = 0; c < PANEL; ++c)
        for (int i = 0; i < 2; ++i) {
            const float* from = i ? odd : even;
            split(from && c < columns ? from[c] : 0.0f, parts[0][2 * c + i].bits, parts[1][2 * c + i].bits);
        }
    std::memcpy(first, parts[0], sizeof parts[0]);
    std::memcpy(second, parts[1], sizeof parts[1]);
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
