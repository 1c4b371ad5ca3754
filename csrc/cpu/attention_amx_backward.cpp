// The gradient of bfloat16 attention on tiles: the sums of attention_backward.cpp, with the operands of every product
// rounded to bfloat16 and everything between products in float32.
//
// Scores are never transposed, since dK and dV are summed as their transposes:
//     S = Q K^T, dP = dO V^T      squares of 32 queries x 32 keys
//     dV^T = dO^T (P keep)        P as a right factor: two queries side by side are one word of a panel
//     dK^T = Q^T dS               dS likewise
//     dQ = dS K                   dS once more, as a left factor
// Q, dO and the sums, which are transposed, have only S D elements per head, while scores have S S.
//
// A unit of work is one head of one sequence. 128 queries at a time are four steps of the products over queries: the sums
// of dK and dV are fetched and put back once for 16 products a tile. At 512 keys and head_dim 64 a head needs 0.9 MB.
#include "attention_amx.h"
#include "ops.h"
#include "philox.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

constexpr int64_t QUERY_BLOCK = 128;
static_assert(KEY_BLOCK <= KEEP_COLUMNS, "a block's dropout bits are made at once");
static_assert(QUERY_BLOCK % STEP == 0, "blocks before the last are whole steps of queries");

// Two rows of factors, W columns: as rows, and side by side as one row of a panel. The instruction that rounds two vectors
// at once counts denormal numbers as zero, as products on tiles do anyway.
struct Joined {
#if defined(__AVX512BF16__)
    __m512i halves;

    Joined(Vec even, Vec odd) : halves(reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd.v, even.v))) {}
    void store_rows(bf16* even, bf16* odd) const {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(even), _mm512_castsi512_si256(halves));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(odd), _mm512_extracti64x4_epi64(halves, 1));
    }
    void store_words(bf16* to) const {
        const __m512i order = _mm512_setr_epi64(
            0x0011000100100000, 0x0013000300120002, 0x0015000500140004, 0x0017000700160006,
            0x0019000900180008, 0x001b000b001a000a, 0x001d000d001c000c, 0x001f000f001e000e);
        _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, halves));
    }
#else
    bf16 even_row[W], odd_row[W];

    Joined(Vec even, Vec odd) {
        store(even_row, even);
        store(odd_row, odd);
    }
    void store_rows(bf16* even, bf16* odd) const {
        std::memcpy(static_cast<void*>(even), even_row, sizeof even_row);
        std::memcpy(static_cast<void*>(odd), odd_row, sizeof odd_row);
    }
    void store_words(bf16* to) const {
        for (int i = 0; i < W; ++i) {
            to[2 * i] = even_row[i];
            to[2 * i + 1] = odd_row[i];
        }
    }
#endif
};

// What makes probabilities and gradients of a row's first `seen` scores: P = e * over_total, dS = P (dP - delta).
struct Row {
    int64_t seen = 0;
    float over_total = 0.0f, delta = 0.0f;
};

// The first step over a row of n scores: e^(scale s - lse) and B dP, in place, both zero from n to `end`.
template <bool DROP>
inline RowSums exponentials(float* s, float* dp, int64_t n, int64_t end, Vec scale, float lse, float keep_scale,
                        const uint8_t* bits) {
    const Vec shift = set(lse), factor = set(keep_scale), zero = set(0.0f);
    Vec total = zero, products = zero;
    for (int64_t k = 0; k < end; k += STRIP) {
        float *scores = s + k * STRIP, *gradients = dp + k * STRIP;
        const int64_t left = n - k < 0 ? 0 : n - k < STRIP ? n - k : STRIP;
        for_scores(scores, left, scale, [&](int64_t c, Vec x) {
            const Vec e = softmax_exp(x - shift);
            total = total + e;
            store(scores + c, e);
            Vec d = load(gradients + c);
            if (DROP) {
                d = keep(d, bits + (k + c) / 8) * factor;
                store(gradients + c, d);
            }
            products = fma(e, d, products);
        });
        for (int64_t c = round_up(left, W); c < STRIP; c += W) {
            store(scores + c, zero);
            store(gradients + c, zero);
        }
    }
    return {sum(total), sum(products)};
}

// Where two rows of a block go: P into a panel, dS into a panel and into two rows of a left factor.
struct Targets {
    bf16 *probs, *dscores, *left;
    int64_t panel;  // elements between panels
};

