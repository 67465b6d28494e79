/* SPDX-License-Identifier: Apache-2.0
 *
 * Load libcufile.so.0 or libhipfile.so.0.  Both have equal functions, with different prefixes.  Old
 * versions lack some functions, so each function is looked up separately. */
#include "gpu/gds/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

/* The second name is for an installation without the first. */
static const char *const file_names[][2] = {
    [KVT__GDS_CUFILE] = { "libcufile.so.0", "libcufile.so" },
    [KVT__GDS_HIPFILE] = { "libhipfile.so.0", "libhipfile.so" },
};

static void *
find(void *handle, const char *prefix, const char *name)
{
    char symbol[64];

    snprintf(symbol, sizeof symbol, "%s%s", prefix, name);
    return dlsym(handle, symbol);
}

static int
find_functions(void *handle, struct kvt__gds_library *l)
{
    const char *prefix = kvt__gds_names[l->kind].prefix;
    const struct {
        const char *name;
        void *to;
        bool optional;
    } functions[] = {
        { "DriverOpen", &l->driver_open, false },
        { "DriverClose", &l->driver_close, false },
        { "DriverClose_v2", &l->driver_close, true }, /* cufile.h maps DriverClose to this */
        { "HandleRegister", &l->add_file, false },
        { "HandleDeregister", &l->remove_file, false },
        { "BufRegister", &l->add_buffer, false },
        { "BufDeregister", &l->remove_buffer, false },
        { "Read", &l->read, false },
        { "Write", &l->write, false },
        { "SetParameterBool", &l->set_bool, true },
        { "DriverGetProperties", &l->properties, true },
        { "GetVersion", &l->version, true },
    };

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = find(handle, prefix, functions[i].name);

        if (function)
            memcpy(functions[i].to, &function, sizeof function);
        else if (!functions[i].optional)
            return kvt__fail(ENOSYS, "%s has no function %s%s: it is another version than "
                             "kvtier knows.", l->path, prefix, functions[i].name);
    }
    return 0;
}

/* Write the path of a loaded library to out, or `otherwise` if the loader has no path. */
static void
find_path(void *handle, const char *otherwise, char *out, size_t size)
{
    struct link_map *map;

    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) || !map->l_name || !*map->l_name)
        snprintf(out, size, "%s", otherwise);
    else
        snprintf(out, size, "%s", map->l_name);
}

int
kvt__gds_load(enum kvt__gds_kind kind, const char *file, struct kvt__gds_library *out)
{
    const char *const *names = file_names[kind];
    const char *name = file ? file : names[0];
    char why[256] = "";

    *out = (struct kvt__gds_library){ .kind = kind };
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *said = dlerror(); /* the error for the first name, not for the second */

        snprintf(why, sizeof why, "%s", said ? said : "no reason given");
        if (!strcmp(name, names[0]))
            handle = dlopen(names[1], RTLD_NOW | RTLD_LOCAL);
    }
    if (!handle)
        return kvt__gds_fail(KVT__GDS_LIBRARY, ENODEV, ENODEV, "%s cannot be loaded (%s): install "
                             "%s, or name its directory in LD_LIBRARY_PATH.", names[0], why,
                             kind == KVT__GDS_CUFILE ? "cuFile, of the CUDA toolkit or "
                             "PyPI's nvidia-cufile" : "hipFile, of ROCm 7.2 or later");
    find_path(handle, name, out->path, sizeof out->path);
    int err = find_functions(handle, out);
    if (!err)
        return 0; /* no dlclose(): the library's threads and tables would outlive the unload */
    dlclose(handle);
    return kvt__gds_add_layer(KVT__GDS_LIBRARY, ENOSYS, err);
}

void
kvt__gds_file_name(enum kvt__gds_kind kind, char *out, size_t size)
{
    const char *name = file_names[kind][0];
    void *handle = dlopen(name, RTLD_NOW | RTLD_NOLOAD);

    snprintf(out, size, "%s", name);
    if (!handle)
        return;
    find_path(handle, name, out, size);
    dlclose(handle); /* the process's own reference keeps the library loaded */
}

void
kvt__gds_version(const struct kvt__gds_library *library, char *out, size_t size)
{
    struct kvt__gds_status (*cufile)(int *);
    struct kvt__gds_status (*hipfile)(unsigned *, unsigned *, unsigned *);
    unsigned major, minor, patch;
    int number;

    *out = '\0';
    if (!library->version)
        return;
    if (library->kind == KVT__GDS_CUFILE) {
        memcpy(&cufile, &library->version, sizeof cufile);
        if (!cufile(&number).code)
            snprintf(out, size, "%d.%d", number / 1000, number % 1000 / 10);
        return;
    }
    memcpy(&hipfile, &library->version, sizeof hipfile);
    if (!hipfile(&major, &minor, &patch).code)
        snprintf(out, size, "%u.%u.%u", major, minor, patch);
}
