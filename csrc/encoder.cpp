// One layer (Vaswani et al. 2017, section 3; Devlin et al. 2019), dropout off:
//
//     qkv = x Wqkv^T;  a = LN(x + Wo attention(qkv));  y = LN(a + W2 gelu(W1 a))
//
// The residual is added in the product's epilogue, so LayerNorm reads one matrix and writes one. The two products of the
// feed-forward block are computed for blocks of rows, so that its wide activations (4 x hidden) stay in the cache and the
// workspace does not grow with them.
//
// With many sequences, each thread takes groups of whole sequences through all layers: no thread waits for another, and each
// step finds the results of the last in its core's caches. If groups would be too few or too small, all threads share every
// step instead. The sums of a row do not depend on other rows, so both ways give the same bits.
#include "encoder.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "gemm_int8.h"
#include "huge_pages.h"
#include "isa.h"
#include "threads.h"

namespace fastbert {
namespace {

constexpr int64_t FEED_FORWARD_ROWS = 512;
// A group has about GROUP_TOKENS tokens. With fewer than LEAST_TOKENS per thread, reading the weights takes longer than
// multiplying by them, and it is better if threads share the steps.
constexpr int64_t GROUP_TOKENS = 512, LEAST_TOKENS = 128;
// Groups are used if the busiest thread gets at most this many times an equal share: a sequence may be long.
constexpr double WORST_SHARE = 1.05;
constexpr int64_t ALIGN = 64;  // a cache line, and what the widest aligned load wants

// Hands out parts of a block of memory; with a null base it only adds up their sizes.
class Parts {
public:
    explicit Parts(void* base) : base_(uintptr_t(base)), at_(uintptr_t(base)) {}
    char* take(int64_t bytes) {
        char* part = reinterpret_cast<char*>(at_);
        at_ += uintptr_t(round_up(bytes, ALIGN));
        return part;
    }
    float* floats(int64_t count) { return reinterpret_cast<float*>(take(count * 4)); }
    int64_t size() const { return int64_t(at_ - base_); }

private:
    uintptr_t base_, at_;
};

// True where both weights leave the same inputs unquantised and cut the others into the same groups.
bool quantise_alike(const void* one, const void* other) {
    const Int8Weight a(one), b(other);
    return a.header->k == b.header->k && a.header->num_outliers == b.header->num_outliers &&
           std::equal(a.outliers, a.outliers + a.header->num_outliers, b.outliers);
}

struct Shape {
    int64_t rows, n, k, ldc;
};

GemmInt8Args int8_args(DType dtype, const void* a, const void* packed, const float* bias, const Shape& shape,
                       Activation activation, const void* residual, DType c_dtype, void* c) {
    GemmInt8Args args{};
    args.dtype = dtype;
    args.c_dtype = c_dtype;
    args.a = a;
    args.lda = shape.k;
    args.packed = packed;
    args.bias = bias;
    args.act = activation;
    args.residual = residual;
    args.c = c;
    args.ldc = shape.ldc;
    args.m = shape.rows;
    args.n = shape.n;
    args.k = shape.k;
    return args;
}

// Whether the feed-forward block's wide activations are tiles (gemm.h).
bool wide_tiles(const EncoderSizes& s) {
    return !s.int8 && has_tiles() && (s.packed == DType::bf16 || s.packed == DType::bf16x2);
}

enum class Tiles { none, a, c };

// c = act(a w^T + bias) [+ residual], all contiguous and of the encoder's dtype, or one of them as tiles.
void product(const EncoderSizes& sizes, const void* a, const void* packed, const float* bias, int64_t rows, int64_t n,
             int64_t k, Activation activation, const void* residual, void* c, Tiles tiles = Tiles::none) {
    const DType dtype = sizes.dtype;
    GemmArgs args{};
    args.dtype = sizes.packed;
    args.c_dtype = dtype;
    args.a = a;
    args.lda = k;
    args.packed = packed;
    args.bias = bias;
    args.act = activation;
    args.residual = residual;
    args.c = c;
    args.ldc = n;
    args.m = rows;
    args.n = n;
    args.k = k;
    args.a_tiles = tiles == Tiles::a;
    args.c_tiles = tiles == Tiles::c;
    gemm(args);
}

// The sequences at which groups begin, followed by the end. A single group of all sequences means that threads share steps.
std::vector<int64_t> group_bounds(const EncoderBatch& batch, int64_t threads) {
    const std::vector<int64_t> one{0, batch.batch_size};
    if (batch.tokens < threads * LEAST_TOKENS) return one;
    const int64_t count = threads * divide_up(batch.tokens, threads * GROUP_TOKENS);
    std::vector<int64_t> bounds{0};
    for (int64_t b = 1; b < batch.batch_size; ++b) {
        // A group ends before the sequence whose middle is beyond the group's share.
        const int64_t middle = (int64_t(batch.cu_seqlens[b]) + batch.cu_seqlens[b + 1]) / 2;
        if (middle * count > int64_t(bounds.size()) * batch.tokens) bounds.push_back(b);
    }
    bounds.push_back(batch.batch_size);
    // Each thread takes the next group as soon as it is free.
    std::vector<int64_t> busy(size_t(threads), 0);
    for (size_t g = 0; g + 1 < bounds.size(); ++g)
        *std::min_element(busy.begin(), busy.end()) += batch.cu_seqlens[bounds[g + 1]] - batch.cu_seqlens[bounds[g]];
    const int64_t longest = *std::max_element(busy.begin(), busy.end());
    return double(longest * threads) > WORST_SHARE * double(batch.tokens) ? one : bounds;
}

}  // namespace

// The buffers of a pass.
struct Workspace {
    char* qkv;      // (tokens, 3 hidden), of attention's dtype
    char* context;  // (tokens, hidden), of attention's dtype
    char* sum;      // (tokens, hidden), a LayerNorm's input
    char* normed;   // (tokens, hidden), the attention branch's result
    char* wide = nullptr;  // (at most FEED_FORWARD_ROWS, intermediate); none for int8
    float *mean, *rstd;
    int64_t bytes;

