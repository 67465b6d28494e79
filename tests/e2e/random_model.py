# SPDX-License-Identifier: Apache-2.0
"""Models of random weights with the demo's tokenizer, for the scripts make-*.py."""
import os
import runpy
import sys

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "demo")


def save(usage, make_model=None):
    """Write the tokenizer and make_model(size of the vocabulary) to the directory on the command
    line, and return the directory.  make_model None: the demo's model."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(usage.strip())
    demo = runpy.run_path(os.path.join(DEMO, "make-model.py"))
    tokenizer = demo["make_tokenizer"]([os.path.join(DEMO, "text.txt")])
    tokenizer.save_pretrained(sys.argv[1])
    (make_model or demo["make_model"])(len(tokenizer)).save_pretrained(sys.argv[1])
    return sys.argv[1]


def with_slow_decay(model):
    """Let the states of a model forget slowly, so that a wrong state changes an answer: half of a
    state is left after about 500 tokens."""
    for name, parameter in model.named_parameters():
        if name.endswith(".A_log"):
            parameter.data.fill_(-7)
    return model
