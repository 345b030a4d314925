/*
 * A wall clock that is stepped from outside: LD_PRELOAD puts it before the C library's. How many milliseconds it is
 * ahead stands in the eight bytes of the file that STEPPED_CLOCK_FILE names, in the machine's byte order. It shows
 * tens of milliseconds, so the last digit of what it shows is that of the file: it tells since which step it was read.
 * Steady clocks, and all that waits, stay the kernel's. (libfaketime 0.9.10 changes those too: Python's sleep fails
 * under it.)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead_ms;
static int (*kernel_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("STEPPED_CLOCK_FILE");
    int file = name == NULL ? -1 : open(name, O_RDONLY | O_CLOEXEC);
    kernel_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) ahead_ms = mapped;
    close(file);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int failed = kernel_clock ? kernel_clock(which, now) : (int)syscall(SYS_clock_gettime, which, now);
    if (!failed && ahead_ms && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t shown_ms = now->tv_sec * 1000LL + now->tv_nsec / 10000000 * 10 + *ahead_ms;
        now->tv_sec = shown_ms / 1000;
        /* Half a millisecond more: as a floating-point number it must not fall below the millisecond. */
        now->tv_nsec = shown_ms % 1000 * 1000000 + 500000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
