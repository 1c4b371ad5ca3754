// Packs weights as int8: once per model, so plain C++ is fast enough.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "gemm_int8.h"
#include "isa.h"

namespace fastbert {
namespace {

int64_t align(int64_t bytes) { return round_up(bytes, 64); }

Int8Header layout(int64_t n, int64_t k, int64_t num_outliers) {
    Int8Header h{};
    h.n = n;
    h.k = k;
    h.num_outliers = num_outliers;
    h.n_padded = round_up(n, PANEL);
    h.k_padded = round_up(k, 64);
    h.scale = Int8Weight::sizeof_header + h.n_padded * h.k_padded;
    const int64_t chunks = h.k_padded / 64, most = INT8_MAX_GROUP / 64;
    const int64_t about = chunks ? divide_up(chunks, most) : 1;
    h.group = divide_up(chunks, about) * 64;
    h.groups = h.group ? divide_up(h.k_padded, h.group) : 0;
    h.column_sums = h.scale + 4 * h.groups * h.n_padded;
    h.outliers = h.column_sums + 4 * h.groups * h.n_padded;
    h.outlier_weights = h.outliers + align(4 * num_outliers);
    h.size = h.outlier_weights + 4 * num_outliers * h.n_padded;
    return h;
}

static_assert(sizeof(Int8Header) <= Int8Weight::sizeof_header, "the header has its room");

}  // namespace

int64_t int8_packed_size(int64_t n, int64_t k, int64_t num_outliers) { return align(layout(n, k, num_outliers).size); }

void pack_int8(const PackInt8Args& args) {
    const Int8Header h = layout(args.n, args.k, args.num_outliers);
    char* base = static_cast<char*>(args.packed);
    std::memset(base, 0, int8_packed_size(args.n, args.k, args.num_outliers));
    std::memcpy(base, &h, sizeof h);
    int8_t* q = reinterpret_cast<int8_t*>(base + Int8Weight::sizeof_header);
    float* outlier_weights = reinterpret_cast<float*>(base + h.outlier_weights);
    if (args.num_outliers) std::memcpy(base + h.outliers, args.outliers, 4 * args.num_outliers);
    std::vector<float> row(h.k_padded);
    for (int64_t n = 0; n < args.n; ++n) {
        std::memcpy(row.data(), args.w + n * args.ldw, 4 * args.k);
        for (int64_t o = 0; o < args.num_outliers; ++o) {
            outlier_weights[o * h.n_padded + n] = row[args.outliers[o]];
            row[args.outliers[o]] = 0;
        }
        int8_t* column = q + n / 16 * 16 * h.k_padded + n % 16 * 4;
        for (int64_t g = 0; g < h.groups; ++g) {
            const int64_t begin = g * h.group, end = std::min(begin + h.group, h.k_padded);
            float largest = 0;
            for (int64_t k = begin; k < end; ++k) largest = std::max(largest, std::fabs(row[k]));
            // A scale so small that it has lost its precision is zero, and so are its weights.
            const float scale = largest / 127.0f >= 0x1p-120f ? largest / 127.0f : 0.0f;
            int32_t sum = 0;
            for (int64_t k = begin; k < end; ++k) {
                const int value = scale > 0 ? int(std::nearbyint(row[k] / scale)) : 0;
                column[k / 4 * 64 + k % 4] = int8_t(value);
                sum += value;
            }
            reinterpret_cast<float*>(base + h.scale)[g * h.n_padded + n] = scale;
            reinterpret_cast<float*>(base + h.column_sums)[g * h.n_padded + n] = float(sum);
        }
    }
}

bool is_packed_int8(const void* buffer, int64_t bytes) {
    Int8Header h;
    if (bytes < Int8Weight::sizeof_header) return false;
    std::memcpy(&h, buffer, sizeof h);
    const auto is_count = [](int64_t x, int64_t most) { return x >= 0 && x <= most; };
    // Checked first, so that the products in layout() stay below 2^63.
    if (!is_count(h.n, bytes) || !is_count(h.k, bytes) || !is_count(h.num_outliers, h.k)) return false;
    if (h.k && h.n > bytes / h.k) return false;
    const Int8Header expected = layout(h.n, h.k, h.num_outliers);
    if (std::memcmp(&h, &expected, sizeof h) || h.size > bytes) return false;
    int32_t before = -1;
    for (int64_t o = 0; o < h.num_outliers; ++o) {
        int32_t column;
        std::memcpy(&column, static_cast<const char*>(buffer) + h.outliers + 4 * o, sizeof column);
        if (column <= before || column >= h.k) return false;
        before = column;
    }
    return true;
}

void gemm_int8(const GemmInt8Args& args) { kernels().gemm_int8(args); }

}  // namespace fastbert
