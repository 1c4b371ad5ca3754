// Weights into panels (the layout is in gemm.h).
#include "ops.h"

#include "gemm_pack.h"
#if defined(FASTBERT_TILES)
#include "gemm_parts.h"
#endif
#if defined(FASTBERT_WINOGRAD)
#include "gemm_winograd.h"
#endif

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

inline uint16_t half(const bf16* p) { return p->bits; }
// Without a branch, so that loops of it become vectors.
inline uint16_t half(const float* p) {
    uint32_t bits;
    std::memcpy(&bits, p, 4);
    const uint32_t nan = 0u - uint32_t((bits & 0x7fffffff) > 0x7f800000);
    return uint16_t(((rounded(bits) & ~nan) | ((bits | 0x400000) & nan)) >> 16);
}
inline void put(float x, float* to) { *to = x; }
inline void put(float x, bf16* to) { to->bits = half(&x); }

// w(j, i) of a weight (n, k), however it is stored.
template <class T> struct Source {
    const T* w;
    int64_t column, step;  // strides along n and k
    Source(const PackArgs& g, const T* begin)
        : w(begin), column(g.transposed ? 1 : g.ldw), step(g.transposed ? g.ldw : 1) {}
    const T* at(int64_t j, int64_t i) const { return w + j * column + i * step; }
};

// One panel: `width` columns of the result, zero up to 16. PAIR steps of k lie side by side.
template <int PAIR, class T, class P>
void pack_panel(const Source<T>& from, int64_t first, int width, int64_t k, int64_t padded, P* out) {
    for (int64_t i = 0; i < padded; i += PAIR)
        for (int j = 0; j < PANEL; ++j)
            for (int p = 0; p < PAIR; ++p) {
                const bool inside = j < width && i + p < k;
                put(inside ? one(from.at(first + j, i + p)) : 0.0f, out + i * PANEL + j * PAIR + p);
            }
}

// The same for a whole panel of a weight (k, n), of which a row holds what lies side by side here.
template <class T> void pack_rows(const Source<T>& from, int64_t first, int64_t k, int64_t, float* out) {
    for (int64_t i = 0; i < k; ++i) {
        const T* row = from.at(first, i);
        for (int j = 0; j < PANEL; ++j) out[i * PANEL + j] = one(row + j);
    }
}
template <class T> void pack_rows(const Source<T>& from, int64_t first, int64_t k, int64_t padded, bf16* out) {
    const T zeros[PANEL] = {};
    for (int64_t i = 0; i < padded; i += 2) {
        const T* even = i < k ? from.at(first, i) : zeros;
        const T* odd = i + 1 < k ? from.at(first, i + 1) : zeros;
        uint32_t words[PANEL];
        for (int j = 0; j < PANEL; ++j) words[j] = half(even + j) | uint32_t(half(odd + j)) << 16;
        std::memcpy(static_cast<void*>(out + i * PANEL), words, sizeof words);
    }
}

// And of nn.Linear's weight (n, k), whose rows become columns.
inline bool pack_columns(const Source<float>& from, int64_t first, int64_t k, int64_t, float* out) {
    rows_to_columns(from.at(first, 0), from.column, PANEL, k, out);
    return true;
}
inline bool pack_columns(const Source<bf16>& from, int64_t first, int64_t k, int64_t padded, bf16* out) {
    if (k % 2 || from.column % 2) return false;
    rows_to_columns(as_words(from.at(first, 0)), from.column / 2, PANEL, k / 2, as_words(out));
    std::memset(static_cast<void*>(out + k * PANEL), 0, size_t((padded - k) * PANEL) * sizeof(bf16));
    return true;
}
template <class T>
bool pack_columns(const Source<T>& from, int64_t first, int64_t k, int64_t padded, bf16* out) {
    constexpr int64_t STEPS = 32;
    bf16 rounded[PANEL * STEPS];
    for (int64_t i = 0; i < padded; i += STEPS) {
        const int64_t inside = k - i < STEPS ? k - i : STEPS;
        for (int r = 0; r < PANEL; ++r) {
            const T* row = from.at(first + r, i);
            for (int64_t c = 0; c < inside; ++c) rounded[r * STEPS + c].bits = half(row + c);
            for (int64_t c = inside; c < STEPS; ++c) rounded[r * STEPS + c].bits = 0;
        }
        rows_to_columns(as_words(rounded), STEPS / 2, PANEL, STEPS / 2, as_words(out + i * PANEL));
    }
    return true;
}
inline bool pack_columns(const Source<bf16>&, int64_t, int64_t, int64_t, float*) { return false; }

template <class T, class P>
inline bool pack_whole(const Source<T>& from, int64_t first, int64_t k, int64_t padded, P* out) {
    if (from.step == 1) return pack_columns(from, first, k, padded, out);
    pack_rows(from, first, k, padded, out);
    return true;
}

template <int PAIR, class T, class P>
inline void pack_one(const Source<T>& from, int64_t panel, int64_t n, int64_t k, int64_t padded, P* out) {
    const int64_t first = panel * PANEL, width = n - first < PANEL ? n - first : PANEL;
    if (width == PANEL && pack_whole(from, first, k, padded, out)) return;
    pack_panel<PAIR>(from, first, int(width), k, padded, out);
}

