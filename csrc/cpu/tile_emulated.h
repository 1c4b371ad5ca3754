// Tiles in plain C++.
#pragma once
#include <cstdint>
#include <cstring>

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

union Tile {
    uint8_t bytes[16][64];
    uint16_t halves[16][32];
    int8_t s8[16][64];
    int32_t s32[16][16];
    float f32[16][16];
};

thread_local Tile tiles[8];
thread_local bool configured = false;

class Tiles {
public:
    Tiles() {
        configured = true;
        std::memset(tiles, 0, sizeof tiles);
    }
    ~Tiles() { configured = false; }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};

// The instructions fault without a configuration.
inline void must_be_configured() {
    if (!configured) __builtin_trap();
}

template <int T> inline void tile_zero() {
    must_be_configured();
    std::memset(&tiles[T], 0, sizeof(Tile));
}
template <int T> inline void tile_load(const void* p, int64_t stride) {
    must_be_configured();
    for (int row = 0; row < 16; ++row)
        std::memcpy(tiles[T].bytes[row], static_cast<const char*>(p) + row * stride, 64);
}
template <int T> inline void tile_stream(const void* p, int64_t stride) { tile_load<T>(p, stride); }
template <int T> inline void tile_store(void* p, int64_t stride) {
    must_be_configured();
    for (int row = 0; row < 16; ++row) std::memcpy(static_cast<char*>(p) + row * stride, tiles[T].bytes[row], 64);
}

inline void keep_apart() {}

// Denormal factors and results count as zero.
inline float flushed(float x) { return x < 1.17549435e-38f && x > -1.17549435e-38f ? 0.0f : x; }
inline float half_to_float(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float out;
    std::memcpy(&out, &wide, 4);
    return flushed(out);
}

// Sums of the even and of the odd products of a row, one after the other, then both onto the accumulator. Not inline, as
// kernels have dozens of products, and each takes a compiler seconds.
[[gnu::noinline]] inline void add_products(Tile& sums, const Tile& a, const Tile& b) {
    float first[16][16], second[16][16];
    for (int k = 0; k < 16; ++k)
        for (int n = 0; n < 16; ++n) {
            first[k][n] = half_to_float(b.halves[k][2 * n]);
            second[k][n] = half_to_float(b.halves[k][2 * n + 1]);
        }
    for (int m = 0; m < 16; ++m) {
        float even[16] = {}, odd[16] = {};
        for (int k = 0; k < 16; ++k) {
            const float a0 = half_to_float(a.halves[m][2 * k]), a1 = half_to_float(a.halves[m][2 * k + 1]);
            for (int n = 0; n < 16; ++n) {
                even[n] = flushed(even[n] + a0 * first[k][n]);
                odd[n] = flushed(odd[n] + a1 * second[k][n]);
            }
        }
        for (int n = 0; n < 16; ++n) sums.f32[m][n] = flushed(sums.f32[m][n] + flushed(even[n] + odd[n]));
    }
}
template <int C, int A, int B, class Gap> inline void tile_dot_bf16(Gap&& gap) {
    must_be_configured();
    add_products(tiles[C], tiles[A], tiles[B]);
    gap();
}

[[gnu::noinline]] inline void add_byte_products(Tile& sums, const Tile& a, const Tile& b) {
    for (int m = 0; m < 16; ++m) {
        int32_t row[16] = {};
        for (int k = 0; k < 64; ++k)
            for (int n = 0; n < 16; ++n) row[n] += int32_t(a.bytes[m][k]) * b.s8[k / 4][4 * n + k % 4];
        for (int n = 0; n < 16; ++n) sums.s32[m][n] += row[n];
    }
}
template <int C, int A, int B> inline void tile_dot_u8s8() {
    must_be_configured();
    add_byte_products(tiles[C], tiles[A], tiles[B]);
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
