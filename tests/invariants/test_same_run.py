"""The same run, always: workers, processes, the split of the batch and interruptions change
nothing.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from logged_history import without_times
from python_process import run_python
from small_run import RecordingTrainer, predicted_shares, small_run
from transformers import TrainerCallback
from two_processes import assert_same_gradients, load_gradients, run_two

from bert_recipes.errors import InputError
from bert_recipes.training import cost, trainer
from bert_recipes.training.arguments import DataArguments
from bert_recipes.training.bert_trainer import BertTrainer
from bert_recipes.training.pretraining import load_data
from bert_recipes.training.resume import NO_PROGRESS


@pytest.fixture
def run(small_store, tmp_path):
    """Train in this process. Args: a folder's name, settings."""

    def run_it(name, **settings):
        settings = {"per_device_train_batch_size": 16, **settings}
        return small_run(store=str(small_store), output_dir=str(tmp_path / name), **settings)

    return run_it


@pytest.fixture(scope="module")
def whole_batch(small_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return small_run(store=str(small_store), output_dir=str(folder), per_device_train_batch_size=16)


def run_in_two(store, folder, **settings):
    """Train in two processes with the same global batch; their folder."""
    batch = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    paths = {"store": str(store), "output_dir": str(folder)}
    run_two("small_run.py", batch | paths | settings)
    return folder


@pytest.fixture(scope="module")
def two_processes(small_store, tmp_path_factory):
    return run_in_two(small_store, tmp_path_factory.mktemp("two"))


def read(folder, name):
    return json.loads((folder / name).read_text())


def normalized(rows):
    return sorted((step, tuple(ids), tuple(labels), label) for step, ids, labels, label in rows)


@pytest.mark.slow
@pytest.mark.parametrize("fast_layers", ["compiled", "eager"])
def test_the_flags_of_a_gpu_finish_a_whole_command_on_a_cpu(small_store, tmp_path, fast_layers):
    """A launch on a GPU has compiled packed rows and data workers that prefetch; two micro-batches,
    an evaluation, a save.
    """
    folder = tmp_path / "run"
    flags = f"""
    --store {small_store} --output_dir {folder} --size tiny --max_seq_length 64 --max_steps 4
    --fast_layers {fast_layers} --precision bf16 --use_cpu true
    --dataloader_num_workers 2 --dataloader_prefetch_factor 4
    --global_train_batch_size 16 --per_device_train_batch_size 8
    --eval_strategy steps --eval_steps 2 --save_strategy steps --save_steps 2 --logging_steps 1
    """
    run_python("recipes/pretrain.py", flags)
    assert 0 < read(folder, "all_results.json")["eval_loss"] < 20
    assert (folder / "checkpoint-4" / "manifest.json").is_file()


def logged(history, name):
    return [line[name] for line in history if name in line and "eval_loss" not in line]


def assert_same_losses(history, expected):
    for name in ("loss", "mlm_loss", "nsp_loss"):
        assert logged(history, name) == pytest.approx(logged(expected, name), rel=1e-6)


@pytest.mark.parametrize(("batch", "accumulation"), [(8, 2), (4, 4)])
def test_one_loss_and_one_gradient_however_the_batch_is_accumulated(
    run, whole_batch, batch, accumulation
):
    """The stock heads multiply the loss by the number of micro-batches
    (huggingface/transformers#47688).
    """
    split = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
    result = run("run", **split)
    assert normalized(result["rows"]) == normalized(whole_batch["rows"])
    assert_same_gradients(result["gradients"], whole_batch["gradients"])
    assert_same_losses(result["history"], whole_batch["history"])


def test_two_processes_train_on_the_same_rows_with_the_same_loss_and_gradient(
    two_processes, whole_batch
):
    first, second = (read(two_processes, f"rows-{rank}.json") for rank in (0, 1))
    assert len(first) == len(second) == 3 * 8
    assert normalized(first + second) == normalized(whole_batch["rows"])
    gradients = load_gradients(two_processes / "gradients.safetensors")
    assert_same_gradients(gradients, whole_batch["gradients"])
    history, metrics = read(two_processes, "logs.json")
    assert_same_losses(history, whole_batch["history"])
    # 27 held-out pairs do not divide evenly: each is still counted once.
    assert metrics["eval_pairs"] == 27
    for name in ("masked_tokens", "majority_accuracy", "unigram_loss", "mlm_loss"):
        expected = whole_batch["metrics"][f"eval_{name}"]
        assert metrics[f"eval_{name}"] == pytest.approx(expected, rel=1e-5), name


def test_processes_look_for_no_unused_parameters_copy_no_gradients_and_drop_other_elements(
    two_processes, whole_batch
):
    """All dropout masks, those of the fast layers too, are drawn from torch's generator; that of
    the first process is a lone one's.
    """
    for rank in (0, 1):
        assert read(two_processes, f"settings-{rank}.json") == {
            "find_unused_parameters": False,
            "gradient_as_bucket_view": True,
            "broadcast_buffers": False,
            "seed": whole_batch["settings"]["seed"] + rank,
        }


@pytest.mark.slow
def test_two_processes_train_a_head_for_pairs_whose_labels_are_missing(small_store, tmp_path):
    run_in_two(small_store, tmp_path, inputs={"pair_label": "none"})
    history, _ = read(tmp_path, "logs.json")
    assert len(logged(history, "loss")) == 3
    assert not logged(history, "nsp_loss")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fast_layers", "optimizer"), [("auto", "bert_adam"), ("off", "bert_adam"), ("auto", "muon")]
)
def test_two_processes_with_dropout_are_resumed_bit_for_bit(
    small_store, tmp_path, fast_layers, optimizer
):
    settings = {
        "dropout": 0.1,
        "max_steps": 4,
        "fast_layers": fast_layers,
        "optimizer": optimizer,
        "ddp_find_unused_parameters": True,
    }
    saving = {"save_strategy": "steps", "save_steps": 2}
    straight = run_in_two(small_store, tmp_path / "a", **settings, **saving)
    checkpoint = straight / "checkpoint-2"
    resumed = run_in_two(small_store, tmp_path / "b", **settings, resume_from=str(checkpoint))
    weights = (resumed / "weights.safetensors").read_bytes()
    assert weights == (straight / "weights.safetensors").read_bytes()
    states = [
        torch.load(checkpoint / f"rng_state_{rank}.pth", weights_only=False)["cpu"]
        for rank in (0, 1)
    ]
    assert not torch.equal(*states)
    # As it was given.
    assert read(straight, "settings-0.json")["find_unused_parameters"]


