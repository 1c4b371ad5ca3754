// LN(residual + dropout(x + x_bias)) (Ba et al. 2016; the post-LN step of Vaswani et al. 2017, section 5.4).
//
//     z = residual + dropout(x + x_bias);  mean, var over the row;  out = (z - mean) rstd weight + bias
//     g = dout weight;  dz = rstd (g - mean(g) - zhat mean(g zhat)),  zhat = (z - mean) rstd;  dresidual = dz
//     dx = dropout(dz) under the same bits;  dweight = sum dout zhat;  dbias = sum dout;  dx_bias = sum dx
// One read of x and residual, one write of out (and of z for training). Two passes over a row of z, which stays in the
// first-level cache, give the variance without cancellation.
#include "columns.h"
#include "ops.h"
#include "philox.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// z of one row.
template <class T>
inline void branch_sum(const LayerNormForwardArgs& a, int64_t row, float* z) {
    const T* x = static_cast<const T*>(a.x) + row * a.cols;
    const T* residual = a.residual ? static_cast<const T*>(a.residual) + row * a.cols : nullptr;
    for_kept_columns(a.dropout, row, a.cols, [&](int64_t c, auto lanes, auto&& dropped) {
        Vec v = load(x + c, lanes);
        if (a.x_bias) v = v + load(a.x_bias + c, lanes);
        v = dropped(v);
        if (residual) v = v + load(residual + c, lanes);
        store(z + c, v, lanes);
    });
}

template <class T> void forward(const LayerNormForwardArgs& a) {
    parallel_ranges(a.rows, a.cols, [&](int64_t begin, int64_t end) {
        float* scratch = a.sum ? nullptr : thread_scratch(a.cols);
        for (int64_t row = begin; row < end; ++row) {
            float* z = a.sum ? a.sum + row * a.cols : scratch;
            branch_sum<T>(a, row, z);
            const float mean = sum_columns(a.cols, [&](int64_t c, auto lanes) { return load(z + c, lanes); }) / a.cols;
            const float rstd = inverse_deviation(z, a.cols, mean, a.eps);
            a.mean[row] = mean;
            a.rstd[row] = rstd;
            const Vec m = set(mean), r = set(rstd);
            T* out = static_cast<T*>(a.out) + row * a.cols;
            for_columns(0, a.cols, [&](int64_t c, auto lanes) {
                const Vec normal = (load(z + c, lanes) - m) * r;
                store(out + c, fma(normal, load(a.weight + c, lanes), load(a.bias + c, lanes)), lanes);
            });
        }
    });
}

// Where one chunk of rows adds up the gradients of the parameters.
struct Partial {
    float* dweight;
    float* dbias;
    float* dx_bias;
};

template <class T>
inline void backward_row(const LayerNormBackwardArgs& a, int64_t row, const Partial& partial) {
    const T* dout = static_cast<const T*>(a.dout) + row * a.cols;
    const float* z = a.sum + row * a.cols;
    const Vec m = set(a.mean[row]), r = set(a.rstd[row]);
    const float sum_g = sum_columns(a.cols, [&](int64_t c, auto lanes) {
        const Vec d = load(dout + c, lanes);
        store(partial.dbias + c, load(partial.dbias + c, lanes) + d, lanes);
        return d * load(a.weight + c, lanes);
    });
    const float sum_gz = sum_columns(a.cols, [&](int64_t c, auto lanes) {
        const Vec d = load(dout + c, lanes) * ((load(z + c, lanes) - m) * r);
        store(partial.dweight + c, load(partial.dweight + c, lanes) + d, lanes);
        return d * load(a.weight + c, lanes);
    });
    const Vec mean_g = set(sum_g / a.cols), mean_gz = set(sum_gz / a.cols);
    T* dresidual = a.dresidual ? static_cast<T*>(a.dresidual) + row * a.cols : nullptr;
    T* dx = a.dx ? static_cast<T*>(a.dx) + row * a.cols : nullptr;
    for_kept_columns(a.dropout, row, a.cols, [&](int64_t c, auto lanes, auto&& dropped) {
        const Vec normal = (load(z + c, lanes) - m) * r;
        const Vec g = load(dout + c, lanes) * load(a.weight + c, lanes);
        const Vec dz = r * ((g - mean_g) - normal * mean_gz);
        if (dresidual) store(dresidual + c, dz, lanes);
        const Vec branch = dropped(dz);
        if (dx) store(dx + c, branch, lanes);
        if (partial.dx_bias) store(partial.dx_bias + c, load(partial.dx_bias + c, lanes) + branch, lanes);
    });
}

template <class T> void backward(const LayerNormBackwardArgs& a) {
    const int64_t chunks = reduction_chunks(a.rows), stride = 3 * a.cols;
    parallel_chunks(a.rows, a.cols, [&](int64_t chunk, int64_t first, int64_t last) {
        float* base = a.workspace + chunk * stride;
        fill(base, stride, 0.0f);
        const Partial partial{base, base + a.cols, a.dx_bias ? base + 2 * a.cols : nullptr};
        for (int64_t row = first; row < last; ++row) backward_row<T>(a, row, partial);
    });
    reduce_chunks(a.workspace, chunks, stride, a.cols, a.dweight);
    reduce_chunks(a.workspace + a.cols, chunks, stride, a.cols, a.dbias);
    if (a.dx_bias) reduce_chunks(a.workspace + 2 * a.cols, chunks, stride, a.cols, a.dx_bias);
}

}  // namespace

void layer_norm_forward(const LayerNormForwardArgs& args) {
    args.dtype == DType::bf16 ? forward<bf16>(args) : forward<float>(args);
}

void layer_norm_backward(const LayerNormBackwardArgs& args) {
    args.dtype == DType::bf16 ? backward<bf16>(args) : backward<float>(args);
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
