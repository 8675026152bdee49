"""The same run, always: workers, processes, the split of the batch and interruptions change
nothing.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from logged_history import without_times
from safetensors.torch import load_file
from small_run import small_run

from bert_recipes.errors import InputError
from bert_recipes.training import emissions, trainer
from bert_recipes.training.arguments import DataArguments, PreTrainingArguments
from bert_recipes.training.bert_trainer import BertTrainer
from bert_recipes.training.pretraining import load_data
from bert_recipes.training.run import check_launch


@pytest.fixture(scope="module")
def whole_batch(small_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return small_run(store=str(small_store), output_dir=str(folder), per_device_train_batch_size=16)


def run_two(store, folder, **settings):
    settings = {
        "store": str(store),
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        **settings,
    }
    settings["gradient_accumulation_steps"] = 2
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
    ]
    script = Path(__file__).with_name("small_run.py")
    done = subprocess.run(
        [*command, str(script), json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def two_processes(small_store, tmp_path_factory):
    return run_two(small_store, tmp_path_factory.mktemp("two"))


def normalized(rows):
    return sorted((step, tuple(ids), tuple(labels), label) for step, ids, labels, label in rows)


def assert_same_gradients(left, right, tolerance=1e-6):
    assert len(left) == len(right)
    for step, (a, b) in enumerate(zip(left, right, strict=True)):
        norm = torch.stack([g.norm() for g in a.values()]).norm()
        assert norm > 0
        difference = torch.stack([(a[name] - b[name]).norm() for name in a]).norm()
        assert difference / norm < tolerance, f"step {step}: {difference / norm}"


@pytest.mark.slow
@pytest.mark.parametrize("fast_layers", ["compiled", "eager"])
def test_the_flags_of_a_gpu_finish_a_whole_command_on_a_cpu(
    repository, small_store, tmp_path, fast_layers
):
    """A launch on a GPU has compiled packed rows and data workers that prefetch; two micro-batches,
    an evaluation, a save.
    """
    flags = [
        "--store",
        small_store,
        "--output_dir",
        tmp_path / "run",
        "--size",
        "tiny",
        "--max_steps",
        4,
    ]
    flags += [
        "--fast_layers",
        fast_layers,
        "--precision",
        "bf16",
        "--use_cpu",
        "true",
        "--max_seq_length",
        64,
    ]
    flags += [
        "--dataloader_num_workers",
        2,
        "--dataloader_prefetch_factor",
        4,
        "--logging_steps",
        1,
    ]
    flags += [
        "--global_train_batch_size",
        16,
        "--per_device_train_batch_size",
        8,
        "--eval_strategy",
        "steps",
    ]
    flags += [
        "--eval_steps",
        2,
        "--save_strategy",
        "steps",
        "--save_steps",
        2,
        "--report_to",
        "none",
    ]
    command = [sys.executable, str(repository / "recipes" / "pretrain.py"), *map(str, flags)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert 0 < results["eval_loss"] < 20
    assert (tmp_path / "run" / "checkpoint-4" / "manifest.json").is_file()


def logged(history, name):
    return [line[name] for line in history if name in line and "eval_loss" not in line]


@pytest.mark.parametrize(("batch", "accumulation"), [(8, 2), (4, 4)])
def test_one_loss_and_one_gradient_however_the_batch_is_accumulated(
    small_store, tmp_path, whole_batch, batch, accumulation
):
    """The stock heads multiply the loss by the number of micro-batches
    (huggingface/transformers#47688).
    """
    run = small_run(
        store=str(small_store),
        output_dir=str(tmp_path),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
    )
    assert normalized(run["rows"]) == normalized(whole_batch["rows"])
    # The weights drift apart by rounding after the first update, which has rate 0: two gradients
    # come from equal ones.
    assert_same_gradients(run["gradients"][:2], whole_batch["gradients"][:2])
    for name in ("loss", "mlm_loss", "nsp_loss"):
        assert logged(run["history"], name) == pytest.approx(
            logged(whole_batch["history"], name), rel=1e-6
        )


def test_two_processes_train_on_the_same_rows_with_the_same_loss_and_gradient(
    two_processes, whole_batch
):
    rows = [json.loads((two_processes / f"rows-{rank}.json").read_text()) for rank in (0, 1)]
    assert all(len(share) == 3 * 8 for share in rows)
    assert normalized(rows[0] + rows[1]) == normalized(whole_batch["rows"])
    flat = load_file(two_processes / "gradients.safetensors")
    gradients = [{} for _ in range(3)]
    for key, gradient in flat.items():
        step, name = key.split("/", 1)
        gradients[int(step)][name] = gradient
    assert_same_gradients(gradients[:2], whole_batch["gradients"][:2])
    history, metrics = json.loads((two_processes / "logs.json").read_text())
    for name in ("loss", "mlm_loss", "nsp_loss"):
        assert logged(history, name) == pytest.approx(
            logged(whole_batch["history"], name), rel=1e-6
        )
    # 27 held-out pairs do not divide evenly: each is still counted once.
    for name in (
        "eval_pairs",
        "eval_masked_tokens",
        "eval_majority_accuracy",
        "eval_unigram_loss",
        "eval_mlm_loss",
    ):
        assert metrics[name] == pytest.approx(whole_batch["metrics"][name], rel=1e-5), name
    assert metrics["eval_pairs"] == 27


def test_processes_look_for_no_unused_parameters_copy_no_gradients_and_drop_other_elements(
    two_processes, whole_batch
):
    """All dropout masks, those of the fast layers too, are drawn from torch's generator; that of
    the first process is a lone one's.
    """
    settings = [
        json.loads((two_processes / f"settings-{rank}.json").read_text()) for rank in (0, 1)
    ]
    given = {
        "find_unused_parameters": False,
        "gradient_as_bucket_view": True,
        "broadcast_buffers": False,
    }
    seed = whole_batch["settings"]["seed"]
    assert settings == [given | {"seed": seed}, given | {"seed": seed + 1}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fast_layers", "optimizer"), [("auto", "bert_adam"), ("off", "bert_adam"), ("auto", "muon")]
)
def test_two_processes_with_dropout_are_resumed_bit_for_bit(
    small_store, tmp_path, fast_layers, optimizer
):
    common = {
        "dropout": 0.1,
        "max_steps": 4,
        "fast_layers": fast_layers,
        "ddp_find_unused_parameters": True,
    }
    common |= {"optimizer": optimizer}
    straight = run_two(small_store, tmp_path / "a", **common, save_strategy="steps", save_steps=2)
    resumed = run_two(
        small_store, tmp_path / "b", **common, resume_from=str(straight / "checkpoint-2")
    )
    expected, found = (load_file(folder / "weights.safetensors") for folder in (straight, resumed))
    assert all(torch.equal(found[name], weights) for name, weights in expected.items())
    states = [
        torch.load(straight / "checkpoint-2" / f"rng_state_{rank}.pth", weights_only=False)["cpu"]
        for rank in (0, 1)
    ]
    assert not torch.equal(*states)
    assert json.loads((straight / "settings-0.json").read_text())[
        "find_unused_parameters"
    ]  # as it was given


@pytest.mark.parametrize("workers", [2, 4])
def test_data_workers_change_nothing(small_store, tmp_path, whole_batch, workers):
    run = small_run(
        store=str(small_store),
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        dataloader_num_workers=workers,
    )
    assert run["rows"] == whole_batch["rows"]
    assert all(
        torch.equal(run["weights"][name], whole_batch["weights"][name]) for name in run["weights"]
    )


@pytest.mark.parametrize(
    ("fast_layers", "precision", "optimizer"),
    [
        ("auto", "fp32", "bert_adam"),
        pytest.param("auto", "bf16", "bert_adam", marks=pytest.mark.slow),
        ("plain", "fp32", "bert_adam"),
        ("off", "fp32", "lamb"),
        ("auto", "bf16", "muon"),
    ],
)
def test_interrupted_equals_uninterrupted_bit_for_bit(
    small_store, tmp_path, fast_layers, precision, optimizer
):
    """Across the end of an epoch, with dropout, accumulation and evaluation in between."""
    common = {
        "store": str(small_store),
        "dropout": 0.1,
        "per_device_train_batch_size": 8,
        "max_grad_norm": 1.0,
    }
    common |= {"fast_layers": fast_layers, "precision": precision, "optimizer": optimizer}
    common |= {
        "gradient_accumulation_steps": 2,
        "max_steps": 16,
        "eval_strategy": "steps",
        "eval_steps": 3,
    }
    common |= {"logging_steps": 5}  # the checkpoint falls between two log lines
    straight = small_run(output_dir=str(tmp_path / "a"), **common)
    small_run(
        output_dir=str(tmp_path / "b"), **(common | {"save_strategy": "steps", "save_steps": 7})
    )
    checkpoint = tmp_path / "b" / "checkpoint-7"
    resumed = small_run(output_dir=str(tmp_path / "c"), resume_from=str(checkpoint), **common)
    assert len(resumed["rows"]) == 9 * 16
    assert resumed["rows"] == [row for row in straight["rows"] if row[0] >= 7]
    for name, weights in straight["weights"].items():
        assert torch.equal(weights, resumed["weights"][name]), name
    assert without_times(straight["history"]) == without_times(resumed["history"])
    epochs = [line["epoch"] for line in straight["history"]]
    assert epochs[0] < 1.0 < epochs[-1]


def test_a_run_by_the_clock_ends_with_its_minutes_and_a_resumed_one_has_those_that_are_left(
    small_store, tmp_path, monkeypatch
):
    """A step takes a second here: warm-up and decay by the fraction of the time that is over."""
    now = [0.0]
    for module in (emissions, trainer):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    own = BertTrainer.num_items
    monkeypatch.setattr(
        BertTrainer, "num_items", lambda *given: (now.append(now.pop() + 1.0), own(*given))[1]
    )
    common = {
        "store": str(small_store),
        "max_minutes": 0.2,
        "max_steps": -1,
        "warmup_steps": 0.25,
        "save_strategy": "steps",
        "save_steps": 5,
    }
    straight = small_run(output_dir=str(tmp_path / "a"), **common)
    state = straight["trainer"].state
    assert state.global_step == state.max_steps == 12
    rates = [line["learning_rate"] for line in straight["history"] if "loss" in line]
    assert rates[:3] == pytest.approx([0.0, 1e-3 / 3, 2e-3 / 3], rel=1e-4)
    assert rates[6] == pytest.approx(1e-3 * 6 / 12, rel=1e-4)
    resumed = small_run(
        output_dir=str(tmp_path / "b"), resume_from=str(tmp_path / "a" / "checkpoint-5"), **common
    )
    assert resumed["trainer"].state.global_step == 12
    assert [
        line["learning_rate"] for line in resumed["history"] if "loss" in line
    ] == pytest.approx(rates)


@pytest.mark.slow
def test_two_processes_by_the_clock_end_with_the_same_step(small_store, tmp_path):
    folder = run_two(
        small_store,
        tmp_path,
        max_minutes=0.1,
        max_steps=-1,
        warmup_steps=0.1,
        save_strategy="steps",
        save_steps=1000,
    )
    (checkpoint,) = folder.glob("checkpoint-*")
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert (
        state["global_step"]
        == state["max_steps"]
        == int(checkpoint.name.removeprefix("checkpoint-"))
    )
    history, _ = json.loads((folder / "logs.json").read_text())
    assert logged(history, "learning_rate")[-1] < 1e-4  # of 1e-3


@pytest.mark.parametrize("optimizer", ["lamb", "muon"])
def test_what_needs_whole_tensors_is_refused_where_no_process_has_them(
    small_store, tmp_path, monkeypatch, optimizer
):
    """tests/recipes/test_engines.py does it with a real engine; FSDP needs GPUs."""
    monkeypatch.setattr(BertTrainer, "engine", "FSDP")
    with pytest.raises(InputError, match=f"optimizer is {optimizer}; FSDP splits tensors"):
        small_run(store=str(small_store), output_dir=str(tmp_path), optimizer=optimizer)


def test_epochs_are_counted_once_and_have_pairs_of_their_own(small_store, tmp_path):
    run = small_run(
        store=str(small_store),
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        max_steps=-1,
        num_train_epochs=1.5,
    )
    pairs = load_data(DataArguments(store=str(small_store), max_seq_length=48), 12345).train
    expected = (pairs.num_pairs(0) + pairs.num_pairs(1) // 2) // 16
    assert run["rows"][-1][0] == expected - 1
    assert len(run["rows"]) == 16 * expected
    texts = [ids for _, ids, _, _ in run["rows"]]
    assert len(set(texts)) > 0.95 * len(texts)


def resumed_run(store, folder, checkpoint, **settings):
    return small_run(
        store=str(store),
        output_dir=str(folder),
        per_device_train_batch_size=16,
        resume_from=str(checkpoint),
        **settings,
    )


def test_another_precision_or_store_is_refused_unless_it_is_wanted(small_store, tmp_path, caplog):
    folder = tmp_path / "run"
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    small_run(
        store=str(small_store), output_dir=str(folder), per_device_train_batch_size=16, **settings
    )
    state = folder / "checkpoint-2"
    with pytest.raises(InputError, match=r"precision is bf16, .*checkpoint-2 was made with fp32"):
        resumed_run(small_store, tmp_path / "other", state, precision="bf16", max_steps=3)
    resumed_run(
        small_store, tmp_path / "other", state, precision="bf16", max_steps=3, allow_changes=True
    )
    assert "the run is resumed with it, as allow_changes is true" in caplog.text


def test_pairs_of_another_seed_are_counted_anew(small_store, tmp_path):
    """The numbers of pairs in a checkpoint are those of its own seed."""
    folder = tmp_path / "run"
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    small_run(
        store=str(small_store), output_dir=str(folder), per_device_train_batch_size=16, **settings
    )
    progress = folder / "checkpoint-2" / "progress.json"
    content = json.loads(progress.read_text())
    (known,) = content["pairs_of_epochs"].values()
    pairs = load_data(DataArguments(store=str(small_store), max_seq_length=48), 12345).train
    assert known == {"index": pairs.index_name, "counts": [pairs.num_pairs(0)]}
    known["counts"] = [10**6]
    progress.write_text(json.dumps(content))
    # With the same seed they are believed, and then the table is found to have other rows.
    with pytest.raises(IndexError):
        resumed_run(small_store, tmp_path / "same", folder / "checkpoint-2", max_steps=3)
    run = resumed_run(
        small_store,
        tmp_path / "other",
        folder / "checkpoint-2",
        max_steps=3,
        seed=7,
        allow_changes=True,
    )
    assert run["rows"]


def test_a_run_that_goes_on_has_the_intervals_that_it_is_given(small_store, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "logging_steps": 2, "max_steps": 2}
    folder = tmp_path / "run"
    small_run(
        store=str(small_store), output_dir=str(folder), per_device_train_batch_size=16, **settings
    )
    settings |= {
        "save_steps": 1,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "max_steps": 4,
    }
    run = resumed_run(small_store, folder, folder / "checkpoint-2", **settings, allow_changes=True)
    assert (folder / "checkpoint-3").is_dir()
    assert [line["step"] for line in run["history"] if "grad_norm" in line] == [2, 3, 4]
    assert [line["step"] for line in run["history"] if "eval_loss" in line][:2] == [3, 4]


def test_a_run_that_goes_on_does_not_evaluate_at_its_start_again(small_store, tmp_path):
    settings = {
        "save_strategy": "steps",
        "save_steps": 2,
        "max_steps": 4,
        "eval_on_start": True,
        "eval_strategy": "steps",
    }
    settings |= {"eval_steps": 4, "dropout": 0.1}
    folder = tmp_path / "run"
    straight = small_run(
        store=str(small_store), output_dir=str(folder), per_device_train_batch_size=16, **settings
    )
    resumed = resumed_run(small_store, tmp_path / "resumed", folder / "checkpoint-2", **settings)
    assert [line["step"] for line in straight["history"] if "eval_loss" in line][:2] == [0, 4]
    assert without_times(straight["history"]) == without_times(resumed["history"])


def test_the_checkpoint_of_the_last_step_stays_beside_the_best(small_store, tmp_path):
    """Stock deletes at its end whatever is not the best when one checkpoint is to be kept."""
    settings = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3, "save_total_limit": 1}
    settings |= {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
        "learning_rate": 1.0,
    }
    folder = tmp_path / "run"
    small_run(
        store=str(small_store), output_dir=str(folder), per_device_train_batch_size=16, **settings
    )
    left = sorted(path.name for path in folder.glob("checkpoint-*"))
    assert "checkpoint-3" in left


def test_processes_that_would_train_alone_are_refused(monkeypatch, tmp_path):
    """torchrun without use_cpu on a CPU gives independent runs that write to the same folder."""
    args = PreTrainingArguments(output_dir=str(tmp_path))
    check_launch(args)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="2 processes were started but this one trains alone"):
        check_launch(args)
