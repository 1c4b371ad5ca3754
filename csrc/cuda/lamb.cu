// LAMB (You et al. 2020, algorithm 2) over all tensors, with the arithmetic, tables and order of sums of the Triton kernels
// (fastbert/triton_kernels/lamb.py), to be compared with them in speed. No atomics: two runs give equal bits.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>

#include "launch.h"

namespace fastbert {
namespace cuda {
namespace {

constexpr int THREADS = 256, WIDTH = 4;  // elements a thread takes at a time

struct Rates {
    float lr, eps, decay, rate1, rate2, correct1, correct2, has_trust, least, most;
};

struct Tensor {
    void* param;
    const void* grad;
    float* master;  // the parameter itself where it is float32
    float* first;
    float* second;
    int64_t size, step;
};
static_assert(sizeof(Rates) == 40 && sizeof(Tensor) == 56, "the tables' rows");

__device__ float widen(float x) { return x; }
__device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float widen(__half x) { return __half2float(x); }
template <class T> __device__ T narrow(float x);
template <> __device__ float narrow(float x) { return x; }
template <> __device__ __nv_bfloat16 narrow(float x) { return __float2bfloat16_rn(x); }
template <> __device__ __half narrow(float x) { return __float2half_rn(x); }

template <class T> struct alignas(sizeof(T) * WIDTH) Pack {
    T value[WIDTH];
};

// Whole packs where the tensor's memory and the place in it allow them; elements one by one at its end.
template <class T> __device__ void load(const T* x, int64_t at, int64_t size, bool aligned, float* out) {
    if (aligned && at + WIDTH <= size) {
        const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(x + at);
        for (int i = 0; i < WIDTH; ++i) out[i] = widen(pack.value[i]);
    } else {
        for (int i = 0; i < WIDTH; ++i) out[i] = at + i < size ? widen(x[at + i]) : 0.0f;
    }
}

template <class T> __device__ void store(T* x, int64_t at, int64_t size, bool aligned, const float* in) {
    if (aligned && at + WIDTH <= size) {
        Pack<T> pack;
        for (int i = 0; i < WIDTH; ++i) pack.value[i] = narrow<T>(in[i]);
        *reinterpret_cast<Pack<T>*>(x + at) = pack;
    } else {
        for (int i = 0; i < WIDTH; ++i)
            if (at + i < size) x[at + i] = narrow<T>(in[i]);
    }
}

__device__ bool is_aligned(const Tensor& t) {
    return ((uint64_t(t.param) | uint64_t(t.grad) | uint64_t(t.master) | uint64_t(t.first) | uint64_t(t.second)) & 15) == 0;
}

__device__ float update(const Rates& r, float m, float v, float p) {
    return __fdiv_rn(m * r.correct1, __fsqrt_rn(v) * r.correct2 + r.eps) + r.decay * p;
}

template <class P> __device__ void write(const Tensor& t, int64_t at, bool aligned, const float* p) {
    if constexpr (sizeof(P) != 4) store(t.master, at, t.size, aligned, p);
    store(static_cast<P*>(t.param), at, t.size, aligned, p);
}

// The sum over the block, in one order, in thread 0.
__device__ double block_sum(double mine) {
    __shared__ double sums[THREADS];
    __syncthreads();
    sums[threadIdx.x] = mine;
    __syncthreads();
    for (int half = THREADS / 2; half; half /= 2) {
        if (int(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    return sums[0];
}

template <class P, class G> __global__ void __launch_bounds__(THREADS) measure_kernel(LambArgs a) {
    if (a.control[2] == 0.0f) return;
    const float scale = a.control[1];
    const int64_t chunk = a.first_chunk + blockIdx.x;
    const int32_t number = a.chunks[2 * chunk];
    const Tensor t = reinterpret_cast<const Tensor*>(a.places)[number];
    const Rates r = reinterpret_cast<const Rates*>(a.rates)[number];
    const bool aligned = is_aligned(t);
    const int64_t begin = a.chunks[2 * chunk + 1] * LAMB_CHUNK;
    const int64_t end = begin + LAMB_CHUNK < t.size ? begin + LAMB_CHUNK : t.size;
    float of_weights = 0.0f, of_updates = 0.0f;
    for (int64_t at = begin + threadIdx.x * WIDTH; at < end; at += THREADS * WIDTH) {
        float p[WIDTH], g[WIDTH], m[WIDTH], v[WIDTH];
        load(t.master, at, t.size, aligned, p);
        load(static_cast<const G*>(t.grad), at, t.size, aligned, g);
        load(t.first, at, t.size, aligned, m);
        load(t.second, at, t.size, aligned, v);
        for (int i = 0; i < WIDTH; ++i) {
            const float given = g[i] * scale;
            // m - (1-b1) m instead of b1 m: the distance to 1 of 0.999 rounded to fp32, which matters, has an error of 1e-5.
            m[i] = m[i] - r.rate1 * m[i] + r.rate1 * given;
            // Below infinity, of which the next step would make inf - inf.
            const float square = v[i] - r.rate2 * v[i] + r.rate2 * given * given;
            v[i] = square > FLT_MAX ? FLT_MAX : square;
            const float u = at + i < t.size ? update(r, m[i], v[i], p[i]) : 0.0f;
            of_weights += p[i] * p[i];
            of_updates += u * u;
            p[i] -= r.lr * u;
        }
        store(t.first, at, t.size, aligned, m);
        store(t.second, at, t.size, aligned, v);
        if (r.has_trust == 0.0f) write<P>(t, at, aligned, p);
    }
    const double weights = block_sum(of_weights), updates = block_sum(of_updates);
    if (threadIdx.x == 0) {
        a.squares[2 * chunk] = float(weights);
        a.squares[2 * chunk + 1] = float(updates);
    }
}

__global__ void __launch_bounds__(THREADS) trust_kernel(LambArgs a) {
    double of_weights = 0, of_updates = 0;
    for (int32_t chunk = a.bounds[blockIdx.x] + threadIdx.x; chunk < a.bounds[blockIdx.x + 1]; chunk += THREADS) {
        of_weights += a.squares[2 * chunk];
        of_updates += a.squares[2 * chunk + 1];
    }
    const double weights = block_sum(of_weights), updates = block_sum(of_updates);
    if (threadIdx.x == 0) {
        const Rates r = reinterpret_cast<const Rates*>(a.rates)[blockIdx.x];
        float trust = 1.0f;
        if (weights > 0 && updates > 0) trust = fminf(fmaxf(float(sqrt(weights) / sqrt(updates)), r.least), r.most);
        a.trusts[blockIdx.x] = trust;
    }
}

template <class P> __global__ void __launch_bounds__(THREADS) move_kernel(LambArgs a) {
    const int64_t chunk = a.first_chunk + blockIdx.x;
    const int32_t number = a.chunks[2 * chunk];
    const Rates r = reinterpret_cast<const Rates*>(a.rates)[number];
    if (a.control[2] == 0.0f || r.has_trust == 0.0f) return;
    const Tensor t = reinterpret_cast<const Tensor*>(a.places)[number];
    const bool aligned = is_aligned(t);
    const float rate = r.lr * a.trusts[number];
    const int64_t begin = a.chunks[2 * chunk + 1] * LAMB_CHUNK;
    const int64_t end = begin + LAMB_CHUNK < t.size ? begin + LAMB_CHUNK : t.size;
    for (int64_t at = begin + threadIdx.x * WIDTH; at < end; at += THREADS * WIDTH) {
        float p[WIDTH], m[WIDTH], v[WIDTH];
        load(t.master, at, t.size, aligned, p);
        load(t.first, at, t.size, aligned, m);
        load(t.second, at, t.size, aligned, v);
        for (int i = 0; i < WIDTH; ++i) p[i] -= rate * update(r, m[i], v[i], p[i]);
        write<P>(t, at, aligned, p);
    }
}

// Parameters and gradients are of one type, or gradients are float32 beside narrow parameters.
template <class P> int measure(const LambArgs& a, Stream stream) {
    const auto kernel = a.grad_type == 0 ? measure_kernel<P, float> : measure_kernel<P, P>;
    return launch(kernel, a.num_chunks, THREADS, stream, a);
}

// f(an element of the parameters' type)
template <class F> int with_type(int type, F&& f) {
    return type == 0 ? f(float{}) : type == 1 ? f(__nv_bfloat16{}) : f(__half{});
}

}  // namespace

int lamb_measure(const LambArgs& a, Stream stream) {
    if (a.num_chunks == 0) return 0;
    if (a.grad_type != 0 && a.grad_type != a.param_type) return cudaErrorInvalidValue;
    return with_type(a.param_type, [&](auto p) { return measure<decltype(p)>(a, stream); });
}

int lamb_trust(const LambArgs& a, Stream stream) {
    return a.num_tensors ? launch(trust_kernel, a.num_tensors, THREADS, stream, a) : 0;
}

int lamb_move(const LambArgs& a, Stream stream) {
    if (a.num_chunks == 0) return 0;
    return with_type(a.param_type, [&](auto p) {
        return launch(move_kernel<decltype(p)>, a.num_chunks, THREADS, stream, a);
    });
}

}  // namespace cuda
}  // namespace fastbert
