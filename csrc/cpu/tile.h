// Eight tiles of 16 rows x 64 bytes, as AMX has them: load, store, and products of bfloat16 pairs or fours of bytes.
//
// Two implementations, the instructions and plain C++ with their semantics (Intel SDM volume 2, TDPBF16PS, TDPBUSD), so
// that packing, tails and epilogues of the kernels above are tested on processors without AMX. A third has no tiles, and
// multiplies what they would hold in vector registers.
#pragma once
#if defined(FASTBERT_LEVEL_AMX)
#include "tile_amx.h"
#elif defined(FASTBERT_PAIRS)
#include "tile_pairs.h"
#else
#include "tile_emulated.h"
#endif
