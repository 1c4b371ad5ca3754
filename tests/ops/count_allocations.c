/* Preloaded: counts allocations of 4 KiB and more that the extension makes, itself or through operator new. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static atomic_int counting;
static atomic_long count;

void count_allocations(int on) {
    count = 0;
    counting = on;
}

long counted_allocations(void) { return count; }

static void note(size_t size, void* caller) {
    Dl_info where;
    if (!counting || size < 4096 || !dladdr(caller, &where) || !where.dli_fname) return;
    if (strstr(where.dli_fname, "/_C.") || strstr(where.dli_fname, "libstdc++")) ++count;
}

void* malloc(size_t size) {
    note(size, __builtin_return_address(0));
    return __libc_malloc(size);
}

void* calloc(size_t n, size_t size) {
    note(n * size, __builtin_return_address(0));
    return __libc_calloc(n, size);
}

void* realloc(void* old, size_t size) {
    note(size, __builtin_return_address(0));
    return __libc_realloc(old, size);
}

void* memalign(size_t alignment, size_t size) {
    note(size, __builtin_return_address(0));
    return __libc_memalign(alignment, size);
}

void* aligned_alloc(size_t alignment, size_t size) {
    note(size, __builtin_return_address(0));
    return __libc_memalign(alignment, size);
}

int posix_memalign(void** out, size_t alignment, size_t size) {
    note(size, __builtin_return_address(0));
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : ENOMEM;
}
