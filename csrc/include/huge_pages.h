// Pages of 2 MiB: one sequence's latency is the time to read the weights, and with them there are fewer page walks.
#pragma once
#include <cstdint>

namespace fastbert {

constexpr int64_t HUGE_PAGE = 2l << 20;

// For memory that is not written to yet. Where it is refused, small pages serve.
void wish_for_huge_pages(void* memory, int64_t bytes);
// For memory that is filled already: the pages that it lies in are put together, now (Linux 6.1).
void gather_into_huge_pages(const void* memory, int64_t bytes);

}  // namespace fastbert
