// GELU and its derivative on vectors (Hendrycks & Gimpel 2016).
//
// Both forms are written with the small tail q = Phi(-|x|), which keeps its relative precision where 1 + erf loses it:
//     gelu(x) = max(x, 0) - |x| q
// erf:  q = e^(-x^2/2) R(|x|), R a polynomial in 1 / (1 + 0.27 |x|) (Lawson fit, relative error 2.4e-8)
// tanh: q = e / (1 + e), e = e^(-2 |u|), u = sqrt(2/pi) (x + 0.044715 x^3)
#pragma once
#include "vec.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

struct Tail {
    Vec a;        // |x|, at most LIMIT
    Vec q;        // Phi(-a)
    Vec density;  // a * d(Phi)/dx at a
};

// Beyond it q is zero in float32, and infinity times zero would be a NaN.
constexpr float LIMIT = 14.0f;

inline Tail erf_tail(Vec x) {
    const Vec a = min(set(LIMIT), abs(x));
    const Vec t = set(1.0f) / fma(a, set(0.27f), set(1.0f));
    Vec p = set(0.0289153028f);
    p = fma(p, t, set(-0.126255393f));
    p = fma(p, t, set(0.169291675f));
    p = fma(p, t, set(-0.0686212704f));
    p = fma(p, t, set(0.107399628f));
    p = fma(p, t, set(0.0722402111f));
    p = fma(p, t, set(0.10175918f));
    p = fma(p, t, set(0.107550502f));
    p = fma(p, t, set(0.107720181f));
    const Vec e = exp(a * a * set(-0.5f));
    return {a, e * (p * t), a * e * set(0.398942280f)};
}

inline Tail tanh_tail(Vec x) {
    const Vec a = min(set(LIMIT), abs(x));
    const Vec square = a * a;
    const Vec u2 = a * fma(square, set(0.0713548162f), set(1.59576912f));  // 2 u
    const Vec e = exp(set(0.0f) - u2);
    const Vec s = set(1.0f) / (set(1.0f) + e);
    const Vec q = e * s;
    return {a, q, a * q * s * fma(square, set(0.214064449f), set(1.59576912f))};
}

template <bool TANH> inline Tail tail(Vec x) { return TANH ? tanh_tail(x) : erf_tail(x); }

template <bool TANH> inline Vec gelu(Vec x) {
    const Tail t = tail<TANH>(x);
    return fma(set(0.0f) - t.a, t.q, max(set(0.0f), x));
}

template <bool TANH> inline Vec gelu_derivative(Vec x) {
    const Tail t = tail<TANH>(x);
    const Vec positive = (set(1.0f) - t.q) + t.density;
    return select_less(x, set(0.0f), t.q - t.density, positive);
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
