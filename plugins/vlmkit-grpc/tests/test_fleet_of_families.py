"""Fleets of real models: their answers are those of one process, in every family and engine."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_grpc_runner import assert_same, num_open, outcome, random_requests, same_outcomes
from test_worker_fleet import load, workers

import vlmkit
from mock_model import wait_until

FAMILIES = ("gemma3", "internvl", "llava", "qwen2_5_vl", "smolvlm")

pytestmark = [
    pytest.mark.posix,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("vlmkit_torch", "vlmkit_demo", "vlmkit_onnx"))),
        reason="vlmkit-torch, vlmkit-onnx and vlmkit-demo have the models",
    ),
]


def same_as_here(model, engine, num):
    """Compare in float32: shorter numbers round differently when less of a prompt is cached."""
    chosen = {"use": engine, "dtype": "float32"}
    given = [word for name, value in chosen.items() for word in ("--set", f"engine.{name}={value}")]
    with (
        workers(2, *given, model=model) as processes,
        load(processes) as fleet,
        vlmkit.load(model, engine=chosen) as here,
    ):
        same_outcomes(fleet, here, random_requests(here, num))
        assert not any(each.waiting_tokens for each in fleet.runner._workers)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_fleet_of_a_family_answers_as_one_process_does(family, saved):
    same_as_here(str(saved(family)), "torch", 300)


@pytest.mark.slow
def test_a_fleet_of_the_packaged_model_on_torch_answers_as_one_process_does():
    same_as_here("demo", "torch", 300)


@pytest.mark.parametrize("num", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_eight_requests_at_once_to_a_fleet_have_the_answers_of_one_process(num):
    with (
        workers(2, model="demo") as processes,
        load(processes) as fleet,
        vlmkit.load("demo") as here,
        ThreadPoolExecutor(8) as threads,
    ):
        requests = list(random_requests(here, num))
        found = threads.map(lambda each: outcome(fleet.runner, each, aborts=False), requests)
        for request, result in zip(requests, found, strict=True):
            assert_same(result, outcome(here.runner, request, aborts=False))
        wait_until(lambda: not num_open(fleet.runner))
        assert not any(each.waiting_tokens for each in fleet.runner._workers)
