#include "mask.h"

#include <algorithm>

namespace fastbert {
namespace {

template <class Word> Kept read(const Mask& m, int64_t* indices, int32_t* bounds) {
    const Word* mask = static_cast<const Word*>(m.data);
    const Word sign = m.is_float ? Word(Word(1) << (8 * sizeof(Word) - 1)) : Word(0);
    Kept kept;
    bounds[0] = 0;
    for (int64_t b = 0; b < m.batch_size; ++b) {
        const int64_t before = kept.tokens;
        for (int64_t s = 0; s < m.seqlen; ++s) {
            // Written whether it is kept or not, where the next one will be: no branch.
            indices[kept.tokens] = b * m.seqlen + s;
            kept.tokens += (mask[b * m.seqlen + s] & Word(~sign)) != 0;
        }
        const int64_t length = kept.tokens - before;
        kept.shortest = b ? std::min(kept.shortest, length) : length;
        kept.longest = std::max(kept.longest, length);
        kept.first_masked |= length > 0 && indices[before] != b * m.seqlen;
        bounds[b + 1] = int32_t(kept.tokens);
    }
    return kept;
}

}  // namespace

Kept read_mask(const Mask& mask, int64_t* indices, int32_t* bounds) {
    switch (mask.width) {
        case 1: return read<uint8_t>(mask, indices, bounds);
        case 2: return read<uint16_t>(mask, indices, bounds);
        case 4: return read<uint32_t>(mask, indices, bounds);
        default: return read<uint64_t>(mask, indices, bounds);
    }
}

}  // namespace fastbert
