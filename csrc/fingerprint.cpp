// Hashes of buffers, which change when their contents do.
#include "fingerprint.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace fastbert {
namespace {

uint64_t mixed(uint64_t with, uint64_t word) {
    with = (with ^ word) * 0x9E3779B97F4A7C15u;
    return with ^ with >> 29;
}

}  // namespace

uint64_t fingerprint(const void* data, int64_t bytes) {
    constexpr int64_t SMALL = 16 << 10, SAMPLES = 64, LANES = 8;
    const char* from = static_cast<const char*>(data);
    const int64_t width = std::min<int64_t>(8, bytes);
    std::array<uint64_t, LANES> lanes{uint64_t(bytes), 1, 2, 3, 4, 5, 6, 7};
    const auto mix = [&](int64_t lane, int64_t offset) {
        uint64_t word = 0;
        std::memcpy(&word, from + offset, size_t(width));
        lanes[size_t(lane)] = mixed(lanes[size_t(lane)], word);
    };
    if (width == 8 && bytes <= SMALL) {
        int64_t offset = 0;
        for (; offset + LANES * width <= bytes; offset += LANES * width)
            for (int64_t lane = 0; lane < LANES; ++lane) mix(lane, offset + lane * width);
        for (; offset < bytes; offset += width) mix(0, std::min(offset, bytes - width));
    } else if (width > 0) {
        for (int64_t i = 0; i < SAMPLES; ++i) mix(i % LANES, (bytes - width) / 2 * i / (SAMPLES - 1) * 2);
    }
    for (int64_t lane = 1; lane < LANES; ++lane) lanes[0] = mixed(lanes[0], lanes[size_t(lane)]);
    return lanes[0];
}

uint64_t fingerprints(const std::vector<uintptr_t>& buffers, const std::vector<int64_t>& sizes) {
    std::vector<uint64_t> found(buffers.size());
    // Weights larger than the caches are read from memory; several threads wait for it at the same time.
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < buffers.size(); ++i) found[i] = fingerprint(reinterpret_cast<const void*>(buffers[i]), sizes[i]);
    uint64_t all = buffers.size();
    for (const uint64_t one : found) all = mixed(all, one);
    return all;
}

}  // namespace fastbert
