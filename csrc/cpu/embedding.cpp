// Token + segment + position embeddings, LayerNorm and dropout (Devlin et al. 2019, figure 2).
//
//     z = word[id] + token_type[type] + position[place];  out = dropout(LN(z))
//     g = dropout(dout);  dz = rstd (g weight - mean(g weight) - zhat mean(g weight zhat)),  zhat = (z - mean) rstd
//     row i of a table's gradient = the sum of dz over the tokens that read row i;  dweight = sum g zhat;  dbias = sum g
// Forward reads three rows and writes one, and z for backward, which as torch's does not depend on what the tables hold
// by then; torch writes five. The sums over tokens go table row by table row, in order of the tokens, in
// float32 whatever the table's type; threads share the columns, so no two ever write one row's same columns.
#include "columns.h"
#include "ops.h"
#include "philox.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Where a token's three rows are.
template <class T> struct Rows {
    const T* of[3];

    Rows(const EmbeddingArgs& a, int64_t token) {
        for (int i = 0; i < 3; ++i) of[i] = static_cast<const T*>(a.tables[i]) + a.ids[i][token] * a.cols;
    }
    template <class Lanes> Vec sum(int64_t c, Lanes lanes) const {
        return (load(of[0] + c, lanes) + load(of[1] + c, lanes)) + load(of[2] + c, lanes);
    }
};

inline int64_t first_bad_token(const EmbeddingArgs& a) {
    for (int64_t token = 0; token < a.rows; ++token)
        for (int i = 0; i < 3; ++i)
            if (a.ids[i][token] < 0 || a.ids[i][token] >= a.table_rows[i]) return token;
    return -1;
}

template <class T> void forward(const EmbeddingArgs& a, void* out_, float* total, float* mean_out, float* rstd_out) {
    parallel_ranges(a.rows, a.cols, [&](int64_t begin, int64_t end) {
        float* scratch = thread_scratch(a.cols);
        for (int64_t row = begin; row < end; ++row) {
            float* z = total ? total + row * a.cols : scratch;
            const Rows<T> rows(a, row);
            const float mean = sum_columns(a.cols, [&](int64_t c, auto lanes) {
                const Vec v = rows.sum(c, lanes);
                store(z + c, v, lanes);
                return v;
            }) / a.cols;
            const float rstd = inverse_deviation(z, a.cols, mean, a.eps);
            mean_out[row] = mean;
            rstd_out[row] = rstd;
            const Vec m = set(mean), r = set(rstd);
            T* out = static_cast<T*>(out_) + row * a.cols;
            for_kept_columns(a.dropout, row, a.cols, [&](int64_t c, auto lanes, auto&& dropped) {
                const Vec normal = (load(z + c, lanes) - m) * r;
                store(out + c, dropped(fma(normal, load(a.weight + c, lanes), load(a.bias + c, lanes))), lanes);
            });
        }
    });
}

// dz of one token; adds to dweight and dbias.
template <class T>
inline void backward_row(const EmbeddingBackwardArgs& b, int64_t row, float* normals, float* dweight, float* dbias) {
    const EmbeddingArgs& a = b.forward;
    const T* dout = static_cast<const T*>(b.dout) + row * a.cols;
    const float* z = b.total + row * a.cols;
    float* dz = b.dsum + row * a.cols;
    const Vec m = set(b.mean[row]), r = set(b.rstd[row]);
    for_kept_columns(a.dropout, row, a.cols, [&](int64_t c, auto lanes, auto&& dropped) {
        const Vec g = dropped(load(dout + c, lanes)), normal = (load(z + c, lanes) - m) * r;
        store(dbias + c, load(dbias + c, lanes) + g, lanes);
        store(dweight + c, fma(g, normal, load(dweight + c, lanes)), lanes);
        store(normals + c, normal, lanes);
        store(dz + c, g * load(a.weight + c, lanes), lanes);
    });
    const Vec mean_g = set(sum_columns(a.cols, [&](int64_t c, auto lanes) { return load(dz + c, lanes); }) / a.cols);
    const Vec mean_gz = set(sum_columns(a.cols, [&](int64_t c, auto lanes) {
        return load(dz + c, lanes) * load(normals + c, lanes);
    }) / a.cols);
    for_columns(0, a.cols, [&](int64_t c, auto lanes) {
        store(dz + c, r * ((load(dz + c, lanes) - mean_g) - load(normals + c, lanes) * mean_gz), lanes);
    });
}

