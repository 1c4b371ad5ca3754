// Vectors of eight floats in AVX2 and FMA.
#pragma once
#include <immintrin.h>

#include "fastbert.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

constexpr int W = 8;

struct Vec {
    __m256 v;
};

inline __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline Vec set(float a) { return {_mm256_set1_ps(a)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Vec load(const float* p, int n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline void store(float* p, Vec a, int n) { _mm256_maskstore_ps(p, first_lanes(n), a.v); }

inline Vec widen(__m128i a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16))}; }
inline __m128i narrow(Vec a) {  // round to nearest even; a NaN stays one
    const __m256i bits = _mm256_castps_si256(a.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    const __m256i words = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const __m256i packed = _mm256_packus_epi32(words, words);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
inline Vec load(const bf16* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline void store(bf16* p, Vec a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(a)); }
inline Vec load(const bf16* p, int n) {
    alignas(16) bf16 lanes[W] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
}
inline void store(bf16* p, Vec a, int n) {
    alignas(16) bf16 lanes[W];
    store(lanes, a);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// If either argument is NaN, min and max return b, so the order of arguments decides whether a NaN is passed on.
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
inline Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
// a < b ? yes : no, lane by lane.
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
    return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
// a * 2^n for integral n in -126..127.
inline Vec scale_pow2(Vec a, Vec n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)))};
}
inline Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// The lanes whose bit is set in `bits`, zero elsewhere.
inline Vec keep(Vec a, const uint8_t* bits) {
    const __m256i select = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(bits[0]), select);
    return {_mm256_and_ps(a.v, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, select)))};
}

// Whether any bit of any lane is set; minus zero has one.
inline bool any_bit(Vec a) {
    const __m256i bits = _mm256_castps_si256(a.v);
    return _mm256_testz_si256(bits, bits) == 0;
}
inline float sum(Vec a) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
// NaN where any lane is.
inline float maximum(Vec a) {
    alignas(32) float lanes[W];
    _mm256_store_ps(lanes, a.v);
    float out = lanes[0];
    for (int i = 1; i < W; ++i) out = (out != out || out > lanes[i]) ? out : lanes[i];
    return out;
}

// Philox counters a step; each lives in the low half of a 64-bit lane, where vpmuludq takes its factors. The high
// halves hold rubbish that no product reads.
constexpr int COUNTERS = 4;
using Counters = __m256i;

inline Counters same(uint32_t value) { return _mm256_set1_epi32(int(value)); }
inline Counters consecutive(uint32_t first) {
    return _mm256_add_epi32(_mm256_set1_epi32(int(first)), _mm256_setr_epi64x(0, 1, 2, 3));
}
inline Counters load_counters(const uint32_t* p) {
    return _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline void philox_keep(Counters c0, Counters c1, const Dropout& d, uint8_t* out) {
    const __m256i m0 = _mm256_set1_epi64x(0xD2511F53u), m1 = _mm256_set1_epi64x(0xCD9E8D57u);
    __m256i a = c0, b = c1;
    __m256i c = _mm256_set1_epi32(int(d.site)), e = _mm256_set1_epi32(int(d.offset));
    uint32_t k0 = d.key[0], k1 = d.key[1];
    for (int round = 0; round < 10; ++round) {
        const __m256i p0 = _mm256_mul_epu32(a, m0), p1 = _mm256_mul_epu32(c, m1);
        const __m256i high0 = _mm256_shuffle_epi32(p0, 0xB1), high1 = _mm256_shuffle_epi32(p1, 0xB1);
        a = _mm256_xor_si256(_mm256_xor_si256(high1, b), _mm256_set1_epi32(int(k0)));
        c = _mm256_xor_si256(_mm256_xor_si256(high0, e), _mm256_set1_epi32(int(k1)));
        b = p1;
        e = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const __m256i words01 = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xAA);
    const __m256i words23 = _mm256_blend_epi32(c, _mm256_slli_epi64(e, 32), 0xAA);
    const __m256i even = _mm256_unpacklo_epi64(words01, words23), odd = _mm256_unpackhi_epi64(words01, words23);
    const __m256i threshold = _mm256_set1_epi16(short(d.threshold));
    // Unsigned x >= t is max(x, t) == x; packing interleaves even and odd counters back into order.
    const __m256i keep_even = _mm256_cmpeq_epi16(_mm256_max_epu16(even, threshold), even);
    const __m256i keep_odd = _mm256_cmpeq_epi16(_mm256_max_epu16(odd, threshold), odd);
    const int bits = _mm256_movemask_epi8(_mm256_packs_epi16(keep_even, keep_odd));
    __builtin_memcpy(out, &bits, 4);
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
