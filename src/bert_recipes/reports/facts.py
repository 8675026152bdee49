"""From a finished run to one dict of facts: gathered while model and data are at hand, kept in
report.json, read back.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from transformers import BertTokenizer, PreTrainedTokenizerBase

from bert_recipes.checkpointing import STATE_FILE, TASK_FILE
from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.data.order import EpochShuffle, epoch_order
from bert_recipes.errors import InputError
from bert_recipes.files import read_json_object, strict, write_json
from bert_recipes.finetuning.run import FineTuningRun
from bert_recipes.metrics.entities import EntityCounts, count_entities, total_counts
from bert_recipes.metrics.squad import squad_scores, squad_v2_scores
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.tasks.examples import QuestionExample, TextExample, list_texts
from bert_recipes.tasks.task import Task
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.training.bert_trainer import (
    EVALUATION_SEED,
    BertTrainer,
    EvaluationSampler,
    TrainingPhase,
    epoched,
)
from bert_recipes.training.callbacks import describe_discriminator, describe_progress
from bert_recipes.training.pretraining import PreTrainingData
from bert_recipes.training.resume import CONFIG_FILE, FACTS_FILE, RESULTS_FILE, run_name
from bert_recipes.yaml_files import read_tree


Facts = dict[str, Any]

# Scores and calibration

NUM_BINS = 15  # Guo et al. 2017, Table 1
NUM_WORST = 12
# A matrix of more classes is not looked at but searched: then the most frequent mistakes are
# listed.
MOST_CLASSES = 25
NUM_MISTAKES = 20


def calibration(probabilities: ArrayLike, outcomes: ArrayLike, num_bins: int = NUM_BINS) -> Facts:
    """Bins of predictions (float (N,), 0 to 1; bool (N,), right or not), and the expected
    calibration error.

    Bin m holds those in ((m - 1) / num_bins, m / num_bins].
    Source: Naeini et al. 2015; Guo et al. 2017, "On Calibration of Modern Neural Networks", section
    2.
    """
    given, right = np.asarray(probabilities, dtype=np.float64), np.asarray(outcomes, dtype=bool)
    numbers = np.clip(np.ceil(given * num_bins).astype(np.int64) - 1, 0, num_bins - 1)
    columns = [np.bincount(numbers, weights, num_bins).tolist() for weights in (None, given, right)]
    bins = []
    for number, (count, total, hits) in enumerate(zip(*columns, strict=True)):
        low, high = number / num_bins, (number + 1) / num_bins
        confidence, accuracy = (total / count, hits / count) if count else ((low + high) / 2, 0.0)
        bins.append(
            {
                "low": low,
                "high": high,
                "count": count,
                "confidence": confidence,
                "accuracy": accuracy,
            }
        )
    error = sum(each["count"] * abs(each["accuracy"] - each["confidence"]) for each in bins) / len(
        given
    )
    return {"bins": bins, "expected_calibration_error": error}


def class_facts(names: Sequence[str], gold: Sequence[int], predicted: Sequence[int]) -> Facts:
    """Scores of each class, and the confusion matrix (rows: right, columns: predicted) or, of many
    classes, the most frequent mistakes.
    """
    pairs, columns, rows = (
        Counter(zip(gold, predicted, strict=True)),
        Counter(predicted),
        Counter(gold),
    )
    numbers = range(len(names))
    scores = [_score(EntityCounts(pairs[n, n], columns[n], rows[n])) for n in numbers]
    facts: Facts = {"labels": list(names), "classes": scores}
    if len(names) <= MOST_CLASSES:
        return facts | {"confusion": [[pairs[a, b] for b in numbers] for a in numbers]}
    wrong = sorted((-count, a, b) for (a, b), count in pairs.items() if a != b)[:NUM_MISTAKES]
    return facts | {"mistakes": [[names[a], names[b], -count] for count, a, b in wrong]}


def _score(counts: EntityCounts) -> Facts:
    ratios = {"precision": counts.precision, "recall": counts.recall, "f1": counts.f1}
    return {**ratios, "support": counts.gold, "predicted": counts.predicted}


def _worst(rows: Iterable[int], badness: Any) -> list[int]:
    return sorted(rows, key=lambda row: -badness[row])[:NUM_WORST]


def clip(text: str, longest: int = 500) -> str:
    """Make a text one line; keep the complete words at the beginning of a longer one."""
    one_line = " ".join(text.split())
    if len(one_line) <= longest:
        return one_line
    end = one_line.rfind(" ", longest // 2, longest + 1)
    return f"{one_line[: longest if end < 0 else end]} ..."


# Predictions by the form of the task: (task, labelled examples, their predictions) -> JSON values


def _texts(task: Task, example: TextExample) -> list[list[str]]:
    """[name of the column, text] of an example's texts; a single text has no name."""
    if example.text_pair is None:
        return [["", clip(example.text)]]
    first, second, *_ = [*task.text_columns, "text", "text"]
    return [[first, clip(example.text)], [second, clip(example.text_pair)]]


