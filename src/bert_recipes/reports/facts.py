"""Gather the facts of a finished run, keep them in report.json, read them back."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from transformers import PreTrainedTokenizerBase

from bert_recipes.checkpointing import STATE_FILE, TASK_FILE
from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.data.order import epoch_order
from bert_recipes.errors import InputError
from bert_recipes.files import read_json_object, strict, write_json
from bert_recipes.finetuning.run import FineTuningRun
from bert_recipes.metrics.entities import count_entities, total_counts
from bert_recipes.metrics.squad import squad_scores, squad_v2_scores
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.tasks.examples import ChoiceExample, QuestionExample, list_texts
from bert_recipes.tasks.task import Task
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.training.bert_trainer import (
    EVALUATION_SEED,
    BertTrainer,
    EvaluationSampler,
    epoched,
)
from bert_recipes.training.callbacks import describe_discriminator, describe_progress
from bert_recipes.training.pretraining import PreTrainingData
from bert_recipes.training.resume import CONFIG_FILE, FACTS_FILE, RESULTS_FILE, run_name
from bert_recipes.yaml_files import read_tree


Facts = dict[str, Any]

# Scores and calibration

NUM_BINS = 15  # Guo et al. 2017, Table 1
NUM_ERRORS = 12
# A matrix of more classes is not looked at but searched: the most frequent confusions are listed.
MOST_CLASSES = 25
NUM_CONFUSIONS = 20


def calibration(probabilities: ArrayLike, outcomes: ArrayLike) -> Facts:
    """Return the reliability curve of predictions, and their expected calibration error.

    Args:
        probabilities: float (N,), 0 to 1, of each prediction.
        outcomes: bool (N,), whether each is right.

    Source: Naeini et al. 2015; Guo et al. 2017, "On Calibration of Modern Neural Networks", section
    2.
    """
    probabilities = np.clip(np.asarray(probabilities, dtype=np.float64), 0, 1)
    accuracies, confidences = calibration_curve(outcomes, probabilities, n_bins=NUM_BINS)
    inner_edges = np.linspace(0, 1, NUM_BINS + 1)[1:-1]
    counts = np.bincount(np.searchsorted(inner_edges, probabilities))
    counts = counts[counts > 0]
    bins = []
    for count, confidence, accuracy in zip(counts, confidences, accuracies, strict=True):
        row = {"count": int(count), "confidence": float(confidence), "accuracy": float(accuracy)}
        bins.append(row)
    error = np.average(np.abs(accuracies - confidences), weights=counts)
    return {"bins": bins, "expected_calibration_error": float(error)}


def class_facts(names: Sequence[str], gold: Sequence[int], predicted: Sequence[int]) -> Facts:
    """Return the scores of each class, and the confusion matrix (rows: true class).

    Of many classes the most frequent confusions replace the matrix.
    """
    numbers = range(len(names))
    facts = {"labels": list(names), "classes": label_scores(gold, predicted, numbers)}
    if len(names) <= MOST_CLASSES:
        facts["confusion"] = confusion_matrix(gold, predicted, labels=numbers).tolist()
        return facts
    pairs = Counter(zip(gold, predicted, strict=True)).most_common()
    confusions = [[names[a], names[b], count] for (a, b), count in pairs if a != b]
    facts["mistakes"] = confusions[:NUM_CONFUSIONS]
    return facts


def label_scores(gold: ArrayLike, predicted: ArrayLike, numbers: Sequence[int]) -> list[Facts]:
    """Return precision, recall, F1 and support of each class, or of each label of a 0/1 matrix."""
    scores = precision_recall_fscore_support(gold, predicted, labels=numbers, zero_division=0)
    rows = []
    for precision, recall, f1, support in np.transpose(scores).tolist():
        row = {"precision": precision, "recall": recall, "f1": f1, "support": int(support)}
        rows.append(row)
    return rows


def most_confident(probabilities: ArrayLike, is_right: ArrayLike) -> list[int]:
    """Return the rows of the wrong predictions, the most confident first."""
    wrong = np.flatnonzero(~np.asarray(is_right, dtype=bool))
    order = np.argsort(-np.asarray(probabilities)[wrong], kind="stable")
    return wrong[order].tolist()


def clip(text: str, longest: int = 500) -> str:
    """Make a text one line; keep the complete words at the beginning of a longer one."""
    line = " ".join(text.split())
    if len(line) <= longest:
        return line
    end = line.rfind(" ", longest // 2, longest + 1)
    return f"{line[: longest if end < 0 else end]} ..."


# Errors that a person reads

CONTEXT_CHARACTERS = 220  # of a paragraph before an answer
CONTEXT_WORDS = 14  # on each side of a word


@dataclass(frozen=True)
class Word:
    """A word of a tagged sentence."""

    tokens: Sequence[str]
    number: int


def _errors(
    task: Task,
    examples: Sequence[Any],
    rows: Sequence[int],
    predicted: Sequence[str],
    truths: Sequence[str],
    probabilities: ArrayLike | None = None,
) -> list[Facts]:
    """Return the first wrong predictions of some rows, with the texts of their examples."""
    errors = []
    for row in rows[:NUM_ERRORS]:
        texts = _texts(task, examples[row])
        error: Facts = {"texts": texts, "said": clip(predicted[row]), "truth": clip(truths[row])}
        if probabilities is not None:
            error["probability"] = float(np.asarray(probabilities)[row])
        errors.append(error)
    return errors


def _texts(task: Task, example: Any) -> list[list[str]]:
    """Return [name of the column, text] of an example's texts; a single text has no name."""
    if isinstance(example, Word):
        first = max(example.number - CONTEXT_WORDS, 0)
        sentence = " ".join(example.tokens[first : example.number + CONTEXT_WORDS + 1])
        return [["sentence", sentence], ["word", example.tokens[example.number]]]
    texts = [clip(text) for text in list_texts(example)]
    if isinstance(example, QuestionExample):
        start = example.answers[0].answer_start if example.answers else 0
        excerpt = clip(example.context[max(start - CONTEXT_CHARACTERS, 0) :])
        return [["question", texts[0]], ["paragraph", excerpt]]
    names = list(task.text_columns)
    if isinstance(example, ChoiceExample):
        names = ["context", *_positions(len(example.choices))]
    elif example.text_pair is None:
        names = [""]
    return [[name, text] for name, text in zip(names, texts, strict=False)]


