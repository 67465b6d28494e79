/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake libcufile.so.0, or with -DHIP libhipfile.so.0, over host memory.  As in the real
 * libraries, the driver has counted references; HandleRegister and BufRegister open the driver with
 * the library's defaults if the driver is closed; a transfer with a dead handle releases a
 * reference; parameters hold for one open.  gds.h lists the switches. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct gds_fake_traps traps;
static const struct {
    const char *word;
    long *value, usual;
} words[] = {
    { "nvfs", &traps.nvfs, 1 },       { "p2pdma", &traps.p2pdma, 0 },
    { "compat", &traps.compat, 1 },   { "setter", &traps.setter, 1 },
    { "version", &traps.version, 1200 }, { "piece", &traps.piece, 16384 },
    { "open", &traps.open, 0 },       { "driver", &traps.driver, 0 },
    { "hang", &traps.hang, 0 },       { "file", &traps.file, 0 },
    { "buffer", &traps.buffer, 0 },   { "read", &traps.read, 0 },
    { "write", &traps.write, 0 },     { "form", &traps.form, 0 },
    { "only", &traps.only, 0 },       { "short", &traps.shorter, 0 },
    { "delay", &traps.delay, 0 },     { "meet", &traps.meet, 0 },
    { "damage", &traps.damage, 0 },
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t met = PTHREAD_COND_INITIALIZER;
struct gds_fake state;
int n_begun;
static struct {
    bool compat_set, compat, p2pdma;
} staged;
struct file files[MAX_FILES];
static int n_places;
struct buffer buffers[MAX_BUFFERS];

#pragma GCC visibility push(default)
void gds_fake_set(const char *switches);
struct gds_fake *gds_fake(void);
status_t NAME(DriverOpen)(void);
status_t NAME(DriverClose)(void);
long NAME(UseCount)(void);
status_t NAME(DriverGetProperties)(props_t *props);
status_t NAME(SetParameterBool)(int parameter, bool value);
status_t NAME(HandleRegister)(void **handle, struct kvt__gds_descr *descr);
void NAME(HandleDeregister)(void *handle);
status_t NAME(BufRegister)(const void *base, size_t bytes, int flags);
status_t NAME(BufDeregister)(const void *base);
#ifdef HIP
status_t hipFileGetVersion(unsigned *major, unsigned *minor, unsigned *patch);
#else
status_t cuFileGetVersion(int *version);
status_t cuFileDriverClose_v2(void);
#endif
#pragma GCC visibility pop

static status_t
answer(long code)
{
    return (status_t){ (int)code, 0 };
}

void
gds_fake_set(const char *switches)
{
    char word[32];
    long value;
    int used;

    pthread_mutex_lock(&lock);
    n_begun = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        *words[i].value = words[i].usual;
    for (; sscanf(switches, "%31[a-z0-9]=%ld%n", word, &value, &used) == 2;
         switches += strspn(switches, ",")) {
        size_t i = 0;

        while (strcmp(words[i].word, word))
            if (++i == sizeof words / sizeof *words)
                abort();
        *words[i].value = value;
        switches += used;
    }
    pthread_cond_broadcast(&met); /* transfers that wait in meet_locked() continue */
    pthread_mutex_unlock(&lock);
}

struct gds_fake *
gds_fake(void)
{
    return &state;
}

static void __attribute__((constructor))
on_load(void)
{
    const char *switches = getenv("GDS_FAKE");

    gds_fake_set(switches ? switches : "");
}

void
hang(void)
{
    for (;;)
        pause();
}

void
step(void)
{
    if (state.step)
        state.step();
}

/* ------------------------------------------------------------------- the driver */

static status_t
open_locked(void)
{
    bool compat = staged.compat_set ? staged.compat : traps.compat;
    bool p2pdma = staged.p2pdma && traps.p2pdma;

    if (state.count) {
        state.count++;
        return answer(0);
    }
    memset(&staged, 0, sizeof staged);
    if (traps.open)
        return (status_t){ (int)traps.open, (int)traps.driver };
    if (!traps.nvfs && !p2pdma && !compat)
        return answer(KVT__GDS_NOT_OPEN);
    state.compat = compat && !traps.nvfs && !p2pdma;
    state.count++;
    state.n_opens++;
    return answer(0);
}

static status_t
need_locked(void)
{
    return state.count ? answer(0) : open_locked();
}

status_t
NAME(DriverOpen)(void)
{
    printf(" as the real one, it prints"); /* the real library prints to stdout without newline */
    if (traps.hang == 1)
        hang();
    pthread_mutex_lock(&lock);
    status_t status = open_locked();
    pthread_mutex_unlock(&lock);
    return status;
}

status_t
NAME(DriverClose)(void)
{
    pthread_mutex_lock(&lock);
    status_t status = answer(state.count ? 0 : KVT__GDS_NOT_OPEN);
    state.count -= state.count > 0;
    pthread_mutex_unlock(&lock);
    return status;
}

long
NAME(UseCount)(void)
{
    return state.count;
}

status_t
NAME(SetParameterBool)(int parameter, bool value)
{
    status_t status = answer(traps.setter ? 0 : KVT__GDS_INTERNAL);

    pthread_mutex_lock(&lock);
    if (traps.setter && state.count)
        status = answer(KVT__GDS_ALREADY_OPEN);
    else if (traps.setter && parameter == KVT__GDS_SET_COMPAT) {
        staged.compat_set = true;
        staged.compat = value;
    } else if (traps.setter && parameter == KVT__GDS_SET_P2PDMA) {
        staged.p2pdma = value;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

status_t
NAME(DriverGetProperties)(props_t *props)
{
    if (!traps.piece)
        return answer(KVT__GDS_INTERNAL);
    memset(props, 0, sizeof *props);
    props->nvfs_major = traps.nvfs ? 2 : 0;
    props->nvfs_minor = traps.nvfs ? 28 : 0;
    props->max_direct_io_size = (size_t)traps.piece;
    props->control_flags = traps.compat ? KVT__GDS_COMPAT_ALLOWED : 0;
    return answer(0);
}

#ifdef HIP
status_t
hipFileGetVersion(unsigned *major, unsigned *minor, unsigned *patch)
{
    *major = 0;
    *minor = 2;
    *patch = 0;
    return answer(0);
}
#else
status_t
cuFileGetVersion(int *version)
{
    *version = (int)traps.version;
    return answer(0);
}

status_t
cuFileDriverClose_v2(void)
{
    return cuFileDriverClose();
}
#endif

/* ------------------------------------------------------------- files and buffers */

static status_t
add_file_locked(void **handle, int fd)
{
    status_t status = need_locked();

    if (status.code)
        return status;
    if (traps.file)
        return answer(traps.file);
    for (int i = 0; i < n_places; i++)
        if (files[i].used && files[i].fd == fd)
            return answer(5028);
    if (n_places == MAX_FILES)
        return answer(5003);
    files[n_places] = (struct file){ true, fd };
    *handle = &files[n_places++];
    state.n_files++;
    return answer(0);
}

status_t
NAME(HandleRegister)(void **handle, struct kvt__gds_descr *descr)
{
    struct stat st;

    step();
    if (descr->type != KVT__GDS_FD)
        return answer(5022);
    if (fstat(descr->fd, &st) || !S_ISREG(st.st_mode))
        return answer(5018);
    pthread_mutex_lock(&lock);
    status_t status = add_file_locked(handle, descr->fd);
    pthread_mutex_unlock(&lock);
    return status;
}

void
NAME(HandleDeregister)(void *handle)
{
    struct file *file = handle;

    step();
    pthread_mutex_lock(&lock);
    state.n_files -= file->used;
    file->used = false;
    pthread_mutex_unlock(&lock);
}

int
find_buffer_locked(const void *base)
{
    for (int i = 0; i < MAX_BUFFERS; i++)
        if (buffers[i].base == base)
            return i;
    return -1;
}

status_t
NAME(BufRegister)(const void *base, size_t bytes, int flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    status_t status = need_locked();
    if (!status.code)
        status = answer(find_buffer_locked(base) >= 0 ? 5023 : traps.buffer);
    if (!status.code) {
        int place = find_buffer_locked(NULL);

        buffers[place].base = base;
        buffers[place].bytes = bytes;
        state.n_buffers++;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

status_t
NAME(BufDeregister)(const void *base)
{
    pthread_mutex_lock(&lock);
    int place = find_buffer_locked(base);
    if (place >= 0) {
        buffers[place].base = NULL;
        state.n_buffers--;
    }
    pthread_mutex_unlock(&lock);
    return answer(place < 0 ? 5024 : 0);
}