// The second step, over two rows of queries.
template <bool DROP>
inline void score_gradients(const float* p, const float* dp, const Row& even, const Row& odd, int64_t end,
                            const uint8_t* even_bits, const uint8_t* odd_bits, const Targets& to) {
    const Vec even_factor = set(even.over_total), odd_factor = set(odd.over_total);
    const Vec even_delta = set(even.delta), odd_delta = set(odd.delta), zero = set(0.0f);
    const int64_t seen = even.seen < odd.seen ? odd.seen : even.seen;
    const auto put = [&](int64_t c, const Joined& probs, const Joined& dscores) {
        const int64_t word = c / PANEL * to.panel + c % PANEL * 2;
        bf16* left = to.left + c / STEP * TILE + c % STEP;
        probs.store_words(to.probs + word);
        dscores.store_words(to.dscores + word);
        dscores.store_rows(left, left + STEP);
    };
    int64_t c = 0;
    for (; c < seen; c += W) {
        const float *s = p + c / STRIP * SQUARE + c % STRIP, *d = dp + c / STRIP * SQUARE + c % STRIP;
        const Vec x = load(s) * even_factor, y = load(s + STRIP) * odd_factor;
        const Vec dx = x * (load(d) - even_delta), dy = y * (load(d + STRIP) - odd_delta);
        put(c, DROP ? Joined(keep(x, even_bits + c / 8), keep(y, odd_bits + c / 8)) : Joined(x, y), Joined(dx, dy));
    }
    const Joined none(zero, zero);
    for (; c < end; c += W) put(c, none, none);
}

// Sums [keys / 32][depth / 32][32][32] of a transpose as `keys` rows of bfloat16, each number times scale.
inline void store_transposed(const float* sums, int64_t keys, int64_t dim, int64_t depth, Vec scale, bf16* out,
                             int64_t stride) {
    float turned[EDGE * STRIP + EDGE];
    for (int64_t key = 0; key < keys; key += STRIP)
        for (int64_t c0 = 0; c0 < dim; c0 += EDGE) {
            const int64_t rows = keys - key < STRIP ? keys - key : STRIP, columns = dim - c0 < EDGE ? dim - c0 : EDGE;
            rows_to_columns(sums + key * depth + c0 / STRIP * SQUARE + c0 % STRIP * STRIP, STRIP, EDGE,
                            round_up(rows, EDGE), turned);
            for (int64_t r = 0; r < rows; ++r)
                for_columns(0, columns, [&](int64_t c, auto lanes) {
                    store(out + (key + r) * stride + c0 + c, load(turned + r * EDGE + c, lanes) * scale, lanes);
                });
        }
}

class Backward {
public:
    Backward(const AttentionBackwardArgs& args, int64_t longest)
        : b_(args), a_(args.forward), depth_(round_up(a_.head_dim, STEP)), num_tokens_(a_.cu_seqlens[a_.batch_size]) {
        const int64_t head = round_up(longest, STEP) * depth_, rows = QUERY_BLOCK * depth_;
        const int64_t square = QUERIES * KEY_BLOCK, block = QUERY_BLOCK * KEY_BLOCK;
        hand_out({{&keys_, head}, {&values_, head}, {&key_rows_, head}, {&q_, rows}, {&dout_, rows},
                  {&q_columns_, rows}, {&dout_columns_, rows}, {&probs_, block}, {&dscores_, block}, {&left_, square}},
                 {{&dk_, head}, {&dv_, head}, {&dq_, rows}, {&scores_, square}, {&dprobs_, square},
                  {&delta_, QUERY_BLOCK}});
    }

    void head(int64_t sequence, int64_t head) {
        const Span span(a_.cu_seqlens, sequence);
        const int64_t n = span.length, dim = a_.head_dim;
        if (!n) return;
        const bf16* k = at(a_.k, a_.k_stride, span.begin, head);
        const bf16* v = at(a_.v, a_.v_stride, span.begin, head);
        pack_panels({DType::bf16, k, DType::bf16, a_.k_stride, n, dim, false, keys_});
        pack_panels({DType::bf16, v, DType::bf16, a_.v_stride, n, dim, false, values_});
        pack_panels({DType::bf16, k, DType::bf16, a_.k_stride, dim, n, true, key_rows_});
        key_panel_ = round_up(n, STEP) * PANEL;
        fetch_ahead(sequence, head, n);
        const Tiles tiles;
        for (int64_t first = 0; first < n; first += QUERY_BLOCK)
            queries(span, head, first, n - first < QUERY_BLOCK ? n - first : QUERY_BLOCK);
        store_transposed(dk_, n, dim, depth_, set(a_.softmax_scale), to(b_.dk, b_.dk_stride, span.begin, head),
                         b_.dk_stride);
        store_transposed(dv_, n, dim, depth_, set(a_.dropout.active() ? a_.dropout.scale : 1.0f),
                         to(b_.dv, b_.dv_stride, span.begin, head), b_.dv_stride);
    }

private:
    // Queries first..first+rows of a head, the first of which is `token`, and keys key..key+count: the whole row or not.
    struct Block {
        int64_t token, head, first, rows, key, count;
        bool whole;
    };

