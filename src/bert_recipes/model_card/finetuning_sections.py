"""The card of a fine-tuning run."""

from __future__ import annotations

from typing import Any

from bert_recipes.model_card.facts import (
    GIVEN,
    MODEL,
    RESULTS,
    RUN,
    TASK,
    RunFiles,
    as_it_is,
    code,
    count,
    short_hash,
)
from bert_recipes.model_card.layout import Lines, block_of_code, bullets, facts_table, section, table
from bert_recipes.model_card.shared_sections import (
    base_model,
    command_again,
    given_texts,
    how_it_was_trained,
    lower_case,
    parameters,
    undefined_figures,
)
from bert_recipes.reports.figures import is_no_better
from bert_recipes.tasks.figures import split_suffixes, with_suffix


# load_best_model_at_end -> what it means for the figures.
_CHOSEN = {
    "true": "Its checkpoint was chosen by a figure on the split that it is measured on: on other data expect less."
}
# Figures of how long things took: they are no result.
_NO_RESULTS = ("seconds", "runtime", "samples_per_second", "steps_per_second")


def introduction(files: RunFiles) -> Lines:
    """One sentence."""
    kind, size, base = files.fact("class", MODEL, "architectures/0", code), parameters(files), base_model(files)
    task, what = files.fact("task", TASK, "name", code), f" of {size} parameters" if size else ""
    start = f", fine-tuned from {base}" if base else ", fine-tuned"
    return [f"A BERT ({kind}){what}{start} on the task {task}."]


def splits(files: RunFiles) -> list[str]:
    """The validation splits of the task."""
    found = files.value(TASK, "validation_splits")
    return [found] if isinstance(found, str) else list(found or ())


def data_section(files: RunFiles) -> Lines:
    """The task, and the examples of each split."""
    rows: list[tuple[Any, ...]] = [
        ("kind of task", files.fact("kind", TASK, "kind", lambda kind: kind.replace("_", " "))),
        ("labels", files.fact("labels", TASK, "labels", _labels)),
        ("data set on the Hub", files.fact("data set", TASK, "hub_dataset", code) if from_hub(files) else None),
        ("its configuration", files.fact("configuration", TASK, "hub_subset", code) if from_hub(files) else None),
        ("source", files.fact("source", TASK, "source")),
        *given_texts(files),
    ]
    if files.value(GIVEN, "data_license") is None:
        rows.append(("licence, as its owner states it", files.fact("licence of the data", TASK, "licence")))
    counts = []
    for split in files.names(RESULTS, "splits"):
        at = f"splits/{split}"
        published = files.fact(f"published rows of {split}", RESULTS, f"{at}/published", count)
        counts.append(
            (
                split,
                files.fact(f"examples of {split}", RESULTS, f"{at}/examples", count),
                published or "",
                files.fact(f"source of {split}", RESULTS, f"{at}/source", code),
                files.fact(f"hash of {split}", RESULTS, f"{at}/sha256", short_hash),
            )
        )
    heads = ("split", "examples", "as published", "read from", "SHA-256 of the examples begins with")
    return section("Training data", facts_table(rows), table(heads, counts))


def from_hub(files: RunFiles) -> bool:
    """Whether the examples were read from the task's data set on the Hub."""
    sources = [str(files.value(RESULTS, f"splits/{split}/source")) for split in files.names(RESULTS, "splits")]
    return bool(sources) and all(source.startswith("Hub data set ") for source in sources)


def _labels(labels: Any) -> str | None:
    """Names; of a mapping of what stands in the files to names, each name once."""
    return as_it_is(list(dict.fromkeys(labels.values())) if isinstance(labels, dict) else labels)


def training_section(files: RunFiles) -> Lines:
    """Hyperparameters and the command."""
    names = {"max_seq_length": "positions of an input, at most", "freeze_encoder": "the encoder is frozen"}
    if files.value(TASK, "kind") == "question_answering":
        names |= {
            "doc_stride": "step between windows of a paragraph",
            "max_query_length": "pieces of a question, at most",
        }
    task = "--task_file MODEL/task.yaml" if files.value(RUN, "task_file") else ""
    command = command_again(files, "finetune", task, "--model_name_or_path BASE", _data(files))
    return how_it_was_trained(files, names, command)


