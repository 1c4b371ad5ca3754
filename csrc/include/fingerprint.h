// Detects that buffers were written to, in any way, since something was computed from them.
#pragma once
#include <cstdint>
#include <vector>

namespace fastbert {

// A hash of elements of a buffer: of all elements if it is as small as a bias or a LayerNorm's weight, in which single ones
// are changed in experiments; of a few elements of a matrix, which change with any update of the whole parameter, or of every
// tenth element.
uint64_t fingerprint(const void* data, int64_t bytes);
// One hash of many buffers, given by their addresses and their sizes in bytes.
uint64_t fingerprints(const std::vector<uintptr_t>& buffers, const std::vector<int64_t>& sizes);

}  // namespace fastbert
