/* Let the n-th system call that changes a disk fail, or kill the process before it.

   Preloaded by interference_support.py; counts nothing until it is armed. Counters lie in shared memory,
   so that the process that forked the armed one can read them afterwards. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { OFF, COUNT, KILL, FAIL_ONCE, FAIL_FROM };
enum { MOST = 4096, NAME = 24 };

static struct {
    long calls;
    char names[MOST][NAME];
} *shared;

static int mode;
static long at;
static int failure;

__attribute__((constructor)) static void begin(void)
{
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void arm(int wanted, long number, int error)
{
    shared->calls = 0;
    at = number;
    failure = error;
    mode = wanted;
}

void disarm(void) { mode = OFF; }

long calls_made(void) { return shared->calls; }

const char *call_name(long number) { return shared->names[(number - 1) % MOST]; }

/* Whether the call under way is to fail; `grows`: whether it needs room on the disk. */
static int fails(const char *name, int grows)
{
    if (mode == OFF || shared == MAP_FAILED)
        return 0;
    long number = __atomic_add_fetch(&shared->calls, 1, __ATOMIC_SEQ_CST);
    strncpy(shared->names[(number - 1) % MOST], name, NAME - 1);
    if (mode == KILL && number == at)
        raise(SIGKILL);
    if ((mode == FAIL_ONCE && number == at) || (mode == FAIL_FROM && number >= at && grows)) {
        errno = failure;
        return 1;
    }
    return 0;
}

static int on_disk(int file)
{
    struct stat found;
    if (mode == OFF || file <= 2 || fstat(file, &found))
        return 0;
    return S_ISREG(found.st_mode) || S_ISDIR(found.st_mode);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OF_FILE(result, name, grows, parameters, ...)         \
    result name parameters                                    \
    {                                                         \
        if (on_disk(file) && fails(#name, grows))             \
            return -1;                                        \
        return REAL(name)(__VA_ARGS__);                       \
    }
#define OF_PATH(name, grows, parameters, ...)                 \
    int name parameters                                       \
    {                                                         \
        if (fails(#name, grows))                              \
            return -1;                                        \
        return REAL(name)(__VA_ARGS__);                       \
    }
#define OPENS(name, parameters, ...)                          \
    int name parameters                                       \
    {                                                         \
        va_list rest;                                         \
        va_start(rest, flags);                                \
        mode_t access = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                         \
        if (flags & (O_CREAT | O_TRUNC) && fails(#name, 1))   \
            return -1;                                        \
        return REAL(name)(__VA_ARGS__, access);               \
    }

OF_FILE(ssize_t, write, 1, (int file, const void *from, size_t size), file, from, size)
OF_FILE(ssize_t, pwrite, 1, (int file, const void *from, size_t size, off_t to), file, from, size, to)
OF_FILE(ssize_t, pwrite64, 1, (int file, const void *from, size_t size, off64_t to), file, from, size, to)
OF_FILE(int, fsync, 1, (int file), file)
OF_FILE(int, fdatasync, 1, (int file), file)
OF_FILE(int, ftruncate, 1, (int file, off_t size), file, size)
OF_FILE(int, ftruncate64, 1, (int file, off64_t size), file, size)
OF_PATH(rename, 1, (const char *from, const char *to), from, to)
OF_PATH(renameat, 1, (int a, const char *from, int b, const char *to), a, from, b, to)
OF_PATH(link, 1, (const char *from, const char *to), from, to)
OF_PATH(linkat, 1, (int a, const char *from, int b, const char *to, int flags), a, from, b, to, flags)
OF_PATH(mkdir, 1, (const char *path, mode_t access), path, access)
OF_PATH(mkdirat, 1, (int a, const char *path, mode_t access), a, path, access)
OF_PATH(unlink, 0, (const char *path), path)
OF_PATH(unlinkat, 0, (int a, const char *path, int flags), a, path, flags)
OF_PATH(rmdir, 0, (const char *path), path)
OPENS(open, (const char *path, int flags, ...), path, flags)
OPENS(open64, (const char *path, int flags, ...), path, flags)
OPENS(openat, (int a, const char *path, int flags, ...), a, path, flags)
OPENS(openat64, (int a, const char *path, int flags, ...), a, path, flags)
