// Transposes of blocks, for packing.
#pragma once
#include <cstring>

#include "gemm.h"
#include "transpose.h"
#include "vec.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// It may be two bfloat16 numbers, and at an address that no float may have.
inline float one(const float* p) {
    float out;
    std::memcpy(&out, p, sizeof out);
    return out;
}
inline float one(const bf16* p) {
    const uint32_t bits = uint32_t(p->bits) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

// The bits of a float32 number rounded to bfloat16 (to the even one in a tie), in their upper half; the lower half is not zero.
inline uint32_t rounded(uint32_t bits) { return bits + 0x7fff + ((bits >> 16) & 1); }
inline bool is_finite(uint32_t bits) { return (bits & 0x7f800000) != 0x7f800000; }

// Splits x into the bits of two bfloat16 numbers, whose sum is x but for 2^-17 of it. The first is cut off where rounding would
// overflow. If x is not finite, the first is x and the second 0.
inline void split(float x, uint16_t& first, uint16_t& second) {
    uint32_t bits, rest_bits;
    std::memcpy(&bits, &x, 4);
    const bool rounds = is_finite(bits) && is_finite(rounded(bits));
    const uint32_t nan = (bits & 0x7fffffff) > 0x7f800000 ? 0x400000 : 0;
    const uint32_t head = (rounds ? rounded(bits) : bits | nan) & 0xffff0000;
    float whole;
    std::memcpy(&whole, &head, 4);
    const float rest = is_finite(bits) ? x - whole : 0.0f;
    std::memcpy(&rest_bits, &rest, 4);
    first = uint16_t(head >> 16);
    second = uint16_t(rounded(rest_bits) >> 16);
}

// Two neighbouring bfloat16 numbers travel as one float, whose value nobody looks at.
inline const float* as_words(const bf16* p) { return reinterpret_cast<const float*>(p); }
inline float* as_words(bf16* p) { return reinterpret_cast<float*>(p); }

// out[c * rows + r] = src[r * ld + c] for up to 16 rows. It may write 15 floats past the end of out.
template <class T> inline void rows_to_columns(const T* src, int64_t ld, int rows, int64_t cols, float* out) {
    int64_t c = 0;
#if defined(FASTBERT_LEVEL_AVX512)
    for (; c + W <= cols; c += W) {
        Vec square[W];
#pragma GCC unroll 16
        for (int r = 0; r < W; ++r) square[r] = r < rows ? load(src + r * ld + c) : set(0.0f);
        transpose(square);
        // In this order, each store overwrites the excess of the one before, which is in the next column's place.
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) store(out + (c + i) * rows, square[i]);
    }
#endif
    for (; c < cols; ++c)
        for (int r = 0; r < rows; ++r) {
            const float x = one(src + r * ld + c);
            std::memcpy(out + c * rows + r, &x, sizeof x);
        }
}

// The same of pairs of bfloat16: out[c * rows + r] holds src[r * ld + 2 c] and its right neighbour, of which `inside`
// elements are there; zero beyond them.
inline void pairs_to_columns(const bf16* src, int64_t ld, int rows, int64_t pairs, int64_t inside, float* out) {
    const int64_t whole = inside / 2 < pairs ? inside / 2 : pairs;
    const bool in_words = ld % 2 == 0;
    if (in_words) rows_to_columns(as_words(src), ld / 2, rows, whole, out);
    for (int64_t c = in_words ? whole : 0; c < pairs; ++c)
        for (int r = 0; r < rows; ++r) {
            bf16 pair[2] = {};
            for (int64_t i = 0; i < 2 && 2 * c + i < inside; ++i) pair[i] = src[r * ld + 2 * c + i];
            std::memcpy(out + c * rows + r, pair, sizeof pair);
        }
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
