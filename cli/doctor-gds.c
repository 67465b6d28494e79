/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier doctor: whether a GPU reaches the directories of gds_path directly.  The library
 * has a program of its own to find that out, which it ends when that hangs, so it is asked
 * here; where 3FS is configured too, whose daemon may hang who asks, the child that looks
 * at it has told of both. */
#include "config-memory.h"
#include "doctor.h"

static void
take(void *ctx, const char *about, int status, const char *text)
{
    say(ctx, status ? BAD : OK, about, "%s", text);
}

bool
doctor_gds(struct findings *f, const struct kvt_config *config)
{
    char *text = kvt_config_json(config);
    json_t *all = text ? json_loads(text, 0, NULL) : NULL;
    json_t *path = json_object_get(json_object_get(all, "gds_path"), "value");
    int n_bad = f->n_bad;

    if (json_string_length(path) && !cli_shared_bytes(all) &&
        kvt_store_look(config, take, f))
        say(f, BAD, "gds", "%s", kvt_last_error());
    json_decref(all);
    kvt_free(text);
    return f->n_bad == n_bad;
}
