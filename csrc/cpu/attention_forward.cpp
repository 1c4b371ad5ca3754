// O = dropout(softmax(scale Q K^T)) V of packed sequences (Vaswani et al. 2017, eq. 1), scores kept on chip: for a tile of
// MR queries, rows of up to 512 scores are made, turned into e^(score - max) and used where they lie, in the first-level
// cache. Longer sequences take 512 keys at a time, with the maximum and the sum carried along (online softmax: Milakov &
// Gimelshein 2018; Dao et al. 2022, algorithm 1). The division by the sum comes last.
//
// 4 S^2 D flops and 4 S D elements moved for each sequence and head; K^T and V are laid out once for QUERY_BLOCK queries.
#include "attention_tile.h"
#include "ops.h"
#include "philox.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

constexpr int64_t KEY_BLOCK = 512;
// Rows of 33 cache lines: consecutive ones fall into different sets of the first-level cache.
constexpr int64_t LD = KEY_BLOCK + 16;
static_assert(ATTENTION_MAX_HEAD_DIM <= KEY_BLOCK, "a row of q fits a row of the scratch");
static_assert(KEY_BLOCK <= KEEP_COLUMNS && KEY_BLOCK % NR == 0, "a block is whole panels");
// Queries of a unit of work: laying out K^T and V costs a few percent of it.
constexpr int64_t QUERY_BLOCK = 128;

using Scores = Product<LD, 1, LD, false>;
using Weighted = Product<LD, 1, LD, true>;

struct Plan {
    Arena scratch;
    int64_t key_panel, value_panel, keys, values, q, scores, out;

    Plan(int64_t longest, int64_t head_dim) {
        key_panel = head_dim * NR;
        value_panel = longest * NR;
        keys = scratch.reserve(panels_of(longest) * key_panel);
        values = scratch.reserve(panels_of(head_dim) * value_panel);
        q = scratch.reserve(MR * LD);
        scores = scratch.reserve(MR * LD);
        out = scratch.reserve(MR * LD);
    }
};

// A NaN among the scores does not show here; it does in the sum.
inline float row_maximum(const float* s, int64_t n) {
    Vec best = set(-__builtin_inff());
    for_scores(s, n, [&](int64_t, Vec x) { best = max(x, best); });
    return maximum(best);
}

inline float exp_of(float x) {
    float lanes[W];
    store(lanes, softmax_exp(set(x)));
    return lanes[0];
}

// s becomes e^(s - m) in its first n columns and zero up to `end`; returns the sum. Dropped elements count in the sum.
template <bool DROP>
inline float exponentials(float* s, int64_t n, int64_t end, float m, const uint8_t* bits) {
    const Vec shift = set(m);
    Vec total = set(0.0f);
    for_scores(s, n, [&](int64_t c, Vec x) {
        const Vec e = softmax_exp(x - shift);
        total = total + e;
        store(s + c, DROP ? keep(e, bits + c / 8) : e);
    });
    for (int64_t c = round_up(n, W); c < end; c += W) store(s + c, set(0.0f));
    return sum(total);
}

