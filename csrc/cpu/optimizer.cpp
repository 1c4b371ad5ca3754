// AdamW (Loshchilov & Hutter 2019) and LAMB (You et al. 2020, algorithm 2) over all tensors of a model in one call.
//
//     g = grad_scale grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  u = m c1 / (sqrt(v) c2 + eps) + decay p
//     AdamW: p -= lr u;   LAMB: p -= lr trust u,  trust = |p| / |u| for each tensor
//
// AdamW moves 28 bytes an element in float32 (reads p, g, m, v; writes p, m, v), once: memory limits its speed. In a row of a table
// that no batch has read it moves 8. LAMB needs |u| before it can change p: its second pass computes u again from p, m, v (16
// bytes); storing u would move 20.
// Tensors are cut into chunks of one size; the sums of chunks are added in their order, whichever threads computed them.
#include <limits>
#include <type_traits>

#include "columns.h"
#include "ops.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

constexpr int64_t CHUNK = OPTIMIZER_CHUNK;

inline int64_t num_chunks(int64_t size) { return divide_up(size, CHUNK); }

template <class Tensor> inline int64_t num_chunks(const Tensor* tensors, int64_t count) {
    int64_t chunks = 0;
    for (int64_t i = 0; i < count; ++i) chunks += num_chunks(tensors[i].size);
    return chunks;
}

// Whether the gradient may differ from zero in the chunk that begins there.
template <class Tensor> inline bool is_written(const Tensor& t, int64_t begin) { return !t.written || t.written[begin / CHUNK]; }

// f(tensor, its number, begin, end, chunk's number) over all chunks of all tensors.
template <class Tensor, class F> inline void each_chunk(const Tensor* tensors, int64_t count, F&& f) {
    int64_t chunk = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t size = tensors[i].size;
        for (int64_t begin = 0; begin < size; begin += CHUNK, ++chunk)
            f(tensors[i], i, begin, begin + CHUNK < size ? begin + CHUNK : size, chunk);
    }
}

// `each_chunk` by several threads. They get equal shares of the elements, not of the chunks, since every bias is a chunk by
// itself; an element whose gradient is known to be zero costs a third: only the parameter moves.
template <class Tensor, class Body> inline void for_chunks(const Tensor* tensors, int64_t count, Body&& body) {
    const auto cost = [](const Tensor& t, int64_t begin, int64_t end) {
        return is_written(t, begin) ? end - begin : divide_up(end - begin, 3);
    };
    int64_t total = 0;
    each_chunk(tensors, count, [&](const Tensor& t, int64_t, int64_t begin, int64_t end, int64_t) {
        total += cost(t, begin, end);
    });
    parallel_ranges(total, 1, [&](int64_t first, int64_t last) {
        int64_t at = 0;
        each_chunk(tensors, count, [&](const Tensor& t, int64_t i, int64_t begin, int64_t end, int64_t chunk) {
            if (at >= first && at < last) body(t, i, begin, end, chunk);
            at += cost(t, begin, end);
        });
    });
}

// The processor's own prefetcher stops at the end of a page, which each of four streams reaches every 1,024 elements.
constexpr int64_t AHEAD = 512;

inline void fetch(const void* x, int64_t i, int64_t size) {
    __builtin_prefetch(static_cast<const char*>(x) + (i + AHEAD) * size, 1, 3);
}

struct Float32Weights {
    float* p;
    void fetch_ahead(int64_t i) const { fetch(p, i, 4); }
    template <class Lanes> Vec read(int64_t i, Lanes lanes) const { return load(p + i, lanes); }
    template <class Lanes> void write(int64_t i, Vec a, Lanes lanes) const { store(p + i, a, lanes); }
};

// The master weights are updated; the parameter is rounded from them.
struct MasterWeights {
    float* master;
    bf16* p;
    void fetch_ahead(int64_t i) const {
        fetch(master, i, 4);
        fetch(p, i, 2);
    }
    template <class Lanes> Vec read(int64_t i, Lanes lanes) const { return load(master + i, lanes); }
    template <class Lanes> void write(int64_t i, Vec a, Lanes lanes) const {
        store(master + i, a, lanes);
        store(p + i, a, lanes);
    }
};

