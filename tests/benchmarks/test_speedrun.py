"""The speedrun: its script keeps to its rules, and its judge accepts and refuses as they say."""

import os
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import speedrun
import speedrun_judge
import transformers
from speedrun_clock import Clock
from transformers import TrainerControl

from bert_recipes.config import field_types
from bert_recipes.data.quickstart_corpus import dependencies
from bert_recipes.errors import InputError
from bert_recipes.files import write_json
from bert_recipes.training import arguments
from bert_recipes.training.speed import describe_machine
from bert_recipes.yaml_files import read_tree


TRACK = speedrun.TRACKS["quickstart"]
# docs/speedrun.md
MAX_LINES = 150


def test_the_corpus_is_of_as_many_packages_as_that_of_the_table(repository):
    """The quickstart's corpus is their documentation: another package makes another corpus."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    requirements = project["dependencies"] + project["optional-dependencies"]["dev"]
    packages, missing = dependencies(requirements)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    names = {package.metadata["Name"] for package in packages} - {project["name"]}
    assert len(names) == 84


def test_the_script_is_short_enough_to_be_read(repository):
    lines = (repository / "benchmarks" / "speedrun.py").read_text().splitlines()
    assert len(lines) <= MAX_LINES


def test_records_are_settings_that_there_are_and_change_nothing_that_is_fixed(repository):
    names = set()
    for kind in ("ModelArguments", "DataArguments", "PreTrainingArguments"):
        names |= set(field_types(getattr(arguments, kind)))
    records = sorted((repository / "benchmarks" / "speedrun_records").glob("*.yaml"))
    assert records[-1] == speedrun.RECORD
    for file in records:
        settings, _ = read_tree(file)
        assert set(settings) <= names - speedrun_judge.FIXED, file.name
        assert settings["save_strategy"] == "no"  # a checkpoint would count as training


def test_judge_and_script_measure_the_same(repository):
    """The judge with a file of settings, the script with defaults of the library."""
    settings, _ = read_tree(repository / "benchmarks" / "speedrun_evaluation.yaml")
    assert settings["max_eval_pairs"] == str(speedrun.MAX_EVAL_PAIRS)
    assert settings["store"] == str(TRACK.corpus / "store")
    defaults = arguments.DataArguments(store=settings["store"])
    assert settings["max_seq_length"] == str(defaults.max_seq_length) == "128"
    changed = {"store", "max_seq_length", "max_eval_pairs", "per_device_eval_batch_size"}
    assert set(settings) == changed


def run_clock(losses, accuracies):
    """Evaluate after every step, which takes 10 ms; an evaluation takes 60."""
    trainer = SimpleNamespace(eval_collator="of the record", add_callback=lambda callback: None)
    clock = Clock(TRACK.goal)
    clock.start()
    clock.watch(trainer, "of the rules")
    control = TrainerControl()
    clock.on_train_begin(None, None, control)
    assert trainer.eval_collator == "of the rules"
    for step, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True)):
        time.sleep(0.01)
        control.should_evaluate = True
        clock.on_step_end(None, None, control)
        time.sleep(0.06)
        state = SimpleNamespace(global_step=step + 1)
        metrics = {"eval_mlm_loss": loss, "eval_nsp_accuracy": accuracy}
        clock.on_evaluate(None, state, control, metrics)
        if control.should_training_stop:
            break
    return clock


def test_the_clock_stops_at_the_first_evaluation_that_meets_both_goals_and_counts_training_alone():
    clock = run_clock([3.2, 3.0, 2.99, 2.9], [0.85, 0.8399, 0.84, 0.9])
    assert clock.is_reached
    assert [point["step"] for point in clock.curve] == [1, 2, 3]
    assert 0.03 <= clock.seconds < 0.06
    assert clock.curve[-1]["seconds"] == clock.seconds


def test_a_run_may_end_without_the_goals():
    assert not run_clock([3.1, 3.001], [0.9, 0.9]).is_reached


# The judge


def test_a_checkpoint_is_measured_by_the_code_of_the_judge_and_not_by_what_is_installed(
    repository, tmp_path, monkeypatch
):
    """And a verdict names no folder of the machine."""
    calls = []

    def evaluate(command, **settings):
        calls.append(settings)
        results = {"model": str(tmp_path), "eval_mlm_loss": 2.99}
        write_json(tmp_path / "measured.json", results)

    monkeypatch.setattr(speedrun_judge.subprocess, "run", evaluate)
    monkeypatch.setenv("PYTHONPATH", "packages")
    assert speedrun_judge.measure(tmp_path) == {"eval_mlm_loss": 2.99}
    (settings,) = calls
    assert settings["cwd"] == repository
    assert settings["env"]["PYTHONPATH"] == os.pathsep.join([str(repository / "src"), "packages"])


def runs(seconds, loss=2.99, accuracy=0.845, **changes):
    results = []
    for seed, value in enumerate(seconds):
        measured = {"eval_mlm_loss": loss, "eval_nsp_accuracy": accuracy}
        curve = [{"step": 100}, {"step": 200}]
        result = {"seed": seed, "seconds": value, "measured": measured, "curve": curve}
        result |= {"is_reached": True, "is_corpus_of_the_table": True, "broken_rules": []}
        results.append({**result, **changes})
    return results


RECORD = runs([200.0, 203.0, 199.0])


def test_a_faster_candidate_is_accepted():
    answer = speedrun_judge.verdict(RECORD, runs([150.0, 155.0, 152.0]))
    assert answer["is_accepted"]
    assert answer["reasons"] == []
    # scipy's Welch test of these numbers, by hand: t = -24.6 with 3.8 degrees of freedom
    assert answer["p"] == pytest.approx(1.1e-5, rel=0.2)


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (runs([198.0, 199.0, 197.0]), "p = 0.0"),
        (runs([240.0, 245.0, 241.0]), "t-test of the seconds: p = 1.000; allowed: below 0.01"),
        (runs([150.0, 155.0]), "2 seeds; allowed: 3 or more"),
        (runs([150.0, 155.0, 152.0], loss=3.0001), "seed 0: masked-LM loss 3.0001; allowed: 3.00"),
        (
            runs([150.0, 155.0, 152.0], accuracy=0.8399),
            "seed 2: next sentence 83.99%; allowed: 84%",
        ),
        (runs([150.0, 155.0, 152.0], is_corpus_of_the_table=False), "seed 1: another corpus"),
        (runs([150.0, 155.0, 152.0], broken_rules=["hidden_size is 256"]), "hidden_size is 256"),
        # Also of code that evaluates by itself.
        (
            runs([150.0, 155.0, 152.0], curve=[{"step": 100}, {"step": 199}]),
            "seed 0: 99 steps between evaluations; allowed: 100",
        ),
        (
            runs([0.0, 0.0, 0.0], curve=[], is_reached=False),
            "seed 1: no evaluation in training met the goal",
        ),
    ],
)
def test_a_candidate_is_refused_with_the_reason(candidate, reason):
    answer = speedrun_judge.verdict(RECORD, candidate)
    assert not answer["is_accepted"]
    assert any(reason in text for text in answer["reasons"]), answer["reasons"]


def test_a_record_that_misses_its_goal_is_no_measure():
    """Its seconds would be those of a whole run."""
    answer = speedrun_judge.verdict(
        runs([900.0, 910.0, 905.0], loss=3.2), runs([150.0, 155.0, 152.0])
    )
    assert not answer["is_accepted"]
    assert answer["reasons"][0] == "record, seed 0: masked-LM loss 3.2000; allowed: 3.00"


def save_stock(folder, hidden_size=128):
    config = transformers.BertConfig(
        vocab_size=120,
        num_hidden_layers=2,
        hidden_size=hidden_size,
        num_attention_heads=2,
        intermediate_size=512,
    )
    transformers.BertForPreTraining(config).save_pretrained(folder)
    return folder


def test_a_checkpoint_of_stock_and_of_that_size_breaks_no_rule(tmp_path):
    assert speedrun_judge.broken_rules(save_stock(tmp_path)) == []


def test_another_size_and_weights_that_stock_does_not_know_break_rules(tmp_path):
    folder = save_stock(tmp_path, hidden_size=64)
    assert speedrun_judge.broken_rules(folder) == ["hidden_size is 64; allowed: 128"]
    weights = transformers.BertForPreTraining.from_pretrained(folder).state_dict()
    weights["bert.gate"] = weights.pop("bert.pooler.dense.bias").clone()
    from safetensors.torch import save_file

    weights = {name: weight.clone() for name, weight in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    broken = "\n".join(speedrun_judge.broken_rules(folder))
    assert "missing_keys: bert.pooler.dense.bias" in broken
    assert "unexpected_keys: bert.gate" in broken


def test_results_of_an_earlier_verdict_are_not_taken(tmp_path, monkeypatch):
    (tmp_path / "verdict.json").write_text("{}")
    monkeypatch.setattr(speedrun_judge, "run", pytest.fail)
    argv = ["judge", "--candidate", "c.yaml", "--output_dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(InputError, match="is an earlier verdict; give another --output_dir"):
        speedrun_judge.main()


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("optimizer: muon\n")
    return file


@pytest.fixture
def training(tmp_path, recipe, monkeypatch):
    """Judge a run: its first training takes one second, its second two."""
    folder = tmp_path / "candidate_1"
    calls = []

    def train(command, **settings):
        calls.append(command)
        save_stock(folder)
        result = {"seed": 1, "seconds": float(len(calls)), "machine": describe_machine()}
        write_json(folder / "result.json", result)

    monkeypatch.setattr(speedrun_judge.subprocess, "run", train)
    monkeypatch.setattr(speedrun_judge, "measure", lambda folder: {"eval_mlm_loss": 2.99})
    return lambda: speedrun_judge.run(str(recipe), tmp_path, 1, folder)


def test_an_interrupted_call_goes_on_with_the_runs_that_it_has_finished(training, recipe, tmp_path):
    judged = training()
    assert judged["seconds"] == 1.0
    assert judged["recipe"] == "optimizer: muon\n"
    assert training() == judged
    refused = "is of another recipe, other code or another machine; give another --output_dir"
    recipe.write_text("optimizer: adamw\n")
    with pytest.raises(InputError, match=refused):
        training()
    recipe.write_text("optimizer: muon\n")
    assert training() == judged
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "kernel.py").write_text("rate = 2\n")
    with pytest.raises(InputError, match=refused):
        training()


def test_a_run_that_was_interrupted_is_made_anew(training, monkeypatch):
    """A result is not judged before its checkpoint has been measured."""
    measure = speedrun_judge.measure
    monkeypatch.setattr(speedrun_judge, "measure", lambda folder: sys.exit(143))
    with pytest.raises(SystemExit):
        training()
    monkeypatch.setattr(speedrun_judge, "measure", measure)
    assert training()["seconds"] == 2.0


def test_the_result_of_an_interrupted_run_is_not_that_of_the_next(training, monkeypatch):
    monkeypatch.setattr(speedrun_judge, "measure", lambda folder: sys.exit(143))
    with pytest.raises(SystemExit):
        training()
    monkeypatch.setattr(speedrun_judge.subprocess, "run", lambda command, **settings: None)
    with pytest.raises(InputError, match="seed 1: the run ended without"):
        training()


def test_record_and_candidate_take_turns_in_being_the_first(tmp_path, monkeypatch):
    """Neither finds a quieter machine, or a file of the other's."""
    checked, order = [], []

    def run(recipe, checkout, seed, folder):
        order.append((recipe, seed, folder.name))
        return runs([150.0])[0]

    monkeypatch.setattr(speedrun_judge, "check_corpus", checked.append)
    monkeypatch.setattr(speedrun_judge, "run", run)
    monkeypatch.chdir(tmp_path)
    for name in ("r.yaml", "c.yaml"):
        Path(name).write_text("optimizer: muon\n")
    argv = ["judge", "--record", "r.yaml", "--candidate", "c.yaml", "--output_dir", "verdict"]
    monkeypatch.setattr(sys, "argv", argv)
    speedrun_judge.main()
    assert checked == [speedrun_judge.ROOT, Path.cwd()]
    assert order == [
        ("r.yaml", 1, "record_1"),
        ("c.yaml", 1, "candidate_1"),
        ("c.yaml", 2, "candidate_2"),
        ("r.yaml", 2, "record_2"),
        ("r.yaml", 3, "record_3"),
        ("c.yaml", 3, "candidate_3"),
    ]


