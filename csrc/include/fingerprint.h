// Whether buffers that something was made of have been written to since, by whatever way.
#pragma once
#include <cstdint>
#include <vector>

namespace fastbert {

// Numbers of a buffer, mixed. Of one as small as a bias or a LayerNorm's weight all of them: single ones are changed by
// those who ask what they are for. Of a matrix a few: an update of a whole parameter changes these, and so does one of
// every tenth number.
uint64_t fingerprint(const void* data, int64_t bytes);
// One number for many buffers, by their addresses; as many sizes, in bytes.
uint64_t fingerprints(const std::vector<uintptr_t>& buffers, const std::vector<int64_t>& sizes);

}  // namespace fastbert
