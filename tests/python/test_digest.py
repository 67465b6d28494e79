# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of a model: changes with and without an effect."""

import json
import os
import shutil
import struct
import tempfile
import unittest
from types import SimpleNamespace as Object
from unittest import mock

import fake

fake.stub_vllm()

from kvtier import vllm_digest, vllm_files, vllm_samples  # noqa: E402

COMMIT, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40


def safetensors(path, sizes, fill=b"\0", padding=0):
    """Write a file with a tensor for each size in bytes."""
    header, at = {"__metadata__": {"padding": "x" * padding}}, 0
    for i, size in enumerate(sizes):
        header["layer.%d" % i] = {"dtype": "U8", "shape": [size],
                                  "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + fill * at)
    return 8 + len(text)


def change(path, at):
    """Change a byte of a file in place."""
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 1]))


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        # The environment may select another hub.
        patch = mock.patch.dict(os.environ)
        patch.start()
        self.addCleanup(patch.stop)
        os.environ.pop("VLLM_USE_MODELSCOPE", None)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def make_model(self, name="model", fill=b"\0"):
        os.makedirs(self.path(name))
        safetensors(self.path(name, "model.safetensors"), [1000, 1 << 20], fill)
        with open(self.path(name, "config.json"), "w") as file:
            file.write('{"hidden_size": 8}')
        return self.path(name)

    def about(self, model, longrope=False, **more):
        """Return the part of vLLM's configuration that decides the KV."""
        rope = {"rope_type": "longrope" if longrope else "default",
                "original_max_position_embeddings": 4096}
        hf = {"_name_or_path": model, "hidden_size": 8,
              "text_config": {"_name_or_path": model, "rope_parameters": rope}}
        hf.update(more.pop("hf", {}))
        config = dict(model=model, revision=None, hf_overrides={}, dtype="bfloat16",
                      quantization=None, max_model_len=2048,
                      hf_config=Object(to_dict=lambda: hf))
        load = dict(load_format="auto", download_dir=None,
                    model_loader_extra_config={})
        cache = dict(cache_dtype="auto", gpu_memory_utilization=0.9,
                     kv_cache_dtype_skip_layers=[])
        speculative = more.pop("speculative_config", None)
        for name, value in more.items():
            part = next((part for part in (config, load, cache) if name in part),
                        config)
            part[name] = value
        return Object(model_config=Object(**config), load_config=Object(**load),
                      cache_config=Object(**cache), speculative_config=speculative)

    def fingerprint(self, about):
        found = vllm_digest.fingerprint(about, {})
        self.assertTrue(found.startswith("digest:"), found)
        return found

    def unknown(self, about):
        """Check: there is no fingerprint, and a single message gives the reason."""
        with self.assertLogs("vllm.kvtier") as said:
            self.assertIsNone(vllm_digest.fingerprint(about, {}))
        self.assertEqual(len(said.output), 1)
        self.assertIn("model_fingerprint", said.output[0])
        self.assertEqual("mine", vllm_digest.fingerprint(
            about, {"model_fingerprint": "mine"}))
        return said.output[0]


