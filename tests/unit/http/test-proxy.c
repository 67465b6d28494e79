/* SPDX-License-Identifier: Apache-2.0
 *
 * Proxies: the requests to a proxy, the hosts with a proxy, and where the password appears. */
#include "unit/http/script.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "http/private.h"
#include "temp-dir.h"
#include "unit/http/certificate.h"

/* user and pass:word */
#define USER "user:pass%3Aword@"
#define AUTH "Proxy-Authorization: Basic dXNlcjpwYXNzOndvcmQ=\r\n"

static struct script proxy;
static SSL_CTX *behind; /* the server behind the proxy */
static struct kvt__http *http;
static struct kvt__http_origin *origin;
static struct authority authority;
static char ca_file[300];
static char seen[4096];
static unsigned char into[64];

static void
begin(void (*play)(struct peer *), const char *user, bool tls)
{
    char url[100];
    struct kvt__http_params params = { .n_threads = 1, .max_requests = 4,
                                       .http_proxy = url, .https_proxy = url,
                                       .no_proxy = "127.0.0.1", .ca_file = ca_file };

    script_start(&proxy, PLAYS(play), NULL);
    snprintf(url, sizeof url, "http://%s127.0.0.1:%u/", user, proxy.port);
    assert_int_equal(kvt__http_open(&params, &http), 0);
    origin = origin_at(http, "test.example", tls ? 443 : 80, tls);
    memset(seen, 0, sizeof seen);
}

static void
end(void)
{
    kvt__http_close(http);
    script_stop(&proxy);
}

static int
get(struct ask *ask)
{
    ask_init(ask, origin, "GET", "/a/b?c=/d", into, sizeof into);
    return ask_run(http, ask);
}

static void
play_plain(struct peer *p)
{
    while (peer_head(p)) {
        memcpy(seen, p->head, sizeof seen - 1);
        peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }
}

static void
a_plain_request_names_its_origin(void **state)
{
    struct ask ask;

    (void)state;
    for (int auth = 0; auth < 2; auth++) {
        begin(play_plain, auth ? USER : "", false);
        assert_int_equal(get(&ask), 0);
        assert_string_equal(seen, auth ? "GET http://test.example/a/b?c=/d HTTP/1.1\r\n"
                                         AUTH "Host: test\r\n\r"
                                       : "GET http://test.example/a/b?c=/d HTTP/1.1\r\n"
                                         "Host: test\r\n\r");
        assert_int_equal(get(&ask), 0);
        assert_int_equal(proxy.n_accepted, 1);
        end();
    }
}

