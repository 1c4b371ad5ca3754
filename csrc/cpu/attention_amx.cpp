// Bfloat16 attention's forward pass on tiles: as attention_forward.cpp, but for 32 queries at a time and with K^T, V and
// the weights e^(score - max) as bfloat16 tiles. Scores, maxima, sums and the result are float32 until the end.
//
// The weights become a left factor, in which what is past the last key is zero.
#include "attention_amx.h"
#include "ops.h"
#include "philox.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Queries of a unit of work. It lays out K and V of its head, unless the thread's last unit had the same ones.
constexpr int64_t QUERY_BLOCK = 128;
static_assert(KEY_BLOCK <= KEEP_COLUMNS, "a block's dropout bits are made at once");

class Forward {
public:
    Forward(const AttentionArgs& args, int64_t longest) : a_(args) {
        depth_ = round_up(args.head_dim, STEP);
        const int64_t head = round_up(longest, STEP) * depth_, rows = QUERIES * depth_, block = QUERIES * KEY_BLOCK;
        hand_out({{&keys_, head}, {&values_, head}, {&q_, rows}, {&weights_, block}},
                 {{&scores_, block}, {&out_, rows}});
    }

    void block(int64_t sequence, int64_t head, int64_t begin, int64_t end) {
        const Span span(a_.cu_seqlens, sequence);
        if (sequence != sequence_ || head != head_) lay_out(sequence, head, span);
        const Tiles tiles;
        for (int64_t first = begin; first < end; first += QUERIES)
            queries(span, head, first, end - first < QUERIES ? end - first : QUERIES);
    }

private:
    const bf16* at(const void* x, int64_t stride, int64_t token, int64_t head) const {
        return static_cast<const bf16*>(x) + token * stride + head * a_.head_dim;
    }

    void lay_out(int64_t sequence, int64_t head, const Span& span) {
        const bf16* k = at(a_.k, a_.k_stride, span.begin, head);
        const bf16* v = at(a_.v, a_.v_stride, span.begin, head);
        value_panel_ = round_up(span.length, STEP) * PANEL;
        pack_panels({DType::bf16, k, DType::bf16, a_.k_stride, span.length, a_.head_dim, false, keys_});
        pack_panels({DType::bf16, v, DType::bf16, a_.v_stride, a_.head_dim, span.length, true, values_});
        sequence_ = sequence;
        head_ = head;
    }

    void queries(const Span& span, int64_t head, int64_t first, int64_t rows) {
        const int64_t token = span.begin + first;
        for (int64_t row = 0; row < rows; row += EDGE)
            pack_rows(at(a_.q, a_.q_stride, token + row, head), a_.q_stride,
                      int(rows - row < EDGE ? rows - row : EDGE), a_.head_dim, q_ + row * depth_);
        float m[QUERIES], l[QUERIES];
        fill(m, QUERIES, -__builtin_inff());
        fill(l, QUERIES, 0.0f);
        const int64_t keys = a_.causal ? first + rows : span.length;
        for (int64_t key = 0; key < keys; key += KEY_BLOCK) {
            const int64_t count = keys - key < KEY_BLOCK ? keys - key : KEY_BLOCK;
            multiply_keys(q_, rows, keys_ + key * depth_, count, depth_, scores_, [] {});
            for (int64_t r = 0; r < rows; ++r) weigh(token, head, first, r, key, count, m[r], l[r]);
            add_values(rows, key, round_up(count, STEP));
        }
        const float scale = a_.dropout.active() ? a_.dropout.scale : 1.0f;
        const int64_t num_tokens = a_.cu_seqlens[a_.batch_size];
        for (int64_t r = 0; r < rows; ++r) {
            bf16* to = static_cast<bf16*>(a_.out) + (token + r) * a_.out_stride + head * a_.head_dim;
            const Vec factor = set(scale / l[r]);
            for_columns(0, a_.head_dim, [&](int64_t c, auto lanes) {
                store(to + c, load(out_ + c / STRIP * SQUARE + r * STRIP + c % STRIP) * factor, lanes);
            });
            if (a_.lse) a_.lse[head * num_tokens + token + r] = m[r] + __builtin_logf(l[r]);
        }
    }

