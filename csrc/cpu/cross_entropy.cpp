// Softmax cross-entropy of (rows, cols) logits:  loss = (max - logit[label]) + log(sum),  sum = sum e^(logit - max)
// and  dlogits = dloss (e^(logit - max) / sum - onehot(label)).
// Only max and sum are kept; torch keeps all the log-probabilities. They stay apart, because max + log(sum) would round
// to a unit of max, and every probability would carry that. A row of BERT's vocabulary (122 kB) stays in the
// second-level cache between the two passes of the forward.
#include <cmath>

#include "ops.h"
#include "vec.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// The logit at one column.
template <class T> inline float at(const T* x, int64_t column) { return sum(load(x + column, 1)); }

struct Statistics {
    float most, total;
};

template <class T> inline Statistics row_statistics(const T* x, int64_t cols) {
    const float lowest = -__builtin_inff();
    const int64_t whole = cols / W * W;
    // A NaN logit may be lost in the maximum; the sum of exponentials finds it again.
    Vec top = set(lowest);
    for (int64_t c = 0; c < whole; c += W) top = max(top, load(x + c));
    float most = maximum(top);
    // The last, partial vector is padded with minus infinity, whose exponential is zero.
    float rest[W];
    for (int i = 0; i < W; ++i) rest[i] = whole + i < cols ? at(x, whole + i) : lowest;
    const float rest_most = maximum(load(rest));
    most = rest_most > most ? rest_most : most;

    const Vec m = set(most);
    Vec acc[4] = {set(0.0f), set(0.0f), set(0.0f), exp(load(rest) - m)};
    int64_t c = 0;
    for (; c + 4 * W <= whole; c += 4 * W)
        for (int i = 0; i < 4; ++i) acc[i] = acc[i] + exp(load(x + c + i * W) - m);
    for (; c < whole; c += W) acc[0] = acc[0] + exp(load(x + c) - m);
    return {most, sum((acc[0] + acc[1]) + (acc[2] + acc[3]))};
}

inline int64_t first_bad_row(const CrossEntropyArgs& a) {
    for (int64_t row = 0; row < a.rows; ++row)
        if (a.labels[row] != a.ignore_index && (a.labels[row] < 0 || a.labels[row] >= a.cols)) return row;
    return -1;
}

template <class T> void forward(const CrossEntropyArgs& a, float* loss, float* statistics) {
    const T* logits = static_cast<const T*>(a.logits);
    parallel_ranges(a.rows, a.cols, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            if (a.labels[row] == a.ignore_index) {
                loss[row] = statistics[2 * row] = statistics[2 * row + 1] = 0.0f;
                continue;
            }
            const T* x = logits + row * a.cols;
            const Statistics s = row_statistics(x, a.cols);
            statistics[2 * row] = s.most;
            statistics[2 * row + 1] = s.total;
            loss[row] = (s.most - at(x, a.labels[row])) + std::log(s.total);
        }
    });
}

template <class T>
void backward(const CrossEntropyArgs& a, const float* dloss, const float* statistics, void* dlogits_) {
    const T* logits = static_cast<const T*>(a.logits);
    T* dlogits = static_cast<T*>(dlogits_);
    parallel_ranges(a.rows, a.cols, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const T* x = logits + row * a.cols;
            T* dx = dlogits + row * a.cols;
            if (a.labels[row] == a.ignore_index) {
                for_columns(0, a.cols, [&](int64_t c, auto lanes) { store(dx + c, set(0.0f), lanes); });
                continue;
            }
            const Vec most = set(statistics[2 * row]), g = set(dloss[row]);
            const Vec rate = set(1.0f) / set(statistics[2 * row + 1]);
            const auto probability = [&](int64_t c, auto lanes) { return exp(load(x + c, lanes) - most) * rate; };
            for_columns(0, a.cols, [&](int64_t c, auto lanes) { store(dx + c, g * probability(c, lanes), lanes); });
            const int64_t label = a.labels[row];
            store(dx + label, g * (probability(label, Part{1}) - set(1.0f)), 1);
        }
    });
}

}  // namespace

int64_t cross_entropy_forward(const CrossEntropyArgs& args, float* loss, float* statistics) {
    const int64_t bad = first_bad_row(args);
    if (bad < 0) (args.dtype == DType::bf16 ? forward<bf16> : forward<float>)(args, loss, statistics);
    return bad;
}

int64_t cross_entropy_backward(const CrossEntropyArgs& args, const float* dloss, const float* statistics, void* dlogits) {
    const int64_t bad = first_bad_row(args);
    if (bad < 0) (args.dtype == DType::bf16 ? backward<bf16> : backward<float>)(args, dloss, statistics, dlogits);
    return bad;
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