// The numbers of one tensor, spread over lanes.
struct Rates {
    Vec scale, rate1, rate2, first_correction, second_correction, eps, weight_decay;

    Rates(const OptimizerTensor& t, float grad_scale)
        : scale(set(grad_scale)), rate1(set(t.rate1)), rate2(set(t.rate2)), first_correction(set(t.first_correction)),
          second_correction(set(t.second_correction)), eps(set(t.eps)), weight_decay(set(t.weight_decay)) {}

    Vec update(Vec m, Vec v, Vec p) const {
        const Vec direction = (m * first_correction) / fma(sqrt(v), second_correction, eps);
        return fma(weight_decay, p, direction);
    }
};

// In place of the gradient's type where it is zero throughout the chunk.
struct Zeros {};

// Moves the moments; gives the update.
template <class G, class Lanes>
inline Vec advance(const OptimizerTensor& t, const Rates& rates, int64_t i, Vec p, Lanes lanes) {
    constexpr bool zero = std::is_same_v<G, Zeros>;
    Vec g = set(0.0f);
    if constexpr (!zero) {
        fetch(t.grad, i, sizeof(G));
        fetch(t.first, i, 4);
        fetch(t.second, i, 4);
        g = load(static_cast<const G*>(t.grad) + i, lanes) * rates.scale;
    }
    const Vec before = load(t.first + i, lanes), square = load(t.second + i, lanes);
    // m - (1-b1) m instead of b1 m: the distance to 1 of 0.999 rounded to float32, which matters, has an error of 1e-5.
    const Vec m = fma(rates.rate1, g, fma(set(0.0f) - rates.rate1, before, before));
    // Below infinity, of which the next step would make inf - inf; the second number of min is the one that may be NaN.
    const Vec moved = fma(rates.rate2 * g, g, fma(set(0.0f) - rates.rate2, square, square));
    const Vec v = min(set(std::numeric_limits<float>::max()), moved);
    // Moments that never moved are not written: their pages have no memory of their own yet (ops/_few_rows.py), and threads
    // that read the system's page of zeros must not fetch it to write.
    if (!zero || any_bit(before) || any_bit(square)) {
        store(t.first + i, m, lanes);
        store(t.second + i, v, lanes);
    }
    return rates.update(m, v, p);
}

template <class G, class Weights>
inline void step_chunk(const OptimizerTensor& t, float grad_scale, const Weights& weights, int64_t begin, int64_t end) {
    const Rates rates(t, grad_scale);
    const Vec lr = set(-t.lr);
    for_columns(begin, end, [&](int64_t i, auto lanes) {
        weights.fetch_ahead(i);
        const Vec p = weights.read(i, lanes);
        weights.write(i, fma(lr, advance<G>(t, rates, i, p, lanes), p), lanes);
    });
}

struct Squares {
    float weights, updates;
};

template <class G, class Weights>
inline Squares measure_chunk(const OptimizerTensor& t, float grad_scale, const Weights& weights, int64_t begin, int64_t end) {
    const Rates rates(t, grad_scale);
    Vec of_weights = set(0.0f), of_updates = set(0.0f);
    for_columns(begin, end, [&](int64_t i, auto lanes) {
        weights.fetch_ahead(i);
        const Vec p = weights.read(i, lanes);
        const Vec u = only(advance<G>(t, rates, i, p, lanes), lanes);
        of_weights = fma(p, p, of_weights);
        of_updates = fma(u, u, of_updates);
    });
    return {sum(of_weights), sum(of_updates)};
}

template <class Weights>
inline void move_chunk(const OptimizerTensor& t, float trust, const Weights& weights, int64_t begin, int64_t end) {
    const Rates rates(t, 1.0f);
    const Vec rate = set(-t.lr * trust);
    for_columns(begin, end, [&](int64_t i, auto lanes) {
        fetch(t.first, i, 4);
        fetch(t.second, i, 4);
        weights.fetch_ahead(i);
        const Vec p = weights.read(i, lanes);
        const Vec u = rates.update(load(t.first + i, lanes), load(t.second + i, lanes), p);
        weights.write(i, fma(rate, u, p), lanes);
    });
}

template <class F> inline void with_weights(const OptimizerTensor& t, F&& f) {
    if (t.master)
        f(MasterWeights{t.master, static_cast<bf16*>(t.param)});
    else
        f(Float32Weights{static_cast<float*>(t.param)});
}