    const bf16* at(const void* x, int64_t stride, int64_t token, int64_t head) const {
        return static_cast<const bf16*>(x) + token * stride + head * a_.head_dim;
    }
    bf16* to(void* x, int64_t stride, int64_t token, int64_t head) const {
        return static_cast<bf16*>(x) + token * stride + head * a_.head_dim;
    }

    void fetch_ahead(int64_t sequence, int64_t head, int64_t n) {
        fetch_for_gradients<bf16>(b_, sequence, head, ahead_);
        // Products of scores and of dQ for 32 queries, of dK and dV for a block.
        const int64_t keys = divide_up(n, STRIP), wide = depth_ / STRIP;
        ahead_.pace(keys * (2 * keys + wide) + divide_up(n, QUERY_BLOCK) * keys * wide * 2);
    }

    // As two left factors, of 32 rows at a time while the cache has them.
    void pack_both(const bf16* x, int64_t stride, int64_t rows, bf16* as_rows, bf16* as_columns) const {
        const int64_t dim = a_.head_dim;
        for (int64_t row = 0; row < rows; row += STEP) {
            const int64_t count = rows - row < STEP ? rows - row : STEP;
            const bf16* from = x + row * stride;
            for (int64_t r = 0; r < count; r += EDGE)
                pack_rows(from + r * stride, stride, int(count - r < EDGE ? count - r : EDGE), dim,
                          as_rows + (row + r) * depth_);
            for (int64_t c = 0; c < dim; c += EDGE)
                pack_transposed(from + c, stride, int(dim - c < EDGE ? dim - c : EDGE), count,
                                as_columns + c * steps_ + row * EDGE);
        }
    }

    // Queries first..first+rows of the sequence.
    void queries(const Span& span, int64_t head, int64_t first, int64_t rows) {
        const int64_t token = span.begin + first, dim = a_.head_dim;
        const bf16* q = at(a_.q, a_.q_stride, token, head);
        const bf16* dout = at(b_.dout, b_.dout_stride, token, head);
        const bf16* out = at(a_.out, a_.out_stride, token, head);
        steps_ = round_up(rows, STEP);
        pack_both(q, a_.q_stride, rows, q_, q_columns_);
        pack_both(dout, b_.dout_stride, rows, dout_, dout_columns_);
        const int64_t keys = a_.causal ? first + rows : span.length;
        const bool whole = keys <= KEY_BLOCK;
        for (int64_t r = 0; r < rows && !whole; ++r)
            delta_[r] = dot(dout + r * b_.dout_stride, out + r * a_.out_stride, dim);
        for (int64_t key = 0; key < keys; key += KEY_BLOCK)
            block({token, head, first, rows, key, keys - key < KEY_BLOCK ? keys - key : KEY_BLOCK, whole});
        const Vec scale = set(a_.softmax_scale);
        for (int64_t r = 0; r < rows; ++r) {
            const float* sums = dq_ + r / STRIP * STRIP * depth_ + r % STRIP * STRIP;
            bf16* row = to(b_.dq, b_.dq_stride, token + r, head);
            for_columns(0, dim, [&](int64_t c, auto lanes) {
                store(row + c, load(sums + c / STRIP * SQUARE + c % STRIP, lanes) * scale, lanes);
            });
        }
    }

    void block(const Block& b) {
        const bool drops = a_.dropout.active();
        for (int64_t r = 0; r < b.rows; r += QUERIES) {
            const int64_t left = b.rows - r < QUERIES ? b.rows - r : QUERIES;
            const auto done = [&] { ahead_.step(); };
            multiply_keys(q_ + r * depth_, left, keys_ + b.key * depth_, b.count, depth_, scores_, done);
            multiply_keys(dout_ + r * depth_, left, values_ + b.key * depth_, b.count, depth_, dprobs_, done);
            for (int64_t i = r; i < r + QUERIES; i += 2) drops ? two_rows<true>(b, i) : two_rows<false>(b, i);
            add_keys(b, r, left);
        }
        add_queries(b, dout_columns_, probs_, dv_);
        add_queries(b, q_columns_, dscores_, dk_);
    }

