// The gradient of attention (Dao et al. 2022, appendix B.2). With Q scaled, P = e^(Q K^T - lse) made again from the
// scores, and B = keep / (1 - p) the dropout's factors, drawn again:
//
//     dV = (P B)^T dO;  dS = P (B (dO V^T) - delta);  dQ = scale dS K;  dK = dS^T Q;  dbias: sums of dS's diagonals
//     delta = rowsum(P B (dO V^T)) = rowsum(dO O)
// A row of up to KEY_BLOCK scores is in the cache as a whole: P is then divided by its own sum, which removes the rounding of
// lse, and delta is computed by the first form, which does not depend on the rounded O. Longer rows use lse and the second
// form.
//
// 10 S^2 D flops for each sequence and head. A unit of work is one head of one sequence: its dK and dV are summed over
// the blocks of queries in order, by one thread, so nothing is added by two threads and the bits are always the same.
// P and dS exist for QUERY_BLOCK x KEY_BLOCK scores at a time.
#include "attention_tile.h"
#include "ops.h"
#include "philox.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// At 512 keys and head_dim 64 everything a head needs takes 0.9 MB, half of a second-level cache.
constexpr int64_t QUERY_BLOCK = 64, KEY_BLOCK = 512;
// Rows an odd number of cache lines apart fall into different sets of the first-level cache.
constexpr int64_t LD = KEY_BLOCK + 16, LDQ = ATTENTION_MAX_HEAD_DIM + 16;
static_assert(KEY_BLOCK <= KEEP_COLUMNS && KEY_BLOCK % NR == 0, "a block is whole panels");

using Scores = Product<LDQ, 1, LD, false>;      // Q K^T and dO V^T
using OverQueries = Product<1, LD, NR, true>;   // (P B)^T dO and dS^T Q
using OverKeys = Product<LD, 1, NR, true>;      // dS K

struct Plan {
    Arena scratch;
    int64_t heads;  // panels of a row of head_dim columns
    int64_t key_panel, row_panel, query_panel;
    int64_t keys_t, values_t, keys, dk, dv;          // of the whole sequence
    int64_t q, dout, q_panels, dout_panels, dq, delta;  // of a block of queries
    int64_t probs, dscores;                          // of a block of both

    Plan(int64_t longest, int64_t head_dim) {
        heads = panels_of(head_dim);
        key_panel = head_dim * NR;
        row_panel = longest * NR;
        query_panel = QUERY_BLOCK * NR;
        keys_t = scratch.reserve(panels_of(longest) * key_panel);
        values_t = scratch.reserve(panels_of(longest) * key_panel);
        keys = scratch.reserve(heads * row_panel);
        dk = scratch.reserve(heads * row_panel);
        dv = scratch.reserve(heads * row_panel);
        q = scratch.reserve(QUERY_BLOCK * LDQ);
        dout = scratch.reserve(QUERY_BLOCK * LDQ);
        q_panels = scratch.reserve(heads * query_panel);
        dout_panels = scratch.reserve(heads * query_panel);
        dq = scratch.reserve(heads * query_panel);
        delta = scratch.reserve(QUERY_BLOCK);
        probs = scratch.reserve(QUERY_BLOCK * LD);
        dscores = scratch.reserve(QUERY_BLOCK * LD);
    }
};

// The first step over a row of n scores and dP: e^(s - lse) and B dP, in place, with the sums of the first and of their
// products. Columns n..end are not seen and become zero.
template <bool DROP>
inline RowSums exponentials(float* s, float* dp, int64_t n, int64_t end, float lse, float keep_scale,
                            const uint8_t* bits) {
    const Vec shift = set(lse), scale = set(keep_scale);
    Vec total = set(0.0f), products = set(0.0f);
    for_scores(s, n, [&](int64_t c, Vec x) {
        const Vec e = softmax_exp(x - shift);
        total = total + e;
        store(s + c, e);
        Vec d = load(dp + c);
        if (DROP) {
            d = keep(d, bits + c / 8) * scale;
            store(dp + c, d);
        }
        products = fma(e, d, products);
    });
    for (int64_t c = round_up(n, W); c < end; c += W) {
        store(s + c, set(0.0f));
        store(dp + c, set(0.0f));
    }
    return {sum(total), sum(products)};
}