static void
play_tunnel(struct peer *p)
{
    if (!peer_head(p))
        return;
    memcpy(seen, p->head, sizeof seen - 1);
    peer_send(p, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 Established\r\n"
                 "Content-Length: 7\r\n\r\n");
    p->ssl = SSL_new(behind);
    SSL_set_fd(p->ssl, p->fd);
    if (SSL_accept(p->ssl) != 1)
        return;
    while (peer_head(p)) {
        assert_null(strstr(p->head, "Proxy"));
        peer_send(p, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }
}

static void
tls_uses_a_tunnel(void **state)
{
    struct ask ask;

    (void)state;
    behind = server_context(&authority, "DNS:test.example", false);
    begin(play_tunnel, USER, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(get(&ask), 0);
    /* The request's head is shorter than the proxy's head: no rest of the password stays
     * behind the request's head. */
    const struct kvt__http_conn *conn = http->threads[0].idle.first;
    assert_null(memmem(conn->out, 1024, "Basic", 5));
    assert_null(memmem(conn->out, 1024, "XNzOndvcmQ", 10));
    assert_string_equal(seen, "CONNECT test.example:443 HTTP/1.1\r\n"
                              "Host: test.example:443\r\n" AUTH "\r");
    assert_int_equal(proxy.n_accepted, 1);
    assert_memory_equal(into, "ok", 2);
    end();
    SSL_CTX_free(behind);
}

static void
only_the_default_port_is_left_out(void **state)
{
    struct ask ask;

    (void)state;
    begin(play_plain, "", false);
    origin = origin_at(http, "test.example", 8080, false);
    assert_int_equal(get(&ask), 0);
    assert_non_null(strstr(seen, "GET http://test.example:8080/a/b?c=/d "));
    origin = origin_at(http, "test.example", 443, false);
    assert_int_equal(get(&ask), 0);
    assert_non_null(strstr(seen, "GET http://test.example:443/a/b?c=/d "));
    origin = origin_at(http, "[fd00::1:80]", 80, false);
    assert_int_equal(get(&ask), 0);
    assert_non_null(strstr(seen, "GET http://[fd00::1:80]/a/b?c=/d "));
    end();
}

static void
a_user_needs_no_password(void **state)
{
    struct ask ask;

    (void)state;
    begin(play_plain, "user@", false);
    assert_int_equal(get(&ask), 0);
    assert_non_null(strstr(seen, "Proxy-Authorization: Basic dXNlcjo=\r\n"));
    end();
}

static void
the_server_is_verified_not_the_proxy(void **state)
{
    struct ask ask;

    (void)state;
    behind = server_context(&authority, "DNS:proxy.example,IP:127.0.0.1", false);
    begin(play_tunnel, "", true);
    assert_int_equal(get(&ask), -EKEYREJECTED);
    end();
    SSL_CTX_free(behind);
}

static const char *refusal;

static void
play_refuse(struct peer *p)
{
    peer_head(p);
    peer_send(p, refusal);
    peer_gone(p);
}

static void
a_refusal_is_an_error(void **state)
{
    static const struct {
        const char *answer;
        int status;
    } refusals[] = {
        { "HTTP/1.1 403 Forbidden\r\n\r\n", -EHOSTUNREACH },
        { "HTTP/1.1 407 Who are you\r\nProxy-Authenticate: Basic\r\n\r\n", -EACCES },
        { "HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", -EPROTO },
        { "HTTP/7 200 OK\r\n\r\n", -EPROTO },
    };
    struct ask ask;

    (void)state;
    for (int i = 0; i < 4; i++) {
        refusal = refusals[i].answer;
        begin(play_refuse, USER, true);
        assert_int_equal(get(&ask), refusals[i].status);
        assert_int_equal(ask.n_heads, 0);
        assert_null(strstr(ask.req.why, "pass"));
        assert_null(strstr(ask.req.why, "dXNl"));
        end();
    }
}

/* Send interim responses, as short as possible, until the client closes the connection. */
static void
play_endless(struct peer *p)
{
    static char interim[1 << 16];
    static const char head[] = "HTTP/1.1 100\r\n\r\n";

    if (!peer_head(p))
        return;
    for (size_t at = 0; at < sizeof interim; at++)
        interim[at] = head[at % (sizeof head - 1)];
    for (int i = 0; i < 16; i++)
        peer_send_bytes(p, interim, sizeof interim);
    sem_post(&proxy.came);
    for (int i = 0; i < 1 << 20; i++)
        peer_send_bytes(p, interim, sizeof interim);
}

/* A thread with a small stack reads interim responses without end, and still ends its
 * requests. */
static void
interim_responses_without_end_leave_the_thread_free(void **state)
{
    struct ask ask;

    (void)state;
    for (int tls = 0; tls < 2; tls++) {
        begin(play_endless, "", tls);
        ask_init(&ask, origin, "GET", "/x", into, sizeof into);
        kvt__http_submit(http, &ask.req);
        sem_wait(&proxy.came);
        kvt__http_stop(http);
        assert_int_equal(ask_wait(&ask), -ECANCELED);
        end();
    }
}

static void
excepted_hosts_are_connected_to(void **state)
{
    static struct script server;
    struct ask ask;

    (void)state;
    begin(play_plain, "", false);
    script_start(&server, PLAYS(play_plain), NULL);
    origin = origin_at(http, "127.0.0.1", server.port, false);
    assert_int_equal(get(&ask), 0);
    assert_memory_equal(seen, "GET /a/b", 8);
    assert_int_equal(proxy.n_accepted, 0);
    end();
    script_stop(&server);
}

static void
a_given_address_takes_precedence_over_a_proxy(void **state)
{
    static struct script server;
    struct kvt__http_target target = { .host = "test.example", .address = "127.0.0.1" };
    struct ask ask;

    (void)state;
    begin(play_plain, USER, false);
    script_start(&server, PLAYS(play_plain), NULL);
    target.port = server.port;
    assert_int_equal(kvt__http_origin(http, &target, &origin), 0);
    assert_int_equal(get(&ask), 0);
    assert_memory_equal(seen, "GET /a/b", 8);
    assert_null(strstr(seen, "Proxy"));
    assert_int_equal(proxy.n_accepted, 0);
    end();
    script_stop(&server);
}

/* ------------------------------------------------------------------- settings */

/* Two rows differ from curl 7.88, which compares whole addresses where no number above 0
 * follows the slash: 0.0.0.0/0 and 10.0.0.0/x.  How a tier passes the list on is a test of
 * s3-keys. */
static void
no_proxy_has_the_rules_of_curl(void **state)
{
    static const struct {
        const char *list, *host;
        bool is;
    } rows[] = {
        { NULL, "a.example", false },
        { "", "a.example", false },
        { "*", "a.example", true },
        { "*,b", "a.example", false },
        { "a.example", "a.example", true },
        { "A.Example", "a.eXample", true },
        { "a.example", "b.a.example", true },
        { "a.example", "ba.example", false },
        { ".a.example", "a.example", true },
        { ".a.example", "x.a.example", true },
        { "a.example.", "a.example", true },
        { "a.example", "a.example.", true },
        { "x.a.example", "a.example", false },
        { " b.example ,\ta.example", "a.example", true },
        { "b.example a.example", "a.example", true },
        { ".", "a.example", false },
        { "127.0.0.1", "127.0.0.1", true },
        { "27.0.0.1", "127.0.0.1", false },
        { "0.0.1", "127.0.0.1", false },
        { "10.0.0.0/8", "10.200.3.4", true },
        { "10.0.0.0/8", "11.0.0.1", false },
        { "10.0.0.128/25", "10.0.0.127", false },
        { "10.0.0.128/25", "10.0.0.128", true },
        { "0.0.0.0/0", "9.9.9.9", true },
        { "10.0.0.0/33", "10.0.0.0", false },
        { "10.0.0.0/x", "10.0.0.0", false },
        { "10.0.0.0/8", "10.example", false },
        { "::1", "::1", true },
        { "[::1]", "::1", true },
        { "fd00::/8", "fdab::1", true },
        { "fd00::/8", "fc00::1", false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (kvt__http_is_in_no_proxy(rows[i].list, rows[i].host) != rows[i].is)
            fail_msg("%s, %s", rows[i].list, rows[i].host);
}

/* Create an origin of a client with this setting.  Return the result of kvt__http_origin(). */
static int
origin_with(const char *proxy_is, const char *excepted, bool tls)
{
    struct kvt__http_params params = { .n_threads = 1, .max_requests = 1,
                                       .https_proxy = proxy_is, .no_proxy = excepted };
    struct kvt__http_target target = { .host = "test.example", .port = 443, .tls = tls };

    assert_int_equal(kvt__http_open(&params, &http), 0);
    int err = kvt__http_origin(http, &target, &origin);
    if (!err && excepted)
        assert_null(origin->proxy);
    kvt__http_close(http);
    return err;
}

static void
only_http_proxies_are_taken(void **state)
{
    static const char *const bad[] = { "https://proxy:1", "socks5://u:secret@proxy:1",
                                       "proxy:0", "proxy:65536", ":80",
                                       "http://u:secret@", "a b:80", "::1:80",
                                       "proxy:80x", "[proxy]:80" };
    static const char *const good[] = { "proxy:1", "HTTP://proxy:65535/", "[::1]:3128",
                                        "proxy_1.example.:3128", "proxy", "[::1]",
                                        "http://u:p@[fe80::1]:80", "" };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(origin_with(bad[i], NULL, true), -EINVAL);
        assert_non_null(strstr(kvt__why(), "https_proxy"));
        assert_null(strstr(kvt__why(), "secret"));
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(origin_with(good[i], NULL, true), 0);
}

static void
an_unused_proxy_is_not_validated(void **state)
{
    static const char bad[] = "socks5://proxy:1";

    (void)state;
    assert_int_equal(origin_with(bad, NULL, true), -EINVAL);
    assert_int_equal(origin_with(bad, NULL, false), 0);
    assert_int_equal(origin_with(bad, "*", true), 0);
    assert_int_equal(origin_with(bad, "other.example,test.example", true), 0);
}

static void
a_proxy_without_a_port_is_at_1080(void **state)
{
    static const char *const texts[] = { "proxy", "http://proxy", "http://u:p@proxy/",
                                         "[::1]" };
    struct kvt__http_proxy read;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        memset(&read, 0, sizeof read);
        assert_int_equal(kvt__http_proxy_open(texts[i], &read), 0);
        assert_string_equal(read.host, *texts[i] == '[' ? "::1" : "proxy");
        assert_int_equal(read.port, 1080);
        kvt__http_proxy_close(&read);
    }
}

/* The last entry of a list of any length counts. */
static void
a_long_list_of_exceptions_is_whole(void **state)
{
    static char list[100000];

    (void)state;
    for (size_t n = 0; n + 40 < sizeof list;)
        n += (size_t)sprintf(list + n, "host%zu.example,", n);
    assert_false(kvt__http_is_in_no_proxy(list, "test.example"));
    strcat(list, "test.example");
    assert_int_equal(origin_with("proxy", list, true), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_request_names_its_origin),
        cmocka_unit_test(tls_uses_a_tunnel),
        cmocka_unit_test(only_the_default_port_is_left_out),
        cmocka_unit_test(a_user_needs_no_password),
        cmocka_unit_test(the_server_is_verified_not_the_proxy),
        cmocka_unit_test(a_refusal_is_an_error),
        cmocka_unit_test(interim_responses_without_end_leave_the_thread_free),
        cmocka_unit_test(excepted_hosts_are_connected_to),
        cmocka_unit_test(a_given_address_takes_precedence_over_a_proxy),
        cmocka_unit_test(no_proxy_has_the_rules_of_curl),
        cmocka_unit_test(only_http_proxies_are_taken),
        cmocka_unit_test(an_unused_proxy_is_not_validated),
        cmocka_unit_test(a_proxy_without_a_port_is_at_1080),
        cmocka_unit_test(a_long_list_of_exceptions_is_whole),
    };
    struct temp_dir dir;
    pthread_attr_t attr;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 1 << 20);
    pthread_setattr_default_np(&attr);
    pthread_attr_destroy(&attr);
    temp_dir_make(&dir);
    authority_init(&authority);
    authority_write(&authority, dir.path, "ca.pem", ca_file);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    authority_fini(&authority);
    temp_dir_remove(&dir);
    return failed;
}
