// Products of int8 in tiles of AMX, or of the same in plain C++.
//
// Tiles 0..3 hold sums (16 x 16 int32), 4 and 5 rows of a (16 x 64 inputs), 6 and 7 weights (16 steps of four inputs x 16
// outputs).
#pragma once
#include "tile.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

using Quantised = uint8_t;
constexpr int MAX_ROWS = 32, MAX_PANELS = 2, ROW_UNIT = 16;

// HEIGHT x PANELS tiles of sums; rows beyond the last one are read, and their sums ignored.
template <int HEIGHT, int PANELS>
void dot(const Quantised* a, int64_t stride, const int8_t* w, int64_t panel, int64_t steps, Ahead, int32_t* sums) {
    // The compiler does not know that the instructions read and write memory.
    asm volatile("" : : : "memory");
    tile_zero<0>();
    if constexpr (PANELS == 2) tile_zero<1>();
    if constexpr (HEIGHT == 2) tile_zero<2>();
    if constexpr (HEIGHT == 2 && PANELS == 2) tile_zero<3>();
    for (int64_t s = 0; s < steps; s += 16) {
        tile_load<6>(w + s * 64, 64);
        tile_load<4>(a + s * 4, stride);
        tile_dot_u8s8<0, 4, 6>();
        if constexpr (PANELS == 2) {
            tile_load<7>(w + panel + s * 64, 64);
            tile_dot_u8s8<1, 4, 7>();
        }
        if constexpr (HEIGHT == 2) {
            tile_load<5>(a + 16 * stride + s * 4, stride);
            tile_dot_u8s8<2, 5, 6>();
        }
        if constexpr (HEIGHT == 2 && PANELS == 2) tile_dot_u8s8<3, 5, 7>();
    }
    constexpr int64_t ROW = PANELS * 64;
    tile_store<0>(sums, ROW);
    if constexpr (PANELS == 2) tile_store<1>(sums + 16, ROW);
    if constexpr (HEIGHT == 2) tile_store<2>(sums + 16 * PANELS * 16, ROW);
    if constexpr (HEIGHT == 2 && PANELS == 2) tile_store<3>(sums + 16 * PANELS * 16 + 16, ROW);
    asm volatile("" : : : "memory");
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
