// What an attention mask keeps, read in one pass.
#pragma once
#include <cstdint>

namespace fastbert {

// Numbers of `width` bytes (1, 2, 4 or 8); tokens are kept where they are not zero. For floats, -0 is zero too.
struct Mask {
    const void* data;  // (batch_size, seqlen)
    int width;
    bool is_float;
    int64_t batch_size, seqlen;
};

struct Kept {
    int64_t tokens = 0, shortest = 0, longest = 0;
    bool first_masked = false;  // the first token of a sequence that has others
};

// Fills indices, which has room for one more than the mask's elements, with the indices of the kept tokens, and bounds
// (batch_size + 1) with the bounds of the sequences among them.
Kept read_mask(const Mask&, int64_t* indices, int32_t* bounds);

}  // namespace fastbert