// Of a weight (k, n), a panel takes one cache line of every row. So this many rows at a time are packed for all panels, which
// read lines side by side: 1.2 to 2.9 times as fast as a panel after the other (docs/LOG.md).
constexpr int64_t BAND = 32;

template <int PAIR, class T, class P> void pack(const PackArgs& g, int64_t padded) {
    const Source<T> from(g, static_cast<const T*>(g.w));
    const int64_t band = g.transposed ? BAND : padded;
    parallel_ranges(divide_up(g.n, PANEL), padded * PANEL, [&](int64_t begin, int64_t end) {
        for (int64_t k0 = 0; k0 < padded; k0 += band) {
            const int64_t steps = padded - k0 < band ? padded - k0 : band, inside = g.k - k0 < steps ? g.k - k0 : steps;
            const Source<T> here(g, from.at(0, k0));
            for (int64_t panel = begin; panel < end; ++panel)
                pack_one<PAIR>(here, panel, g.n, inside, steps,
                               static_cast<P*>(g.packed) + (panel * padded + k0) * PANEL);
        }
    });
}

#if defined(FASTBERT_TILES)
// 32 steps of a panel of a float32 weight in two parts, which are `part` elements apart.
void pack_step_in_parts(const Source<float>& from, int64_t first, int width, int64_t inside, bf16* out, int64_t part) {
    if (from.column == 1) {
        for (int64_t i = 0; i < PARTS_STEP; i += 2) {
            const float* even = i < inside ? from.at(first, i) : nullptr;
            const float* odd = i + 1 < inside ? from.at(first, i + 1) : nullptr;
            split_pairs(even, odd, width, as_words(out + i * PANEL), as_words(out + part + i * PANEL));
        }
        return;
    }
    bf16 rows[2][PANEL * PARTS_STEP];
    for (int r = 0; r < PANEL; ++r)
        split_step(r < width ? from.at(first + r, 0) : nullptr, r < width ? inside : 0, rows[0] + r * PARTS_STEP,
                   rows[1] + r * PARTS_STEP);
    for (int p = 0; p < 2; ++p)
        rows_to_columns(as_words(rows[p]), PARTS_STEP / 2, PANEL, PARTS_STEP / 2, as_words(out + p * part));
}

void pack_in_parts(const PackArgs& g) {
    const int64_t padded = round_up(g.k, PARTS_STEP), panels = divide_up(g.n, PANEL), part = panels * PANEL * padded;
    const Source<float> from(g, static_cast<const float*>(g.w));
    parallel_ranges(panels, 2 * padded * PANEL, [&](int64_t begin, int64_t end) {
        const auto pack = [&](int64_t panel, int64_t k0) {
            const int64_t first = panel * PANEL, width = g.n - first < PANEL ? g.n - first : PANEL;
            const int64_t inside = g.k - k0 < PARTS_STEP ? g.k - k0 : PARTS_STEP;
            bf16* out = static_cast<bf16*>(g.packed) + (panel * padded + k0) * PANEL;
            pack_step_in_parts(Source<float>(g, from.at(0, k0)), first, int(width), inside, out, part);
        };
        if (g.transposed)
            for (int64_t k0 = 0; k0 < padded; k0 += PARTS_STEP)
                for (int64_t panel = begin; panel < end; ++panel) pack(panel, k0);
        else
            for (int64_t panel = begin; panel < end; ++panel)
                for (int64_t k0 = 0; k0 < padded; k0 += PARTS_STEP) pack(panel, k0);
    });
}
#endif

#if defined(FASTBERT_WINOGRAD)
// A float32 weight chunk by chunk, each scaled.
template <class T> void pack_scaled(const PackArgs& g) {
    const int64_t rows = winograd_rows(g.k), chunk = winograd_chunk(g.k);
    parallel_ranges(divide_up(g.n, PANEL), rows * PANEL, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; ++panel) {
            float* out = static_cast<float*>(g.packed) + panel * PANEL * rows;
            for (int64_t k0 = 0; k0 < g.k; k0 += chunk) {
                const int64_t steps = g.k - k0 < chunk ? g.k - k0 : chunk;
                const T* w = static_cast<const T*>(g.w) + k0 * (g.transposed ? g.ldw : 1);
                pack_one<1>(Source<T>(g, w), panel, g.n, steps, steps, out);
                scale_chunk(out, PANEL, steps, out);
                out += (steps + 2) * PANEL;
            }
        }
    });
}
#endif

}  // namespace

void pack_panels(const PackArgs& g) {
#if defined(FASTBERT_TILES)
    if (g.dtype == DType::bf16x2) return pack_in_parts(g);
#endif
    const bool from_half = g.w_dtype == DType::bf16;
#if defined(FASTBERT_WINOGRAD)
    if (g.dtype == DType::f32_winograd) return (from_half ? pack_scaled<bf16> : pack_scaled<float>)(g);
#endif
    if (g.dtype == DType::bf16)
        (from_half ? pack<2, bf16, bf16> : pack<2, float, bf16>)(g, round_up(g.k, 32));
    else
        (from_half ? pack<1, bf16, float> : pack<1, float, float>)(g, g.k);
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
