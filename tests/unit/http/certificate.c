/* SPDX-License-Identifier: Apache-2.0 */
#include "kvt-test.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "unit/http/certificate.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#define DAY 86400L

static void
extend(X509 *cert, X509 *issuer, int which, const char *value)
{
    X509V3_CTX ctx;
    X509_EXTENSION *e;

    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    e = X509V3_EXT_conf_nid(NULL, &ctx, which, value);
    assert_non_null(e);
    assert_int_equal(X509_add_ext(cert, e, -1), 1);
    X509_EXTENSION_free(e);
}

static X509 *
new_cert(EVP_PKEY *key, const char *name, long from, long to)
{
    static long serial = 1;
    X509 *cert = X509_new();

    assert_non_null(cert);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), serial++);
    X509_gmtime_adj(X509_getm_notBefore(cert), from);
    X509_gmtime_adj(X509_getm_notAfter(cert), to);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    X509_set_pubkey(cert, key);
    return cert;
}

void
authority_init(struct authority *a)
{
    static unsigned n; /* OpenSSL finds authorities by their names */
    char name[40];

    snprintf(name, sizeof name, "authority %u of a test", ++n);
    a->key = EVP_EC_gen("P-256");
    assert_non_null(a->key);
    a->cert = new_cert(a->key, name, -30 * DAY, 30 * DAY);
    X509_set_issuer_name(a->cert, X509_get_subject_name(a->cert));
    extend(a->cert, a->cert, NID_basic_constraints, "critical,CA:TRUE");
    assert_true(X509_sign(a->cert, a->key, EVP_sha256()) > 0);
}

void
authority_fini(struct authority *a)
{
    X509_free(a->cert);
    EVP_PKEY_free(a->key);
}

void
authority_write(const struct authority *a, const char *dir, const char *name,
                char path[300])
{
    assert_in_range(snprintf(path, 300, "%s/%s", dir, name), 1, 299);
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(PEM_write_X509(f, a->cert), 1);
    assert_int_equal(fclose(f), 0);
}

SSL_CTX *
server_context(const struct authority *a, const char *names, bool expired)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = new_cert(key, "server", -20 * DAY, expired ? -DAY : 20 * DAY);

    assert_non_null(ctx);
    X509_set_issuer_name(cert, X509_get_subject_name(a->cert));
    extend(cert, a->cert, NID_subject_alt_name, names);
    assert_true(X509_sign(cert, a->key, EVP_sha256()) > 0);
    assert_int_equal(SSL_CTX_use_certificate(ctx, cert), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(ctx, key), 1);
    X509_free(cert);
    EVP_PKEY_free(key);
    return ctx;
}

void
client_write(const struct authority *a, const char *path, const char *key_path,
             const char *pass)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = new_cert(key, "client", -20 * DAY, 20 * DAY);
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    X509_set_issuer_name(cert, X509_get_subject_name(a->cert));
    assert_true(X509_sign(cert, a->key, EVP_sha256()) > 0);
    assert_int_equal(PEM_write_X509(f, cert), 1);
    if (key_path) {
        assert_int_equal(fclose(f), 0);
        assert_non_null(f = fopen(key_path, "w"));
    }
    assert_int_equal(PEM_write_PrivateKey(f, key, pass ? EVP_aes_128_cbc() : NULL,
                                          (const unsigned char *)pass,
                                          pass ? (int)strlen(pass) : 0, NULL, NULL), 1);
    assert_int_equal(fclose(f), 0);
    X509_free(cert);
    EVP_PKEY_free(key);
}

void
demand_clients(SSL_CTX *server, const struct authority *a)
{
    SSL_CTX_set_verify(server, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    assert_int_equal(X509_STORE_add_cert(SSL_CTX_get_cert_store(server), a->cert), 1);
    SSL_CTX_set_session_id_context(server, (const unsigned char *)"test", 4);
}
