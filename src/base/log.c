/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines: one process-wide sink, standard error unless a caller sets one. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static struct {
    pthread_mutex_t lock;
    kvt_log_fn fn;
    void *ctx;
    int max_level;
} sink = { PTHREAD_MUTEX_INITIALIZER, NULL, NULL, KVT_LOG_INFO };

static const char *const level_names[] = {
    [KVT_LOG_ERROR] = "ERROR", [KVT_LOG_WARN] = "WARNING", [KVT_LOG_INFO] = "INFO",
    [KVT_LOG_DEBUG] = "DEBUG", [KVT_LOG_TRACE] = "TRACE" };

/* Initialize the lock anew in the child: another thread of the parent may have held the
 * lock.  A fork does not acquire the lock, because the callback may wait for the forking
 * thread. */
static void
after_fork_in_child(void)
{
    sink.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

static void
watch_forks(void)
{
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

static void
lock_sink(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&sink.lock);
}

/* Set after the level was read from the environment or set by a caller. */
static atomic_flag level_is_set = ATOMIC_FLAG_INIT;

/* The names of Python's log levels, as in LMCache.  kvtier logs no critical lines, so CRITICAL
 * means none. */
static const struct {
    const char *name;
    int level;
} accepted_levels[] = {
    { "ERROR", KVT_LOG_ERROR }, { "WARNING", KVT_LOG_WARN }, { "INFO", KVT_LOG_INFO },
    { "DEBUG", KVT_LOG_DEBUG }, { "TRACE", KVT_LOG_TRACE }, { "WARN", KVT_LOG_WARN },
    { "CRITICAL", KVT_LOG_ERROR - 1 }, { "FATAL", KVT_LOG_ERROR - 1 },
};

/* Return the environment's level, in upper or lower case, or INFO.  Does not change
 * kvt__why(), because the caller may be about to log the text. */
static int
level_of_environment(void)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    const char *name = getenv("KVTIER_LOG_LEVEL");

    if (!name)
        name = getenv("LMCACHE_LOG_LEVEL");
    if (!name)
        return KVT_LOG_INFO;
    for (size_t i = 0; i < sizeof accepted_levels / sizeof *accepted_levels; i++)
        if (!strcasecmp(name, accepted_levels[i].name))
            return accepted_levels[i].level;
    if (!atomic_flag_test_and_set(&warned))
        fprintf(stderr, "kvtier: log level '%s': use CRITICAL, ERROR, WARNING, INFO, "
                "DEBUG or TRACE.\n", name);
    return KVT_LOG_INFO;
}

/* Use the environment's level unless a caller has set a level. */
static void
level_from_environment(void)
{
    if (!atomic_flag_test_and_set(&level_is_set))
        __atomic_store_n(&sink.max_level, level_of_environment(), __ATOMIC_RELAXED);
}

void
kvt_set_log(kvt_log_fn fn, void *ctx, enum kvt_log_level max_level)
{
    int level = max_level == KVT_LOG_DEFAULT ? level_of_environment() : (int)max_level;

    atomic_flag_test_and_set(&level_is_set);
    lock_sink();
    sink.fn = fn;
    sink.ctx = ctx;
    __atomic_store_n(&sink.max_level, level, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&sink.lock);
}

bool
kvt__log_is_enabled(enum kvt_log_level level)
{
    level_from_environment();
    return (int)level <= __atomic_load_n(&sink.max_level, __ATOMIC_RELAXED);
}

void
kvt__log(enum kvt_log_level level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    if (!kvt__log_is_enabled(level))
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);

    lock_sink();
    if (sink.fn) {
        sink.fn(sink.ctx, level, line);
    } else {
        struct timespec now;
        struct tm tm;
        char when[32] = "";

        clock_gettime(CLOCK_REALTIME, &now);
        if (localtime_r(&now.tv_sec, &tm))
            strftime(when, sizeof when, "%m-%d %H:%M:%S", &tm);
        fprintf(stderr, "%s kvtier %s: %s\n", when, level_names[level], line);
    }
    pthread_mutex_unlock(&sink.lock);
}