    Workspace(const EncoderSizes& s, int64_t tokens, void* base) {
        Parts parts(base);
        const int64_t row = s.hidden * element_size(s.dtype), part = s.hidden * element_size(s.attention);
        qkv = parts.take(3 * tokens * part);
        context = parts.take(tokens * part);
        sum = parts.take(tokens * row);
        normed = parts.take(tokens * row);
        const int64_t rows = std::min(tokens, FEED_FORWARD_ROWS);
        if (wide_tiles(s))
            wide = parts.take(tiles_size(s.packed, rows, s.intermediate));
        else if (!s.int8)
            wide = parts.take(rows * s.intermediate * element_size(s.dtype));
        mean = parts.floats(tokens);
        rstd = parts.floats(tokens);
        bytes = parts.size();
    }
};

void Encoder::Free::operator()(void* memory) const { std::free(memory); }

Encoder::Encoder(const EncoderSizes& sizes, std::vector<int64_t> order) : sizes_(sizes), order_(std::move(order)) {
    for (const int64_t number : order_) layers_.resize(std::max(layers_.size(), size_t(number) + 1));
    const int64_t h = sizes.hidden, wide = sizes.intermediate;
    auto lay_out = [&](Parts& parts) {
        auto linear = [&](int64_t n, int64_t k) {
            const void* weight = sizes.int8 ? nullptr : parts.take(packed_size(sizes.packed, n, k));
            return Linear{weight, parts.floats(n)};
        };
        for (Layer& layer : layers_)
            layer = {linear(3 * h, h), linear(h, h),    linear(wide, h), linear(h, wide), nullptr, nullptr, false,
                     parts.floats(h),  parts.floats(h), parts.floats(h), parts.floats(h)};
        return parts.size();
    };
    Parts counting(nullptr);
    const int64_t bytes = round_up(lay_out(counting), HUGE_PAGE);
    memory_.reset(static_cast<char*>(std::aligned_alloc(size_t(HUGE_PAGE), size_t(std::max(bytes, HUGE_PAGE)))));
    if (!memory_) throw_no_memory();
    wish_for_huge_pages(memory_.get(), bytes);
    Parts parts(memory_.get());
    lay_out(parts);
}

void Encoder::set_parameters(int64_t number, const LayerParameters& p) {
    Layer& layer = layers_.at(size_t(number));
    const int64_t h = sizes_.hidden, wide = sizes_.intermediate;
    auto linear = [&](Linear& to, const void* weight, const float* bias, int64_t n, int64_t k) {
        if (sizes_.int8) {
            gather_into_huge_pages(weight, Int8Weight(weight).header->size);
            to.weight = weight;
        } else {
            pack_weight({sizes_.packed, weight, sizes_.dtype, k, n, k, false, const_cast<void*>(to.weight)});
        }
        std::memcpy(to.bias, bias, size_t(n) * 4);
    };
    if (sizes_.int8) {
        layer.key = p.key_weight;
        layer.value = p.value_weight;
        for (const void* packed : {layer.key, layer.value})
            gather_into_huge_pages(packed, Int8Weight(packed).header->size);
        layer.same_rows = quantise_alike(p.qkv_weight, p.key_weight) && quantise_alike(p.qkv_weight, p.value_weight);
    }
    linear(layer.qkv, p.qkv_weight, p.qkv_bias, 3 * h, h);
    linear(layer.attention_out, p.attention_out_weight, p.attention_out_bias, h, h);
    linear(layer.intermediate, p.intermediate_weight, p.intermediate_bias, wide, h);
    linear(layer.out, p.out_weight, p.out_bias, h, wide);
    std::memcpy(layer.attention_norm_weight, p.attention_norm_weight, size_t(h) * 4);
    std::memcpy(layer.attention_norm_bias, p.attention_norm_bias, size_t(h) * 4);
    std::memcpy(layer.norm_weight, p.norm_weight, size_t(h) * 4);
    std::memcpy(layer.norm_bias, p.norm_bias, size_t(h) * 4);
}

void Encoder::normalise(const void* x, const float* weight, const float* bias, const Workspace& w, int64_t rows,
                        void* out) const {
    LayerNormForwardArgs args{};
    args.dtype = sizes_.dtype;
    args.x = x;
    args.weight = weight;
    args.bias = bias;
    args.eps = sizes_.eps;
    args.out = out;
    args.mean = w.mean;
    args.rstd = w.rstd;
    args.rows = rows;
    args.cols = sizes_.hidden;
    kernels().layer_norm_forward(args);
}

void Encoder::attend(const EncoderBatch& batch, const Workspace& w) const {
    const int64_t part = sizes_.hidden * element_size(sizes_.attention);
    AttentionArgs args{};
    args.dtype = sizes_.attention;
    args.q = w.qkv;
    args.k = w.qkv + part;
    args.v = w.qkv + 2 * part;
    args.q_stride = args.k_stride = args.v_stride = 3 * sizes_.hidden;
    args.out = w.context;
    args.out_stride = sizes_.hidden;
    args.cu_seqlens = batch.cu_seqlens;
    args.batch_size = batch.batch_size;
    args.max_seqlen = batch.max_seqlen;
    args.nheads = sizes_.nheads;
    args.head_dim = sizes_.hidden / sizes_.nheads;
    args.softmax_scale = 1.0f / __builtin_sqrtf(float(args.head_dim));
    args.bias = batch.bias;
    kernels().attention_forward(args);
}

// (tokens, 3 hidden): queries, keys, values.
void Encoder::project(const Layer& p, const void* x, int64_t tokens, char* qkv) const {
    const int64_t h = sizes_.hidden, part = h * element_size(sizes_.attention);
    if (!sizes_.int8)
        return product(sizes_, x, p.qkv.weight, p.qkv.bias, tokens, 3 * h, h, Activation::none, nullptr, qkv);
    const void* weights[] = {p.qkv.weight, p.key, p.value};
    for (int i = 0; i < 3; ++i) {
        GemmInt8Args args = int8_args(sizes_.dtype, x, weights[i], p.qkv.bias + i * h, {tokens, h, h, 3 * h},
                                      Activation::none, nullptr, sizes_.attention, qkv + i * part);
        args.same_rows = i > 0 && p.same_rows;
        gemm_int8(args);
    }
}

// The wide activations only exist as the quantised rows of the second product.
void Encoder::feed_forward_int8(const Layer& p, const void* a, int64_t rows, void* sum) const {
    const int64_t h = sizes_.hidden, wide = sizes_.intermediate;
    GemmInt8Args up = int8_args(sizes_.dtype, a, p.intermediate.weight, p.intermediate.bias, {rows, wide, h, wide},
                                sizes_.gelu, nullptr, sizes_.dtype, nullptr);
    up.next = p.out.weight;
    gemm_int8(up);
    GemmInt8Args down = int8_args(sizes_.dtype, nullptr, p.out.weight, p.out.bias, {rows, h, wide, h},
                                  Activation::none, a, sizes_.dtype, sum);
    down.quantised = true;
    gemm_int8(down);
}

void Encoder::finish_layer(const Layer& p, const Workspace& w, const void* context, const void* x, int64_t rows,
                           void* out) const {
    const int64_t h = sizes_.hidden, wide = sizes_.intermediate, row = h * element_size(sizes_.dtype);
    const auto none = Activation::none;
    if (sizes_.int8)
        gemm_int8(int8_args(sizes_.attention, context, p.attention_out.weight, p.attention_out.bias, {rows, h, h, h},
                            none, x, sizes_.dtype, w.sum));
    else
        product(sizes_, context, p.attention_out.weight, p.attention_out.bias, rows, h, h, none, x, w.sum);
    normalise(w.sum, p.attention_norm_weight, p.attention_norm_bias, w, rows, w.normed);
    for (int64_t first = 0; first < rows; first += FEED_FORWARD_ROWS) {
        const int64_t count = std::min(FEED_FORWARD_ROWS, rows - first);
        const char* a = w.normed + first * row;
        if (sizes_.int8) {
            feed_forward_int8(p, a, count, w.sum + first * row);
            continue;
        }
        const bool tiles = wide_tiles(sizes_);
        product(sizes_, a, p.intermediate.weight, p.intermediate.bias, count, wide, h, sizes_.gelu, nullptr, w.wide,
                tiles ? Tiles::c : Tiles::none);
        product(sizes_, w.wide, p.out.weight, p.out.bias, count, h, wide, none, a, w.sum + first * row,
                tiles ? Tiles::a : Tiles::none);
    }
    normalise(w.sum, p.norm_weight, p.norm_bias, w, rows, out);
}

void Encoder::run_layer(const Layer& p, const EncoderBatch& batch, const Workspace& w, const void* x,
                        void* out) const {
    project(p, x, batch.tokens, w.qkv);
    attend(batch, w);
    finish_layer(p, w, w.context, x, batch.tokens, out);
}

void Encoder::run_last_layer(const Layer& p, const EncoderBatch& batch, const Workspace& w, const void* x,
                             const Chosen& chosen) const {
    const int64_t row = sizes_.hidden * element_size(sizes_.dtype), part = sizes_.hidden * element_size(sizes_.attention);
    project(p, x, batch.tokens, w.qkv);
    attend(batch, w);
    // Chosen rows are gathered in the buffer of queries, keys and values, which is large enough: a row of the states'
    // dtype takes at most as much memory as two of the attention's.
    const int64_t most = std::min(batch.tokens, FEED_FORWARD_ROWS), count = int64_t(chosen.size());
    char *inputs = w.qkv, *context = w.qkv + most * row;
    for (int64_t first = 0; first < count; first += most) {
        const int64_t rows = std::min(most, count - first);
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t token = chosen[size_t(first + i)].first;
            std::memcpy(context + i * part, w.context + token * part, size_t(part));
            std::memcpy(inputs + i * row, static_cast<const char*>(x) + token * row, size_t(row));
        }
        finish_layer(p, w, context, inputs, rows, inputs);
        for (int64_t i = 0; i < rows; ++i)
            std::memcpy(static_cast<char*>(batch.chosen) + chosen[size_t(first + i)].second * row, inputs + i * row,
                        size_t(row));
    }
}