// The second step: P, with dropped elements zero (but the others not scaled), and dS.
template <bool DROP>
inline void score_gradients(float* p, float* ds, int64_t n, float over_total, float delta, const uint8_t* bits) {
    const Vec factor = set(over_total), d = set(delta);
    for (int64_t c = 0; c < n; c += W) {
        const Vec probs = load(p + c) * factor;
        store(p + c, DROP ? keep(probs, bits + c / 8) : probs);
        store(ds + c, probs * (load(ds + c) - d));
    }
}

template <class T> class Backward {
  public:
    Backward(const AttentionBackwardArgs& args, int64_t longest)
        : b_(args), a_(args.forward), plan_(longest, a_.head_dim), base_(plan_.scratch.allocate()),
          num_tokens_(a_.cu_seqlens[a_.batch_size]) {}

    void head(int64_t sequence, int64_t head) {
        const Span span(a_.cu_seqlens, sequence);
        if (!span.length) return;
        const int64_t dim = a_.head_dim, n = span.length;
        const Vec one = set(1.0f);
        const T* k = at(a_.k, a_.k_stride, span.begin, head);
        pack_transposed(k, a_.k_stride, n, dim, base_ + plan_.keys_t, plan_.key_panel);
        pack_transposed(at(a_.v, a_.v_stride, span.begin, head), a_.v_stride, n, dim, base_ + plan_.values_t,
                        plan_.key_panel);
        pack(k, a_.k_stride, n, dim, one, base_ + plan_.keys, plan_.row_panel);
        fill(base_ + plan_.dk, plan_.heads * plan_.row_panel, 0.0f);
        fill(base_ + plan_.dv, plan_.heads * plan_.row_panel, 0.0f);
        if (b_.dbias) dbias_ = b_.dbias + (sequence * a_.nheads + head) * a_.bias.stride + a_.bias.zero;
        fetch_ahead(sequence, head, span);
        const int64_t blocks = divide_up(n, QUERY_BLOCK);
        for (int64_t block = 0; block < blocks; ++block)
            queries(span, head, n * block / blocks, n * (block + 1) / blocks);
        const Vec dv_scale = set(a_.dropout.active() ? a_.dropout.scale : 1.0f);
        unpack(base_ + plan_.dk, NR, plan_.row_panel, n, dim, one, to(b_.dk, b_.dk_stride, span.begin, head),
               b_.dk_stride);
        unpack(base_ + plan_.dv, NR, plan_.row_panel, n, dim, dv_scale, to(b_.dv, b_.dv_stride, span.begin, head),
               b_.dv_stride);
    }

  private:
    const T* at(const void* x, int64_t stride, int64_t token, int64_t head) const {
        return static_cast<const T*>(x) + token * stride + head * a_.head_dim;
    }
    T* to(void* x, int64_t stride, int64_t token, int64_t head) const {
        return static_cast<T*>(x) + token * stride + head * a_.head_dim;
    }

    void fetch_ahead(int64_t sequence, int64_t head, const Span& span) {
        fetch_for_gradients<T>(b_, sequence, head, ahead_);
        const int64_t dim = a_.head_dim, n = span.length, blocks = divide_up(n, QUERY_BLOCK);
        ahead_.pace(blocks * (2 * Scores::steps(n / blocks, n) + 2 * OverQueries::steps(n, dim) +
                              OverKeys::steps(n / blocks, dim)));
    }

    void queries(const Span& span, int64_t head, int64_t begin, int64_t end) {
        const int64_t rows = end - begin, token = span.begin + begin, dim = a_.head_dim;
        const Vec scale = set(a_.softmax_scale), one = set(1.0f);
        const T* q = at(a_.q, a_.q_stride, token, head);
        const T* dout = at(b_.dout, b_.dout_stride, token, head);
        copy_rows<LDQ>(q, a_.q_stride, rows, dim, scale, base_ + plan_.q);
        copy_rows<LDQ>(dout, b_.dout_stride, rows, dim, one, base_ + plan_.dout);
        pack(q, a_.q_stride, rows, dim, scale, base_ + plan_.q_panels, plan_.query_panel);
        pack(dout, b_.dout_stride, rows, dim, one, base_ + plan_.dout_panels, plan_.query_panel);
        fill(base_ + plan_.dq, plan_.heads * plan_.query_panel, 0.0f);
        const int64_t keys = a_.causal ? end : span.length;
        const bool whole = keys <= KEY_BLOCK;
        const T* out = at(a_.out, a_.out_stride, token, head);
        for (int64_t r = 0; r < rows && !whole; ++r)
            base_[plan_.delta + r] = dot(dout + r * b_.dout_stride, out + r * a_.out_stride, dim);
        for (int64_t key = 0; key < keys; key += KEY_BLOCK)
            block(token, head, begin, rows, key, keys - key < KEY_BLOCK ? keys - key : KEY_BLOCK, whole);
        unpack(base_ + plan_.dq, NR, plan_.query_panel, rows, dim, scale, to(b_.dq, b_.dq_stride, token, head),
               b_.dq_stride);
    }

    // Queries first..first+rows and keys key..key+num_keys of the sequence.
    void block(int64_t token, int64_t head, int64_t first, int64_t rows, int64_t key, int64_t num_keys,
               bool whole) {
        float *probs = base_ + plan_.probs, *dscores = base_ + plan_.dscores;
        const int64_t panels = key / NR * plan_.key_panel, dim = a_.head_dim;
        Scores::run(rows, num_keys, dim, base_ + plan_.q, base_ + plan_.keys_t + panels, plan_.key_panel, probs, NR,
                    ahead_);
        Scores::run(rows, num_keys, dim, base_ + plan_.dout, base_ + plan_.values_t + panels, plan_.key_panel, dscores,
                    NR, ahead_);
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t n = keys_seen(a_, first + r, key, num_keys);
            if (a_.bias.rows) add_row(probs + r * LD, bias_row(a_, head, first + r, key), n);
            if (a_.dropout.active()) {
                const KeepBits bits((token + r) * a_.nheads + head, key, num_keys, a_.dropout);
                row<true>(token, head, r, n, num_keys, whole, bits.bytes);
            } else {
                row<false>(token, head, r, n, num_keys, whole, nullptr);
            }
            if (dbias_) add_row(dbias_ + key - first - r, dscores + r * LD, n);
        }
        OverQueries::run(num_keys, dim, rows, probs, base_ + plan_.dout_panels, plan_.query_panel,
                         base_ + plan_.dv + key * NR, plan_.row_panel, ahead_);
        OverQueries::run(num_keys, dim, rows, dscores, base_ + plan_.q_panels, plan_.query_panel,
                         base_ + plan_.dk + key * NR, plan_.row_panel, ahead_);
        OverKeys::run(rows, dim, num_keys, dscores, base_ + plan_.keys + key * NR, plan_.row_panel, base_ + plan_.dq,
                      plan_.query_panel, ahead_);
    }

    template <bool DROP>
    void row(int64_t token, int64_t head, int64_t r, int64_t n, int64_t num_keys, bool whole, const uint8_t* bits) {
        float *p = base_ + plan_.probs + r * LD, *ds = base_ + plan_.dscores + r * LD;
        const float lse = a_.lse[head * num_tokens_ + token + r], scale = DROP ? a_.dropout.scale : 1.0f;
        const RowSums sums = exponentials<DROP>(p, ds, n, num_keys, lse, scale, bits);
        if (whole) {
            score_gradients<DROP>(p, ds, n, 1.0f / sums.probs, sums.gradients / sums.probs, bits);
        } else {
            score_gradients<DROP>(p, ds, n, 1.0f, base_[plan_.delta + r], bits);
        }
    }

    const AttentionBackwardArgs& b_;
    const AttentionArgs& a_;
    const Plan plan_;
    float* const base_;
    const int64_t num_tokens_;
    float* dbias_ = nullptr;  // of this sequence and head, where a query's own key adds
    Ahead ahead_;
};

template <class T> void backward(const AttentionBackwardArgs& args) {
    const AttentionArgs& a = args.forward;
    const int64_t longest = longest_sequence(a.cu_seqlens, a.batch_size);
    parallel_units(longest ? a.batch_size * a.nheads : 0, count_scores(a), [&] {
        return [&a, work = Backward<T>(args, longest)](int64_t unit) mutable {
            work.head(unit / a.nheads, unit % a.nheads);
        };
    });
}

}  // namespace

void attention_backward(const AttentionBackwardArgs& args) {
    args.forward.dtype == DType::bf16 ? backward<bf16>(args) : backward<float>(args);
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