def _classes(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Of choices the classes are their positions."""
    is_choice = task.kind == "multiple_choice"
    names = list(task.labels)
    if is_choice:
        names = [
            str(number + 1) for number in range(max(len(example.choices) for example in examples))
        ]
    gold = [int(example.label) for example in examples]
    predicted = [int(each.value) if is_choice else names.index(each.value) for each in predictions]
    probabilities = [float(each.probabilities[each.value]) for each in predictions]
    hits = [a == b for a, b in zip(gold, predicted, strict=True)]
    worst = []
    for row in _worst((row for row, hit in enumerate(hits) if not hit), probabilities):
        example, numbers = examples[row], (predicted[row], gold[row])
        texts = [["context", clip(example.context)]] if is_choice else _texts(task, example)
        said, truth = (
            clip(example.choices[number]) if is_choice else names[number] for number in numbers
        )
        worst.append(
            {"texts": texts, "said": said, "truth": truth, "probability": probabilities[row]}
        )
    return {
        **class_facts(names, gold, predicted),
        "calibration": calibration(probabilities, hits),
        "worst": worst,
    }


def _multi_label(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Every label of every text is a decision."""
    probabilities = np.array(
        [[float(each.probabilities[name]) for name in task.labels] for each in predictions]
    )
    gold = np.array(
        [[number in example.label for number in range(len(task.labels))] for example in examples]
    )
    predicted = probabilities >= 0.5
    distances = np.abs(probabilities - gold)

    def names(chosen: np.ndarray) -> str:
        return ", ".join(task.labels[number] for number in np.flatnonzero(chosen)) or "none"

    worst = []
    for row in _worst(
        np.flatnonzero((predicted != gold).any(axis=1)).tolist(), distances.max(axis=1)
    ):
        number = int(distances[row].argmax())
        error = {
            "texts": _texts(task, examples[row]),
            "said": names(predicted[row]),
            "truth": names(gold[row]),
        }
        worst.append(
            {
                **error,
                "about": task.labels[number],
                "probability": float(probabilities[row, number]),
            }
        )
    counts = zip(
        *(each.sum(axis=0).tolist() for each in (predicted & gold, predicted, gold)), strict=True
    )
    return {
        "labels": list(task.labels),
        "classes": [_score(EntityCounts(*numbers)) for numbers in counts],
        "calibration": calibration(probabilities.ravel(), gold.ravel()),
        "worst": worst,
    }


MOST_DOTS = 1500


def _regression(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    gold = np.array([float(example.label) for example in examples])
    predicted = np.array([float(prediction.value) for prediction in predictions])
    errors = np.abs(predicted - gold)
    chosen = _evenly(len(gold), MOST_DOTS)
    worst = []
    for row in _worst(range(len(gold)), errors):
        numbers = {"said": f"{predicted[row]:.3f}", "truth": f"{gold[row]:.3f}"}
        worst.append({"texts": _texts(task, examples[row]), **numbers})
    return {
        "dots": [gold[chosen].tolist(), predicted[chosen].tolist()],
        "mean_absolute_error": float(errors.mean()),
        "root_mean_squared_error": float(np.sqrt((errors**2).mean())),
        "error_of_the_mean": float(np.abs(gold - gold.mean()).mean()),
        "worst": worst,
    }


CONTEXT_LETTERS = 220  # of a paragraph around an answer
NUM_BARS = 10


def _answers(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """A prediction's probability is its fraction among the best answers."""
    may_be_none = "squad_v2" in task.metrics
    hits, f1 = [], []
    for example, prediction in zip(examples, predictions, strict=True):
        gold = {example.idx: [answer.text for answer in example.answers or ()]}
        predicted = {example.idx: str(prediction.value)}
        values = squad_v2_scores(gold, predicted) if may_be_none else squad_scores(gold, predicted)
        hits.append(values["exact" if may_be_none else "exact_match"] == 100)
        f1.append(values["f1"] / 100)
    probabilities = [float(prediction.probabilities) for prediction in predictions]
    bars = Counter(min(int(value * NUM_BARS), NUM_BARS - 1) for value in f1)
    wrong = _worst((row for row, value in enumerate(f1) if value == 0), probabilities)
    facts: Facts = {
        "f1_counts": [bars[number] for number in range(NUM_BARS)],
        "calibration": calibration(probabilities, hits),
        "worst": [
            _answer_error(examples[row], str(predictions[row].value), probabilities[row])
            for row in wrong
        ],
    }
    if may_be_none:
        truths, said = (
            [int(not each.answers) for each in examples],
            [int(each.value == "") for each in predictions],
        )
        facts |= class_facts(["has an answer", "no answer"], truths, said)
    return facts


def _answer_error(example: QuestionExample, predicted: str, probability: float) -> Facts:
    """A wrong answer, with the paragraph around the right one."""
    answers, context = example.answers or (), example.context
    if answers:
        start, end = answers[0].answer_start, answers[0].answer_start + len(answers[0].text)
    else:
        start = end = max(context.find(predicted), 0) if predicted else 0
    # Complete words: from the first space on, up to the last one; a paragraph without any is cut
    # where it falls.
    first, last = max(start - CONTEXT_LETTERS, 0), end + CONTEXT_LETTERS
    first = max(first, context.find(" ", first, start)) if first else 0
    if last < len(context):
        space = context.rfind(" ", end, last)
        last = space if space > end else last
    truths = list(dict.fromkeys(clip(each.text, 120) for each in answers))[:3]
    return {
        "question": clip(example.question),
        # The spaces at its ends stay: it stands beside the answer.
        "before": ("... " if first else "") + re.sub(r"\s+", " ", context[first:start]),
        "answer": clip(answers[0].text) if answers else "",
        "after": re.sub(r"\s+", " ", context[end:last]) + (" ..." if last < len(context) else ""),
        "said": clip(predicted) or "no answer",
        "truth": " / ".join(truths) or "no answer",
        "probability": probability,
    }


CONTEXT_WORDS = 14  # on each side of a wrong one


def _tags(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Of words; with the task's metric "entities" also of complete entities."""
    gold = [[task.labels[number] for number in example.labels] for example in examples]
    words = [
        (row, word, *each)
        for row, (names, prediction) in enumerate(zip(gold, predictions, strict=True))
        for word, each in enumerate(
            zip(names, prediction.value, prediction.probabilities, strict=True)
        )
    ]
    # One word of each sentence, the surest: the examples shall differ.
    surest: dict[int, tuple[Any, ...]] = {}
    for each in sorted((each for each in words if each[2] != each[3]), key=lambda each: -each[4]):
        surest.setdefault(each[0], each)
    worst = []
    for row, word, truth, said, probability in list(surest.values())[:NUM_WORST]:
        tokens, first, end = (
            examples[row].tokens,
            max(0, word - CONTEXT_WORDS),
            word + 1 + CONTEXT_WORDS,
        )
        before = ("... " if first else "") + clip(" ".join(tokens[first:word]))
        after = clip(" ".join(tokens[word + 1 : end])) + (" ..." if end < len(tokens) else "")
        error = {
            "before": before,
            "word": clip(tokens[word]),
            "after": after,
            "said": said,
            "truth": truth,
        }
        worst.append({**error, "probability": float(probability)})
    _, _, truths, predicted, probabilities = zip(*words, strict=True)
    number_of = {name: number for number, name in enumerate(task.labels)}
    facts = class_facts(
        task.labels, *([number_of[name] for name in names] for names in (truths, predicted))
    )
    hits = [a == b for a, b in zip(truths, predicted, strict=True)]
    facts |= {"words": len(words), "calibration": calibration(probabilities, hits), "worst": worst}
    if "entities" in task.metrics:
        counts = count_entities(gold, [prediction.value for prediction in predictions])
        every = {**counts, "all": total_counts(counts)}
        facts["entities"] = [{"type": name, **_score(each)} for name, each in every.items()]
    return facts


# Fine-tuning

# Of a larger split so many examples are looked at: a second or two, and fractions to half a
# percent.
MOST_EXAMPLES = 50_000
LONGEST_EXAMPLE = 2_000  # characters of a text that the demo shows first
_GATHER = {
    "single_label_classification": _classes,
    "multi_label_classification": _multi_label,
    "regression": _regression,
    "token_classification": _tags,
    "question_answering": _answers,
    "multiple_choice": _classes,
}


def gather_finetuning(run: FineTuningRun, _: Facts) -> Facts:
    """Gather what report.json holds from the predictions of the last evaluation; no model is
    run.
    """
    trainer, task = run.trainer, run.task
    if not trainer.is_world_process_zero():
        return {}
    splits = [
        split_facts(task, name, each.split.name, each.split.examples, trainer.predictions)
        for name, each in trainer.eval_splits.items()
    ]
    sizes = {"checkpoint": run.checkpoint, **_sizes(trainer, trainer.global_batch_size)}
    facts: Facts = {
        "kind": "finetuning",
        "task": task.name,
        "form": _form_of(task),
        "run": sizes,
        "splits": splits,
    }
    for each in trainer.eval_splits.values():
        if each.split.examples:
            texts = list_texts(each.split.examples[0])
            facts["example"] = {
                "kind": task.kind,
                "texts": [clip(text, LONGEST_EXAMPLE) for text in texts],
            }
            break
    return facts


def _sizes(trainer: Any, global_batch: int) -> Facts:
    args, model = trainer.args, trainer.model
    aids = [
        each.numel()
        for name, each in model.named_parameters()
        if name in (model._keys_to_ignore_on_save or ())
    ]
    return {
        "parameters": model.num_parameters() - sum(aids),  # of what is saved
        "global_train_batch_size": global_batch,
        "processes": args.world_size,
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
    }


def _form_of(task: Task) -> str:
    return task.problem_type if task.kind == "sequence_classification" else task.kind


def split_facts(
    task: Task,
    suffix: str,
    name: str,
    examples: Sequence[Any],
    all_predictions: Mapping[str, Sequence[Any]],
) -> Facts:
    """Gather what is known of one validation split, by name; where its outputs were not finite it
    has no predictions.
    """
    facts: Facts = {"name": name, "suffix": suffix, "examples": len(examples)}
    if name not in all_predictions or not examples:
        return facts | {"looked_at": 0}
    chosen, predictions = _evenly(len(examples), MOST_EXAMPLES), all_predictions[name]
    rows = ([items[number] for number in chosen] for items in (examples, predictions))
    return facts | {"looked_at": len(chosen), **_GATHER[_form_of(task)](task, *rows)}


def _evenly(number: int, most: int) -> list[int]:
    return np.linspace(0, number - 1, min(number, most)).round().astype(np.int64).tolist()


# Pre-training: what the model says of held-out pairs

# Pairs that are looked at: enough for the examples below, a second for BERT-base on a CPU.
EXAMPLE_PAIRS = 16
NUM_MASKS, NUM_VERDICTS_PER_LABEL = 8, 4
CONTEXT_PIECES = 22
LONGEST_TEXT = 320
TOP_K = 5


@torch.no_grad()
def look_at_pairs(
    model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, batch: dict[str, torch.Tensor]
) -> Facts:
    """Run the model once over a batch of held-out pairs, masked as an evaluation masks them: its
    guesses and verdicts.
    """
    model.eval()
    output = model(
        **{name: values.to(model.device) for name, values in batch.items()},
        return_full_logits=False,
    )
    # A model may have more rows than the tokenizer has pieces: they pad its size to a round number.
    logits = output.prediction_logits.float()[:, : len(tokenizer)].cpu()
    masked, labels = batch["input_ids"], batch["labels"]
    rows, positions = (labels != IGNORE_INDEX).nonzero(as_tuple=True)
    is_hidden = masked[rows, positions] == tokenizer.mask_token_id

    def segment(ids: torch.Tensor, row: int, number: int) -> tuple[list[int], list[str]]:
        """Positions and pieces of the first (0) or second (1) text of a pair, without [CLS] and
        [SEP].
        """
        inside = (batch["token_type_ids"][row] == number) & (batch["attention_mask"][row] == 1)
        pieces = tokenizer.convert_ids_to_tokens(ids[row].tolist())
        ends = (tokenizer.cls_token, tokenizer.sep_token)
        kept = [
            position for position in inside.nonzero()[:, 0].tolist() if pieces[position] not in ends
        ]
        return kept, [pieces[position] for position in kept]

    masks: list[Facts] = []
    verdicts: list[Facts] = []
    for row in range(len(masked)):
        hidden = ((rows == row) & is_hidden).nonzero()[:, 0].tolist()
        if hidden and len(masks) < NUM_MASKS:
            number = hidden[len(hidden) // 2]  # the middle one
            position, truth = int(positions[number]), int(labels[row, positions[number]])
            kept, pieces = segment(masked, row, int(batch["token_type_ids"][row, position]))
            masks.append(
                _mask(tokenizer, pieces, kept.index(position), truth, logits[number].softmax(-1))
            )
    if output.seq_relationship_logits is not None and "next_sentence_label" in batch:
        probabilities = output.seq_relationship_logits.float().softmax(-1)[:, 0].tolist()
        pair_labels = batch["next_sentence_label"].tolist()
        of_label = [
            [row for row, label in enumerate(pair_labels) if label == wanted] for wanted in (0, 1)
        ]
        ids = torch.where(labels == IGNORE_INDEX, masked, labels)  # before masking
        for row in sorted(row for chosen in of_label for row in chosen[:NUM_VERDICTS_PER_LABEL]):
            first, second = (
                pieces_as_words(segment(ids, row, number)[1], tokenizer) for number in (0, 1)
            )
            # Of a long first text the end is kept, which the second continues.
            texts = {
                "first": clip(first[::-1], LONGEST_TEXT)[::-1],
                "second": clip(second, LONGEST_TEXT),
            }
            verdicts.append(
                {**texts, "is_next": probabilities[row], "truth": pair_labels[row] == 0}
            )
    return {"pairs": len(masked), "masks": masks, "verdicts": verdicts}


def _mask(
    tokenizer: PreTrainedTokenizerBase,
    pieces: list[str],
    middle: int,
    truth: int,
    probabilities: torch.Tensor,
) -> Facts:
    """The text around a [MASK], and the most likely pieces for it."""
    first, last = max(middle - CONTEXT_PIECES, 0), middle + 1 + CONTEXT_PIECES
    while 0 < first < middle and pieces[first].startswith("##"):  # it begins with a complete word
        first += 1
    values, ids = probabilities.topk(min(TOP_K, len(probabilities)))

    def name(piece: int) -> str:
        return pieces_as_words([tokenizer.convert_ids_to_tokens(piece)], tokenizer)

    return {
        "before": ("... " if first else "") + pieces_as_words(pieces[first:middle], tokenizer),
        "after": pieces_as_words(pieces[middle + 1 : last], tokenizer)
        + (" ..." if last < len(pieces) else ""),
        "truth": name(truth),
        "probability": float(probabilities[truth]),
        "rank": 1 + int((probabilities > probabilities[truth]).sum()),
        "guesses": list(zip(map(name, ids.tolist()), values.tolist(), strict=True)),
    }


def pieces_as_words(pieces: Sequence[str], tokenizer: PreTrainedTokenizerBase | None = None) -> str:
    """Join pieces: "play ##ing" is "playing"; those of other tokenizers than WordPiece as they do
    it.
    """
    if tokenizer is None or isinstance(tokenizer, BertTokenizer):
        return " ".join(pieces).replace(" ##", "")
    return tokenizer.convert_tokens_to_string(list(pieces)).strip()


# Pre-training: the run and its data

# Enough for fractions to a percent, and read in a second from a store of any size.
SAMPLED_PAIRS = 2048
HASHED_PAIRS = 256  # at once
NUM_LENGTH_BARS = 16


def describe_run(trainer: BertTrainer, data: PreTrainingData) -> Facts:
    """Sizes of a run, for the log and the report; before training, which changes the batch split
    with the phase.
    """
    args = trainer.args
    sizes = _sizes(
        trainer, args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    )
    return {**sizes, "vocabulary": len(data.tokenizer), "pairs_in_epoch_0": data.train.num_pairs(0)}


def gather_pretraining(
    trainer: BertTrainer, data: PreTrainingData, description: Facts, results: Facts
) -> Facts:
    """Gather what report.json holds; by all processes, because where they shard the weights none
    can compute alone.
    """
    held_out, dataset = None, trainer.eval_dataset
    if dataset is not None:
        number = min(EXAMPLE_PAIRS, trainer.max_eval_pairs or EXAMPLE_PAIRS)
        order = epoch_order(EVALUATION_SEED, 0, dataset.num_pairs(0))[:number]
        batch = trainer.eval_collator([dataset[(0, index)] for index in order.tolist()])
        held_out = look_at_pairs(trainer.model, data.tokenizer, batch)
    facts: Facts = {
        "kind": "pretraining",
        "run": description,
        "identity": dict(data.identity),
        "held_out": held_out,
    }
    if trainer.is_world_process_zero():
        facts["measured_on"] = None if dataset is None else fingerprint_held_out(trainer)
        steps, parts = (
            trainer.state.max_steps,
            {"training": data.train, "held out": data.validation},
        )
        facts["remark"] = describe_progress(results, steps) or describe_discriminator(
            results, steps
        )
        facts["corpus"] = {}
        for name, part in parts.items():
            if part is not None:
                store = getattr(part, "store", None)  # instance files have none
                counted = () if store is None else ("documents", "sentences", "tokens")
                numbers = {each: int(getattr(store, f"num_{each}")) for each in counted}
                facts["corpus"][name] = {**numbers, "inputs in epoch 0": part.num_pairs(0)}
        facts["phases"] = [count_phase(trainer, part) for part in trainer.phases]
    return facts


def fingerprint_held_out(trainer: BertTrainer) -> str:
    """Return the SHA-256 of the held-out inputs of an evaluation, as they were masked: what two
    runs are compared by.
    """
    dataset, digest = epoched(trainer.eval_dataset), hashlib.sha256()
    # The size of these batches decides how much is padded, so it is always the same.
    for keys in EvaluationSampler(
        dataset, trainer.max_eval_pairs, HASHED_PAIRS, rank=0, world_size=1
    ):
        batch = trainer.eval_collator([dataset[key] for key in keys])
        for name in ("input_ids", "labels", "next_sentence_label"):
            if name in batch:
                digest.update(batch[name].numpy().tobytes())
    return digest.hexdigest()


def count_phase(trainer: BertTrainer, part: TrainingPhase) -> Facts:
    """Count over micro-batches at equal distances in a phase's last pass over the data, whose table
    of pairs is at hand.
    """
    phase, dataset = part.phase, part.train_dataset
    end = phase.end_step if phase.end_step > phase.first_step else trainer.state.max_steps
    end = min(
        end, trainer.state.global_step
    )  # what was trained on, also where something ended the run before
    micro, _ = trainer.args.split_batch(phase.global_batch, phase.micro_batch)
    samples, longest = (end - phase.first_step) * phase.global_batch, int(dataset.max_seq_length)
    order = EpochShuffle(dataset, samples, trainer.args.seed)
    chosen = _sampled_batches(dataset, samples, micro)
    batches = (
        part.data_collator([dataset[key] for key in order.keys(begin, begin + micro)])
        for begin in chosen
    )
    return {
        "steps": [phase.first_step, end],
        "max_seq_length": longest,
        "global_batch": phase.global_batch,
        "micro_batch": micro,
        "trained_pairs": samples,
        "sampled_batches": len(chosen),
        "sampled_from": samples - (chosen[0] if chosen else 0),
        **count_pairs(batches, longest, trainer.processing_class.mask_token_id),
    }


def _sampled_batches(dataset: Any, samples: int, micro: int) -> list[int]:
    """First samples of complete micro-batches, rising, at equal distances over the last pass over
    the data.
    """
    epoch, before = 0, dataset.num_pairs(0)
    while before < samples and dataset.num_pairs(epoch) > 0:
        epoch += 1
        before += dataset.num_pairs(epoch)
    first, last = -(-max(samples - dataset.num_pairs(epoch), 0) // micro), samples // micro
    number = max(min(max(SAMPLED_PAIRS // micro, 1), last - first), 0)
    return (np.linspace(first, last - 1, number).round().astype(np.int64) * micro).tolist()


def count_pairs(batches: Iterable[dict[str, torch.Tensor]], longest: int, mask_id: int) -> Facts:
    """Count over batches of the collator, whose pairs have at most `longest` tokens; with a
    histogram of their lengths.
    """
    width = -(-longest // NUM_LENGTH_BARS)
    edges = [width * number for number in range(-(-longest // width) + 1)]
    lengths = np.zeros(len(edges) - 1, dtype=np.int64)
    names = ("pairs", "positions", "tokens", "predicted", "masked", "kept", "next", "random_next")
    sums = Counter(dict.fromkeys(names, 0))
    for batch in batches:
        tokens = batch["attention_mask"].sum(dim=1).numpy()
        # A pair of exactly an edge's length belongs to the bar that ends there.
        lengths += np.histogram(tokens - 0.5, bins=edges)[0]
        predicted = batch["labels"] != IGNORE_INDEX
        seen, right = batch["input_ids"][predicted], batch["labels"][predicted]
        is_random = batch.get("next_sentence_label", torch.zeros(0, dtype=torch.int64))
        sums.update(
            pairs=len(tokens), positions=batch["input_ids"].numel(), tokens=int(tokens.sum())
        )
        sums.update(
            predicted=len(right),
            masked=int((seen == mask_id).sum()),
            kept=int((seen == right).sum()),
        )
        sums.update(next=int((is_random == 0).sum()), random_next=int((is_random > 0).sum()))
    return {**sums, "length_edges": edges, "length_counts": lengths.tolist()}


# Files of a run

# What only the run itself can know: examples, counts over its data.
FORMAT = 1


@dataclass(frozen=True)
class RunFiles:
    """A finished run: its folder and name, "pretraining" or "finetuning", and what its files hold;
    `facts` is empty where it left none.
    """

    folder: Path
    name: str
    kind: str
    results: Facts
    history: list[Facts]
    facts: Facts
    settings: Facts
    task: Task | None


def read_run(folder: Path) -> RunFiles:
    """Read a finished run."""
    if not folder.is_dir():
        raise InputError(
            f"run: no folder {folder}; give the output_dir of a run of recipes/pretrain.py or "
            "finetune.py"
        )
    if not (folder / RESULTS_FILE).is_file():
        what = "is not finished" if (folder / CONFIG_FILE).is_file() else "is no run"
        raise InputError(
            f"run: {folder} {what}: it has no {RESULTS_FILE}; give the output_dir of a finished run"
        )
    results, facts, state = (
        read_object(folder / name) for name in (RESULTS_FILE, FACTS_FILE, STATE_FILE)
    )
    if facts and facts.get("format") != FORMAT:
        raise InputError(
            f"{folder / FACTS_FILE}: format {facts.get('format')!r}, this version reads {FORMAT}; "
            "move the file away and "
            "the report is written without what is in it"
        )
    task = read_task_file(folder / TASK_FILE) if (folder / TASK_FILE).is_file() else None
    # A run that left no facts is known by its results.
    kind = facts.get("kind") or (
        "finetuning" if task is not None or "task" in results else "pretraining"
    )
    settings = read_tree(folder / CONFIG_FILE)[0] if (folder / CONFIG_FILE).is_file() else {}
    return RunFiles(
        folder, run_name(folder), kind, results, state.get("log_history", []), facts, settings, task
    )


def read_object(path: Path) -> Facts:
    """Read a JSON object; an empty one where there is no file."""
    return read_json_object(path) if path.is_file() else {}


def write_facts(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write report.json: strict JSON, numbers that are not finite as null."""
    write_json(folder / FACTS_FILE, strict({"format": FORMAT, **facts}))
    return folder / FACTS_FILE