def _data(files: RunFiles) -> str:
    return "" if from_hub(files) else "--data_dir DATA"


def figures(files: RunFiles) -> list[tuple[str, str, str]]:
    """(split, figure, key in all_results.json) of every result, in their order."""
    names = splits(files)
    found = []
    for key in files.names(RESULTS, ""):
        name = key.removeprefix("eval_")
        if key == name or name in _NO_RESULTS or not isinstance(files.value(RESULTS, key), int | float):
            continue
        # The split without a suffix last: every name would fit it.
        for suffix, split in sorted(zip(split_suffixes(names), names, strict=True), key=lambda pair: -len(pair[0])):
            if not suffix or name.startswith(with_suffix(suffix, "")):
                found.append((split, name.removeprefix(with_suffix(suffix, "")) if suffix else name, key))
                break
    return found


def results_section(files: RunFiles) -> Lines:
    """Every figure of every validation split."""
    rows = [
        (
            split,
            figure.replace("_", " "),
            files.fact(f"{figure} on {split}", RESULTS, key, four_digits),
            files.derived("interval", _ends(key), lambda low, high: f"{low:.4f} to {high:.4f}") or "",
            files.fact(f"constant answer for {key}", RESULTS, f"baselines/{key[5:]}", four_digits) or "",
        )
        for split, figure, key in figures(files)
    ]
    lines = table(("split", "figure", "value", "95% interval", "constant answer"), rows)
    if not lines:
        return []
    words = [
        "Interval: of the rows that were measured; another seed is not in it. Constant answer: what one and the same",
        "answer to every row gets. The command that measures them:",
    ]
    return section("Results", lines, words, block_of_code("bash", evaluation_command(files)))


def _ends(key: str) -> list[tuple[str, str]]:
    """The two numbers of an interval."""
    return [(RESULTS, f"intervals/{key.removeprefix('eval_')}/{end}") for end in (0, 1)]


def _no_better(files: RunFiles) -> str | None:
    """Said where the figure by which the task is judged is not above the constant answer."""
    name = str(files.value(TASK, "best_metric"))
    words = f"Nothing shows that it does better than one constant answer: see the {name.replace('_', ' ')} above."
    return words if is_no_better(files.value(RESULTS, ""), name) else None


def four_digits(value: Any) -> str:
    """A figure: a count as it is."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def evaluation_command(files: RunFiles) -> str:
    """What gives the figures of the card anew; MODEL and DATA stand for this folder and for its data."""
    own = files.value(RUN, "task_file") is not None
    task = "--task_file MODEL/task.yaml" if own else f"--task {files.fact('task', TASK, 'name')}"
    words = ["python recipes/evaluate_checkpoint.py --model_name_or_path MODEL", task, _data(files)]
    limit = files.fact("examples measured, at most", RUN, "max_eval_examples", str)
    return " ".join(word for word in [*words, f"--max_eval_examples {limit}" if limit else ""] if word)


def limits(files: RunFiles) -> Lines:
    """What is known not to be there."""
    longest = files.fact("longest input", RUN, "max_seq_length", count)
    base = files.fact("base model", RESULTS, "base_model/name", code)
    partial = [
        files.fact(
            f"{split} is a part",
            RESULTS,
            f"splits/{split}/partial",
            lambda value, split=split: split if value else None,
        )
        for split in files.names(RESULTS, "splits")
    ]
    parts = ", ".join(str(fact) for fact in partial if fact is not None)
    chosen = files.fact("how the checkpoint was chosen", RUN, "load_best_model_at_end", _CHOSEN.get)
    kind = files.value(TASK, "kind")
    windows = {"question_answering": "Longer paragraphs are", "token_classification": "Longer texts are"}
    cut = f"{windows[kind]} read in windows" if kind in windows else "What is longer was cut"
    measured = ", ".join(splits(files))
    return bullets(
        f"It was trained on inputs of up to {longest} positions. {cut}." if longest else None,
        f"It was measured on the split {measured} of this task, and on nothing else." if figures(files) else None,
        f"Not all rows were read, or other ones than published: {parts}." if parts else None,
        str(chosen) if chosen else None,
        _no_better(files),
        undefined_figures(files),
        lower_case(files),
        f"What {base} has learned of its text, its biases included, this model may have too." if base else None,
    )
