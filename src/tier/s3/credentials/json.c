/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys as JSON, from containers, the metadata service and programs.  Jansson frees the strings of a
 * document without wiping, so wipe() wipes the values first.  Temporary buffers of Jansson's parser
 * cannot be wiped. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "tier/s3/credentials/private.h"
#include "tier/s3/xml.h"

/* Return a non-empty string of an object; NULL: missing, empty or not a string. */
static const char *
text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text && *text ? text : NULL;
}

static void
wipe(json_t *json)
{
    const char *key;
    json_t *value;

    json_object_foreach(json, key, value)
        if (json_is_string(value))
            explicit_bzero((char *)json_string_value(value), json_string_length(value));
    json_decref(json);
}

static int
expiration(const json_t *json, int64_t *out)
{
    const json_t *value = json_object_get(json, "Expiration");

    *out = INT64_MAX;
    if (!value || json_is_null(value))
        return 0;
    if (json_is_string(value))
        *out = kvt__s3_time(json_string_value(value), NULL);
    if (!json_is_string(value) || *out == INT64_MIN)
        return kvt__fail(EBADMSG, "the Expiration is not an ISO 8601 time.");
    return 0;
}

/* Check the field that each kind of document must have: Version or Code. */
static int
check(const json_t *json, enum kvt__s3_json kind)
{
    const char *code = text_of(json, "Code");
    char clean[64];

    if (kind == KVT__S3_JSON_PROCESS) {
        if (json_integer_value(json_object_get(json, "Version")) != 1)
            return kvt__fail(EBADMSG, "the output has no \"Version\": 1.");
    } else if (code && strcmp(code, "Success")) {
        snprintf(clean, sizeof clean, "%s", code);
        kvt__s3_make_printable(clean);
        return kvt__fail(EBADMSG, "the response has Code %s.", clean);
    }
    return 0;
}

static int
read_object(const json_t *json, enum kvt__s3_json kind, const char *source,
            struct kvt__s3_keys **out)
{
    const char *token_key = kind == KVT__S3_JSON_PROCESS ? "SessionToken" : "Token";
    const char *access = text_of(json, "AccessKeyId");
    const char *secret = text_of(json, "SecretAccessKey");
    int64_t expires_s;
    int err = check(json, kind);

    if (err)
        return err;
    if (!access || !secret)
        return kvt__fail(EBADMSG, "the JSON object has no %s.",
                         access ? "SecretAccessKey" : "AccessKeyId");
    if ((err = expiration(json, &expires_s)))
        return err;
    *out = kvt__s3_keys_new(access, secret, text_of(json, token_key), expires_s, source);
    return *out ? 0 : kvt__fail(ENOMEM, "keys");
}

int
kvt__s3_keys_from_json(const char *text, size_t n, enum kvt__s3_json kind, const char *source,
                       struct kvt__s3_keys **out)
{
    json_t *json = json_loadb(text, n, 0, NULL);

    if (!json_is_object(json)) {
        json_decref(json);
        return kvt__fail(EBADMSG, "the response is no JSON object.");
    }
    int err = read_object(json, kind, source, out);
    wipe(json);
    return err;
}

void
kvt__s3_error_from_json(const char *text, size_t n, char *out, size_t room)
{
    json_t *json = json_loadb(text, n, 0, NULL);
    const char *code = text_of(json, "code"), *message = text_of(json, "message");

    if (!code)
        code = text_of(json, "Code");
    if (!message)
        message = text_of(json, "Message");
    snprintf(out, room, "%s%s%s", code ? code : "", code && message ? ": " : "",
             message ? message : "");
    kvt__s3_make_printable(out);
    json_decref(json);
}