void Encoder::run_group(const EncoderBatch& batch, const Chosen* chosen, int64_t begin, int64_t end) const {
    const int64_t first = batch.cu_seqlens[begin], row = sizes_.hidden * element_size(sizes_.dtype);
    std::vector<int32_t> bounds(size_t(end - begin + 1));
    for (int64_t b = begin; b <= end; ++b) bounds[size_t(b - begin)] = int32_t(batch.cu_seqlens[b] - first);
    EncoderBatch group = batch;
    group.tokens = bounds.back();
    group.cu_seqlens = bounds.data();
    group.batch_size = end - begin;
    const int64_t bytes = Workspace(sizes_, group.tokens, nullptr).bytes;
    const Workspace parts(sizes_, group.tokens, thread_buffer(Scratch::encoder, bytes));
    const void* x = static_cast<const char*>(batch.x) + first * row;
    const size_t whole = order_.size() - (chosen ? 1 : 0);
    for (size_t i = 0; i < whole; ++i) {
        char* out = static_cast<char*>(batch.states[i]) + first * row;
        run_layer(layers_[size_t(order_[i])], group, parts, x, out);
        x = out;
    }
    if (!chosen) return;
    const auto by_token = [](const auto& one, int64_t token) { return one.first < token; };
    const auto from = std::lower_bound(chosen->begin(), chosen->end(), first, by_token);
    Chosen own(from, std::lower_bound(from, chosen->end(), first + group.tokens, by_token));
    for (auto& [token, _] : own) token -= first;
    if (!own.empty()) run_last_layer(layers_[size_t(order_.back())], group, parts, x, own);
}

void Encoder::run(const EncoderBatch& batch) const {
    const int threads = most_threads();
    const std::vector<int64_t> bounds = group_bounds(batch, threads);
    const int64_t groups = int64_t(bounds.size()) - 1;
    Chosen sorted;
    for (int64_t i = 0; batch.rows && i < batch.num_rows; ++i) sorted.emplace_back(batch.rows[i], i);
    std::sort(sorted.begin(), sorted.end());
    const Chosen* chosen = batch.rows ? &sorted : nullptr;
    if (groups < threads) return run_group(batch, chosen, 0, batch.batch_size);
    Attempt attempt;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t g = 0; g < groups; ++g)
        attempt.run([&] { run_group(batch, chosen, bounds[size_t(g)], bounds[size_t(g) + 1]); });
    attempt.end();
}

}  // namespace fastbert
