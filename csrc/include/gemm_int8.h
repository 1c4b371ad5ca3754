// Products with int8 weights: c = act(a w^T + bias) + residual, a quantised on the fly.
//
// The k inputs are cut into groups of at most 256. Weights are symmetric with one scale an output and group,
// w ~ scale * q, q in -127..127. Each row of a (a token) has a scale and a zero point a group, a ~ scale * (q - zero),
// q in 0..255, zero exact. Sums of a group are exact int32 at every level, and so is their conversion to float32; what
// follows is float32 arithmetic in one order.
//
// A few input columns, the outliers, stay float32 on both sides: one large channel would cost its group their bits.
//
// A row with a value that is not finite gives NaN in every output (an outlier of infinity: what float32 gives); nothing
// is clipped. A group whose range is below 2^-118 counts as zero.
//
// Packed buffer, every part at a multiple of 64 bytes: header; int8 weights [n / 16][k / 4][16][4], k padded to 64, which
// is what vpdpbusd and an AMX tile read; scales and sums of columns [group][n]; outlier columns (indices, then weights
// [outlier][n]).
#pragma once
#include <cstdint>

#include "gemm.h"

namespace fastbert {

// 255 * 127 * k stays below 2^24, so that float32 holds every sum.
constexpr int64_t INT8_MAX_GROUP = 256;

struct PackInt8Args {
    const float* w;  // (n, k), as nn.Linear's weight
    int64_t ldw;
    int64_t n, k;
    const int32_t* outliers;  // ascending columns of w
    int64_t num_outliers;
    void* packed;  // int8_packed_size bytes, at a multiple of 64
};

struct GemmInt8Args {
    DType dtype;  // of a
    const void* a;
    int64_t lda;  // elements between rows; a row is contiguous
    const void* packed;
    const float* bias;  // (n) or null
    Activation act;
    const void* residual;  // (m, n) of c's dtype and with c's stride, or null; may be c itself
    void* c;
    int64_t ldc;
    DType c_dtype;
    int64_t m, n, k;
    int32_t* sums;  // (m, groups, n) sums of (q_a - zero) * q_w; null but in tests
    bool same_rows;  // the calling thread's last product had the same rows and outliers, so their quantised form exists
    // A packed weight whose k is this one's n, or null. With it, c is not written, but quantised as the rows of that weight
    // while it is in the cache. The calling thread's next product, of that weight and with `quantised`, uses these rows and
    // ignores a.
    const void* next;
    bool quantised;
};

int64_t int8_packed_size(int64_t n, int64_t k, int64_t num_outliers);
void pack_int8(const PackInt8Args& args);
// Whether the header is one that pack_int8 writes, and all parts are within the buffer, which may come from a file.
bool is_packed_int8(const void* buffer, int64_t bytes);
void gemm_int8(const GemmInt8Args& args);

// The positions of the parts of a packed buffer.
struct Int8Header {
    int64_t n, k, num_outliers;
    int64_t n_padded, k_padded;
    int64_t group, groups;  // inputs of a group, a multiple of 64 (the last may have fewer); how many there are
    int64_t scale, column_sums, outliers, outlier_weights;  // bytes from the start
    int64_t size;
};

struct Int8Weight {
    const Int8Header* header;
    const int8_t* q;
    const float* scale;            // (groups, n_padded)
    const float* column_sums;      // (groups, n_padded)
    const int32_t* outliers;       // (num_outliers)
    const float* outlier_weights;  // (num_outliers, n_padded)

    explicit Int8Weight(const void* packed)
        : header(static_cast<const Int8Header*>(packed)),
          q(at<int8_t>(sizeof_header)),
          scale(at<float>(header->scale)),
          column_sums(at<float>(header->column_sums)),
          outliers(at<int32_t>(header->outliers)),
          outlier_weights(at<float>(header->outlier_weights)) {}

    static constexpr int64_t sizeof_header = 128;

private:
    template <class T> const T* at(int64_t offset) const {
        return reinterpret_cast<const T*>(reinterpret_cast<const char*>(header) + offset);
    }
};

}  // namespace fastbert