// One thread's work. K and V that were laid out for one unit are used again by the next unit of the same (sequence, head).
template <class T> class Forward {
  public:
    Forward(const AttentionArgs& args, int64_t longest)
        : a_(args), plan_(longest, args.head_dim), base_(plan_.scratch.allocate()) {}

    void block(int64_t sequence, int64_t head, int64_t begin, int64_t end) {
        const Span span(a_.cu_seqlens, sequence);
        if (sequence != sequence_ || head != head_) lay_out(sequence, head, span);
        fetch_ahead(sequence, head, begin, end);
        const int64_t height = tile_height(end - begin);
        for (int64_t row = begin; row < end; row += height)
            tile_rows(span, head, row, row + height < end ? height : end - row);
    }

  private:
    const T* at(const void* x, int64_t stride, int64_t token, int64_t head) const {
        return static_cast<const T*>(x) + token * stride + head * a_.head_dim;
    }

    void lay_out(int64_t sequence, int64_t head, const Span& span) {
        pack_transposed(at(a_.k, a_.k_stride, span.begin, head), a_.k_stride, span.length, a_.head_dim,
                        base_ + plan_.keys, plan_.key_panel);
        pack(at(a_.v, a_.v_stride, span.begin, head), a_.v_stride, span.length, a_.head_dim, set(1.0f),
             base_ + plan_.values, plan_.value_panel);
        sequence_ = sequence;
        head_ = head;
    }

    // Where the block's result goes; and after its last queries, the head after this one.
    void fetch_ahead(int64_t sequence, int64_t head, int64_t begin, int64_t end) {
        const int64_t rows = end - begin, dim = a_.head_dim;
        const Span span(a_.cu_seqlens, sequence);
        ahead_.clear();
        ahead_.add(at(a_.out, a_.out_stride, span.begin + begin, head), a_.out_stride, rows, dim);
        if (end < span.length) {
            ahead_.add(at(a_.q, a_.q_stride, span.begin + end, head), a_.q_stride, span.length - end, dim);
        } else if (head + 1 < a_.nheads || sequence + 1 < a_.batch_size) {
            sequence += ++head / a_.nheads;
            head %= a_.nheads;
            const Span next(a_.cu_seqlens, sequence);
            ahead_.add(at(a_.k, a_.k_stride, next.begin, head), a_.k_stride, next.length, dim);
            ahead_.add(at(a_.v, a_.v_stride, next.begin, head), a_.v_stride, next.length, dim);
            ahead_.add(at(a_.q, a_.q_stride, next.begin, head), a_.q_stride,
                       next.length < QUERY_BLOCK ? next.length : QUERY_BLOCK, dim);
        }
        ahead_.pace(divide_up(rows, MR) * (Scores::steps(1, span.length) + Weighted::steps(1, dim)));
    }

    // Queries first..first+rows of the sequence.
    void tile_rows(const Span& span, int64_t head, int64_t first, int64_t rows) {
        const int64_t token = span.begin + first;
        float* out = base_ + plan_.out;
        copy_rows<LD>(at(a_.q, a_.q_stride, token, head), a_.q_stride, rows, a_.head_dim, set(a_.softmax_scale),
                      base_ + plan_.q);
        for (int64_t r = 0; r < rows; ++r) fill(out + r * LD, panels_of(a_.head_dim) * NR, 0.0f);
        float m[MR], l[MR];
        fill(m, MR, -__builtin_inff());
        fill(l, MR, 0.0f);
        const int64_t keys = a_.causal ? first + rows : span.length;
        for (int64_t k = 0; k < keys; k += KEY_BLOCK)
            key_block(token, head, first, rows, k, keys - k < KEY_BLOCK ? keys - k : KEY_BLOCK, m, l);
        const float scale = a_.dropout.active() ? a_.dropout.scale : 1.0f;
        const int64_t num_tokens = a_.cu_seqlens[a_.batch_size];
        for (int64_t r = 0; r < rows; ++r) {
            T* to = static_cast<T*>(a_.out) + (token + r) * a_.out_stride + head * a_.head_dim;
            unpack(out + r * LD, LD, NR, 1, a_.head_dim, set(scale / l[r]), to, a_.out_stride);
            if (a_.lse) a_.lse[head * num_tokens + token + r] = m[r] + __builtin_logf(l[r]);
        }
    }

    void key_block(int64_t token, int64_t head, int64_t first, int64_t rows, int64_t key, int64_t num_keys, float* m,
                   float* l) {
        float *scores = base_ + plan_.scores, *out = base_ + plan_.out;
        Scores::run(rows, num_keys, a_.head_dim, base_ + plan_.q, base_ + plan_.keys + key / NR * plan_.key_panel,
                    plan_.key_panel, scores, NR, ahead_);
        for (int64_t r = 0; r < rows; ++r) {
            float* s = scores + r * LD;
            const int64_t n = keys_seen(a_, first + r, key, num_keys);
            if (a_.bias.rows) add_row(s, bias_row(a_, head, first + r, key), n);
            const float highest = row_maximum(s, n), before = m[r];
            m[r] = highest < before ? before : highest;
            // A bias may hide all keys so far. Less 0 their scores are -inf and their shares 0; less -inf they would be NaN.
            const float shift = m[r] == -__builtin_inff() ? 0.0f : m[r];
            float total;
            if (a_.dropout.active()) {
                const KeepBits bits((token + r) * a_.nheads + head, key, num_keys, a_.dropout);
                total = exponentials<true>(s, n, num_keys, shift, bits.bytes);
            } else {
                total = exponentials<false>(s, n, num_keys, shift, nullptr);
            }
            if (key > 0) {
                const float shrink = exp_of(before - shift);
                l[r] *= shrink;
                for (int64_t c = 0; c < a_.head_dim; c += W)
                    store(out + r * LD + c, load(out + r * LD + c) * set(shrink));
            }
            l[r] += total;
        }
        Weighted::run(rows, a_.head_dim, num_keys, scores, base_ + plan_.values + key * NR, plan_.value_panel, out, NR,
                      ahead_);
    }

    const AttentionArgs& a_;
    const Plan plan_;
    float* const base_;
    int64_t sequence_ = -1, head_ = -1;
    Ahead ahead_;
};

template <class T> void forward(const AttentionArgs& a) {
    const int64_t longest = longest_sequence(a.cu_seqlens, a.batch_size), most_blocks = divide_up(longest, QUERY_BLOCK);
    parallel_units(a.batch_size * a.nheads * most_blocks, count_scores(a), [&] {
        return [&a, most_blocks, work = Forward<T>(a, longest)](int64_t unit) mutable {
            const int64_t block = unit % most_blocks, head = unit / most_blocks % a.nheads;
            const int64_t sequence = unit / (most_blocks * a.nheads), length = Span(a.cu_seqlens, sequence).length;
            const int64_t blocks = divide_up(length, QUERY_BLOCK);
            if (block < blocks) work.block(sequence, head, length * block / blocks, length * (block + 1) / blocks);
        };
    });
}

}  // namespace

void attention_forward(const AttentionArgs& args) {
    args.dtype == DType::bf16 ? forward<bf16>(args) : forward<float>(args);
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
