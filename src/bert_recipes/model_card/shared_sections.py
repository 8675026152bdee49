"""The sections that the cards of pre-training and of fine-tuning have in common."""

from __future__ import annotations

from typing import Any

from bert_recipes.model_card.energy_section import energy_lines, hours_are_whole
from bert_recipes.model_card.facts import (
    FOLDER,
    GIVEN,
    MODEL,
    RESULTS,
    RUN,
    TOKENIZER,
    VOCABULARY,
    Fact,
    RunFiles,
    Show,
    code,
    count,
    decimals,
    hours,
    size,
)
from bert_recipes.model_card.layout import Lines, block_of_code, facts_table, section
from bert_recipes.run_origin import WEIGHTS_FILE


def title(files: RunFiles) -> Fact:
    """The model's name: given, that of its repository, or of its folder."""
    found = (
        files.fact("name", GIVEN, "name")
        or (files.repository and files.fact("name", *files.repository, lambda repo_id: repo_id.rpartition("/")[2]))
        or files.fact("name", FOLDER, "name")
    )
    assert found is not None  # a folder has a name
    return found


def parameters(files: RunFiles) -> Fact | None:
    """Number of parameters in the file of weights."""
    return files.fact("parameters", WEIGHTS_FILE, "parameters", count)


def base_model(files: RunFiles) -> str | None:
    """The checkpoint that the run began with, in words; None where it began anew."""
    name = files.fact("base model", RESULTS, "base_model/name", code)
    if name is None:
        return None
    known = [
        (files.fact("base model's weights", RESULTS, "base_model/sha256", code), "SHA-256 of its weights"),
        (files.fact("base model's revision", RESULTS, "base_model/revision", code), "revision"),
    ]
    details = [f"{what} {fact}" for fact, what in known if fact is not None]
    return f"{name} ({', '.join(details)})" if details else str(name)


def tokenizer_section(files: RunFiles) -> Lines:
    """Vocabulary and rules."""
    rows = [
        ("pieces in the vocabulary", files.fact("vocabulary", VOCABULARY, "lines", count)),
        ("lower-cases", files.fact("lower-casing", TOKENIZER, "do_lower_case")),
        ("drops accents", files.fact("accents", TOKENIZER, "strip_accents")),
        (f"SHA-256 of `{VOCABULARY}`", files.fact("vocabulary's hash", VOCABULARY, "sha256", code)),
    ]
    return section("Tokenizer", facts_table([("kind", "WordPiece"), *rows]) if any(row[1] for row in rows) else [])


def model_section(files: RunFiles) -> Lines:
    """Sizes."""
    names = {
        "num_hidden_layers": "layers",
        "hidden_size": "hidden size",
        "num_attention_heads": "attention heads",
        "intermediate_size": "feed-forward size",
        "max_position_embeddings": "positions",
        "vocab_size": "rows of the embedding",
        "hidden_act": "activation",
    }
    rows = [(shown, files.fact(shown, MODEL, key)) for key, shown in names.items()]
    weights: list[tuple[str, str, Show | None]] = [
        ("parameters", "parameters", count),
        ("numbers stored as", "types", None),
        (f"size of `{WEIGHTS_FILE}`", "bytes", size),
        (f"SHA-256 of `{WEIGHTS_FILE}`", "sha256", code),
    ]
    rows += [(shown, files.fact(shown, WEIGHTS_FILE, key, show)) for shown, key, show in weights]
    kind = files.fact("class", MODEL, "architectures/0", code)
    return section("Model", facts_table([("class in transformers", kind), *rows]))


def settings_rows(files: RunFiles, names: dict[str, str]) -> list[tuple[str, Fact | None]]:
    """Rows of run.yaml, values as they stand there.

    Args:
        files: Of the run.
        names: Setting -> what it is called.
    """
    return [(shown, files.fact(shown, RUN, key)) for key, shown in names.items()]


