# SPDX-License-Identifier: Apache-2.0
"""The sources of keys: the environment, profiles, STS of SeaweedFS, and the instance
metadata of moto."""
import os
import time
import unittest
from unittest import mock

from place import KEY, Case, Store, clean_environment, in_path, running

LIFE_S = 4  # lifetime of keys from STS


class Credentials(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = running("seaweedfs.py", "--sts", f"{LIFE_S}s")
        cls.facts = cls.server.facts

    def setUp(self):
        super().setUp()
        self.bucket = self.at(in_path(self.facts["endpoint"]))

    def stores(self, env, **more):
        """Store and read a chunk with these environment variables."""
        data = os.urandom(1000)
        self.kvtier(0, "put", KEY, self.path("given", data), address=self.bucket,
                    env=env, **more)
        self.kvtier(0, "get", KEY, self.path("back"), address=self.bucket, env=env,
                    **more)
        self.assertEqual(self.content("back"), data)

    def profiles(self, text):
        return {"AWS_CONFIG_FILE": self.path("config", text.encode()),
                "AWS_SHARED_CREDENTIALS_FILE": self.path("credentials", f"""\
[default]
aws_access_key_id = AKNOBODY
aws_secret_access_key = nothing
[base]
aws_access_key_id = {self.facts['access']}
aws_secret_access_key = {self.facts['secret']}
""".encode()), "AWS_ENDPOINT_URL_STS": self.facts["endpoint"]}

    def with_role(self, **more):
        return self.profiles(f"""\
[profile taken]
role_arn = {self.facts['role_arn']}
source_profile = base
role_session_name = test
[profile web]
role_arn = {self.facts['role_arn']}
web_identity_token_file = {more.get('token', self.facts['token_file'])}
role_session_name = test
""")

    def web_identity(self, token="token_file"):
        return {"AWS_ROLE_ARN": self.facts["role_arn"], "AWS_ROLE_SESSION_NAME": "test",
                "AWS_WEB_IDENTITY_TOKEN_FILE": self.facts[token],
                "AWS_ENDPOINT_URL_STS": self.facts["endpoint"]}

    # -- permanent keys

    def test_all_settings_can_be_variables_of_aws(self):
        self.bucket.settings = {"remote_url": "s3://test"}
        self.stores({**self.server.keys(), "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
                     "AWS_ENDPOINT_URL_S3": self.facts["endpoint"],
                     "AWS_REGION": "eu-west-9"})

    def test_a_profile_may_be_named_by_a_setting_or_a_variable(self):
        env = self.profiles("[profile base]\nregion = eu-west-9\n")
        self.stores(env, s3_profile="base")
        self.stores({**env, "AWS_PROFILE": "base"})
        done = self.kvtier(3, "ls", address=self.bucket, env=env)
        self.expect_output(done, "403 InvalidAccessKeyId")

    def test_a_profile_may_have_a_program_that_gives_keys(self):
        answer = ('{"Version": 1, "AccessKeyId": "%(access)s", '
                  '"SecretAccessKey": "%(secret)s"}' % self.facts)
        answer = self.path("answer", answer.encode())
        self.stores(self.profiles(f"[profile own]\ncredential_process = cat {answer}\n"),
                    s3_profile="own")

    # -- temporary keys from STS

    def test_a_role_is_taken_for_a_web_identity(self):
        self.stores(self.web_identity())
        self.stores(self.with_role(), s3_profile="web")

    def test_a_role_is_taken_with_the_keys_of_another_profile(self):
        self.stores(self.with_role(), s3_profile="taken")

    def test_an_expired_web_identity_is_reported(self):
        done = self.kvtier(3, "ls", address=self.bucket,
                           env=self.web_identity("expired_token_file"))
        self.expect_output(done, "no keys for S3", "web identity: .*ExpiredToken")
        with open(self.facts["expired_token_file"]) as file:
            self.assertNotIn(file.read().strip(), done.err)

    def check_reads_continue(self, env, **more):
        """An open store reads continuously while the keys expire twice."""
        env["KVTIER_LIBRARY"] = os.environ["KVTIER_LIBRARY"]
        with mock.patch.dict(os.environ, clean_environment(**env), clear=True):
            store = Store(self.bucket, **more)
            data = os.urandom(10000)
            store.put(KEY, data)
            end = time.monotonic() + 2.5 * LIFE_S
            while time.monotonic() < end:
                self.assertEqual(store.get(KEY), data)
                time.sleep(0.1)
            store.close()

    def test_reads_continue_while_keys_expire(self):
        self.check_reads_continue(self.with_role(), s3_profile="taken")

    def test_reads_continue_while_keys_of_a_web_identity_expire(self):
        self.check_reads_continue(self.web_identity())


class Instance(Case):
    """moto serves S3 and the instance metadata on the same port."""

    @classmethod
    def setUpClass(cls):
        cls.server = running("moto-server.py")

    def test_keys_come_from_the_metadata_of_the_instance(self):
        endpoint = self.server.facts["endpoint"]
        client = self.server.client()
        self.assertEqual(client.do("PUT", "/test").status, 200)
        client.close()
        bucket = self.at(in_path(endpoint))
        env = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint,
               "AWS_EC2_METADATA_DISABLED": "false"}
        self.kvtier(0, "put", KEY, self.path("given", b"instance"), address=bucket,
                    env=env)
        self.kvtier(0, "get", KEY, self.path("back"), address=bucket, env=env)
        self.assertEqual(self.content("back"), b"instance")


if __name__ == "__main__":
    unittest.main()
