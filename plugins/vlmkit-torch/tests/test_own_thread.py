"""On a CPU, only the thread of the engine loop keeps an OpenMP thread pool.

A pool shows as threads of a process, so each test counts them in a new process.
"""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vlmkit_torch.devices.own_thread import in_own_thread

pytestmark = pytest.mark.torch

STARTED = """
import os, sys
from pathlib import Path
import torch
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_torch.plugin import vlmkit_register_engines

engines = Registry("engine")
vlmkit_register_engines(engines)
settings = {"device": "cpu", "dtype": "float32", "num_threads": 2, "cache_tokens": 800}
engine = engines.build("torch", settings, BuildContext("", Checkpoint("m", Path(sys.argv[1]))))
before = set(os.listdir("/proc/self/task"))
torch.ones(2**22).sum()
print(len(set(os.listdir("/proc/self/task")) - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads threads from /proc")
def test_a_thread_that_loaded_a_model_leaves_no_thread_pool(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 4096}
    config = LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=4, dtype="bfloat16")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)

    command = [sys.executable, "-c", STARTED, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)

    assert done.stdout.split() == ["1"]  # its own computation starts a pool


def test_results_and_errors_of_an_own_thread_reach_the_caller() -> None:
    threads = [in_own_thread(threading.current_thread)]

    with pytest.raises(ZeroDivisionError):
        in_own_thread(lambda: 1 / 0)
    assert threading.current_thread() not in threads
    assert not threads[0].is_alive()
