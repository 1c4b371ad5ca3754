// Tiles as AMX instructions.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Palette 1, every tile whole; tails are padded with zeros by the packing. One a thread, for as long as it works.
class Tiles {
public:
    Tiles() {
        alignas(64) struct {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t colsb[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } config;
        static_assert(sizeof config == 64, "the layout of LDTILECFG's operand");
        // GCC 12 takes eight bytes for the whole operand and would drop the stores to the others.
        asm volatile("" : : "r"(&config) : "memory");
        _tile_loadconfig(&config);
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};

// In a slow state of the core that comes and goes (measured on a virtual machine; its cause is not known), tile instructions
// that are fewer than eight instructions apart hold each other up: a product takes 1.6 times as long. In the fast state the
// gap costs nothing (docs/LOG.md).
inline void keep_apart() { asm volatile("nop\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop"); }

// GCC writes the tile's number into the instruction's text, so that it must be a literal.
#define FASTBERT_EACH_TILE(statement)             \
    if constexpr (T == 0) statement(0);           \
    if constexpr (T == 1) statement(1);           \
    if constexpr (T == 2) statement(2);           \
    if constexpr (T == 3) statement(3);           \
    if constexpr (T == 4) statement(4);           \
    if constexpr (T == 5) statement(5);           \
    if constexpr (T == 6) statement(6);           \
    if constexpr (T == 7) statement(7);           \
    keep_apart();

#define FASTBERT_ZERO(t) _tile_zero(t)
#define FASTBERT_LOAD(t) _tile_loadd(t, p, stride)
#define FASTBERT_STREAM(t) _tile_stream_loadd(t, p, stride)
#define FASTBERT_STORE(t) _tile_stored(t, p, stride)

template <int T> inline void tile_zero() { FASTBERT_EACH_TILE(FASTBERT_ZERO) }
template <int T> inline void tile_load(const void* p, int64_t stride) { FASTBERT_EACH_TILE(FASTBERT_LOAD) }
// For an operand that is not used again soon.
template <int T> inline void tile_stream(const void* p, int64_t stride) { FASTBERT_EACH_TILE(FASTBERT_STREAM) }
template <int T> inline void tile_store(void* p, int64_t stride) { FASTBERT_EACH_TILE(FASTBERT_STORE) }

#undef FASTBERT_EACH_TILE
#undef FASTBERT_ZERO
#undef FASTBERT_LOAD
#undef FASTBERT_STREAM
#undef FASTBERT_STORE

// Sums in tiles 0 to 3, A in 4 and 5, B in 6 and 7.
// In its place the caller may have something else to do.
template <int C, int A, int B, class Gap> inline void tile_dot_bf16(Gap&& gap) {
    static_assert(C < 4 && A == 4 + C / 2 && B == 6 + C % 2, "a two by two block of sums");
    if constexpr (C == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (C == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (C == 2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (C == 3) _tile_dpbf16ps(3, 5, 7);
    gap();
}
// Unsigned rows times signed columns.
template <int C, int A, int B> inline void tile_dot_u8s8() {
    static_assert(C < 4 && A == 4 + C / 2 && B == 6 + C % 2, "a two by two block of sums");
    if constexpr (C == 0) _tile_dpbusd(0, 4, 6);
    if constexpr (C == 1) _tile_dpbusd(1, 4, 7);
    if constexpr (C == 2) _tile_dpbusd(2, 5, 6);
    if constexpr (C == 3) _tile_dpbusd(3, 5, 7);
    keep_apart();
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