def test_a_recipe_that_is_not_there_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(speedrun_judge, "check_corpus", pytest.fail)
    monkeypatch.setattr(speedrun_judge, "run", pytest.fail)
    argv = ["judge", "--candidate", "c.yaml", "--output_dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(InputError, match=r"there is no recipe c.yaml; give a YAML file"):
        speedrun_judge.main()


def test_a_recipe_begins_with_new_weights(tmp_path, monkeypatch):
    """A trained checkpoint would meet the goal at its first evaluation."""
    monkeypatch.setattr(speedrun_judge, "check_corpus", pytest.fail)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("optimizer: muon\nmodel_name_or_path: runs/trained\n")
    argv = ["judge", "--candidate", str(recipe), "--output_dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(InputError, match="sets model_name_or_path, which the rules fix"):
        speedrun_judge.main()


def test_a_seed_counts_once(tmp_path, monkeypatch):
    """Runs that are there would be counted again, and p would fall."""
    monkeypatch.setattr(speedrun_judge, "check_corpus", pytest.fail)
    argv = ["judge", "--candidate", "c.yaml", "--seeds", "1", "1", "2"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(InputError, match=r"seeds is \[1, 1, 2\]; allowed: each once"):
        speedrun_judge.main()


@pytest.fixture
def other_corpus(tmp_path):
    """A checkout whose quickstart is another text than that of the table."""
    corpus = tmp_path / TRACK.corpus
    for split in ("train", "validation"):
        (corpus / split).mkdir(parents=True)
        (corpus / split / "documents.txt").write_text("Of another Python.\n")
    (corpus / "corpus.json").write_text("{}")
    return tmp_path


def test_another_corpus_is_a_warning_of_the_script(other_corpus, monkeypatch, caplog):
    monkeypatch.chdir(other_corpus)
    monkeypatch.setattr(speedrun, "build_missing_quickstart", lambda *arguments: None)
    monkeypatch.setattr(speedrun, "load_data", lambda *arguments: sys.exit())
    monkeypatch.setattr(sys, "argv", ["speedrun.py", "--use_cpu", "true"])
    with pytest.raises(SystemExit):
        speedrun.main()
    assert "not the corpus of the table: that takes Python 3.11.7 on Linux" in caplog.text


def test_pairs_that_a_run_before_has_made_are_made_anew(tmp_path, monkeypatch):
    """The seconds of making them count."""
    run = tmp_path / "run"
    (run / "pairs").mkdir(parents=True)
    (run / "pairs" / "epoch").write_text("of a run before")

    def load_data(data_args, seed):
        assert data_args.data_cache_dir == str(run / "pairs")
        assert not (run / "pairs").exists()
        sys.exit("loaded")

    monkeypatch.setattr(speedrun, "build_missing_quickstart", lambda *arguments: None)
    monkeypatch.setattr(speedrun, "hashes_of", lambda corpus: TRACK.sha256)
    monkeypatch.setattr(speedrun, "load_data", load_data)
    argv = ["speedrun.py", "--use_cpu", "true", "--output_dir", str(run)]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit, match="loaded"):
        speedrun.main()


def test_another_corpus_is_refused_by_the_judge_before_anything_runs(other_corpus, monkeypatch):
    monkeypatch.setattr(speedrun_judge.subprocess, "run", pytest.fail)
    monkeypatch.setattr(speedrun_judge, "ROOT", other_corpus)
    candidate = str(speedrun_judge.RECORD)
    argv = ["judge", "--candidate", candidate, "--output_dir", str(other_corpus / "verdict")]
    monkeypatch.setattr(sys, "argv", argv)
    message = "is not the corpus of the table: that takes Python 3.11.7 on Linux"
    with pytest.raises(InputError, match=message):
        speedrun_judge.main()


def test_the_same_seed_three_times_is_one_seed():
    candidate = [{**result, "seed": 1} for result in runs([150.0, 155.0, 152.0])]
    assert speedrun_judge.verdict(RECORD, candidate)["reasons"] == ["1 seeds; allowed: 3 or more"]
