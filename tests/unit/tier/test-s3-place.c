/* SPDX-License-Identifier: Apache-2.0
 *
 * The target and the time of requests: a response corrects each once, within limits. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "s3-test.h"

#define BYTES ((size_t)5000)

/* --------------------------------------------------------------------------- clock */

static void
a_wrong_clock_is_corrected_once(void **state)
{
    static const char *const offsets[] = { "{\"clock_offset_s\": 1200}",
                                           "{\"clock_offset_s\": -1200}" };

    for (size_t i = 0; i < 4; i++) {
        s3_setup(state);
        s3_config(&server, offsets[i % 2]);
        open_s3(NULL);
        if (i < 2) {
            assert_good(put(1, BYTES, 1));
        } else { /* the response to a HEAD has no code */
            assert_int_equal(probe(1), -ENOENT);
            assert_good(put(1, BYTES, 1));
        }
        assert_good(get(1, BYTES, 1));
        assert_int_equal(s3_n_requests(&server), i < 2 ? 3 : 4);
        s3_close(tier);
        tier = NULL;
    }
}

static void
without_a_date_the_clock_stays(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "{\"count\": 2, \"do\": {\"status\": 403, \"code\": "
             "\"RequestTimeTooSkewed\", \"headers\": {\"Date\": null}}}");
    assert_fails(get(1, BYTES, 1), EACCES, "403 RequestTimeTooSkewed");
    assert_int_equal(s3_of(tier)->clock_s, 0);
}

/* -------------------------------------------------------------------------- region */

static void
a_wrong_region_is_corrected_once(void **state)
{
    for (int i = 0; i < 2; i++) {
        s3_setup(state);
        s3_config(&server, "{\"region\": \"eu-west-1\"}");
        open_s3(NULL);
        if (!i)
            assert_good(put(1, BYTES, 1));
        else
            assert_int_equal(probe(1), -ENOENT);
        assert_int_equal(s3_n_requests(&server), 2);
        assert_good(put(2, BYTES, 2));
        assert_good(get(2, BYTES, 2));
        assert_int_equal(s3_n_requests(&server), 4);
        s3_close(tier);
        tier = NULL;
    }
}

static void
a_region_refused_twice_is_not_retried(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "{\"count\": null, \"do\": {\"status\": 400, \"code\": "
             "\"AuthorizationHeaderMalformed\", \"region\": \"eu-west-2\"}}");
    assert_fails(get(1, BYTES, 1), EACCES, "400 AuthorizationHeaderMalformed");
    assert_int_equal(s3_n_requests(&server), 2);
}

static unsigned
n_places(void)
{
    unsigned n = 0;

    for (struct s3_target *w = s3_of(tier)->targets; w; w = w->next)
        n++;
    return n;
}

/* A store that repeats a redirect must not add a target for each response. */
static void
a_redirect_without_a_target_fails(void **state)
{
    (void)state;
    open_s3(NULL);
    s3_fault(&server, "{\"count\": null, \"do\": {\"status\": 301, \"code\": "
             "\"PermanentRedirect\"}}");
    for (int i = 0; i < 3; i++)
        assert_fails(get(1, BYTES, 1), EIO, "301 PermanentRedirect");
    assert_int_equal(s3_n_requests(&server), 3);
    assert_int_equal(n_places(), 1);
}

/* --------------------------------------------------------------------------- hosts */

