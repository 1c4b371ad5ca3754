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

// Sums of the even and of the odd products of a row, one after the other, then both onto the accumulator.
template <int C, int A, int B, class Gap> inline void tile_dot_bf16(Gap&& gap) {
    must_be_configured();
    for (int m = 0; m < 16; ++m) {
        float even[16] = {}, odd[16] = {};
        for (int k = 0; k < 16; ++k) {
            const float a0 = half_to_float(tiles[A].halves[m][2 * k]), a1 = half_to_float(tiles[A].halves[m][2 * k + 1]);
            for (int n = 0; n < 16; ++n) {
                even[n] = flushed(even[n] + a0 * half_to_float(tiles[B].halves[k][2 * n]));
                odd[n] = flushed(odd[n] + a1 * half_to_float(tiles[B].halves[k][2 * n + 1]));
            }
        }
        for (int n = 0; n < 16; ++n) tiles[C].f32[m][n] = flushed(tiles[C].f32[m][n] + flushed(even[n] + odd[n]));
    }
    gap();
}

template <int C, int A, int B> inline void tile_dot_u8s8() {
    must_be_configured();
    for (int m = 0; m < 16; ++m)
        for (int n = 0; n < 16; ++n) {
            int32_t sum = 0;
            for (int k = 0; k < 64; ++k) sum += int32_t(tiles[A].bytes[m][k]) * tiles[B].s8[k / 4][4 * n + k % 4];
            tiles[C].s32[m][n] += sum;
        }
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