def _positions(number: int) -> list[str]:
    return [str(position + 1) for position in range(number)]


# Predictions by the form of the task: (task, labelled examples, their predictions) -> JSON values


def _decision_facts(
    task: Task,
    examples: Sequence[Any],
    names: Sequence[str],
    gold: Sequence[int],
    predicted: Sequence[int],
    probabilities: Sequence[float],
) -> Facts:
    """Gather scores, calibration and errors of decisions for one class each."""
    is_right = np.equal(gold, predicted)
    facts = class_facts(names, gold, predicted)
    facts["calibration"] = calibration(probabilities, is_right)
    facts["worst"] = _errors(
        task,
        examples,
        most_confident(probabilities, is_right),
        [names[number] for number in predicted],
        [names[number] for number in gold],
        probabilities,
    )
    return facts


def _class_facts(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Gather the facts of classes."""
    gold = [int(example.label) for example in examples]
    predicted = [task.labels.index(prediction.value) for prediction in predictions]
    probabilities = [prediction.probabilities[prediction.value] for prediction in predictions]
    return _decision_facts(task, examples, task.labels, gold, predicted, probabilities)


def _choice_facts(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Gather the facts of choices, whose classes are their positions."""
    names = _positions(max(len(example.choices) for example in examples))
    gold = [int(example.label) for example in examples]
    predicted = [int(prediction.value) for prediction in predictions]
    probabilities = [prediction.probabilities[prediction.value] for prediction in predictions]
    return _decision_facts(task, examples, names, gold, predicted, probabilities)


def _tag_facts(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Gather the facts of words; with the task's metric "entities" also of complete entities."""
    words, gold, predicted, probabilities = [], [], [], []
    for example, prediction in zip(examples, predictions, strict=True):
        words += [Word(example.tokens, number) for number in range(len(example.tokens))]
        gold += example.labels
        predicted += [task.labels.index(label) for label in prediction.value]
        probabilities += prediction.probabilities
    facts = _decision_facts(task, words, task.labels, gold, predicted, probabilities)
    if "entities" in task.metrics:
        gold_labels = [[task.labels[number] for number in example.labels] for example in examples]
        counts = count_entities(gold_labels, [prediction.value for prediction in predictions])
        facts["entities"] = []
        for name, count in {**counts, "all": total_counts(counts)}.items():
            scores = {"precision": count.precision, "recall": count.recall, "f1": count.f1}
            facts["entities"].append({"type": name, **scores, "support": count.gold})
    return facts


def _multi_label_facts(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Gather the facts of labels that are decided one by one."""
    gold = np.zeros((len(examples), len(task.labels)), dtype=int)
    probabilities = np.zeros(gold.shape)
    for row, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        gold[row, list(example.label)] = 1
        probabilities[row] = [prediction.probabilities[name] for name in task.labels]
    predicted = (probabilities >= 0.5).astype(int)
    largest_errors = np.abs(probabilities - gold).max(axis=1)
    rows = most_confident(largest_errors, (predicted == gold).all(axis=1))
    texts = [_label_texts(task, labels) for labels in (predicted, gold)]
    return {
        "labels": list(task.labels),
        "classes": label_scores(gold, predicted, range(len(task.labels))),
        "calibration": calibration(probabilities.ravel(), gold.ravel()),
        "worst": _errors(task, examples, rows, texts[0], texts[1], largest_errors),
    }


def _label_texts(task: Task, matrix: np.ndarray) -> list[str]:
    """Name the labels of each row of a 0/1 matrix."""
    texts = []
    for row in matrix:
        texts.append(", ".join(task.labels[number] for number in np.flatnonzero(row)) or "none")
    return texts


MOST_DOTS = 1500


def _regression_facts(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Gather the facts of predicted numbers."""
    gold = np.array([float(example.label) for example in examples])
    predicted = np.array([float(prediction.value) for prediction in predictions])
    errors = np.abs(predicted - gold)
    rows = np.argsort(-errors, kind="stable").tolist()
    texts = [[f"{number:.3f}" for number in numbers] for numbers in (predicted, gold)]
    step = len(gold) // MOST_DOTS + 1
    return {
        "dots": [gold[::step].tolist(), predicted[::step].tolist()],
        "mean_absolute_error": float(errors.mean()),
        "error_of_the_mean": float(np.abs(gold - gold.mean()).mean()),
        "worst": _errors(task, examples, rows, texts[0], texts[1]),
    }


def _answer_facts(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Gather the facts of answers; a probability is the fraction among the best answers."""
    answers = [str(prediction.value) for prediction in predictions]
    probabilities = [float(prediction.probabilities) for prediction in predictions]
    exact, overlaps, truths = [], [], []
    for example, answer in zip(examples, answers, strict=True):
        scores = score_answer(task, example, answer)
        exact.append(scores.get("exact", scores.get("exact_match")) == 100)
        overlaps.append(scores["f1"] > 0)
        texts = dict.fromkeys(gold_answer.text for gold_answer in example.answers)
        truths.append(" / ".join(texts) or "no answer")
    shown_answers = [answer or "no answer" for answer in answers]
    rows = most_confident(probabilities, overlaps)
    facts: Facts = {
        "calibration": calibration(probabilities, exact),
        "worst": _errors(task, examples, rows, shown_answers, truths, probabilities),
    }
    if "squad_v2" in task.metrics:
        gold_is_empty = [int(not example.answers) for example in examples]
        is_empty = [int(answer == "") for answer in answers]
        facts.update(class_facts(["has an answer", "no answer"], gold_is_empty, is_empty))
    return facts


def score_answer(task: Task, example: Any, answer: str) -> dict[str, float]:
    """Return the metrics of one answer, 0 to 100."""
    gold = {example.idx: [gold_answer.text for gold_answer in example.answers or ()]}
    score = squad_v2_scores if "squad_v2" in task.metrics else squad_scores
    return score(gold, {example.idx: answer})


# Fine-tuning

LONGEST_EXAMPLE = 2_000  # characters of a text that the demo shows first
_GATHER = {
    "single_label_classification": _class_facts,
    "multi_label_classification": _multi_label_facts,
    "regression": _regression_facts,
    "token_classification": _tag_facts,
    "question_answering": _answer_facts,
    "multiple_choice": _choice_facts,
}


def gather_finetuning(run: FineTuningRun, _: Facts) -> Facts:
    """Gather what report.json holds from the predictions of the last evaluation."""
    trainer, task = run.trainer, run.task
    if not trainer.is_world_process_zero():
        return {}
    facts: Facts = {
        "kind": "finetuning",
        "task": task.name,
        "form": _form_of(task),
        "run": {"checkpoint": run.checkpoint, **_sizes(trainer, trainer.global_batch_size)},
        "splits": [],
    }
    for suffix, split in trainer.eval_splits.items():
        examples = split.split.examples
        split_name = split.split.name
        predictions = trainer.predictions.get(split_name)
        facts["splits"].append(split_facts(task, suffix, split_name, examples, predictions))
        if examples and "example" not in facts:
            texts = [clip(text, LONGEST_EXAMPLE) for text in list_texts(examples[0])]
            facts["example"] = {"kind": task.kind, "texts": texts}
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
    predictions: Sequence[Any] | None,
) -> Facts:
    """Gather the facts of a validation split; without predictions its outputs were not finite."""
    facts: Facts = {"name": name, "suffix": suffix, "examples": len(examples)}
    if predictions is not None and examples:
        facts.update(_GATHER[_form_of(task)](task, examples, predictions))
    return facts


# Pre-training: what the model predicts for held-out inputs

# Inputs that are predicted: enough for the examples below, a second for BERT-base on a CPU.
NUM_EXAMPLE_INPUTS = 16
NUM_MASKS = 8
NUM_PAIRS = 8
LONGEST_TEXT = 120  # characters on each side of a [MASK]
TOP_K = 5


@torch.no_grad()
def predict_held_out(
    model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, batch: dict[str, torch.Tensor]
) -> Facts:
    """Gather what the model predicts for a batch of held-out inputs, masked as evaluated."""
    model.eval()
    inputs = {name: values.to(model.device) for name, values in batch.items()}
    output = model(**inputs, return_full_logits=False)
    # A model may have more rows than the tokenizer has pieces: they pad its size to a round number.
    logits = output.prediction_logits.float()[:, : len(tokenizer)].cpu()
    num_inputs = len(batch["input_ids"])
    if not logits.isfinite().all():
        return {"pairs": num_inputs, "masks": [], "verdicts": []}
    rows, positions = (batch["labels"] != IGNORE_INDEX).nonzero(as_tuple=True)
    is_mask = batch["input_ids"][rows, positions] == tokenizer.mask_token_id
    masks: list[Facts] = []
    for row, ids in enumerate(batch["input_ids"].tolist()):
        hidden = ((rows == row) & is_mask).nonzero()[:, 0]
        if len(hidden) and len(masks) < NUM_MASKS:
            number = hidden[len(hidden) // 2]  # the middle one
            position = int(positions[number])
            truth = int(batch["labels"][row, position])
            guesses = _guesses(tokenizer, logits[number].softmax(-1), truth)
            masks.append({**_context(tokenizer, ids, position), **guesses})
    verdicts = []
    if output.seq_relationship_logits is not None and "next_sentence_label" in batch:
        is_next = output.seq_relationship_logits.float().softmax(-1)[:, 0].tolist()
        verdicts = _pair_predictions(tokenizer, batch, is_next)
    return {"pairs": num_inputs, "masks": masks, "verdicts": verdicts}


def _context(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], position: int
) -> dict[str, str]:
    """Return the text before and after a position, within its segment."""
    before = tokenizer.decode(ids[:position]).removeprefix(tokenizer.cls_token)
    after = tokenizer.decode(ids[position + 1 :])
    return {
        "before": before.split(tokenizer.sep_token)[-1][-LONGEST_TEXT:].strip(),
        "after": after.split(tokenizer.sep_token)[0][:LONGEST_TEXT].strip(),
    }


def _guesses(
    tokenizer: PreTrainedTokenizerBase, probabilities: torch.Tensor, truth: int
) -> dict[str, Any]:
    """Return the most likely pieces for a [MASK], and the rank of the right one."""
    guesses = []
    for piece in probabilities.topk(min(TOP_K, len(probabilities))).indices.tolist():
        guesses.append([tokenizer.decode([piece]).strip(), float(probabilities[piece])])
    return {
        "truth": tokenizer.decode([truth]).strip(),
        "probability": float(probabilities[truth]),
        "rank": 1 + int((probabilities > probabilities[truth]).sum()),
        "guesses": guesses,
    }


def _pair_predictions(
    tokenizer: PreTrainedTokenizerBase, batch: dict[str, torch.Tensor], is_next: Sequence[float]
) -> list[Facts]:
    """Return the first pairs with the probability that the second text follows."""
    # As they were before masking.
    ids = torch.where(batch["labels"] == IGNORE_INDEX, batch["input_ids"], batch["labels"])
    predictions = []
    for row, label in enumerate(batch["next_sentence_label"][:NUM_PAIRS].tolist()):
        text = tokenizer.decode(ids[row]).removeprefix(tokenizer.cls_token)
        first, second = text.split(tokenizer.sep_token)[:2]
        prediction = {"is_next": is_next[row], "truth": label == 0}
        predictions.append({"first": first.strip(), "second": second.strip(), **prediction})
    return predictions


# Pre-training: the run and its data

HASHED_PAIRS = 256  # at once


def describe_run(trainer: BertTrainer, data: PreTrainingData) -> Facts:
    """Return the sizes of a run, for the log and the report.

    Call it before training, which changes the batch split with the phase.
    """
    args = trainer.args
    sizes = _sizes(
        trainer, args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    )
    return {**sizes, "vocabulary": len(data.tokenizer), "pairs_in_epoch_0": data.train.num_pairs(0)}


def gather_pretraining(
    trainer: BertTrainer, data: PreTrainingData, description: Facts, results: Facts
) -> Facts:
    """Gather what report.json holds.

    All processes call it: where they shard the weights none can compute alone.
    """
    held_out = None
    dataset = trainer.eval_dataset
    if dataset is not None:
        number = min(NUM_EXAMPLE_INPUTS, trainer.max_eval_pairs or NUM_EXAMPLE_INPUTS)
        order = epoch_order(EVALUATION_SEED, 0, dataset.num_pairs(0))[:number]
        batch = trainer.eval_collator([dataset[(0, index)] for index in order.tolist()])
        held_out = predict_held_out(trainer.model, data.tokenizer, batch)
    facts: Facts = {
        "kind": "pretraining",
        "run": description,
        "held_out": held_out,
    }
    if not trainer.is_world_process_zero():
        return facts
    steps = trainer.state.max_steps
    facts["measured_on"] = None if dataset is None else fingerprint_held_out(trainer)
    facts["remark"] = describe_progress(results, steps) or describe_discriminator(results, steps)
    facts["corpus"] = {}
    for name, inputs in (("training", data.train), ("held out", data.validation)):
        if inputs is not None:
            facts["corpus"][name] = _count_corpus(inputs)
    return facts


def _count_corpus(inputs: Any) -> dict[str, int]:
    """Count the documents, sentences and tokens of a store, and the inputs of an epoch."""
    counts = {}
    store = getattr(inputs, "store", None)
    if store is not None:
        for unit in ("documents", "sentences", "tokens"):
            counts[unit] = int(getattr(store, f"num_{unit}"))
    return {**counts, "inputs in epoch 0": inputs.num_pairs(0)}


def fingerprint_held_out(trainer: BertTrainer) -> str:
    """Return the SHA-256 of the masked held-out inputs, by which two runs are compared."""
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


# Files of a run

# What only the run itself can know: examples, counts over its data.
FORMAT = 1


@dataclass(frozen=True)
class RunFiles:
    """A finished run: its folder and name, "pretraining" or "finetuning", and its files.

    `facts` is empty where the run left none.
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
        raise InputError(f"run: no folder {folder}; give the output_dir of a finished run")
    if not (folder / RESULTS_FILE).is_file():
        state = "is not finished" if (folder / CONFIG_FILE).is_file() else "is no run"
        raise InputError(
            f"run: {folder} {state}: it has no {RESULTS_FILE}; give the output_dir of a finished "
            "run"
        )
    results = read_object(folder / RESULTS_FILE)
    facts = read_object(folder / FACTS_FILE)
    if facts and facts.get("format") != FORMAT:
        raise InputError(
            f"{folder / FACTS_FILE}: format {facts.get('format')!r}, this version reads {FORMAT}; "
            "move the file away and the report is written without its facts"
        )
    task = read_task_file(folder / TASK_FILE) if (folder / TASK_FILE).is_file() else None
    return RunFiles(
        folder=folder,
        name=run_name(folder),
        kind="finetuning" if task is not None or "task" in results else "pretraining",
        results=results,
        history=read_object(folder / STATE_FILE).get("log_history", []),
        facts=facts,
        settings=read_tree(folder / CONFIG_FILE)[0] if (folder / CONFIG_FILE).is_file() else {},
        task=task,
    )


def read_object(path: Path) -> Facts:
    """Read a JSON object; an empty one where there is no file."""
    return read_json_object(path) if path.is_file() else {}


def write_facts(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write report.json: strict JSON, numbers that are not finite as null."""
    write_json(folder / FACTS_FILE, strict({"format": FORMAT, **facts}))
    return folder / FACTS_FILE
