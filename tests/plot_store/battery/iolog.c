/* Preloaded into a process, this records every change that it makes under one folder, in order, and can make one of
 * its operations fail. It is idle until iolog_start() is called (by ctypes), so that a warm process can be forked first.
 *
 * A record is: char op, u8 synced, u16 path bytes, u64 offset, u64 data bytes, path, data.
 *   c create (offset 1: truncated)   w write (synced: through O_DSYNC or O_SYNC)   t set length
 *   f file or folder synced          e a sync that failed                          r rename, data = the new path
 *   u unlink    m mkdir    d rmdir   a mark of the caller, path = its text         ? a call that replay cannot follow
 *
 * Paths of descriptors are asked of /proc at every call, so that renames and duplicates need no bookkeeping. One lock
 * is held around call and record: the log is the order in which things happened. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(type, name) ((type)real_(#name))
enum { FAIL = 1, SHORT = 2, KILL_BEFORE = 3, KILL_AFTER = 4 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX];
static size_t folder_len;
static int active, log_fd = -1;
static char wanted[32];                  /* the kinds of operation that count: "" = all */
static long counted, fail_from, fail_to; /* operations of the wanted kinds so far; which of them go wrong */
static int what, code, verdict;

static void *real_(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) { fprintf(stderr, "iolog: no %s\n", name); abort(); }
    return found;
}

/* ---- the caller's side ---- */

void iolog_start(const char *path, int fd) { /* fd < 0: count and fail only */
    snprintf(folder, sizeof folder, "%s", path);
    folder_len = strlen(folder);
    log_fd = fd;
    counted = fail_from = fail_to = 0;
    active = 1;
}
void iolog_stop(void) { active = 0; }
long iolog_count(void) { return counted; }
void iolog_plan(long from, long to, int action, int error, const char *kinds) {
    counted = 0;
    fail_from = from; fail_to = to; what = action; code = error;
    snprintf(wanted, sizeof wanted, "%s", kinds);
}

/* ---- the record ---- */

static void put(const void *data, size_t size) {
    ssize_t (*go)(int, const void *, size_t) = REAL(ssize_t (*)(int, const void *, size_t), write);
    while (size) {
        ssize_t done = go(log_fd, data, size);
        if (done <= 0) { fprintf(stderr, "iolog: the log cannot be written\n"); abort(); }
        data = (const char *)data + done; size -= done;
    }
}
static void head(char op, int synced, const char *path, uint64_t offset, uint64_t size) {
    char out[20];
    uint16_t length = strlen(path);
    out[0] = op; out[1] = synced;
    memcpy(out + 2, &length, 2); memcpy(out + 4, &offset, 8); memcpy(out + 12, &size, 8);
    put(out, sizeof out); put(path, length);
}
static void note(char op, int synced, const char *path, uint64_t offset, const void *data, uint64_t size) {
    if (log_fd < 0) return;
    int kept = errno;
    head(op, synced, path, offset, size);
    if (size) put(data, size);
    errno = kept;
}
void iolog_mark(const char *text) {
    if (!active) return;
    pthread_mutex_lock(&lock);
    note('a', 0, text, 0, 0, 0);
    pthread_mutex_unlock(&lock);
}

/* ---- which calls concern us ---- */

static int inside(const char *path) { /* LMDB's lock file and the reserve of a full disk are no data */
    return !strncmp(path, folder, folder_len) && (path[folder_len] == '/' || !path[folder_len])
        && !strstr(path, "lock.mdb") && !strstr(path, "catalogue/reserve");
}
static int absolute(int dir, const char *path, char *out) {
    if (!active) return 0;
    if (path[0] == '/') snprintf(out, PATH_MAX, "%s", path);
    else {
        char link[64], base[PATH_MAX];
        if (dir == AT_FDCWD) { if (!getcwd(base, sizeof base)) return 0; }
        else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
            ssize_t size = readlink(link, base, sizeof base - 1);
            if (size < 0) return 0;
            base[size] = 0;
        }
        if (strlen(base) + strlen(path) + 2 > PATH_MAX) return 0;
        strcpy(out, base); strcat(out, "/"); strcat(out, path);
    }
    return inside(out);
}
static int of_fd(int fd, char *out) {
    if (!active || fd < 0) return 0;
    char link[64];
    int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, out, PATH_MAX - 1);
    errno = kept;
    if (size < 0) return 0;
    out[size] = 0;
    return inside(out);
}
static int synced(int fd) { return (fcntl(fd, F_GETFL) & O_DSYNC) != 0; }