def test_data_workers_change_nothing(run, whole_batch):
    result = run("run", dataloader_num_workers=2)
    assert result["rows"] == whole_batch["rows"]
    torch.testing.assert_close(result["weights"], whole_batch["weights"], rtol=0, atol=0)


class StopAfterSeven(TrainerCallback):
    """Ends a run long before its last step."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 7


@pytest.mark.parametrize(
    ("fast_layers", "precision", "optimizer"),
    [
        ("auto", "fp32", "muon"),
        pytest.param("off", "fp32", "lamb", marks=pytest.mark.slow),
        pytest.param("auto", "fp32", "bert_adam", marks=pytest.mark.slow),
        pytest.param("auto", "bf16", "bert_adam", marks=pytest.mark.slow),
        pytest.param("auto", "bf16", "muon", marks=pytest.mark.slow),
        pytest.param("plain", "fp32", "bert_adam", marks=pytest.mark.slow),
    ],
)
def test_interrupted_equals_uninterrupted_bit_for_bit(
    run, tmp_path, fast_layers, precision, optimizer
):
    """Across the end of an epoch, with dropout, accumulation and evaluation in between."""
    settings = {
        "fast_layers": fast_layers,
        "precision": precision,
        "optimizer": optimizer,
        "dropout": 0.1,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 1.0,
        "max_steps": 16,
        "eval_strategy": "steps",
        "eval_steps": 5,
        "logging_steps": 5,  # the checkpoint falls between two log lines
    }
    straight = run("a", **settings)
    run("b", **settings, **SAVING | {"save_steps": 7}, callbacks=[StopAfterSeven()])
    resumed = run("c", **settings, resume_from=str(tmp_path / "b" / "checkpoint-7"))
    assert len(resumed["rows"]) == 9 * 16
    assert resumed["rows"] == [row for row in straight["rows"] if row[0] >= 7]
    torch.testing.assert_close(resumed["weights"], straight["weights"], rtol=0, atol=0)
    assert without_times(straight["history"]) == without_times(resumed["history"])
    epochs = [line["epoch"] for line in straight["history"]]
    assert epochs[0] < 1.0 < epochs[-1]


@pytest.fixture
def clock(monkeypatch):
    """The seconds, in a list: a step takes one."""
    clock = [0.0]
    num_items = BertTrainer.num_items

    def tick(*args):
        clock[0] += 1.0
        return num_items(*args)

    for module in (cost, trainer):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(BertTrainer, "num_items", tick)
    return clock


@pytest.mark.usefixtures("clock")
def test_a_run_by_the_clock_ends_with_its_minutes_and_a_resumed_one_has_those_that_are_left(
    run, tmp_path
):
    """Warm-up and decay are by the fraction of the time that is over."""
    by_clock = {"max_minutes": 0.2, "max_steps": -1, "warmup_steps": 0.25}
    settings = by_clock | SAVING | {"save_steps": 5, "per_device_train_batch_size": 8}
    straight = run("a", **settings)
    state = straight["trainer"].state
    assert state.global_step == state.max_steps == 12
    rates = logged(straight["history"], "learning_rate")
    assert rates[:3] == pytest.approx([0.0, 1e-3 / 3, 2e-3 / 3], rel=1e-4)
    assert rates[6] == pytest.approx(1e-3 * 6 / 12, rel=1e-4)
    resumed = run("b", resume_from=str(tmp_path / "a" / "checkpoint-5"), **settings)
    assert resumed["trainer"].state.global_step == 12
    assert logged(resumed["history"], "learning_rate") == pytest.approx(rates)
    ended = run("c", resume_from=str(tmp_path / "a" / "checkpoint-12"), **settings)
    assert not ended["rows"]
    assert ended["trainer"].state.max_steps == 12
    assert without_times(ended["history"]) == without_times(straight["history"])
    # It may be given more minutes.
    settings |= {"max_minutes": 0.25, "allow_changes": True}
    longer = run("d", resume_from=str(tmp_path / "a" / "checkpoint-12"), **settings)
    assert longer["trainer"].state.global_step == 15
    rates = logged(longer["history"], "learning_rate")
    assert rates[12:] == pytest.approx([3e-3 / 15, 2e-3 / 15, 1e-3 / 15], rel=1e-4)
    # Or steps.
    settings |= {"max_minutes": None, "max_steps": 14}
    by_steps = run("e", resume_from=str(tmp_path / "a" / "checkpoint-12"), **settings)
    assert by_steps["trainer"].state.global_step == 14


def test_what_a_gpu_compiles_in_its_first_step_does_not_move_the_schedule(run, clock, monkeypatch):
    """The warm-up of a short run would be over then."""

    class Compile(TrainerCallback):
        def on_step_begin(self, args, state, *_, **kwargs):
            if state.global_step == 0:
                clock[0] += 6.0

    def start_from(self, checkpoint):
        with monkeypatch.context() as patch:
            patch.setattr(type(self.args), "device", torch.device("cuda"))
            start_on_a_cpu(self, checkpoint)

    start_on_a_cpu = BertTrainer._start_from
    monkeypatch.setattr(BertTrainer, "_start_from", start_from)
    by_clock = {"max_minutes": 0.3, "max_steps": -1, "warmup_steps": 0.25}
    result = run("a", **by_clock, per_device_train_batch_size=8, callbacks=[Compile()])
    assert result["trainer"].state.global_step == 12  # of 18 seconds the first two took 8
    rates = logged(result["history"], "learning_rate")
    assert rates[:5] == pytest.approx([0.0, 0.0, 0.0, 0.4e-3, 0.8e-3], rel=1e-4)


class Momentum(TrainerCallback):
    """Keeps the momentum of Muon's matrices at each step."""

    def __init__(self):
        self.values = []

    def on_step_end(self, *args, optimizer, **kwargs):
        self.values.append(optimizer.param_groups[-1]["momentum"])


