// Transposes a square of numbers in registers.
#pragma once
#include <utility>

#include "vec.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// W vectors, the rows of a square, become its columns.
inline void transpose(Vec (&r)[W]) {
#if defined(FASTBERT_LEVEL_AVX512)
    __m512 t[W], u[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
        t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; i += 4)
#pragma GCC unroll 16
        for (int half = 0; half < 2; ++half) {
            const __m512d x = _mm512_castps_pd(t[i + half]), y = _mm512_castps_pd(t[i + 2 + half]);
            u[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            u[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    // Quarter q of u[4 g + c] now has rows 4g..4g+3 of column 4 q + c.
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) {
        const __m512 even_low = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88);
        const __m512 odd_low = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
        const __m512 even_high = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88);
        const __m512 odd_high = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
        r[c].v = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
        r[4 + c].v = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
        r[8 + c].v = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
        r[12 + c].v = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
#elif defined(FASTBERT_LEVEL_AVX2)
    __m256 t[W], u[W];
    for (int i = 0; i < W; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i].v, r[i + 1].v);
        t[i + 1] = _mm256_unpackhi_ps(r[i].v, r[i + 1].v);
    }
    for (int i = 0; i < W; i += 4)
        for (int half = 0; half < 2; ++half) {
            const __m256d x = _mm256_castps_pd(t[i + half]), y = _mm256_castps_pd(t[i + 2 + half]);
            u[i + 2 * half] = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
            u[i + 2 * half + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
        }
    for (int c = 0; c < 4; ++c) {
        r[c].v = _mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
        r[4 + c].v = _mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
    }
#else
    float square[W][W];
    for (int i = 0; i < W; ++i) store(square[i], r[i]);
    for (int i = 0; i < W; ++i)
        for (int j = 0; j < i; ++j) std::swap(square[i][j], square[j][i]);
    for (int i = 0; i < W; ++i) r[i] = load(square[i]);
#endif
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
