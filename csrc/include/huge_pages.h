// Pages of 2 MiB: the latency of a single sequence is the time to read the weights, and large pages need fewer page walks.
#pragma once
#include <cstdint>

namespace fastbert {

constexpr int64_t HUGE_PAGE = 2l << 20;

// For memory that was not written to yet. If the system refuses, small pages are used.
void wish_for_huge_pages(void* memory, int64_t bytes);
// For memory that is already filled: its pages are merged at once (Linux 6.1).
void gather_into_huge_pages(const void* memory, int64_t bytes);

}  // namespace fastbert
