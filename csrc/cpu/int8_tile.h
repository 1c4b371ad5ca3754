// Tiles of AMX for int8, or the same in plain C++, which is slow and there to be tested on any processor.
//
// A tile is 16 rows of 64 bytes. Tiles 0..3 hold sums (16 x 16 int32), 4 and 5 rows of a (16 x 64 inputs), 6 and 7 weights
// (16 steps of four inputs x 16 outputs).
#pragma once
#include "vec.h"

#include <cstring>

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

#if defined(FASTBERT_LEVEL_AMX)

// Configures this thread's tiles while it lives.
struct Tiles {
    Tiles() {
        alignas(64) uint8_t config[64] = {1};  // the palette
        for (int tile = 0; tile < 8; ++tile) {
            config[16 + 2 * tile] = 64;  // bytes of a row
            config[48 + tile] = 16;      // rows
        }
        // GCC 12 tells the instruction to read 8 bytes only, and drops the stores of the others.
        asm volatile("" : : "r"(config) : "memory");
        _tile_loadconfig(config);
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};

// The intrinsics are macros that write the tile's number into the instruction: it must be a literal.
#define FASTBERT_EACH_TILE(USE) \
    USE(0) USE(1) USE(2) USE(3) USE(4) USE(5) USE(6) USE(7)
#define FASTBERT_ZERO(N) \
    if constexpr (TILE == N) _tile_zero(N);
#define FASTBERT_LOAD(N) \
    if constexpr (TILE == N) _tile_loadd(N, p, stride);
#define FASTBERT_STORE(N) \
    if constexpr (TILE == N) _tile_stored(N, p, stride);

template <int TILE> inline void zero() { FASTBERT_EACH_TILE(FASTBERT_ZERO) }
template <int TILE> inline void load_tile(const void* p, int64_t stride) { FASTBERT_EACH_TILE(FASTBERT_LOAD) }
template <int TILE> inline void store_tile(void* p, int64_t stride) { FASTBERT_EACH_TILE(FASTBERT_STORE) }
// Sums += unsigned rows times signed weights.
template <int SUMS, int A, int B> inline void multiply() {
    static_assert(A == 4 + SUMS / 2 && B == 6 + SUMS % 2, "the four products of dot");
    if constexpr (SUMS == 0) _tile_dpbusd(0, 4, 6);
    if constexpr (SUMS == 1) _tile_dpbusd(1, 4, 7);
    if constexpr (SUMS == 2) _tile_dpbusd(2, 5, 6);
    if constexpr (SUMS == 3) _tile_dpbusd(3, 5, 7);
}

#else

thread_local uint8_t emulated[8][16][64];

struct Tiles {};

template <int TILE> inline void zero() { std::memset(emulated[TILE], 0, sizeof emulated[TILE]); }
template <int TILE> inline void load_tile(const void* p, int64_t stride) {
    for (int r = 0; r < 16; ++r) std::memcpy(emulated[TILE][r], static_cast<const char*>(p) + r * stride, 64);
}
template <int TILE> inline void store_tile(void* p, int64_t stride) {
    for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(p) + r * stride, emulated[TILE][r], 64);
}
template <int SUMS, int A, int B> inline void multiply() {
    for (int r = 0; r < 16; ++r) {
        int32_t sums[16];
        std::memcpy(sums, emulated[SUMS][r], 64);
        for (int s = 0; s < 16; ++s)
            for (int c = 0; c < 16; ++c)
                for (int i = 0; i < 4; ++i)
                    sums[c] += int32_t(emulated[A][r][4 * s + i]) * int8_t(emulated[B][s][4 * c + i]);
        std::memcpy(emulated[SUMS][r], sums, 64);
    }
}

#endif

using Quantised = uint8_t;
constexpr int MAX_ROWS = 32, MAX_PANELS = 2, ROW_UNIT = 16;

// HEIGHT x PANELS tiles of sums; rows beyond the last one are read, and their sums ignored.
template <int HEIGHT, int PANELS>
void dot(const Quantised* a, int64_t stride, const int8_t* w, int64_t panel, int64_t steps, Ahead, int32_t* sums) {
    // The compiler does not know that the instructions read and write memory.
    asm volatile("" : : : "memory");
    zero<0>();
    if constexpr (PANELS == 2) zero<1>();
    if constexpr (HEIGHT == 2) zero<2>();
    if constexpr (HEIGHT == 2 && PANELS == 2) zero<3>();
    for (int64_t s = 0; s < steps; s += 16) {
        load_tile<6>(w + s * 64, 64);
        load_tile<4>(a + s * 4, stride);
        multiply<0, 4, 6>();
        if constexpr (PANELS == 2) {
            load_tile<7>(w + panel + s * 64, 64);
            multiply<1, 4, 7>();
        }
        if constexpr (HEIGHT == 2) {
            load_tile<5>(a + 16 * stride + s * 4, stride);
            multiply<2, 5, 6>();
        }
        if constexpr (HEIGHT == 2 && PANELS == 2) multiply<3, 5, 7>();
    }
    constexpr int64_t ROW = PANELS * 64;
    store_tile<0>(sums, ROW);
    if constexpr (PANELS == 2) store_tile<1>(sums + 16, ROW);
    if constexpr (HEIGHT == 2) store_tile<2>(sums + 16 * PANELS * 16, ROW);
    if constexpr (HEIGHT == 2 && PANELS == 2) store_tile<3>(sums + 16 * PANELS * 16 + 16, ROW);
    asm volatile("" : : : "memory");
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
