// GELU(x + bias) and its gradients (Hendrycks & Gimpel 2016).
//
// Both forms are written with the small tail q = Phi(-|x|), which keeps its relative precision where 1 + erf loses it:
//     gelu(x) = max(x, 0) - |x| q
// erf:  q = e^(-x^2/2) R(|x|), R a polynomial in 1 / (1 + 0.27 |x|) (Lawson fit, relative error 2.4e-8)
// tanh: q = e / (1 + e), e = e^(-2 |u|), u = sqrt(2/pi) (x + 0.044715 x^3)
// Bytes moved: 8 an element forward, 12 backward (float32).
#include "ops.h"

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

// Without a bias the shape does not matter: rows of this length keep every thread busy.
constexpr int64_t FLAT_COLUMNS = 4096;

template <class T, bool TANH> void forward(const GeluArgs& args, void* out_) {
    const T* x = static_cast<const T*>(args.x);
    T* out = static_cast<T*>(out_);
    const int64_t total = args.rows * args.cols;
    const int64_t cols = args.bias ? args.cols : FLAT_COLUMNS;
    const int64_t rows = cols ? (total + cols - 1) / cols : 0;
    parallel_ranges(rows, cols, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const int64_t offset = row * cols;
            const int64_t n = total - offset < cols ? total - offset : cols;
            for_columns(0, n, [&](int64_t c, auto lanes) {
                Vec v = load(x + offset + c, lanes);
                if (args.bias) v = v + load(args.bias + c, lanes);
                store(out + offset + c, gelu<TANH>(v), lanes);
            });
        }
    });
}

template <class T, bool TANH>
void backward(const GeluArgs& args, const void* dout_, void* dx_, float* dbias, float* workspace) {
    const T* x = static_cast<const T*>(args.x);
    const T* dout = static_cast<const T*>(dout_);
    T* dx = static_cast<T*>(dx_);
    const int64_t total = args.rows * args.cols;
    const int64_t cols = args.bias ? args.cols : FLAT_COLUMNS;
    const int64_t rows = cols ? (total + cols - 1) / cols : 0;
    const int64_t per_chunk = rows_per_chunk(rows), chunks = reduction_chunks(rows);
    parallel_ranges(chunks, per_chunk * cols, [&](int64_t begin, int64_t end) {
        for (int64_t chunk = begin; chunk < end; ++chunk) {
            float* partial = dbias ? workspace + chunk * cols : nullptr;
            if (partial) fill(partial, cols, 0.0f);
            const int64_t last = (chunk + 1) * per_chunk < rows ? (chunk + 1) * per_chunk : rows;
            for (int64_t row = chunk * per_chunk; row < last; ++row) {
                const int64_t offset = row * cols;
                const int64_t n = total - offset < cols ? total - offset : cols;
                for_columns(0, n, [&](int64_t c, auto lanes) {
                    Vec v = load(x + offset + c, lanes);
                    if (args.bias) v = v + load(args.bias + c, lanes);
                    const Vec g = gelu_derivative<TANH>(v) * load(dout + offset + c, lanes);
                    store(dx + offset + c, g, lanes);
                    if (partial) store(partial + c, load(partial + c, lanes) + g, lanes);
                });
            }
        }
    });
    if (dbias) reduce_chunks(workspace, chunks, cols, cols, dbias);
}

}  // namespace

void gelu_forward(const GeluArgs& args, void* out) {
    const bool half = args.dtype == DType::bf16;
    auto run = args.tanh ? (half ? forward<bf16, true> : forward<float, true>)
                         : (half ? forward<bf16, false> : forward<float, false>);
    run(args, out);
}

void gelu_backward(const GeluArgs& args, const void* dout, void* dx, float* dbias, float* workspace) {
    const bool half = args.dtype == DType::bf16;
    auto run = args.tanh ? (half ? backward<bf16, true> : backward<float, true>)
                         : (half ? backward<bf16, false> : backward<float, false>);
    run(args, dout, dx, dbias, workspace);
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
