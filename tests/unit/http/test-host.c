/* SPDX-License-Identifier: Apache-2.0
 *
 * HOST[:PORT]: valid and invalid texts; the parser reads no byte behind the end. */
#include "kvt-test.h"

#include <stdlib.h>
#include <string.h>

#include "http/http.h"

#define LABEL "abcdefghijklmnopqrstuvwxyz-_0123456789-ABCDEFGHIJKLMNOPQRSTUVWX" /* 63 */

static const struct {
    const char *text, *name;
    uint16_t port;
} good[] = {
    { "h", "h", 0 },
    { "h:1", "h", 1 },
    { "h:65535", "h", 65535 },
    { "h:00080", "h", 80 },
    { "a-b_c.Example:443", "a-b_c.Example", 443 },
    { "example.:8080", "example.", 8080 },
    { "127.0.0.1:80", "127.0.0.1", 80 },
    { "[::1]", "[::1]", 0 },
    { "[fd00:ec2::23]:1", "[fd00:ec2::23]", 1 },
    { "[::ffff:10.0.0.1]:9", "[::ffff:10.0.0.1]", 9 },
    { LABEL ":80", LABEL, 80 },
};

static const struct {
    const char *text, *why;
} bad[] = {
    { "", "host name" }, { ":80", "host name" }, { ".", "host name" }, { ".h", "host name" },
    { "h..", "host name" }, { "a..b:80", "host name" }, { "a b", "host name" },
    { "h/", "host name" }, { "h\\x", "host name" }, { "h\r\n", "host name" },
    { "h\xc3\xa4", "host name" }, { "h%41", "host name" }, { "x" LABEL, "host name" },
    { "h:", "port" }, { "h:0", "port" }, { "h:00000", "port" }, { "h:65536", "port" },
    { "h:123456", "port" }, { "h:000080", "port" }, { "h:80x", "port" }, { "h:x", "port" },
    { "h: 80", "port" }, { "h:+80", "port" }, { "h:-1", "port" }, { "h:80 ", "port" },
    { "[::1]:", "port" }, { "[::1]:0", "port" },
    { "::1", "more than one" }, { "h:80:81", "more than one" },
    { "[]", "no IPv6" }, { "[::1", "no IPv6" }, { "[", "no IPv6" }, { "[h]", "no IPv6" },
    { "[127.0.0.1]", "no IPv6" }, { "[fe80::1%lo]", "no IPv6" },
    { "[0000:0000:0000:0000:0000:0000:255.255.255.255:1]", "no IPv6" },
    { "[::1]x", "behind" }, { "[::1]80", "behind" }, { "[::1]]:80", "behind" },
    { "user:password@h", "password" }, { "key@h:80", "password" },
};

/* Split a copy of the text in memory of the exact size, so that the sanitizer detects a read
 * behind the end. */
static const char *
split(const char *text, char name[KVT__HTTP_HOST_ROOM], uint16_t *port)
{
    size_t n = strlen(text);
    char *copy = malloc(n ? n : 1);

    assert_non_null(copy);
    memcpy(copy, text, n);
    const char *why = kvt__http_split_host(copy, n, name, port);
    free(copy);
    return why;
}

static void
hosts_and_ports_are_distinguished(void **state)
{
    char name[KVT__HTTP_HOST_ROOM];
    uint16_t port;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const char *why = split(good[i].text, name, &port);

        if (why)
            fail_msg("%s: it %s", good[i].text, why);
        assert_string_equal(name, good[i].name);
        assert_int_equal(port, good[i].port);
    }
}

static void
invalid_hosts_are_refused_with_the_reason(void **state)
{
    char name[KVT__HTTP_HOST_ROOM];
    uint16_t port;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *why = split(bad[i].text, name, &port);

        if (!why || !strstr(why, bad[i].why))
            fail_msg("%s: it %s", bad[i].text, why ? why : "is taken");
    }
}

static void
the_longest_name_has_253_characters(void **state)
{
    char text[300], name[KVT__HTTP_HOST_ROOM];
    uint16_t port;

    (void)state;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i % 50 == 49 ? '.' : 'a';
    assert_null(kvt__http_split_host(text, 253, name, &port));
    assert_int_equal(strlen(name), 253);
    assert_non_null(kvt__http_split_host(text, 254, name, &port));
    assert_non_null(kvt__http_split_host(text, sizeof text, name, &port));
    text[253] = '.'; /* a final dot is not counted */
    assert_null(kvt__http_split_host(text, 254, name, &port));
    assert_int_equal(strlen(name), 254);
}

static void
bytes_after_the_end_are_not_read(void **state)
{
    char name[KVT__HTTP_HOST_ROOM];
    uint16_t port;

    (void)state;
    assert_null(kvt__http_split_host("h:80/path:1@x", 4, name, &port));
    assert_string_equal(name, "h");
    assert_int_equal(port, 80);
    assert_null(kvt__http_split_host("[::1]:443", 5, name, &port));
    assert_string_equal(name, "[::1]");
    assert_int_equal(port, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_and_ports_are_distinguished),
        cmocka_unit_test(invalid_hosts_are_refused_with_the_reason),
        cmocka_unit_test(the_longest_name_has_253_characters),
        cmocka_unit_test(bytes_after_the_end_are_not_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
