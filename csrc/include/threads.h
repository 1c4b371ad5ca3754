// The number of threads of a parallel region.
#pragma once

namespace fastbert {

// As many threads as torch uses in the calling thread, or one within a parallel region.
int most_threads();

// A function that tells how many those are. OpenMP's own number is not enough: torch.set_num_threads sets it in one thread, and
// torch does so in another only when an op of its own first asks there. Until this is called, OpenMP's number counts.
void follow_threads(int (*count)());

}  // namespace fastbert