    // Row r of scores becomes weights e^(score - m), zero up to the end of the last step of keys; m and l go on.
    void weigh(int64_t token, int64_t head, int64_t first, int64_t r, int64_t key, int64_t count, float& m, float& l) {
        const int64_t n = keys_seen(a_, first + r, key, count);
        const Vec scale = set(a_.softmax_scale);
        const float* row = scores_ + r * STRIP;
        Vec best = set(-__builtin_inff());
        for (int64_t k = 0; k < n; k += STRIP)
            for_scores(row + k * STRIP, n - k < STRIP ? n - k : STRIP, scale,
                       [&](int64_t, Vec x) { best = max(x, best); });
        const float highest = maximum(best), before = m;
        m = highest < before ? before : highest;
        const bool drops = a_.dropout.active();
        KeepBits bits(drops ? (token + r) * a_.nheads + head : 0, key, drops ? count : 0, a_.dropout);
        Vec total = set(0.0f);
        const Vec shift = set(m);
        bf16* weights = weights_ + r / EDGE * EDGE * KEY_BLOCK + r % EDGE * STEP;
        for (int64_t k = 0; k < count; k += STRIP) {
            bf16* to = weights + k * EDGE;
            const int64_t inside = n - k < STRIP ? n - k : STRIP;
            for_scores(row + k * STRIP, inside < 0 ? 0 : inside, scale, [&](int64_t c, Vec x) {
                const Vec e = softmax_exp(x - shift);
                total = total + e;
                store(to + c, drops ? keep(e, bits.at(k + c)) : e);
            });
            for (int64_t c = inside < 0 ? 0 : round_up(inside, W); c < STRIP; c += W) store(to + c, set(0.0f));
        }
        if (key > 0) {
            float lanes[W];
            store(lanes, softmax_exp(set(before - m)));
            l *= lanes[0];
            for (int64_t c = 0; c < a_.head_dim; c += STRIP)
                for (int64_t i = 0; i < STRIP; i += W) {
                    float* to = out_ + c * STRIP + r * STRIP + i;
                    store(to, load(to) * set(lanes[0]));
                }
        }
        l += sum(total);
    }

    void add_values(int64_t rows, int64_t key, int64_t padded) {
        for (int64_t c = 0; c < a_.head_dim; c += STRIP) {
            const Factors factors{weights_, values_ + c / PANEL * value_panel_ + key * PANEL, EDGE * KEY_BLOCK,
                                  value_panel_, 0, 0};
            multiply_block(rows <= EDGE, a_.head_dim - c <= EDGE, factors, padded / STEP, key == 0, out_ + c * STRIP);
        }
    }

    const AttentionArgs& a_;
    int64_t depth_, value_panel_;
    bf16 *keys_, *values_, *q_, *weights_;
    float *scores_, *out_;
    int64_t sequence_ = -1, head_ = -1;
};

}  // namespace

void attention_forward(const AttentionArgs& a) {
    if (a.dtype != DType::bf16 || a.bias.rows) return below::attention_forward(a);
    const int64_t longest = longest_sequence(a.cu_seqlens, a.batch_size), most_blocks = divide_up(longest, QUERY_BLOCK);
    parallel_units(a.batch_size * a.nheads * most_blocks, count_scores(a), [&] {
        return [&a, most_blocks, work = Forward(a, longest)](int64_t unit) mutable {
            const int64_t block = unit % most_blocks, head = unit / most_blocks % a.nheads;
            const int64_t sequence = unit / (most_blocks * a.nheads), length = Span(a.cu_seqlens, sequence).length;
            const int64_t first = block * QUERY_BLOCK, end = first + QUERY_BLOCK < length ? first + QUERY_BLOCK : length;
            if (first < length) work.block(sequence, head, first, end);
        };
    });
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
