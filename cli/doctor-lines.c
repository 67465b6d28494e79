/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier doctor: print the findings of kvt_store_look() as lines. */
#include <stdio.h>
#include <string.h>

#include "common.h"
#include "doctor.h"

/* Return true if an earlier finding, not about a GPU, has this text.  Instances of storage can
 * report a requirement twice: all directories of a mount, for example, need the mount's daemon. */
static bool
is_reported(const struct findings *f, const char *text)
{
    json_t *finding;
    size_t i;

    json_array_foreach(f->all, i, finding)
        if (!json_object_get(finding, "gpu") &&
            !strcmp(json_string_value(json_object_get(finding, "text")), text))
            return true;
    return false;
}

void
add_storage_finding(struct findings *f, const char *about, bool bad, const char *text)
{
    int gpu;

    if (sscanf(about, "GPU %d", &gpu) == 1) {
        f->n_bad += bad;
        json_array_append_new(f->all, json_pack("{s:s, s:i, s:s, s:o}", "check", "gds",
                                                "gpu", gpu, "verdict", bad ? "bad" : "ok",
                                                "text", cli_json_text(text)));
    } else if (!is_reported(f, text)) {
        add_finding(f, bad ? BAD : OK, about, "%s", text);
    }
}

/* ------------------------------------------------------------------------- GPUs */

#define MAX_GPUS 64

/* Write ascending numbers as a text such as "0 to 3, 6" to out.  size: bytes of out. */
static void
list_numbers(const int *numbers, size_t n, char *out, size_t size)
{
    size_t used = 0;

    for (size_t i = 0, end; i < n && used < size; i = end) {
        for (end = i + 1; end < n && numbers[end] == numbers[end - 1] + 1; end++)
            continue;
        used += (size_t)snprintf(out + used, size - used, "%s%d", i ? ", " : "",
                                 numbers[i]);
        if (end - i > 1 && used < size)
            used += (size_t)snprintf(out + used, size - used, " to %d", numbers[end - 1]);
    }
}

/* Write the GPU numbers of the findings with this text to numbers, from finding `first` on, and
 * return their count.  Removes the GPU number from each of these findings, so that each finding is
 * printed once. */
static size_t
remove_numbers(json_t *all, size_t first, const char *text, int numbers[MAX_GPUS])
{
    size_t n = 0;

    for (size_t i = first; i < json_array_size(all) && n < MAX_GPUS; i++) {
        json_t *finding = json_array_get(all, i);
        json_t *gpu = json_object_get(finding, "gpu");

        if (!gpu || strcmp(json_string_value(json_object_get(finding, "text")), text))
            continue;
        numbers[n++] = (int)json_integer_value(gpu);
        json_object_del(finding, "gpu");
    }
    return n;
}

void
print_gpu_findings(struct findings *f)
{
    char list[8 * MAX_GPUS];
    int numbers[MAX_GPUS];
    json_t *finding;
    size_t i;

    if (f->json)
        return;
    json_array_foreach(f->all, i, finding) {
        const char *text = json_string_value(json_object_get(finding, "text"));
        const char *verdict = json_string_value(json_object_get(finding, "verdict"));
        size_t n = remove_numbers(f->all, i, text, numbers);

        if (!n)
            continue;
        list_numbers(numbers, n, list, sizeof list);
        printf("%-5s %-14s GPU%s %s: %s\n", strcmp(verdict, "bad") ? "ok" : "BAD", "gds",
               n > 1 ? "s" : "", list, text);
    }
}