@pytest.mark.usefixtures("clock")
def test_masks_and_momentum_of_a_run_by_the_clock_follow_its_minutes_also_after_a_resume(
    run, tmp_path
):
    settings = {
        "objective": "mlm",
        "inputs": {"mlm_probability": 0.4, "mlm_probability_end": 0.1},
        "optimizer": "muon",
        "muon_momentum_warmup": 0.7,
        "max_minutes": 0.2,
        "max_steps": -1,
        "warmup_steps": 0.25,
        "per_device_train_batch_size": 8,
    }
    momentum = Momentum()
    straight = run("a", **settings, **SAVING | {"save_steps": 5}, callbacks=[momentum])
    # The masks of a step are drawn before its second, and its momentum is set after that.
    seconds = range(12)
    rates = [0.4 - 0.3 * second / 12 for second in seconds]
    assert predicted_shares(straight["rows"]) == pytest.approx(rates, abs=0.03)
    rising = [0.85 + 0.1 * (second + 1) / (0.7 * 12) for second in seconds]
    assert momentum.values == pytest.approx([min(value, 0.95) for value in rising])

    momentum_after_resume = Momentum()
    checkpoint = str(tmp_path / "a" / "checkpoint-5")
    resumed = run("b", **settings, resume_from=checkpoint, callbacks=[momentum_after_resume])
    assert resumed["rows"] == [row for row in straight["rows"] if row[0] >= 5]
    assert momentum_after_resume.values == momentum.values[5:]
    torch.testing.assert_close(resumed["weights"], straight["weights"], rtol=0, atol=0)