class Samples(Case):
    def digest(self):
        return vllm_samples.digest([self.path("m.safetensors")])

    def test_the_start_the_middle_and_the_end_of_every_tensor_count(self):
        sizes = [5, 100, 1 << 20, 0, 300001, 1 << 22]
        base = safetensors(self.path("m.safetensors"), sizes)
        seen, start = {self.digest()}, base
        for n, size in enumerate(sizes):
            for at in ((0, size // 2, size - 1) if size else ()):
                change(self.path("m.safetensors"), start + at)
                seen.add(self.digest())
                change(self.path("m.safetensors"), start + at)
            start += size
        self.assertEqual(len(seen), 1 + 3 * 5)

    def test_the_whole_header_counts(self):
        base = safetensors(self.path("m.safetensors"), [1000] * 3000, padding=100)
        self.assertGreater(base, 3 * 65536)
        seen = {self.digest()}
        # The name of a tensor far beyond 64 KiB.
        with open(self.path("m.safetensors"), "rb") as file:
            at = file.read().index(b"layer.2500") + 6
        change(self.path("m.safetensors"), at)
        seen.add(self.digest())
        self.assertEqual(len(seen), 2)

    def test_other_formats_have_256_samples(self):
        path = self.path("m.gguf")
        with open(path, "wb") as file:
            file.write(bytes(10_000_000))
        seen = {vllm_samples.digest([path])}
        for i in range(256):
            change(path, (10_000_000 - 64) * i // 255)
            seen.add(vllm_samples.digest([path]))
        self.assertEqual(len(seen), 257)
        change(path, 9_999_999)
        self.assertNotIn(vllm_samples.digest([path]), seen)

    def test_a_damaged_header_is_sampled_like_another_format(self):
        seen = set()
        for content in (b"", b"1234567", struct.pack("<Q", 1 << 60) + b"x" * 99,
                        struct.pack("<Q", 4) + b"oops" + bytes(99),
                        struct.pack("<Q", 2) + b"[]" + bytes(99)):
            with open(self.path("m.safetensors"), "wb") as file:
                file.write(content)
            seen.add(self.digest())
        self.assertEqual(len(seen), 5)

    def test_names_count_and_places_do_not(self):
        for name in ("a", "b"):
            os.makedirs(self.path(name))
            safetensors(self.path(name, "m.safetensors"), [1000])
        self.assertEqual(vllm_samples.digest([self.path("a", "m.safetensors")]),
                         vllm_samples.digest([self.path("b", "m.safetensors")]))
        os.rename(self.path("b", "m.safetensors"), self.path("b", "n.safetensors"))
        self.assertNotEqual(vllm_samples.digest([self.path("a", "m.safetensors")]),
                            vllm_samples.digest([self.path("b", "n.safetensors")]))


class Model(Case):
    def test_settings_that_affect_kv_change_the_digest(self):
        model = self.make_model()
        abouts = [self.about(model)] + [self.about(model, **more) for more in (
            {"cache_dtype": "fp8"},
            {"quantization": "fp8"},
            {"dtype": "float16"},
            {"hf": {"hidden_size": 16}},
            {"hf_overrides": {"rope_scaling": {"factor": 2}}},
            {"kv_cache_dtype_skip_layers": ["0"]},
            {"quantization_config": {"linear": "int8"}},
            {"load_format": "sharded_state"},
            {"model_loader_extra_config": {"pattern": "x"}},
            {"multimodal_config": Object(video_pruning_rate=0.5)},
            {"model_impl": "transformers"})]
        self.assertEqual(len({self.fingerprint(about) for about in abouts}),
                         len(abouts))

    def test_files_that_affect_kv_change_the_digest(self):
        model = self.make_model()
        about = self.about(model)
        seen = {self.fingerprint(about)}
        with open(self.path("model", "config.json"), "w") as file:
            file.write('{"hidden_size": 9}')
        seen.add(self.fingerprint(about))
        size = os.path.getsize(self.path("model", "model.safetensors"))
        change(self.path("model", "model.safetensors"), size - (1 << 19))
        seen.add(self.fingerprint(about))
        safetensors(self.path("model", "model-2.safetensors"), [10])
        seen.add(self.fingerprint(about))
        self.assertEqual(len(seen), 4)

    def test_the_result_of_an_overriding_function_counts(self):
        model = self.make_model()

        def overrides(config):
            return config
        abouts = [self.about(model, hf_overrides=overrides, hf={"hidden_size": n})
                  for n in (8, 9)]
        self.assertEqual(len({self.fingerprint(about) for about in abouts}), 2)

    def test_other_settings_do_not_change_the_digest(self):
        model = self.make_model()
        shutil.copytree(model, self.path("copy"))
        with open(self.path("copy", "tokenizer.json"), "w") as file:
            file.write("{}")
        abouts = [self.about(model), self.about(self.path("copy")),
                  self.about(model, max_model_len=100000),
                  self.about(model, gpu_memory_utilization=0.5),
                  self.about(model, served_model_name="x", seed=3)]
        self.assertEqual(len({self.fingerprint(about) for about in abouts}), 1)

    def test_longrope_is_chosen_by_the_length_of_the_context(self):
        model = self.make_model()
        short, also_short, long, longer, fitted = (
            self.fingerprint(self.about(model, longrope=True, **more)) for more in (
                {"max_model_len": 100}, {"max_model_len": 4096},
                {"max_model_len": 4097}, {"max_model_len": 131072},
                # vLLM lowered the length after building the model.
                {"max_model_len": 100, "original_max_model_len": -1}))
        self.assertEqual((short, long), (also_short, longer))
        self.assertNotEqual(short, long)
        self.assertEqual(fitted, long)

    def test_llama4_is_tuned_by_the_length_of_the_context(self):
        model = self.make_model()
        hf = {"architectures": ["Llama4ForConditionalGeneration"]}
        seen = {self.fingerprint(self.about(model, hf=hf, max_model_len=n))
                for n in (32768, 32769, 100, 100000)}
        self.assertEqual(len(seen), 2)

    def test_a_draft_model_counts(self):
        target, draft = self.make_model(), self.make_model("draft", b"\1")
        seen = {self.fingerprint(self.about(target, speculative_config=spec))
                for spec in (
                    None,
                    Object(method="eagle",
                           draft_model_config=self.about(draft).model_config),
                    Object(method="eagle",
                           draft_model_config=self.about(target).model_config))}
        self.assertEqual(len(seen), 3)
        plain = self.about(target)
        plain.speculative_config = Object(method="ngram",
                                          draft_model_config=plain.model_config)
        self.assertIn(self.fingerprint(plain), seen)


class Places(Case):
    def hub(self, cache, commit, fill=b"\0"):
        """Make the hub's cache with a single commit of org/name, branch main."""
        repo = self.path(cache, "models--org--name")
        os.makedirs(os.path.join(repo, "refs"), exist_ok=True)
        with open(os.path.join(repo, "refs", "main"), "w") as file:
            file.write(commit)
        if not os.path.exists(os.path.join(repo, "snapshots", commit)):
            self.make_model(os.path.join(repo, "snapshots", commit), fill)
        return self.path(cache)

    def test_a_name_of_a_hub_counts_by_its_commit(self):
        cache = self.hub("hub", COMMIT)
        about = self.about("org/name", download_dir=cache)
        first = self.fingerprint(about)
        self.hub("hub", OTHER)
        other = self.fingerprint(about)
        self.assertNotEqual(first, other)
        self.hub("hub", COMMIT)
        self.assertEqual(self.fingerprint(about), first)
        self.assertEqual(self.fingerprint(self.about(
            "org/name", download_dir=cache, revision=OTHER)), other)

    def test_files_of_the_download_directory_count(self):
        with mock.patch.object(vllm_files, "_hub_cache",
                               return_value=self.hub("default", COMMIT)):
            default = self.fingerprint(self.about("org/name"))
            other = self.fingerprint(self.about(
                "org/name", download_dir=self.hub("other", OTHER, b"\1")))
            self.unknown(self.about("org/name", download_dir=self.path("empty")))
        self.assertNotEqual(default, other)

    def test_a_named_commit_needs_no_cache(self):
        seen = {self.fingerprint(self.about("org/name", revision=revision,
                                            download_dir=self.path("empty")))
                for revision in (COMMIT, OTHER)}
        self.assertEqual(len(seen), 2)

    def test_a_single_file_counts_with_its_other_parts(self):
        os.makedirs(self.path("g"))
        for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"):
            with open(self.path("g", name), "wb") as file:
                file.write(bytes(1000))
        about = self.about(self.path("g", "m-00001-of-00002.gguf"))
        seen = {self.fingerprint(about)}
        change(self.path("g", "m-00002-of-00002.gguf"), 0)
        seen.add(self.fingerprint(about))
        # Another model in the directory.
        seen.add(self.fingerprint(self.about(self.path("g", "m-00002-of-00002.gguf"))))
        self.assertEqual(len(seen), 3)

    def test_weights_from_elsewhere_have_no_fingerprint(self):
        model = self.make_model()
        os.makedirs(self.path("bare"))
        for more, said in (
                ({"model": "s3://bucket/model"}, "s3://bucket/model"),
                ({"model": self.path("bare")}, "no weight files"),
                ({"model": "org/unknown", "download_dir": self.path("empty")},
                 "org/unknown"),
                ({"model_weights": "s3://bucket/model",
                  "load_format": "runai_streamer"}, "s3://bucket/model"),
                ({"load_format": "dummy"}, "dummy"),
                ({"load_format": "of_a_plugin"}, "of_a_plugin"),
                ({"load_format": "tensorizer"}, "tensorizer_uri"),
                ({"load_format": "tensorizer", "model_loader_extra_config": {
                    "tensorizer_uri": "s3://b/m.tensors"}}, "s3://b"),
                ({"load_format": "bitsandbytes", "model_loader_extra_config": {
                    "qlora_adapter_name_or_path": "s3://b/q"}}, "s3://b/q"),
                ({"hf": {"text_model_id": "s3://b/t"}}, "s3://b/t")):
            about = self.about(more.pop("model", model), **more)
            self.assertIn(said, self.unknown(about))

    def test_modelscope_is_another_hub(self):
        os.environ["VLLM_USE_MODELSCOPE"] = "True"
        self.unknown(self.about("org/name", download_dir=self.hub("hub", COMMIT)))

    def test_files_named_in_loader_settings_count(self):
        model = self.make_model()
        with open(self.path("m.tensors"), "wb") as file:
            file.write(bytes(1000))
        adapter = self.make_model("qlora", b"\1")
        for about, path in (
                (self.about(model, load_format="tensorizer",
                            model_loader_extra_config=Object(
                                tensorizer_uri=self.path("m.tensors"))),
                 self.path("m.tensors")),
                (self.about(model, load_format="bitsandbytes",
                            model_loader_extra_config={
                                "qlora_adapter_name_or_path": adapter}),
                 os.path.join(adapter, "model.safetensors")),
                (self.about(model, hf={"audio_model_id": adapter}),
                 os.path.join(adapter, "model.safetensors"))):
            before = self.fingerprint(about)
            change(path, os.path.getsize(path) - 1)
            self.assertNotEqual(self.fingerprint(about), before)

    def test_headers_of_no_sense_do_not_raise(self):
        for text in (b'{"a":{"data_offsets":[0,1e400]}}', b"[" * 100000, b"null",
                     b'{"a":{"data_offsets":[-4,4]}}', b'{"a":1}'):
            with open(self.path("m.safetensors"), "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text + bytes(9))
            self.assertTrue(vllm_samples.digest([self.path("m.safetensors")]))

    def test_a_fifo_does_not_block(self):
        for name in ("x.bin", "x.json"):
            model = self.make_model(name)
            os.mkfifo(os.path.join(model, name))
            self.assertIn("not a regular file", self.unknown(self.about(model)))

    def test_a_file_that_cannot_be_read_is_not_left_out(self):
        model = self.make_model()
        with mock.patch.object(vllm_samples, "digest",
                               side_effect=PermissionError(13, "no", model)):
            self.unknown(self.about(model))


if __name__ == "__main__":
    unittest.main()