def optimizer_rows(files: RunFiles) -> list[tuple[str, Fact | None]]:
    """Batch, optimiser and schedule."""
    batch = files.fact("examples a step", RUN, "global_train_batch_size", count)
    if batch is None:
        parts = [(RUN, "per_device_train_batch_size"), (RUN, "gradient_accumulation_steps"), (RESULTS, "processes")]
        batch = files.derived(
            "examples a step", parts, lambda micro, times, world: count(int(micro) * int(times) * world)
        )
    names = {
        "optimizer": "optimiser",
        "learning_rate": "peak learning rate",
        "warmup_steps": "warm-up steps, or their share",
        "schedule": "schedule",
        "adam_beta1": "Adam's first beta",
        "adam_beta2": "Adam's second beta",
        "adam_epsilon": "Adam's epsilon",
        "weight_decay": "weight decay",
        "max_grad_norm": "gradient's norm clipped at",
    }
    if files.value(RUN, "optimizer") == "trainer":
        names["optim"] = "optimiser of the Trainer"
    if files.value(RUN, "schedule") == "trainer":
        names["lr_scheduler_type"] = "schedule of the Trainer"
    return [
        ("optimiser steps", files.fact("steps", RESULTS, "train_steps", count)),
        ("passes over the data", _epochs(files)),
        ("examples a step", batch),
        *settings_rows(files, names),
        ("dropout", files.fact("dropout", MODEL, "hidden_dropout_prob")),
        ("precision", files.fact("precision", RESULTS, "precision")),
        ("seed", files.fact("seed", RUN, "seed")),
        ("steps skipped for a gradient that was not finite", files.fact("skipped", RESULTS, "skipped_steps", count)),
    ]


def how_it_was_trained(files: RunFiles, names: dict[str, str], command: str) -> Lines:
    """The section of the training.

    Args:
        files: Of the run.
        names: Setting of this kind of run -> what it is called.
        command: Runs it again.
    """
    return section(
        "Training",
        facts_table([*optimizer_rows(files), *settings_rows(files, names)]),
        ["Every setting is in `run.yaml`, every logged figure in `trainer_state.json`. The same run again:"],
        block_of_code("bash", command),
    )


def command_again(files: RunFiles, recipe: str, *words: str) -> str:
    """Trains the run again, in a folder of its own, and pushes it nowhere.

    Args:
        files: Of the run.
        recipe: Name of the script.
        words: What is said anew of run.yaml, as it holds for one machine only; an empty one is left out.
    """
    push = "--push_to_hub false" if files.value(RUN, "push_to_hub") == "true" else ""
    command = [f"python recipes/{recipe}.py --config MODEL/run.yaml", *words, "--output_dir NEW_FOLDER", push]
    return " ".join(word for word in command if word)


def _epochs(files: RunFiles) -> Fact | None:
    """As they were counted, or asked for in the place of steps."""
    counted = files.fact("epochs", RESULTS, "epoch", decimals(2))
    if counted is None and files.value(RUN, "max_steps") == "-1":
        return files.fact("epochs", RUN, "num_train_epochs", decimals(2))
    return counted


def compute_section(files: RunFiles) -> Lines:
    """Hardware, hours, energy."""
    gpu = files.fact("GPU", RESULTS, "machine/gpu")
    rows: list[tuple[str, Any]] = [
        ("GPU of a process", gpu),
        ("processor", files.fact("processor", RESULTS, "machine/processor")),
        ("cores", files.fact("cores", RESULTS, "machine/cores")),
        ("processes", files.fact("processes", RESULTS, "processes")),
        (_hours_name(files), files.fact("hours", RESULTS, "train_seconds", hours)),
        ("real tokens a second, median", files.fact("tokens a second", RESULTS, "tokens_per_second", count)),
        ("largest memory of a process, MB", files.fact("memory", RESULTS, "peak_memory_mb", count)),
        *[
            (f"version of {name}", files.fact(f"{name}'s version", RESULTS, f"machine/{name}"))
            for name in ("python", "torch", "transformers")
        ],
        ("date of the end", files.fact("date", RESULTS, "date")),
    ]
    return section("Hardware and hours", facts_table(rows), energy_lines(files))


def _hours_name(files: RunFiles) -> str:
    part = "" if hours_are_whole(files) else ", without parts of the run whose hours are not known"
    return f"hours of training, evaluations in between included{part}"


def given_texts(files: RunFiles) -> list[tuple[str, Fact | None]]:
    """What the user says of the data."""
    return [
        ("what it is", files.fact("data in words", GIVEN, "data_description")),
        ("licence of the data", files.fact("licence of the data", GIVEN, "data_license")),
    ]


def undefined_figures(files: RunFiles) -> str | None:
    """Said where figures are no numbers."""
    names = [
        key.removeprefix("eval_").replace("_", " ") for key, value in files.value(RESULTS, "").items() if value is None
    ]
    return f"Not defined, as its outputs are not finite or all alike: {', '.join(names)}." if names else None


def lower_case(files: RunFiles) -> str | None:
    """Said of a tokenizer that does so."""
    words = "Its tokenizer makes all letters small: it cannot tell a name from a word by its capital."
    fact = files.fact("no capitals", TOKENIZER, "do_lower_case", lambda value: words if value is True else None)
    return None if fact is None else str(fact)