/* A proxy for http://; each connection serves one request; the server answers for every host. */
static struct {
    int fd;
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t lock;
    char hosts[4096]; /* hosts of all requests, separated by blanks */
    atomic_uint n;
} proxy = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int
connect_to_server(void)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(server.port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static bool
copy_some(int from, int to)
{
    char bytes[65536];
    ssize_t n = read(from, bytes, sizeof bytes);

    return n > 0 && send(to, bytes, (size_t)n, MSG_NOSIGNAL) == n;
}

static void
proxy_one(int client)
{
    struct pollfd fds[2] = { { .fd = client, .events = POLLIN } };
    char text[16384], first[8192];
    size_t n = 0;

    do {
        ssize_t got = read(client, text + n, sizeof text - 1 - n);
        if (got <= 0)
            return;
        n += (size_t)got;
        text[n] = '\0';
    } while (!strstr(text, "\r\n\r\n"));
    char *host = strstr(text, " http://");
    char *path = host ? strchr(host + 8, '/') : NULL;
    atomic_fetch_add(&proxy.n, 1);
    if (!path) { /* CONNECT */
        static const char refusal[] = "HTTP/1.1 407 Who are you\r\n\r\n";
        send(client, refusal, sizeof refusal - 1, MSG_NOSIGNAL);
        return;
    }
    pthread_mutex_lock(&proxy.lock);
    strncat(proxy.hosts, host + 8, (size_t)(path - host - 8));
    strcat(proxy.hosts, " ");
    pthread_mutex_unlock(&proxy.lock);
    size_t line = strcspn(path, "\r");
    int length = snprintf(first, sizeof first, "%.*s %.*s\r\nConnection: close",
                          (int)(host - text), text, (int)line, path);
    fds[1] = (struct pollfd){ .fd = connect_to_server(), .events = POLLIN };
    send(fds[1].fd, first, (size_t)length, MSG_NOSIGNAL);
    send(fds[1].fd, path + line, n - (size_t)(path + line - text), MSG_NOSIGNAL);
    while (poll(fds, 2, -1) > 0)
        if ((fds[0].revents && !copy_some(client, fds[1].fd)) ||
            (fds[1].revents && !copy_some(fds[1].fd, client)))
            break;
    close(fds[1].fd);
}

static void *
proxy_main(void *arg)
{
    int fd;

    while ((fd = accept4(proxy.fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        proxy_one(fd);
        close(fd);
    }
    return arg;
}

/* Open a bucket in path style at a host that only the proxy can reach. */
static int
proxy_setup(void **state)
{
    static char tunnel[64];
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    static const char *const path_style[] = { "s3_addressing=path", NULL };
    static char variable[64];
    static const char *const environment[] = { variable, tunnel, NULL };
    socklen_t n = sizeof address;
    char url[256];

    s3_setup(state);
    s3_environment = environment;
    proxy.hosts[0] = '\0';
    proxy.n = 0;
    proxy.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(proxy.fd, (struct sockaddr *)&address, n), 0);
    assert_int_equal(listen(proxy.fd, 64), 0);
    assert_int_equal(getsockname(proxy.fd, (struct sockaddr *)&address, &n), 0);
    assert_int_equal(pthread_create(&proxy.thread, NULL, proxy_main, NULL), 0);
    snprintf(variable, sizeof variable, "http_proxy=http://127.0.0.1:%u",
             ntohs(address.sin_port));
    snprintf(tunnel, sizeof tunnel, "https_proxy=http://127.0.0.1:%u",
             ntohs(address.sin_port));
    snprintf(url, sizeof url, "s3://a.example.com/" S3_BUCKET "/%s", server.prefix);
    assert_good(s3_try_open(url, path_style, &counters, &tier));
    return 0;
}

static int
proxy_teardown(void **state)
{
    s3_teardown(state);
    shutdown(proxy.fd, SHUT_RDWR);
    pthread_join(proxy.thread, NULL);
    close(proxy.fd);
    return 0;
}

static void
requests_use_a_proxy(void **state)
{
    (void)state;
    assert_good(put(1, BYTES, 1));
    assert_good(get(1, BYTES, 1));
    assert_int_equal(get(2, BYTES, 2), -ENOENT);
    assert_int_equal(proxy.n, 3);
    assert_string_equal(proxy.hosts, "a.example.com a.example.com a.example.com ");
    assert_string_equal(s3_header(&server, "PutObject", "host"), "a.example.com");
}

static void
a_proxy_that_requires_a_password_gets_one_request(void **state)
{
    static const char *const tls[] = { "disable_tls=false", "s3_addressing=path", NULL };
    struct kvt__tier *behind = NULL;

    (void)state;
    assert_good(s3_try_open("s3://a.example.com/" S3_BUCKET, tls, &counters, &behind));
    s3_close(tier);
    tier = behind;
    assert_fails(get(1, BYTES, 1), EACCES, "the proxy refuses", "status 407");
    assert_int_equal(proxy.n, 1);
}

static void
a_permanent_redirect_within_the_domain_is_followed_for_good(void **state)
{
    (void)state;
    s3_fault(&server, "{\"do\": {\"status\": 301, \"code\": \"PermanentRedirect\", "
             "\"endpoint\": \"b.example.com\"}}");
    assert_good(put(1, BYTES, 1));
    assert_good(get(1, BYTES, 1));
    assert_string_equal(proxy.hosts, "a.example.com b.example.com b.example.com ");
    assert_string_equal(s3_header(&server, "GetObject", "host"), "b.example.com");
}

/* The path of Location has the maximum length of a key. */
#define LOCATION \
    "\"location\": \"http://b.example.com/test/" TEXT64 TEXT64 TEXT64 TEXT64 TEXT64 "\""
#define TEXT64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void
a_temporary_redirect_moves_one_call(void **state)
{
    (void)state;
    assert_good(put(1, BYTES, 1));
    proxy.hosts[0] = '\0';
    s3_fault(&server, "[{\"do\": {\"status\": 307, \"code\": \"TemporaryRedirect\", " LOCATION
             "}}, {\"do\": {\"status\": 503, \"code\": \"SlowDown\"}}]");
    assert_good(get(1, BYTES, 1)); /* with one retry */
    assert_good(get(1, BYTES, 1));
    assert_string_equal(proxy.hosts, "a.example.com b.example.com b.example.com "
                                     "a.example.com ");
}

static void
places_are_remembered_once_and_are_few(void **state)
{
    char fault[256];

    (void)state;
    assert_good(put(1, BYTES, 1));
    never_hedge();
    for (int i = 0; i < 20; i++) {
        s3_fault(&server, "{\"do\": {\"status\": 307, " LOCATION "}}");
        assert_good(probe(1));
    }
    assert_int_equal(n_places(), 2);
    for (int i = 0; i < 62; i++) {
        snprintf(fault, sizeof fault, "{\"do\": {\"status\": 307, \"location\": "
                 "\"http://h%d.example.com/\"}}", i);
        s3_fault(&server, fault);
        assert_good(probe(1));
    }
    assert_int_equal(n_places(), 64);
    s3_fault(&server, "{\"do\": {\"status\": 307, \"code\": \"TemporaryRedirect\", \"location\": "
             "\"http://h62.example.com/\"}}");
    assert_fails(get(1, BYTES, 1), EIO, "307", "after 64 other targets");
    assert_good(get(1, BYTES, 1));
    assert_int_equal(n_places(), 64);
}

static void
a_redirect_to_another_domain_is_not_followed(void **state)
{
    static const char *const places[] = {
        "\"message\": \"Go away\"", "\"endpoint\": \"a.example.org\"",
        "\"endpoint\": \"127.0.0.1\"",
        "\"location\": \"http://evil.test/a.example.com\"",
        "\"location\": \"https://b.example.com/\"",
        "\"endpoint\": \"a.example.com@evil.test\"", "\"endpoint\": \"com\"",
        "\"endpoint\": \"a.example.com.evil.test\"" };
    char fault[256];

    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        proxy.hosts[0] = '\0';
        snprintf(fault, sizeof fault, "{\"count\": 3, \"do\": {\"status\": 301, \"code\": "
                 "\"PermanentRedirect\", %s}}", places[i]);
        s3_fault(&server, fault);
        assert_fails(get(1, BYTES, 1), EIO, "301 PermanentRedirect", "a redirect");
        assert_null(strstr(kvt__why(), "The store says"));
        assert_string_equal(proxy.hosts, "a.example.com ");
        s3_no_faults(&server);
    }
}

static void
a_loop_of_redirects_fails(void **state)
{
    (void)state;
    s3_fault(&server, "[{\"do\": {\"status\": 301, \"code\": \"PermanentRedirect\", "
             "\"endpoint\": \"b.example.com\"}}, {\"count\": null, \"do\": "
             "{\"status\": 301, \"code\": \"PermanentRedirect\", "
             "\"endpoint\": \"a.example.com\"}}]");
    assert_fails(get(1, BYTES, 1), EIO, "301");
    assert_string_equal(proxy.hosts, "a.example.com b.example.com ");
}

/* ------------------------------------------------------------------------ unsigned */

static void
unsigned_requests_have_nothing_of_a_signature(void **state)
{
    static const char *const headers[] = { "authorization", "x-amz-date",
                                           "x-amz-content-sha256", "x-amz-security-token" };

    (void)state;
    open_s3("s3_unsigned=true", "aws_access_key_id=", "aws_secret_access_key=");
    s3_fault(&server, "{\"do\": {\"status\": 200, \"body\": \"\"}}");
    assert_good(put(1, BYTES, 1));
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        assert_string_equal(s3_header(&server, "PutObject", headers[i]), "");
    assert_string_equal(s3_header(&server, "PutObject", "if-none-match"), "*");
    assert_fails(get(1, BYTES, 1), EACCES, "403 AccessDenied", "not signed (s3_unsigned)");
    assert_int_equal(s3_n_requests(&server), 2);
}

/* A user removes the directories in /var/tmp; a redirect has changed the host. */
static void
the_directory_of_the_index_is_made_again(void **state)
{
    (void)state;
    s3_fault(&server, "{\"do\": {\"status\": 301, \"code\": \"PermanentRedirect\", "
             "\"endpoint\": \"b.example.com\"}}");
    assert_good(put(1, BYTES, 1));
    index_dir_is_made_again(tier);
}

#define PROXY_TEST(fn) cmocka_unit_test_setup_teardown(fn, proxy_setup, proxy_teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        S3_TEST(a_wrong_clock_is_corrected_once),
        S3_TEST(without_a_date_the_clock_stays),
        S3_TEST(a_wrong_region_is_corrected_once),
        S3_TEST(a_region_refused_twice_is_not_retried),
        S3_TEST(a_redirect_without_a_target_fails),
        PROXY_TEST(requests_use_a_proxy),
        PROXY_TEST(a_proxy_that_requires_a_password_gets_one_request),
        PROXY_TEST(a_permanent_redirect_within_the_domain_is_followed_for_good),
        PROXY_TEST(a_temporary_redirect_moves_one_call),
        PROXY_TEST(places_are_remembered_once_and_are_few),
        PROXY_TEST(a_redirect_to_another_domain_is_not_followed),
        PROXY_TEST(a_loop_of_redirects_fails),
        PROXY_TEST(the_directory_of_the_index_is_made_again),
        S3_TEST(unsigned_requests_have_nothing_of_a_signature),
    };

    /* The environment of the configuration counts, not the process's. */
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("no_proxy", "a.example.com", 1);
    return s3_test_main("s3 places", tests, NULL);
}
