// Weights into panels (the layout is in gemm.h).
#include "ops.h"

#include "gemm_pack.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

inline void put(float x, float* to) { *to = x; }
inline void put(float x, bf16* to) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    to->bits = x != x ? uint16_t((bits >> 16) | 0x40) : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// w(j, i) of a weight (n, k), however it is stored.
template <class T> struct Source {
    const T* w;
    int64_t column, step;  // strides along n and k
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

// Rows of nn.Linear's weight where the panel is whole and nothing is converted.
inline bool pack_quickly(const Source<float>& from, int64_t first, int64_t k, int64_t, float* out) {
    if (from.step != 1) return false;
    rows_to_columns(from.at(first, 0), from.column, PANEL, k, out);
    return true;
}
inline bool pack_quickly(const Source<bf16>& from, int64_t first, int64_t k, int64_t padded, bf16* out) {
    if (from.step != 1 || k % 2 || from.column % 2) return false;
    rows_to_columns(as_words(from.at(first, 0)), from.column / 2, PANEL, k / 2, as_words(out));
    std::memset(out + k * PANEL, 0, size_t((padded - k) * PANEL) * sizeof(bf16));
    return true;
}
template <class T, class P> inline bool pack_quickly(const Source<T>&, int64_t, int64_t, int64_t, P*) { return false; }

template <int PAIR, class T, class P> void pack(const PackArgs& g, int64_t padded) {
    const Source<T> from{static_cast<const T*>(g.w), g.transposed ? 1 : g.ldw, g.transposed ? g.ldw : 1};
    const int64_t panels = (g.n + PANEL - 1) / PANEL;
    parallel_ranges(panels, padded * PANEL, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; ++panel) {
            const int64_t first = panel * PANEL, width = g.n - first < PANEL ? g.n - first : PANEL;
            P* out = static_cast<P*>(g.packed) + first * padded;
            if (width == PANEL && pack_quickly(from, first, g.k, padded, out)) continue;
            pack_panel<PAIR>(from, first, int(width), g.k, padded, out);
        }
    });
}

}  // namespace

void pack_panels(const PackArgs& g) {
    const bool from_half = g.w_dtype == DType::bf16;
    if (g.dtype == DType::bf16)
        (from_half ? pack<2, bf16, bf16> : pack<2, float, bf16>)(g, (g.k + 31) / 32 * 32);
    else
        (from_half ? pack<1, bf16, float> : pack<1, float, float>)(g, g.k);
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
