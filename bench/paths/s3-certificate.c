/* SPDX-License-Identifier: Apache-2.0
 *
 * Create a self-signed TLS certificate for the server of the s3 cases.  The files are in the
 * directory of a case. */
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>

#include "s3.h"
#include "cli.h"

static bool
add_extension(X509 *cert, int which, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, which, value);
    bool good = extension && X509_add_ext(cert, extension, -1);

    X509_EXTENSION_free(extension);
    return good;
}

static bool
fill_in(X509 *cert, EVP_PKEY *key)
{
    X509_NAME *name = X509_get_subject_name(cert);

    return X509_set_version(cert, 2) && ASN1_INTEGER_set(X509_get_serialNumber(cert), 1) &&
           X509_gmtime_adj(X509_getm_notBefore(cert), -86400) &&
           X509_gmtime_adj(X509_getm_notAfter(cert), 86400) &&
           X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                      (const unsigned char *)"kvtier-bench", -1, -1, 0) &&
           X509_set_issuer_name(cert, name) && X509_set_pubkey(cert, key) &&
           add_extension(cert, NID_basic_constraints, "critical,CA:TRUE") &&
           add_extension(cert, NID_subject_alt_name, "IP:127.0.0.1") &&
           X509_sign(cert, key, EVP_sha256());
}

static bool
write_cert(const char *file, X509 *cert)
{
    FILE *f = fopen(file, "we");
    bool good = f && PEM_write_X509(f, cert);

    return f && !fclose(f) && good;
}

static bool
write_key(const char *file, EVP_PKEY *key)
{
    FILE *f = fopen(file, "we");
    bool good = f && PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL);

    return f && !fclose(f) && good;
}

int
bench_s3_certificate(const char *cert_file, const char *key_file)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    bool good = key && cert && fill_in(cert, key) && write_cert(cert_file, cert) &&
                write_key(key_file, key);

    X509_free(cert);
    EVP_PKEY_free(key);
    if (good)
        return 0;
    fprintf(stderr, "kvtier-bench: make a certificate in %s\n", cert_file);
    return CLI_ENVIRONMENT;
}
