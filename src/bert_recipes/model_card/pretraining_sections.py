"""The card of a pre-training run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from bert_recipes.arguments import DataArguments
from bert_recipes.evaluation import MEASURED_WITH
from bert_recipes.hub_access import is_hub_name
from bert_recipes.metrics.certainty import wilson_interval
from bert_recipes.model_card.facts import (
    MODEL,
    RESULTS,
    RUN,
    Fact,
    RunFiles,
    code,
    count,
    decimals,
    percent,
    size,
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
from bert_recipes.monitoring import STUCK_MARGIN_NATS
from bert_recipes.phases import has_second_phase, key_in_last_phase


def introduction(files: RunFiles) -> Lines:
    """One sentence."""
    kind, size, base = files.fact("class", MODEL, "architectures/0", code), parameters(files), base_model(files)
    how = "trained from new weights" if base is None else f"trained on from {base}"
    what = f" of {size} parameters" if size else ""
    return [f"A BERT ({kind}){what}, {how} by masked LM and next-sentence prediction."]


def data_section(files: RunFiles) -> Lines:
    """What it was trained on."""
    rows: list[tuple[Any, ...]] = [*given_texts(files)]
    rows.append(("SHA-256 of the store", files.fact("store's hash", RESULTS, "data/fingerprint", code)))
    rows += [(name, files.fact(name, RESULTS, f"data/settings/{key}", code)) for key, name in _READ_AS.items()]
    return section("Training data", facts_table(rows), _sources(files), _counts(files))


_READ_AS = {"document_boundary": "what ends a document", "sentences": "how sentences are found"}


def _sources(files: RunFiles) -> Lines:
    """Files, or data sets of the Hub, by split."""
    rows: list[tuple[Any, ...]] = []
    for place in ("data/sources", "data/instance_files"):
        for split in files.names(RESULTS, place):
            at = f"{place}/{split}"
            names = files.fact(f"sources of {split}", RESULTS, f"{at}/names")
            dataset = files.fact(f"data set of {split}", RESULTS, f"{at}/dataset", code)
            more = {
                "config": files.fact(f"configuration of {split}", RESULTS, f"{at}/config"),
                "split": files.fact(f"split of {split}", RESULTS, f"{at}/split"),
                "files": files.fact(f"files of {split}", RESULTS, f"{at}/files", count),
                "size": files.fact(f"size of {split}", RESULTS, f"{at}/bytes", size),
                "instances": files.fact(f"instances of {split}", RESULTS, f"{at}/instances", count),
                "fingerprint": files.fact(f"fingerprint of {split}", RESULTS, f"{at}/fingerprint", code),
            }
            details = "; ".join(f"{name}: {fact}" for name, fact in more.items() if fact is not None)
            rows.append((split, dataset or names, details))
    return table(("split", "from", ""), rows)


def _counts(files: RunFiles) -> Lines:
    """Documents, sentences and tokens by split, and what was left out."""
    rows = [
        (
            split,
            *[
                files.fact(f"{name} of {split}", RESULTS, f"data/splits/{split}/{name}", count)
                for name in ("documents", "sentences", "tokens")
            ],
        )
        for split in files.names(RESULTS, "data/splits")
    ]
    dropped = [
        (
            split,
            reason.replace("_", " "),
            files.fact(f"left out of {split}: {reason}", RESULTS, f"{at}/{reason}", count),
        )
        for split in files.names(RESULTS, "data/dropped")
        for at in [f"data/dropped/{split}"]
        for reason in files.names(RESULTS, at)
    ]
    lines = table(("split", "documents", "sentences", "tokens"), rows)
    left_out = table(("split", "left out because of", "number"), dropped)
    return [*lines, *([""] if lines and left_out else []), *left_out]


def training_section(files: RunFiles) -> Lines:
    """Hyperparameters and the command."""
    names = {"max_seq_length": "tokens of a pair, at most"}
    if has_second_phase(files.value(RUN, "")):
        names = {
            "max_seq_length": "tokens of a pair, at most, in the first phase",
            "phase2_steps": "steps of the second phase",
            "phase2_max_seq_length": "tokens of a pair, at most, in the second phase",
            "phase2_global_train_batch_size": "examples a step of the second phase",
            "phase2_learning_rate": "peak learning rate of the second phase",
            "phase2_warmup_steps": "warm-up steps of the second phase, or their share",
        }
    names |= {
        "mlm_probability": "share of the tokens that is predicted",
        "mask_rate": "of these: replaced by [MASK]",
        "keep_rate": "of these: left as they are",
        "random_rate": "of these: replaced by a random piece",
        "whole_word": "whole words are masked",
        "short_seq_prob": "share of documents with a shorter target length",
    }
    command = command_again(files, "pretrain", *_sources_again(files))
    return how_it_was_trained(files, names, command)


def _sources_again(files: RunFiles) -> list[str]:
    """What the run reads, in capitals where run.yaml has a path of the machine."""
    words = ["--train_file TRAIN"] if files.value(RUN, "train_file") else ["--store STORE"]
    if files.value(RUN, "validation_file"):
        words.append("--validation_file VALIDATION")
    tokenizer = files.value(RUN, "tokenizer")
    if tokenizer is not None and (Path(tokenizer).exists() or not is_hub_name(tokenizer)):
        words.append("--tokenizer TOKENIZER")
    if files.value(RUN, "model_name_or_path") is not None and files.value(RESULTS, "base_model/is_local") is not False:
        words.append("--model_name_or_path BASE")
    return words


_NEXT_SENTENCE = [(RESULTS, "eval_nsp_accuracy"), (RESULTS, "eval_pairs")]


def results_section(files: RunFiles) -> Lines:
    """Figures on held-out documents, beside those that need no model."""

    def figure(name: str, key: str, show: Any) -> Fact | None:
        return files.fact(name, RESULTS, f"eval_{key}", show)

    three, one = decimals(3), decimals(1)
    rows = [
        (
            "masked-LM loss, nats",
            figure("masked-LM loss", "mlm_loss", three),
            figure("unigram", "unigram_loss", three),
        ),
        ("masked-LM perplexity", figure("masked-LM perplexity", "perplexity", one), ""),
        (
            "masked-LM accuracy",
            figure("masked-LM accuracy", "mlm_accuracy", percent),
            figure("most frequent piece", "unigram_accuracy", percent),
        ),
        ("next-sentence loss, nats", figure("next-sentence loss", "nsp_loss", three), ""),
        (
            "next-sentence accuracy",
            figure("next-sentence accuracy", "nsp_accuracy", percent),
            figure("larger class", "majority_accuracy", percent),
        ),
        ("95% interval of that accuracy", files.derived("next-sentence interval", _NEXT_SENTENCE, _interval), ""),
        ("pairs measured", figure("held-out pairs", "pairs", count), ""),
        ("masked tokens measured", figure("held-out masked tokens", "masked_tokens", count), ""),
    ]
    shown = [(name, fact, "" if beside is None else beside) for name, fact, beside in rows]
    lines = table(("held-out documents", "model", "without a model"), shown)
    if not lines:
        return []
    words = (
        "Without a model: guessing by word frequency alone, always the most frequent piece, and always the larger class. "
        "The command that measures them:"
    )
    return section("Results", lines, [words], block_of_code("bash", evaluation_command(files)))


def evaluation_command(files: RunFiles) -> str:
    """What gives the figures of the card anew; MODEL and STORE stand for this folder and for its data."""
    words = ["python recipes/evaluate_checkpoint.py --model_name_or_path MODEL"]
    if files.value(RUN, "train_file"):
        words.append("--train_file TRAIN --validation_file VALIDATION --tokenizer MODEL")
    else:
        words.append("--store STORE")
    defaults = {item.name: item.default for item in dataclasses.fields(DataArguments)}
    for name in MEASURED_WITH:
        last = key_in_last_phase(files.value(RUN, ""), name)
        value = files.value(RUN, last)
        if value is not None and not _is_same(value, defaults[name]):
            fact = files.fact(f"measured with {name}", RUN, last, str)
            words.append(f"--{name} {fact}")
    return " ".join(words)


def _is_same(text: str, default: Any) -> bool:
    """Whether a value of run.yaml is a field's default."""
    if isinstance(default, bool) or not isinstance(default, int | float):
        return text.lower() == str(default).lower()
    return float(text) == default