// f(weights, a pointer of the gradient's type) for the types that this tensor has in the chunk that begins there.
template <class F> inline void with_types(const OptimizerTensor& t, int64_t begin, F&& f) {
    with_weights(t, [&](const auto& weights) {
        if (!is_written(t, begin))
            f(weights, static_cast<const Zeros*>(nullptr));
        else if (t.grad_dtype == DType::bf16)
            f(weights, static_cast<const bf16*>(nullptr));
        else
            f(weights, static_cast<const float*>(nullptr));
    });
}

template <class P> using Pointee = std::remove_cv_t<std::remove_pointer_t<P>>;

inline void step(const OptimizerTensor& t, float grad_scale, int64_t begin, int64_t end) {
    with_types(t, begin, [&](const auto& weights, auto grad) {
        step_chunk<Pointee<decltype(grad)>>(t, grad_scale, weights, begin, end);
    });
}

// |p| / |u| of each tensor from the sums of its chunks.
inline void find_trusts(const OptimizerArgs& a, const Squares* squares, float* trusts) {
    for (int64_t i = 0; i < a.count; ++i) {
        double weights = 0, updates = 0;
        for (int64_t end = num_chunks(a.tensors[i].size), k = 0; k < end; ++k, ++squares) {
            weights += squares->weights;
            updates += squares->updates;
        }
        float trust = 1.0f;
        if (weights > 0 && updates > 0) {
            trust = float(__builtin_sqrt(weights) / __builtin_sqrt(updates));
            trust = trust < a.tensors[i].least_trust ? a.tensors[i].least_trust : trust;
            trust = trust > a.tensors[i].most_trust ? a.tensors[i].most_trust : trust;
        }
        trusts[i] = trust;
    }
}

template <class T> inline float square_sum(const void* x, int64_t begin, int64_t end) {
    const T* from = static_cast<const T*>(x) + begin;
    return sum_columns(end - begin, [&](int64_t c, auto lanes) {
        fetch(from, c, sizeof(T));
        const Vec v = load(from + c, lanes);
        return v * v;
    });
}

}  // namespace

void adamw(const OptimizerArgs& a) {
    for_chunks(a.tensors, a.count, [&](const OptimizerTensor& t, int64_t, int64_t begin, int64_t end, int64_t) {
        step(t, a.grad_scale, begin, end);
    });
}

void lamb(const OptimizerArgs& a) {
    const int64_t chunks = num_chunks(a.tensors, a.count);
    float* scratch = thread_scratch(2 * chunks + a.count);
    float* trusts = scratch + 2 * chunks;
    Squares* squares = reinterpret_cast<Squares*>(scratch);
    for_chunks(a.tensors, a.count, [&](const OptimizerTensor& t, int64_t, int64_t begin, int64_t end, int64_t chunk) {
        squares[chunk] = {0.0f, 0.0f};
        if (!t.has_trust) return step(t, a.grad_scale, begin, end);
        with_types(t, begin, [&](const auto& weights, auto grad) {
            squares[chunk] = measure_chunk<Pointee<decltype(grad)>>(t, a.grad_scale, weights, begin, end);
        });
    });
    find_trusts(a, squares, trusts);
    for_chunks(a.tensors, a.count, [&](const OptimizerTensor& t, int64_t i, int64_t begin, int64_t end, int64_t) {
        if (t.has_trust) with_weights(t, [&](const auto& weights) { move_chunk(t, trusts[i], weights, begin, end); });
    });
}

double grad_norm(const GradNormTensor* tensors, int64_t count) {
    const int64_t chunks = num_chunks(tensors, count);
    float* partial = thread_scratch(chunks);
    for_chunks(tensors, count, [&](const GradNormTensor& t, int64_t, int64_t begin, int64_t end, int64_t chunk) {
        partial[chunk] = !is_written(t, begin)    ? 0.0f
                         : t.dtype == DType::bf16 ? square_sum<bf16>(t.grad, begin, end)
                                                  : square_sum<float>(t.grad, begin, end);
    });
    double total = 0;
    for (int64_t k = 0; k < chunks; ++k) total += partial[k];
    return __builtin_sqrt(total);
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