// Tokens sorted by the table row they read (a counting sort, so those of one row stay in order).
// order (rows) and starts (table_rows + 1) are filled: tokens order[starts[i]] .. order[starts[i + 1]] read row i.
inline void group_tokens(const int64_t* ids, int64_t rows, int64_t table_rows, int32_t* order, int32_t* starts) {
    for (int64_t i = 0; i <= table_rows; ++i) starts[i] = 0;
    for (int64_t t = 0; t < rows; ++t) ++starts[ids[t]];
    int32_t total = 0;
    for (int64_t i = 0; i <= table_rows; ++i) {
        const int32_t here = starts[i];
        starts[i] = total;
        total += here;
    }
    for (int64_t t = 0; t < rows; ++t) order[starts[ids[t]]++] = int32_t(t);
    for (int64_t i = table_rows; i > 0; --i) starts[i] = starts[i - 1];
    starts[0] = 0;
}

constexpr int64_t STRIP = 4 * W;
// Rows added in one run before the run's sum joins the total: of all tokens of a batch half may read one row.
constexpr int64_t RUN = 32;

template <class T, class Lanes>
inline void add_rows(const float* dsum, int64_t cols, const int32_t* tokens, int64_t count, int64_t c, T* out, Lanes lanes) {
    Vec total = set(0.0f);
    for (int64_t first = 0; first < count; first += RUN) {
        const int64_t last = first + RUN < count ? first + RUN : count;
        Vec run = set(0.0f);
        for (int64_t k = first; k < last; ++k) run = run + load(dsum + tokens[k] * cols + c, lanes);
        total = total + run;
    }
    store(out + c, total, lanes);
}

template <class T> inline void add_strip(const float* dsum, int64_t cols, const int32_t* tokens, int64_t count, int64_t c, T* out) {
    Vec total[4] = {set(0.0f), set(0.0f), set(0.0f), set(0.0f)};
    for (int64_t first = 0; first < count; first += RUN) {
        const int64_t last = first + RUN < count ? first + RUN : count;
        Vec run[4] = {set(0.0f), set(0.0f), set(0.0f), set(0.0f)};
        for (int64_t k = first; k < last; ++k)
            for (int i = 0; i < 4; ++i) run[i] = run[i] + load(dsum + tokens[k] * cols + c + i * W);
        for (int i = 0; i < 4; ++i) total[i] = total[i] + run[i];
    }
    for (int i = 0; i < 4; ++i) store(out + c + i * W, total[i]);
}

template <class T>
void table_gradient(const EmbeddingBackwardArgs& b, int table) {
    const EmbeddingArgs& a = b.forward;
    int32_t *order = b.order, *starts = b.order + a.rows;
    const int64_t table_rows = a.table_rows[table], skipped = table == 0 ? b.padding_idx : -1;
    T* out = static_cast<T*>(b.dtables[table]);
    group_tokens(a.ids[table], a.rows, table_rows, order, starts);
    parallel_ranges(divide_up(a.cols, STRIP), a.rows * STRIP, [&](int64_t begin, int64_t end) {
        const int64_t c_end = end * STRIP < a.cols ? end * STRIP : a.cols;
        for (int64_t k = 0; k < a.rows;) {
            const int64_t id = a.ids[table][order[k]], count = starts[id + 1] - starts[id];
            const int32_t* tokens = order + k;
            k += count;
            if (id == skipped) continue;
            T* row = out + id * a.cols;
            int64_t c = begin * STRIP;
            for (; c + STRIP <= c_end; c += STRIP) add_strip(b.dsum, a.cols, tokens, count, c, row);
            for_columns(c, c_end, [&](int64_t at, auto lanes) { add_rows(b.dsum, a.cols, tokens, count, at, row, lanes); });
        }
    });
}

template <class T> void backward(const EmbeddingBackwardArgs& b) {
    const EmbeddingArgs& a = b.forward;
    const int64_t chunks = reduction_chunks(a.rows), stride = 2 * a.cols;
    parallel_chunks(a.rows, a.cols, [&](int64_t chunk, int64_t first, int64_t last) {
        float *normals = thread_scratch(a.cols), *base = b.workspace + chunk * stride;
        fill(base, stride, 0.0f);
        for (int64_t row = first; row < last; ++row) backward_row<T>(b, row, normals, base, base + a.cols);
    });
    reduce_chunks(b.workspace, chunks, stride, a.cols, b.dweight);
    reduce_chunks(b.workspace + a.cols, chunks, stride, a.cols, b.dbias);
    for (int table = 0; table < 3; ++table)
        if (b.dtables[table]) table_gradient<T>(b, table);
}

}  // namespace

int64_t embedding_forward(const EmbeddingArgs& args, void* out, float* total, float* mean, float* rstd) {
    const int64_t bad = first_bad_token(args);
    if (bad < 0) (args.dtype == DType::bf16 ? forward<bf16> : forward<float>)(args, out, total, mean, rstd);
    return bad;
}

int64_t embedding_backward(const EmbeddingBackwardArgs& args) {
    const int64_t bad = first_bad_token(args.forward);
    if (bad < 0) (args.forward.dtype == DType::bf16 ? backward<bf16> : backward<float>)(args);
    return bad;
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
