// Vectors of eight floats for any processor: two of the compiler's own vectors of 16 bytes, which it keeps in registers
// wherever there are such (SSE2, NEON). An array of eight it would keep in memory.
#pragma once
#include <cstring>

#include "fastbert.h"
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

constexpr int W = 8;

using Quad = float __attribute__((vector_size(16)));
using Words = int32_t __attribute__((vector_size(16)));  // also what comparing two Quads gives: all bits or none
using Unsigned = uint32_t __attribute__((vector_size(16)));
using Halves = uint16_t __attribute__((vector_size(8)));

struct Vec {
    Quad low, high;
};

inline Quad quad(float a) { return Quad{a, a, a, a}; }
inline Words words(int32_t a) { return Words{a, a, a, a}; }
inline Unsigned words(uint32_t a) { return Unsigned{a, a, a, a}; }
inline Quad choose(Words mask, Quad yes, Quad no) { return Quad((mask & Words(yes)) | (~mask & Words(no))); }

inline Vec set(float a) { return {quad(a), quad(a)}; }
inline Vec load(const float* p) {
    Quad low, high;
    std::memcpy(&low, p, sizeof low);
    std::memcpy(&high, p + W / 2, sizeof high);
    return {low, high};
}
inline Vec load(const float* p, int n) {
    float lanes[W] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
}
inline void store(float* p, Vec a) {
    std::memcpy(p, &a.low, sizeof a.low);
    std::memcpy(p + W / 2, &a.high, sizeof a.high);
}
inline void store(float* p, Vec a, int n) {
    float lanes[W];
    store(lanes, a);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

inline Quad widen(Halves a) { return Quad(__builtin_convertvector(a, Unsigned) << 16); }
inline Halves narrow(Quad a) {  // round to nearest even; a NaN stays one
    const Unsigned bits = Unsigned(a), quiet = bits | words(0x400000u);
    const Unsigned rounded = bits + (words(0x7fffu) + ((bits >> 16) & words(1u)));
    const Unsigned finite = Unsigned(a == a);
    return __builtin_convertvector(((rounded & finite) | (quiet & ~finite)) >> 16, Halves);
}
inline Vec load(const bf16* p) {
    Halves low, high;
    std::memcpy(&low, p, sizeof low);
    std::memcpy(&high, p + W / 2, sizeof high);
    return {widen(low), widen(high)};
}
inline Vec load(const bf16* p, int n) {
    bf16 lanes[W] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
}
inline void store(bf16* p, Vec a) {
    const Halves low = narrow(a.low), high = narrow(a.high);
    std::memcpy(static_cast<void*>(p), &low, sizeof low);
    std::memcpy(static_cast<void*>(p + W / 2), &high, sizeof high);
}
inline void store(bf16* p, Vec a, int n) {
    bf16 lanes[W];
    store(lanes, a);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

inline Vec operator+(Vec a, Vec b) { return {a.low + b.low, a.high + b.high}; }
inline Vec operator-(Vec a, Vec b) { return {a.low - b.low, a.high - b.high}; }
inline Vec operator*(Vec a, Vec b) { return {a.low * b.low, a.high * b.high}; }
inline Vec operator/(Vec a, Vec b) { return {a.low / b.low, a.high / b.high}; }
#if defined(__aarch64__)
inline Quad fma(Quad a, Quad b, Quad c) { return Quad(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b))); }
inline Quad sqrt(Quad a) { return Quad(vsqrtq_f32(float32x4_t(a))); }
#else
inline Quad fma(Quad a, Quad b, Quad c) { return a * b + c; }  // rounds twice
#if defined(__SSE2__)
inline Quad sqrt(Quad a) { return Quad(_mm_sqrt_ps(__m128(a))); }
#else
inline Quad sqrt(Quad a) {
    return Quad{__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]), __builtin_sqrtf(a[3])};
}
#endif
#endif
inline Vec fma(Vec a, Vec b, Vec c) { return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)}; }
inline Vec sqrt(Vec a) { return {sqrt(a.low), sqrt(a.high)}; }
// a < b ? yes : no, lane by lane.
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
    return {choose(a.low < b.low, yes.low, no.low), choose(a.high < b.high, yes.high, no.high)};
}
// If either argument is NaN, min and max return b, so the order of arguments decides whether a NaN is passed on.
inline Vec min(Vec a, Vec b) { return select_less(a, b, a, b); }
inline Vec max(Vec a, Vec b) { return select_less(b, a, a, b); }
inline Vec abs(Vec a) {
    const Words rest = words(0x7fffffff);
    return {Quad(Words(a.low) & rest), Quad(Words(a.high) & rest)};
}
// a * 2^n for integral n in -126..127.
inline Quad scale_pow2(Quad a, Quad n) {
    const Quad number = choose(n == n, n, quad(0.0f));  // a NaN has no integer; `a` is one then
    return a * Quad((__builtin_convertvector(number, Words) + words(127)) << 23);
}
inline Vec scale_pow2(Vec a, Vec n) { return {scale_pow2(a.low, n.low), scale_pow2(a.high, n.high)}; }
// Nearest integer for |a| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction.
inline Vec round(Vec a) { return (a + set(12582912.0f)) - set(12582912.0f); }
// The lanes whose bit is set in `bits`, zero elsewhere.
inline Vec keep(Vec a, const uint8_t* bits) {
    const Words set = words(int32_t(bits[0])), low = {1, 2, 4, 8}, high = {16, 32, 64, 128};
    return {Quad(Words(a.low) & ((set & low) == low)), Quad(Words(a.high) & ((set & high) == high))};
}

// Whether any bit of any lane is set; minus zero has one.
inline bool any_bit(Vec a) {
    const Words bits = Words(a.low) | Words(a.high);
    return (bits[0] | bits[1] | bits[2] | bits[3]) != 0;
}
inline float sum(Vec a) {
    const Quad both = a.low + a.high;
    return (both[0] + both[2]) + (both[1] + both[3]);
}
// NaN where any lane is.
inline float maximum(Vec a) {
    float lanes[W];
    store(lanes, a);
    float out = lanes[0];
    for (int i = 1; i < W; ++i) out = (out != out || out > lanes[i]) ? out : lanes[i];
    return out;
}

// One Philox counter a step: eight keep bits, column 8c in the lowest.
constexpr int COUNTERS = 1;
using Counters = uint32_t;

inline Counters same(uint32_t value) { return value; }
inline Counters consecutive(uint32_t first) { return first; }
inline Counters load_counters(const uint32_t* p) { return p[0]; }

inline void philox_keep(Counters c0, Counters c1, const Dropout& d, uint8_t* out) {
    uint32_t a = c0, b = c1, c = d.site, e = d.offset, k0 = d.key[0], k1 = d.key[1];
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t(a) * 0xD2511F53u, p1 = uint64_t(c) * 0xCD9E8D57u;
        a = uint32_t(p1 >> 32) ^ b ^ k0;
        c = uint32_t(p0 >> 32) ^ e ^ k1;
        b = uint32_t(p1);
        e = uint32_t(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const uint32_t words[4] = {a, b, c, e};
    uint8_t bits = 0;
    for (int i = 0; i < 4; ++i) {
        bits |= uint8_t((words[i] & 0xFFFF) >= d.threshold) << (2 * i);
        bits |= uint8_t((words[i] >> 16) >= d.threshold) << (2 * i + 1);
    }
    out[0] = bits;
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