def limits(files: RunFiles) -> Lines:
    """What is known not to be there."""
    length = key_in_last_phase(files.value(RUN, ""), "max_seq_length")
    longest, positions = (
        files.fact("longest input", RUN, length, count),
        files.fact("positions", MODEL, "max_position_embeddings", count),
    )
    pairs = files.fact("held-out pairs", RESULTS, "eval_pairs", count)
    return bullets(
        f"It was trained on inputs of up to {longest} tokens; it has {positions} positions."
        if longest and positions
        else None,
        f"It was measured on {pairs} pairs of held-out documents, and on nothing else." if pairs else None,
        undefined_figures(files),
        lower_case(files),
        _hardly_learned(files),
        _no_better_than_majority(files),
    )


def _hardly_learned(files: RunFiles) -> str | None:
    def words(loss: float, unigram: float) -> str | None:
        if loss - unigram > STUCK_MARGIN_NATS:
            return "Its masked-LM loss is above that of word frequencies alone: it is worse than no model."
        said = "Its masked-LM loss is about that of word frequencies alone: nothing shows that it has learned more."
        return said if unigram - loss <= STUCK_MARGIN_NATS else None

    fact = files.derived("hardly learned", [(RESULTS, "eval_mlm_loss"), (RESULTS, "eval_unigram_loss")], words)
    return None if fact is None else str(fact)


def _interval(accuracy: float, pairs: float) -> str:
    return " to ".join(map(percent, wilson_interval(accuracy, pairs)))


def _no_better_than_majority(files: RunFiles) -> str | None:
    words = "Nothing shows that it tells next sentences from random ones better than always guessing the larger class."
    fact = files.derived(
        "no better than the larger class",
        [*_NEXT_SENTENCE, (RESULTS, "eval_majority_accuracy")],
        lambda accuracy, pairs, majority: words if wilson_interval(accuracy, pairs)[0] <= majority else None,
    )
    return None if fact is None else str(fact)