    KeepBits bits(const Block& b, int64_t r) const {
        return {(b.token + r) * a_.nheads + b.head, b.key, a_.dropout.active() ? b.count : 0, a_.dropout};
    }

    // Rows r and r + 1 of a block; where there are none, zeros fill up a step.
    template <bool DROP> void two_rows(const Block& b, int64_t r) {
        const int64_t i = r % QUERIES, panel = steps_ * PANEL, end = round_up(b.count, STEP);
        const Targets to{probs_ + r * PANEL, dscores_ + r * PANEL, left_ + i / EDGE * EDGE * KEY_BLOCK + i % EDGE * STEP,
                         panel};
        float *s = scores_ + i * STRIP, *dp = dprobs_ + i * STRIP;
        if (r >= b.rows) return score_gradients<false>(s, dp, Row{}, Row{}, end, nullptr, nullptr, to);
        const KeepBits even = bits(b, r), odd = bits(b, r + 1);
        const Row x = row<DROP>(b, r, s, dp, even.bytes), y = row<DROP>(b, r + 1, s + STRIP, dp + STRIP, odd.bytes);
        score_gradients<DROP>(s, dp, x, y, end, even.bytes, odd.bytes, to);
    }

    template <bool DROP> Row row(const Block& b, int64_t r, float* s, float* dp, const uint8_t* bits) {
        const int64_t n = r < b.rows ? keys_seen(a_, b.first + r, b.key, b.count) : 0;
        const float lse = n ? a_.lse[b.head * num_tokens_ + b.token + r] : 0.0f;
        const RowSums sums = exponentials<DROP>(s, dp, n, round_up(b.count, STEP), set(a_.softmax_scale), lse,
                                                DROP ? a_.dropout.scale : 1.0f, bits);
        if (!n) return Row{};
        return b.whole ? Row{n, 1.0f / sums.probs, sums.gradients / sums.probs} : Row{n, 1.0f, delta_[r]};
    }

    // dQ of `rows` queries from r, over the keys of the block.
    void add_keys(const Block& b, int64_t r, int64_t rows) {
        for (int64_t c = 0; c < a_.head_dim; c += STRIP) {
            const Factors factors{left_, key_rows_ + c / PANEL * key_panel_ + b.key * PANEL, EDGE * KEY_BLOCK, key_panel_,
                                  0, 0};
            multiply_block(rows <= EDGE, a_.head_dim - c <= EDGE, factors, round_up(b.count, STEP) / STEP, b.key == 0,
                           dq_ + r * depth_ + c * STRIP);
            ahead_.step();
        }
    }

    // The transpose of dK or dV for the keys of the block, over its queries. Under a causal mask the blocks of queries
    // before this one have seen, and summed, only the keys up to their own last.
    void add_queries(const Block& b, const bf16* columns, const bf16* panels, float* sums) {
        for (int64_t k = 0; k < b.count; k += STRIP)
            for (int64_t c = 0; c < a_.head_dim; c += STRIP) {
                const Factors factors{columns + c * steps_, panels + k * steps_, EDGE * steps_, PANEL * steps_, 0, 0};
                const bool first = b.first == 0 || (a_.causal && b.key + k >= b.first);
                multiply_block(a_.head_dim - c <= EDGE, b.count - k <= EDGE, factors, steps_ / STEP, first,
                               sums + (b.key + k) * depth_ + c * STRIP);
                ahead_.step();
            }
    }

    const AttentionBackwardArgs& b_;
    const AttentionArgs& a_;
    const int64_t depth_, num_tokens_;
    int64_t key_panel_ = 0, steps_ = 0;  // elements between panels of key_rows_; queries of a block, filled up
    bf16 *keys_, *values_, *key_rows_;   // right factors of S, dP and dQ
    bf16 *q_, *dout_, *q_columns_, *dout_columns_;  // left factors of S, dP, dK^T and dV^T: a block of queries
    bf16 *probs_, *dscores_, *left_;                // P and dS as right factors, and dS of 32 queries as a left one
    float *dk_, *dv_, *dq_, *scores_, *dprobs_, *delta_;
    Ahead ahead_;
};

}  // namespace

void attention_backward(const AttentionBackwardArgs& args) {
    const AttentionArgs& a = args.forward;
    if (a.dtype != DType::bf16 || a.bias.rows) return below::attention_backward(args);
    const int64_t longest = longest_sequence(a.cu_seqlens, a.batch_size);
    parallel_units(longest ? a.batch_size * a.nheads : 0, count_scores(a), [&] {
        return [&a, work = Backward(args, longest)](int64_t unit) mutable {
            work.head(unit / a.nheads, unit % a.nheads);
        };
    });
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