@pytest.mark.usefixtures("clock")
def test_a_schedule_of_stocks_follows_the_clock_too(run, tmp_path):
    by_clock = {"max_minutes": 0.2, "max_steps": -1, "warmup_steps": 0.25, "schedule": "trainer"}
    settings = by_clock | SAVING | {"save_steps": 5, "per_device_train_batch_size": 8}
    straight = run("a", **settings)
    rates = logged(straight["history"], "learning_rate")
    assert rates[:3] == pytest.approx([0.0, 1e-3 / 3, 2e-3 / 3], rel=1e-4)
    assert rates[6] == pytest.approx(1e-3 * 6 / 9, rel=1e-4)
    resumed = run("b", resume_from=str(tmp_path / "a" / "checkpoint-5"), **settings)
    assert logged(resumed["history"], "learning_rate") == pytest.approx(rates)


class SlowSaves(TrainerCallback):
    """Lets a checkpoint take two seconds, and keeps the clock of each step."""

    def __init__(self, clock):
        self.seconds = clock
        self.clocks = []

    def on_step_end(self, args, state, control, **kwargs):
        self.clocks.append(self.trainer.clock)

    def on_save(self, args, state, control, **kwargs):
        self.seconds[0] += 2.0


def test_the_clock_of_a_resumed_run_does_not_go_back(run, tmp_path, clock):
    """The last pause is taken to be as long as the longest one, those before the resume too."""
    by_clock = {"max_minutes": 0.2, "max_steps": -1, "warmup_steps": 0.25}
    settings = by_clock | SAVING | {"save_steps": 3, "per_device_train_batch_size": 8}
    straight = SlowSaves(clock)
    run("a", **settings, callbacks=[straight])
    assert straight.clocks[5] == pytest.approx(8 / (12 - 2))
    resumed = SlowSaves(clock)
    checkpoint = tmp_path / "a" / "checkpoint-6"
    run("b", resume_from=str(checkpoint), **settings, callbacks=[resumed])
    assert resumed.clocks[0] == pytest.approx(9 / (12 - 2))