/* Called with the lock. 0: go on; FAIL: errno is set; SHORT: do about half; KILL_AFTER: die when it is done. */
static int judge(char kind) {
    verdict = 0;
    if (wanted[0] && !strchr(wanted, kind)) return 0;
    counted++;
    if (counted < fail_from || counted > fail_to || !fail_from) return 0;
    if (what == KILL_BEFORE) raise(SIGKILL);
    if (what == FAIL) errno = code;
    return verdict = what;
}
static void over(void) {
    if (verdict == KILL_AFTER) raise(SIGKILL);
    pthread_mutex_unlock(&lock);
}
static ssize_t failed(void) { pthread_mutex_unlock(&lock); return -1; }

/* ---- opening ---- */

static int opened(int dir, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    int (*go)(int, const char *, int, ...) = REAL(int (*)(int, const char *, int, ...), openat);
    if (!(flags & (O_CREAT | O_TRUNC)) || !absolute(dir, path, full)) return go(dir, path, flags, mode);
    pthread_mutex_lock(&lock);
    if (judge('c') == FAIL) return failed();
    int fd = go(dir, path, flags, mode);
    if (fd >= 0) note('c', 0, full, (flags & O_TRUNC) != 0, 0, 0);
    over();
    return fd;
}
#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, int); va_end(rest); }
int open(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE return opened(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE return opened(dir, path, flags, mode); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* ---- writing: every form becomes one pwritev or writev ---- */

static ssize_t written(int fd, const struct iovec *parts, int count, off_t at) { /* at < 0: at the file's position */
    ssize_t (*stream)(int, const struct iovec *, int) = REAL(ssize_t (*)(int, const struct iovec *, int), writev);
    ssize_t (*place)(int, const struct iovec *, int, off_t) = REAL(ssize_t (*)(int, const struct iovec *, int, off_t), pwritev);
    char path[PATH_MAX];
    if (!of_fd(fd, path)) return at < 0 ? stream(fd, parts, count) : place(fd, parts, count, at);
    pthread_mutex_lock(&lock);
    int verdict_now = judge('w');
    if (verdict_now == FAIL) return failed();
    struct iovec half;
    if (verdict_now == SHORT && count) {
        half = parts[0];
        half.iov_len = half.iov_len > 1 ? half.iov_len / 2 : half.iov_len;
        parts = &half; count = 1;
    }
    ssize_t done = at < 0 ? stream(fd, parts, count) : place(fd, parts, count, at);
    off_t from = at < 0 ? lseek(fd, 0, SEEK_CUR) - done : at;
    int through = synced(fd);
    for (ssize_t left = done, i = 0; left > 0 && i < count; i++) {
        size_t size = (size_t)left < parts[i].iov_len ? (size_t)left : parts[i].iov_len;
        note('w', through, path, from, parts[i].iov_base, size);
        from += size; left -= size;
    }
    over();
    return done;
}
static ssize_t one(int fd, const void *data, size_t size, off_t at) {
    struct iovec part = {(void *)data, size};
    return written(fd, &part, 1, at);
}
ssize_t write(int fd, const void *data, size_t size) { return one(fd, data, size, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return one(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return one(fd, data, size, at); }
ssize_t writev(int fd, const struct iovec *parts, int count) { return written(fd, parts, count, -1); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return written(fd, parts, count, at); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) { return written(fd, parts, count, at); }
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) { (void)flags; return written(fd, parts, count, at); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) { (void)flags; return written(fd, parts, count, at); }

/* ---- reading, for faults alone ---- */

#define READ(name, arguments, given) \
    ssize_t name arguments { \
        ssize_t (*go) arguments = REAL(ssize_t (*) arguments, name); \
        char path[PATH_MAX]; \
        if (!active || !fail_from || !strchr(wanted, 'R') || !of_fd(fd, path)) return go given; \
        pthread_mutex_lock(&lock); \
        if (judge('R') == FAIL) return failed(); \
        ssize_t done = go given; \
        over(); \
        return done; \
    }
READ(read, (int fd, void *data, size_t size), (fd, data, size))
READ(pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
READ(pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))

/* ---- lengths and syncs. sync_file_range promises nothing after a power cut, so it is not recorded ---- */

static int cut(int fd, off_t length, const char *name) {
    int (*go)(int, off_t) = (int (*)(int, off_t))real_(name);
    char path[PATH_MAX];
    if (!of_fd(fd, path)) return go(fd, length);
    pthread_mutex_lock(&lock);
    if (judge('t') == FAIL) return failed();
    int done = go(fd, length);
    if (!done) note('t', 0, path, length, 0, 0);
    over();
    return done;
}
int ftruncate(int fd, off_t length) { return cut(fd, length, "ftruncate"); }
int ftruncate64(int fd, off64_t length) { return cut(fd, length, "ftruncate64"); }

static int reserve(int fd, off_t at, off_t size) { /* an errno, as posix_fallocate answers */
    int (*go)(int, off_t, off_t) = REAL(int (*)(int, off_t, off_t), posix_fallocate);
    char path[PATH_MAX];
    if (!of_fd(fd, path)) return go(fd, at, size);
    pthread_mutex_lock(&lock);
    if (judge('t') == FAIL) { pthread_mutex_unlock(&lock); return code; }
    struct stat before, after;
    fstat(fd, &before);
    int done = go(fd, at, size);
    fstat(fd, &after);
    if (after.st_size != before.st_size) note('t', 0, path, after.st_size, 0, 0);
    over();
    return done;
}
int posix_fallocate(int fd, off_t at, off_t size) { return reserve(fd, at, size); }
int posix_fallocate64(int fd, off64_t at, off64_t size) { return reserve(fd, at, size); }

static int flushed(int fd, const char *name) {
    int (*go)(int) = (int (*)(int))real_(name);
    char path[PATH_MAX];
    if (!of_fd(fd, path)) return go(fd);
    pthread_mutex_lock(&lock);
    if (judge('f') == FAIL) { note('e', 0, path, 0, 0, 0); return failed(); }
    int done = go(fd);
    if (!done) note('f', 0, path, 0, 0, 0);
    over();
    return done;
}
int fsync(int fd) { return flushed(fd, "fsync"); }
int fdatasync(int fd) { return flushed(fd, "fdatasync"); }

/* ---- names ---- */

static int renamed(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    int (*go)(int, const char *, int, const char *, unsigned) =
        REAL(int (*)(int, const char *, int, const char *, unsigned), renameat2);
    char old[PATH_MAX], new[PATH_MAX];
    int ours = absolute(from_dir, from, old), theirs = absolute(to_dir, to, new);
    if (!ours && !theirs) return go(from_dir, from, to_dir, to, flags);
    pthread_mutex_lock(&lock);
    if (judge('r') == FAIL) return failed();
    int done = go(from_dir, from, to_dir, to, flags);
    if (!done) note(ours && theirs && !flags ? 'r' : '?', 0, old, 0, new, strlen(new));
    over();
    return done;
}
int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return renamed(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { return renamed(a, from, b, to, flags); }

static int unlinked(int dir, const char *path, int flags) {
    int (*go)(int, const char *, int) = REAL(int (*)(int, const char *, int), unlinkat);
    char full[PATH_MAX];
    if (!absolute(dir, path, full)) return go(dir, path, flags);
    pthread_mutex_lock(&lock);
    if (judge('u') == FAIL) return failed();
    int done = go(dir, path, flags);
    if (!done) note(flags & AT_REMOVEDIR ? 'd' : 'u', 0, full, 0, 0, 0);
    over();
    return done;
}
int unlink(const char *path) { return unlinked(AT_FDCWD, path, 0); }
int unlinkat(int dir, const char *path, int flags) { return unlinked(dir, path, flags); }
int rmdir(const char *path) { return unlinked(AT_FDCWD, path, AT_REMOVEDIR); }

static int made(int dir, const char *path, mode_t mode) {
    int (*go)(int, const char *, mode_t) = REAL(int (*)(int, const char *, mode_t), mkdirat);
    char full[PATH_MAX];
    if (!absolute(dir, path, full)) return go(dir, path, mode);
    pthread_mutex_lock(&lock);
    if (judge('m') == FAIL) return failed();
    int done = go(dir, path, mode);
    if (!done) note('m', 0, full, 0, 0, 0);
    over();
    return done;
}
int mkdir(const char *path, mode_t mode) { return made(AT_FDCWD, path, mode); }
int mkdirat(int dir, const char *path, mode_t mode) { return made(dir, path, mode); }

/* ---- calls that replay does not know: they must not happen unseen ---- */

static void strange(int fd, const char *name) {
    char path[PATH_MAX];
    if (!of_fd(fd, path)) return;
    pthread_mutex_lock(&lock);
    note('?', 0, path, 0, name, strlen(name));
    pthread_mutex_unlock(&lock);
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
    char full[PATH_MAX];
    if (absolute(b, to, full)) note('?', 0, full, 0, "linkat", 6);
    return REAL(int (*)(int, const char *, int, const char *, int), linkat)(a, from, b, to, flags);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
ssize_t sendfile64(int out, int in, off64_t *at, size_t size) {
    strange(out, "sendfile");
    return REAL(ssize_t (*)(int, int, off64_t *, size_t), sendfile64)(out, in, at, size);
}
ssize_t sendfile(int out, int in, off_t *at, size_t size) { return sendfile64(out, in, at, size); }
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    strange(out, "copy_file_range");
    return REAL(ssize_t (*)(int, off64_t *, int, off64_t *, size_t, unsigned), copy_file_range)(in, from, out, to, size, flags);
}
