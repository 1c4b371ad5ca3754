// Vectors of eight floats in plain C++: what a compiler makes of it for the baseline processor.
#pragma once
#include <cstring>

#include "fastbert.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

constexpr int W = 8;

struct Vec {
    float v[W];
};

#define FASTBERT_EACH(expression)                                  \
    Vec out;                                                       \
    for (int i = 0; i < W; ++i) out.v[i] = (expression);           \
    return out;

inline Vec set(float a) { FASTBERT_EACH(a) }
inline Vec load(const float* p) { FASTBERT_EACH(p[i]) }
inline Vec load(const float* p, int n) { FASTBERT_EACH(i < n ? p[i] : 0.0f) }
inline void store(float* p, Vec a) { std::memcpy(p, a.v, sizeof a.v); }
inline void store(float* p, Vec a, int n) {
    for (int i = 0; i < n; ++i) p[i] = a.v[i];
}

inline float widen(bf16 a) {
    const uint32_t bits = uint32_t(a.bits) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}
inline bf16 narrow(float a) {  // round to nearest even; a NaN stays one
    uint32_t bits;
    std::memcpy(&bits, &a, 4);
    if (a != a) return bf16{uint16_t((bits >> 16) | 0x40)};
    return bf16{uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline Vec load(const bf16* p) { FASTBERT_EACH(widen(p[i])) }
inline Vec load(const bf16* p, int n) { FASTBERT_EACH(i < n ? widen(p[i]) : 0.0f) }
inline void store(bf16* p, Vec a) {
    for (int i = 0; i < W; ++i) p[i] = narrow(a.v[i]);
}
inline void store(bf16* p, Vec a, int n) {
    for (int i = 0; i < n; ++i) p[i] = narrow(a.v[i]);
}

inline Vec operator+(Vec a, Vec b) { FASTBERT_EACH(a.v[i] + b.v[i]) }
inline Vec operator-(Vec a, Vec b) { FASTBERT_EACH(a.v[i] - b.v[i]) }
inline Vec operator*(Vec a, Vec b) { FASTBERT_EACH(a.v[i] * b.v[i]) }
inline Vec operator/(Vec a, Vec b) { FASTBERT_EACH(a.v[i] / b.v[i]) }
inline Vec fma(Vec a, Vec b, Vec c) { FASTBERT_EACH(a.v[i] * b.v[i] + c.v[i]) }
// Of a NaN, min and max give b: so the place of an argument decides whether a NaN passes through.
inline Vec min(Vec a, Vec b) { FASTBERT_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]) }
inline Vec max(Vec a, Vec b) { FASTBERT_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]) }
inline Vec sqrt(Vec a) { FASTBERT_EACH(__builtin_sqrtf(a.v[i])) }
inline Vec abs(Vec a) { FASTBERT_EACH(a.v[i] < 0 ? -a.v[i] : a.v[i]) }
// a < b ? yes : no, lane by lane.
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) { FASTBERT_EACH(a.v[i] < b.v[i] ? yes.v[i] : no.v[i]) }
// a * 2^n for integral n in -126..127.
inline Vec scale_pow2(Vec a, Vec n) {
    Vec out;
    for (int i = 0; i < W; ++i) {
        const int32_t exponent = n.v[i] == n.v[i] ? int32_t(n.v[i]) : 0;  // a NaN has no integer; `a` is one then
        const uint32_t bits = uint32_t(exponent + 127) << 23;
        float power;
        std::memcpy(&power, &bits, 4);
        out.v[i] = a.v[i] * power;
    }
    return out;
}
// Nearest integer for |a| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction.
inline Vec round(Vec a) { FASTBERT_EACH((a.v[i] + 12582912.0f) - 12582912.0f) }
// The lanes whose bit is set in `bits`, zero elsewhere.
inline Vec keep(Vec a, const uint8_t* bits) { FASTBERT_EACH((bits[0] >> i) & 1 ? a.v[i] : 0.0f) }

inline float sum(Vec a) {
    for (int step = W / 2; step; step /= 2)
        for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
    return a.v[0];
}
// NaN where any lane is.
inline float maximum(Vec a) {
    float out = a.v[0];
    for (int i = 1; i < W; ++i) out = (out != out || out > a.v[i]) ? out : a.v[i];
    return out;
}

#undef FASTBERT_EACH

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