@pytest.mark.slow
def test_two_processes_by_the_clock_end_with_the_same_step(small_store, tmp_path):
    settings = {"max_minutes": 0.1, "max_steps": -1, "warmup_steps": 0.1}
    run_in_two(small_store, tmp_path, **settings, save_strategy="steps", save_steps=1000)
    steps = [int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*")]
    state = read(tmp_path / f"checkpoint-{max(steps)}", "trainer_state.json")
    assert state["global_step"] == state["max_steps"] == max(steps)
    history, _ = read(tmp_path, "logs.json")
    assert logged(history, "learning_rate")[-1] < 1e-4  # of 1e-3


@pytest.mark.parametrize("optimizer", ["lamb", "muon"])
def test_what_needs_whole_tensors_is_refused_where_no_process_has_them(run, monkeypatch, optimizer):
    """tests/recipes/test_engines.py does it with a real engine; FSDP needs GPUs."""
    monkeypatch.setattr(BertTrainer, "engine", "FSDP")
    with pytest.raises(InputError, match=f"optimizer is {optimizer}; FSDP splits tensors"):
        run("run", optimizer=optimizer)


@pytest.fixture
def train_data(small_store):
    return load_data(DataArguments(store=str(small_store), max_seq_length=48), 12345).train


def test_epochs_are_counted_once_and_have_pairs_of_their_own(run, train_data):
    rows = run("run", max_steps=-1, num_train_epochs=1.5)["rows"]
    expected = (train_data.num_pairs(0) + train_data.num_pairs(1) // 2) // 16
    assert rows[-1][0] == expected - 1
    assert len(rows) == 16 * expected
    texts = [ids for _, ids, _, _ in rows]
    assert len(set(texts)) > 0.95 * len(texts)


SAVING = {"save_strategy": "steps", "save_steps": 2}


def test_a_checkpoint_that_lacks_what_this_version_writes_is_resumed(run, tmp_path):
    whole = run("whole", **SAVING, max_steps=4)
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    progress = read(checkpoint, "progress.json")
    assert progress.keys() >= NO_PROGRESS.keys()
    for name in NO_PROGRESS:
        if name != "last_logged_step":
            del progress[name]
    (checkpoint / "progress.json").write_text(json.dumps(progress))
    resumed = run("resumed", **SAVING, max_steps=4, resume_from=str(checkpoint))
    torch.testing.assert_close(resumed["weights"], whole["weights"], rtol=0, atol=0)


@pytest.fixture
def checkpoint(run, tmp_path):
    """Of step 2, the last one."""
    run("saved", **SAVING, max_steps=2)
    return tmp_path / "saved" / "checkpoint-2"


def test_another_precision_or_store_is_refused_unless_it_is_wanted(run, checkpoint, caplog):
    settings = {"resume_from": str(checkpoint), "precision": "bf16", "max_steps": 3}
    with pytest.raises(InputError, match=r"precision is bf16, .*checkpoint-2 was made with fp32"):
        run("refused", **settings)
    run("resumed", **settings, allow_changes=True)
    assert "the run is resumed with it, as allow_changes is true" in caplog.text


@pytest.mark.parametrize(
    ("optimizer", "schedule"), [("muon", "bert_linear"), ("trainer", "trainer")]
)
def test_another_rate_or_decay_that_is_wanted_is_that_of_the_coming_steps(
    run, tmp_path, optimizer, schedule
):
    settings = {"optimizer": optimizer, "schedule": schedule, "max_steps": 4}
    changes = {
        "learning_rate": 2e-3,
        "weight_decay": 0.1,
        "adam_beta1": 0.8,
        "adam_beta2": 0.95,
        "adam_epsilon": 1e-5,
    }
    if optimizer == "muon":
        changes |= {"muon_row_beta": 0.9, "muon_weight_decay": 0.05}
    run("before", **settings, **SAVING)
    checkpoint = str(tmp_path / "before" / "checkpoint-2")
    fresh = run("fresh", **settings, **changes)
    resumed = run("resumed", **settings, **changes, resume_from=checkpoint, allow_changes=True)
    rates = logged(fresh["history"], "learning_rate")
    assert logged(resumed["history"], "learning_rate")[2:] == pytest.approx(rates[2:])
    names = ("lr", "initial_lr", "betas", "eps", "momentum", "row_beta", "weight_decay")
    groups = fresh["trainer"].optimizer.param_groups
    for group, resumed_group in zip(groups, resumed["trainer"].optimizer.param_groups, strict=True):
        for name in names:
            assert resumed_group.get(name) == group.get(name), name


@pytest.mark.parametrize("schedule", ["trainer", "bert_linear"])
def test_groups_and_rates_of_a_subclass_are_kept_at_a_resume(run, tmp_path, monkeypatch, schedule):
    make_optimizer = RecordingTrainer.create_optimizer

    def with_a_slower_group(trainer, model=None):
        optimizer = make_optimizer(trainer, model)
        slower = optimizer.param_groups[-1]
        moved = {**slower, "params": [slower["params"].pop()], "lr": slower["lr"] / 10}
        optimizer.add_param_group(moved)
        return optimizer

    monkeypatch.setattr(RecordingTrainer, "create_optimizer", with_a_slower_group)
    settings = {"optimizer": "adamw", "schedule": schedule, "max_steps": 4}
    straight = run("straight", **settings, **SAVING)
    checkpoint = str(tmp_path / "straight" / "checkpoint-2")
    resumed = run("resumed", **settings, resume_from=checkpoint)
    torch.testing.assert_close(resumed["weights"], straight["weights"], rtol=0, atol=0)


def test_a_process_that_was_not_there_before_a_resume_has_dropout_of_its_own(run, checkpoint):
    """The state of its generator is in no file; with the seed it would begin as at step 0."""
    settings = {"resume_from": str(checkpoint), "max_steps": 3}
    same = run("same", **settings)["settings"]["seed"]
    (checkpoint / "rng_state.pth").rename(checkpoint / "rng_state_0.pth")
    seeds = [run(name, **settings)["settings"]["seed"] for name in ("other", "again")]
    assert seeds[0] == seeds[1] != same


def test_pairs_of_another_seed_are_counted_anew(run, checkpoint, train_data):
    """The numbers of pairs in a checkpoint are those of its seed."""
    progress = read(checkpoint, "progress.json")
    (counted,) = progress["pairs_of_epochs"].values()
    assert counted == {"index": train_data.index_name, "counts": [train_data.num_pairs(0)]}
    counted["counts"] = [10**6]
    (checkpoint / "progress.json").write_text(json.dumps(progress))
    settings = {"resume_from": str(checkpoint), "max_steps": 3}
    # With the same seed they are believed, and then the table is found to have other rows.
    with pytest.raises(IndexError, match=r"pair \d+ of epoch 0: it has \d+"):
        run("same", **settings)
    assert run("other", **settings, seed=7, allow_changes=True)["rows"]


def test_a_run_that_goes_on_has_the_intervals_that_it_is_given(run, tmp_path):
    run("run", **SAVING, logging_steps=2, max_steps=2)
    checkpoint = str(tmp_path / "run" / "checkpoint-2")
    intervals = {"save_strategy": "steps", "save_steps": 1, "logging_steps": 1, "eval_steps": 1}
    settings = {"eval_strategy": "steps", "max_steps": 4, "resume_from": checkpoint}
    history = run("run", **intervals, **settings, allow_changes=True)["history"]
    assert (tmp_path / "run" / "checkpoint-3").is_dir()
    assert [line["step"] for line in history if "grad_norm" in line] == [2, 3, 4]
    assert [line["step"] for line in history if "eval_loss" in line][:2] == [3, 4]


def test_a_run_that_goes_on_does_not_evaluate_at_its_start_again(run, tmp_path):
    evaluation = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 4}
    settings = {"max_steps": 4, "dropout": 0.1, **SAVING, **evaluation}
    straight = run("a", **settings)
    resumed = run("b", **settings, resume_from=str(tmp_path / "a" / "checkpoint-2"))
    assert [line["step"] for line in straight["history"] if "eval_loss" in line][:2] == [0, 4]
    assert without_times(straight["history"]) == without_times(resumed["history"])


def test_the_best_step_is_kept_though_it_lies_between_two_saves(run, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    best = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    done = run("run", **saving, **best, max_steps=4, learning_rate=1.0)
    state = done["trainer"].state
    losses = {line["step"]: line["eval_loss"] for line in state.log_history if "eval_loss" in line}
    assert state.best_global_step == 1
    assert Path(state.best_model_checkpoint) == tmp_path / "run" / "checkpoint-1"
    assert losses[1] < min(losses[2], losses[3])
    assert done["metrics"]["eval_loss"] == losses[1]
    # A run that begins in another folder knows the best of the first one.
    checkpoint = tmp_path / "run" / "checkpoint-4"
    other = run("other", **saving, **best, max_steps=5, resume_from=str(checkpoint))
    assert other["trainer"].state.best_model_checkpoint == str(tmp_path / "run" / "checkpoint-1")


def test_another_metric_of_the_best_step_is_not_compared_with_that_of_before_a_resume(
    run, tmp_path, caplog
):
    evaluation = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    run("run", **SAVING, **evaluation, max_steps=4)
    checkpoint = tmp_path / "run" / "checkpoint-2"
    accuracy = {"metric_for_best_model": "nsp_accuracy", "greater_is_better": True}
    settings = SAVING | evaluation | {"max_steps": 4, "resume_from": str(checkpoint)}
    state = run("loss", **settings)["trainer"].state
    assert "metric_for_best_model has changed" not in caplog.text
    assert state.best_metric > 1
    state = run("accuracy", **settings, **accuracy)["trainer"].state
    assert "metric_for_best_model has changed" in caplog.text
    assert state.best_global_step == 4
    assert state.best_metric == state.log_history[-1]["eval_nsp_accuracy"]
    # A checkpoint of an earlier version does not say by which metric it was chosen.
    progress = read(checkpoint, "progress.json")
    assert progress.pop("best_metric") == "lowest loss"
    (checkpoint / "progress.json").write_text(json.dumps(progress))
    assert run("earlier", **settings, **accuracy)["trainer"].state.best_global_step == 2


def test_a_learning_rate_that_follows_a_metric_follows_no_other_after_a_resume(run, tmp_path):
    plateau = {"schedule": "trainer", "lr_scheduler_type": "reduce_lr_on_plateau"}
    evaluation = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"}
    settings = SAVING | plateau | evaluation | {"max_steps": 2}
    run("run", **settings)
    accuracy = {"metric_for_best_model": "mlm_accuracy", "max_steps": 4}
    checkpoint = str(tmp_path / "run" / "checkpoint-2")
    with pytest.raises(InputError, match=r"the lowest loss of .*, not the highest mlm_accuracy"):
        run("other", **settings | accuracy, greater_is_better=True, resume_from=checkpoint)


@pytest.mark.usefixtures("clock")
def test_the_last_step_of_a_run_by_the_clock_is_measured_as_it_may_be_the_best(run):
    by_clock = {"max_minutes": 0.2, "max_steps": -1, "warmup_steps": 0.25}
    saving = {"save_strategy": "steps", "save_steps": 5, "per_device_train_batch_size": 8}
    best = {"eval_strategy": "steps", "eval_steps": 5, "load_best_model_at_end": True}
    history = run("a", **by_clock, **saving, **best)["history"]
    measured = [line["step"] for line in history if "eval_loss" in line]
    assert measured[:3] == [5, 10, 12]
    assert measured[3] == 12  # the best one, which is loaded


def test_the_checkpoint_of_the_last_step_stays_beside_the_best(run, tmp_path):
    """Stock deletes at its end whatever is not the best when one checkpoint is to be kept."""
    saving = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    best = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    done = run("run", **saving, **best, max_steps=3, learning_rate=1.0)
    kept = {path.name for path in (tmp_path / "run").glob("checkpoint-*")}
    best_checkpoint = Path(done["trainer"].state.best_model_checkpoint).name
    assert best_checkpoint != "checkpoint-3"
    assert kept == {best_checkpoint, "checkpoint-3"}
