/* SPDX-License-Identifier: Apache-2.0
 *
 * Certificate authorities and certificates, made by the test. */
#ifndef HTTP_CERTIFICATE_H
#define HTTP_CERTIFICATE_H

#include <openssl/ssl.h>

struct authority {
    EVP_PKEY *key;
    X509 *cert;
};

void authority_init(struct authority *a);
void authority_fini(struct authority *a);
/* Write the authority's certificate to the file `name` in `dir`.  path: receives the path
 * of the file. */
void authority_write(const struct authority *a, const char *dir, const char *name,
                     char path[300]);

/* Make the context of a server with a certificate for these names ("DNS:a,IP:1.2.3.4").  If
 * expired, the certificate was valid until yesterday. */
SSL_CTX *server_context(const struct authority *a, const char *names, bool expired);

/* Write a client's certificate to the file path, and the key to key_path, or to path as well if
 * key_path is NULL.  The key is encrypted if pass is not NULL. */
void client_write(const struct authority *a, const char *path, const char *key_path,
                  const char *pass);
/* Let the server refuse clients without a certificate of this authority. */
void demand_clients(SSL_CTX *server, const struct authority *a);

#endif
