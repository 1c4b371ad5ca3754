// Vectors of sixteen floats in AVX-512 (F, BW, DQ, VL).
#pragma once
#include <immintrin.h>

#include "fastbert.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

constexpr int W = 16;

struct Vec {
    __m512 v;
};

inline __mmask16 first_lanes(int n) { return __mmask16((1u << n) - 1); }

inline Vec set(float a) { return {_mm512_set1_ps(a)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline void store(float* p, Vec a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

inline Vec widen(__m256i a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16))}; }
// Rounds to nearest even; a NaN stays one.
#if defined(__AVX512BF16__)
inline __m256i narrow(Vec a) { return (__m256i)_mm512_cvtneps_pbh(a.v); }  // what is below 2^-126 becomes zero
#else
inline __m256i narrow(Vec a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(quiet, 16));
}
#endif
inline Vec load(const bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Vec load(const bf16* p, int n) { return widen(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
inline void store(bf16* p, Vec a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(a)); }
inline void store(bf16* p, Vec a, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(a)); }

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// If either argument is NaN, min and max return b, so the order of arguments decides whether a NaN is passed on.
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
inline Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
// a < b ? yes : no, lane by lane.
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
// a * 2^n for integral n in -126..127.
inline Vec scale_pow2(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// The lanes whose bit is set in `bits`, zero elsewhere.
inline Vec keep(Vec a, const uint8_t* bits) {
    uint16_t mask;
    __builtin_memcpy(&mask, bits, 2);
    return {_mm512_maskz_mov_ps(mask, a.v)};
}

// Whether any bit of any lane is set; minus zero has one.
inline bool any_bit(Vec a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    return _mm512_test_epi32_mask(bits, bits) != 0;
}
inline float sum(Vec a) { return _mm512_reduce_add_ps(a.v); }
// NaN where any lane is.
inline float maximum(Vec a) {
    if (_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)) return __builtin_nanf("");
    return _mm512_reduce_max_ps(a.v);
}

// Philox counters a step; each lives in the low half of a 64-bit lane, where vpmuludq takes its factors. The high
// halves hold rubbish that no product reads. Shuffles fetch the high half of a product: port 5 is free, port 0 is not.
constexpr int COUNTERS = 8;
using Counters = __m512i;

// Even lanes take counters 0-3, odd lanes 4-7: then unpacklo yields the first four in order, unpackhi the others.
inline __m512i lane_order() { return _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); }
inline Counters same(uint32_t value) { return _mm512_set1_epi32(int(value)); }
inline Counters consecutive(uint32_t first) {
    return _mm512_add_epi32(_mm512_set1_epi32(int(first)), lane_order());
}
inline Counters load_counters(const uint32_t* p) {
    return _mm512_permutexvar_epi64(
        lane_order(), _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}

inline void philox_keep(Counters c0, Counters c1, const Dropout& d, uint8_t* out) {
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53u), m1 = _mm512_set1_epi64(0xCD9E8D57u);
    __m512i a = c0, b = c1;
    __m512i c = _mm512_set1_epi32(int(d.site)), e = _mm512_set1_epi32(int(d.offset));
    uint32_t k0 = d.key[0], k1 = d.key[1];
    for (int round = 0; round < 10; ++round) {
        const __m512i p0 = _mm512_mul_epu32(a, m0), p1 = _mm512_mul_epu32(c, m1);
        const __m512i high0 = _mm512_shuffle_epi32(p0, _MM_PERM_CDAB), high1 = _mm512_shuffle_epi32(p1, _MM_PERM_CDAB);
        a = _mm512_ternarylogic_epi32(high1, b, _mm512_set1_epi32(int(k0)), 0x96);  // three-way xor
        c = _mm512_ternarylogic_epi32(high0, e, _mm512_set1_epi32(int(k1)), 0x96);
        b = p1;
        e = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const __m512i words01 = _mm512_mask_blend_epi32(0xAAAA, a, _mm512_slli_epi64(b, 32));
    const __m512i words23 = _mm512_mask_blend_epi32(0xAAAA, c, _mm512_slli_epi64(e, 32));
    const __m512i threshold = _mm512_set1_epi16(short(d.threshold));
    const uint32_t first = _mm512_cmpge_epu16_mask(_mm512_unpacklo_epi64(words01, words23), threshold);
    const uint32_t second = _mm512_cmpge_epu16_mask(_mm512_unpackhi_epi64(words01, words23), threshold);
    const uint64_t bits = first | (uint64_t(second) << 32);
    __builtin_memcpy(out, &bits, 8);
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
