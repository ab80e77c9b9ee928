"""lm-eval, which scores models by tasks, with the tokenizer of the server."""

import json
import sys
from pathlib import Path

import pytest
from conftest import environment, output_of

MODELS = ["mock"]  # lm-eval asks for the tokenizer without naming a model
TASK = {
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "{{text}}",
}
ECHO = TASK | {
    "task": "echo",
    "output_type": "generate_until",
    "doc_to_target": "{{text}}",
    "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 32},
    "metric_list": [{"metric": "exact_match"}],
}
# To the mock all that it is not scripted to say is about as unlikely, token by token.
SHORTEST = TASK | {
    "task": "shortest",
    "output_type": "multiple_choice",
    "doc_to_choice": ["abc", "a", "abcde"],
    "doc_to_target": 1,
    "metric_list": [{"metric": "acc"}],
}


@pytest.fixture
def results(server, tmp_path):
    """Return a function that scores the mock by tasks and returns the results and the samples."""
    lines = [json.dumps({"text": text}) for text in ("one", "two words", "Köln")]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    (tmp_path / "tasks").mkdir()
    for task in (ECHO, SHORTEST):
        files = {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "data.jsonl")}}}
        (tmp_path / "tasks" / f"{task['task']}.yaml").write_text(json.dumps(task | files))

    def run(*tasks):
        model = {"model": "mock", "base_url": f"{server.v1}/completions"}
        model |= {"tokenizer_backend": "remote", "num_concurrent": 2}
        words = {
            "--model": "local-completions",
            "--model_args": ",".join(f"{name}={value}" for name, value in model.items()),
            "--tasks": ",".join(tasks),
            "--include_path": "tasks",
            "--output_path": "told",
        }
        command = [str(Path(sys.executable).with_name("lm_eval")), "run", "--log_samples"]
        command += [each for pair in words.items() for each in pair]
        output_of(*command, cwd=tmp_path, env=environment(tmp_path, HF_HUB_OFFLINE="1"))
        (told,) = tmp_path.glob("told/**/results_*.json")
        samples = {}
        for task in tasks:
            (file,) = tmp_path.glob(f"told/**/samples_{task}_*.jsonl")
            samples[task] = [json.loads(line) for line in file.read_text().splitlines()]
        return json.loads(told.read_text())["results"], samples

    return run


def test_answers_and_log_probabilities_are_scored(results):
    scores, samples = results("echo", "shortest")
    assert scores["echo"]["exact_match,none"] == 1.0
    assert [sample["resps"] for sample in samples["echo"]] == [
        [["one"]],
        [["two words"]],
        [["Köln"]],
    ]
    assert scores["shortest"]["acc,none"] == 1.0
    for sample in samples["shortest"]:
        scored = [float(answer[0][0]) for answer in sample["resps"]]
        assert 0 > scored[1] > scored[0] > scored[2]
