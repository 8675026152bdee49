"""Gather what report.json holds of a fine-tuning run: scores by class, calibration, errors."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from bert_recipes.finetuning.run import FineTuningRun
from bert_recipes.metrics.entities import (
    EntityCounts,
    count_entities,
    find_entities,
    total_counts,
)
from bert_recipes.metrics.squad import are_unspaced, squad_scores, squad_v2_scores
from bert_recipes.reports.facts import NUM_EXAMPLES, Facts, describe_sizes
from bert_recipes.tags import are_entities
from bert_recipes.tasks.examples import ChoiceExample, QuestionExample, list_texts
from bert_recipes.tasks.task import Task


NUM_BINS = 15  # Guo et al. 2017, Table 1
NUM_ERRORS = 12
# A matrix of more classes is not looked at but searched: the most frequent confusions are listed.
MOST_CLASSES = 25
NUM_CONFUSIONS = 20
MOST_DOTS = 1500
# Characters of a text, of a text that the demo shows first, of a paragraph before an answer.
LONGEST_TEXT = 500
LONGEST_EXAMPLE = 2_000
CONTEXT_CHARACTERS = 220
CONTEXT_WORDS = 14  # on each side of a word

# [name of the column, text] of an example's texts
Texts = list[list[str]]


def gather_finetuning(run: FineTuningRun) -> Facts:
    """Gather what report.json holds from the predictions of the last evaluation."""
    trainer = run.trainer
    task = run.task
    if not trainer.is_world_process_zero():
        return {}
    facts: Facts = {
        "kind": "finetuning",
        "task": task.name,
        "run": {
            "checkpoint": run.checkpoint,
            **describe_sizes(trainer),
        },
        "splits": [],
    }

    for features in trainer.eval_splits.values():
        name = features.split.name
        examples = features.split.examples
        predictions = trainer.predictions.get(name)
        facts["splits"].append(split_facts(task, name, examples, predictions))
        if examples and "example" not in facts:
            texts = [clip(text, LONGEST_EXAMPLE) for text in list_texts(examples[0])]
            facts["example"] = {"kind": task.kind, "texts": texts}
    return facts


def split_facts(
    task: Task, name: str, examples: Sequence[Any], predictions: Sequence[Any] | None
) -> Facts:
    """Gather the facts of a validation split.

    Args:
        task: Of the run.
        name: Of the split.
        examples: With labels.
        predictions: One for each example; None where the model's outputs were not finite.
    """
    facts: Facts = {"name": name, "examples": len(examples)}
    if predictions is not None and examples:
        form = task.problem_type if task.kind == "sequence_classification" else task.kind
        facts.update(GATHER_BY_FORM[form](task, examples, predictions))
    return facts


# Scores and calibration


def calibration(probabilities: ArrayLike, outcomes: ArrayLike) -> Facts:
    """Return the reliability curve of predictions, and their expected calibration error.

    Source: Naeini et al. 2015; Guo et al. 2017, "On Calibration of Modern Neural Networks", section
    2.

    Args:
        probabilities: float (N,), 0 to 1, of each prediction.
        outcomes: bool (N,), whether each is right.
    """
    probabilities = np.clip(np.asarray(probabilities, dtype=np.float64), 0, 1)
    accuracies, confidences = calibration_curve(outcomes, probabilities, n_bins=NUM_BINS)
    # calibration_curve returns no counts, and leaves out empty bins: counted in its bins.
    inner_edges = np.linspace(0, 1, NUM_BINS + 1)[1:-1]
    counts = np.bincount(np.searchsorted(inner_edges, probabilities))
    counts = counts[counts > 0]
    errors = np.abs(accuracies - confidences)

    columns = (counts.tolist(), confidences.tolist(), accuracies.tolist())
    bins = []
    for count, confidence, accuracy in zip(*columns, strict=True):
        bins.append(
            {
                "count": count,
                "confidence": confidence,
                "accuracy": accuracy,
            }
        )

    return {
        "bins": bins,
        "expected_calibration_error": float(np.average(errors, weights=counts)),
    }


def class_facts(names: Sequence[str], gold: Sequence[int], predicted: Sequence[int]) -> Facts:
    """Return the scores of each class, and the confusion matrix (rows: true class).

    Of many classes the most frequent confusions replace the matrix.

    Args:
        names: Of the classes.
        gold: Number of the true class of each row.
        predicted: Number of the predicted class.
    """
    numbers = range(len(names))
    facts = {"labels": list(names), "classes": label_scores(gold, predicted, numbers)}
    if len(names) <= MOST_CLASSES:
        facts["confusion"] = confusion_matrix(gold, predicted, labels=numbers).tolist()
        return facts

    counts = Counter(zip(gold, predicted, strict=True))
    confusions = []
    for (truth, prediction), count in counts.most_common():
        if truth != prediction:
            confusions.append([names[truth], names[prediction], count])

    facts["mistakes"] = confusions[:NUM_CONFUSIONS]
    return facts


def label_scores(gold: ArrayLike, predicted: ArrayLike, numbers: Sequence[int]) -> list[Facts]:
    """Return precision, recall, F1 and support of each class, or of each label of a 0/1 matrix.

    Args:
        gold: Numbers of classes (N,), or a 0/1 matrix (N, labels).
        predicted: The same of the predictions.
        numbers: Of all classes or labels.
    """
    gold = np.asarray(gold)
    if gold.ndim == 2 and gold.shape[1] == 1:
        numbers = [1]  # scikit-learn takes flags of one column for classes
    scores = precision_recall_fscore_support(gold, predicted, labels=numbers, zero_division=0)
    names = ("precision", "recall", "f1", "support")
    # Support is a count.
    columns = [column.tolist() for column in scores]
    facts_of_classes = []
    for row in zip(*columns, strict=True):
        facts_of_classes.append(dict(zip(names, row, strict=True)))
    return facts_of_classes


# Errors that a person reads


def most_confident(probabilities: ArrayLike, is_right: ArrayLike) -> list[int]:
    """Return the rows of the wrong predictions, the most confident first."""
    wrong = np.flatnonzero(~np.asarray(is_right, dtype=bool))
    order = np.argsort(-np.asarray(probabilities)[wrong], kind="stable")
    return wrong[order].tolist()


@dataclass
class ShownPredictions:
    """Texts, predictions and true labels of a split's rows, as a report shows them."""

    texts_of: Callable[[int], Texts]  # of a row
    predicted: Sequence[str]
    truths: Sequence[str]
    is_right: ArrayLike | None = None  # bool (N,); None: numbers, which are neither
    probabilities: ArrayLike | None = None  # float (N,), of the predictions
    errors: ArrayLike | None = None  # float (N,), of the label that is most wrong

    def describe(self, rows: Iterable[int]) -> list[Facts]:
        """Return the texts, the prediction and the truth of some rows."""
        descriptions = []
        for row in rows:
            description: Facts = {
                "texts": self.texts_of(row),
                "said": clip(self.predicted[row]),
                "truth": clip(self.truths[row]),
            }
            if self.is_right is not None:
                description["is_right"] = bool(np.asarray(self.is_right)[row])
            if self.probabilities is not None:
                description["probability"] = float(np.asarray(self.probabilities)[row])
            if self.errors is not None:
                description["error"] = float(np.asarray(self.errors)[row])
            descriptions.append(description)
        return descriptions

    def examples(self) -> list[Facts]:
        """Describe the first rows."""
        return self.describe(range(min(NUM_EXAMPLES, len(self.predicted))))


def clip(text: str, longest: int = LONGEST_TEXT) -> str:
    """Make a text one line; keep the complete words at the beginning of a longer one.

    A language without spaces is cut anywhere, which `textwrap.shorten` does not do.
    """
    line = " ".join(text.split())
    if len(line) <= longest:
        return line
    end = line.rfind(" ", longest // 2, longest + 1)
    if end < 0:
        end = longest
    return f"{line[:end]} ..."


def _texts_of_example(task: Task, example: Any) -> Texts:
    """Return the texts of an example; a single text has no name."""
    if isinstance(example, QuestionExample):
        start = example.answers[0].answer_start if example.answers else 0
        context = example.context[max(start - CONTEXT_CHARACTERS, 0) :]
        return [["question", clip(example.question)], ["paragraph", clip(context)]]
    if isinstance(example, ChoiceExample):
        texts = [["context", clip(example.context)]]
        for number, choice in enumerate(example.choices, start=1):
            texts.append([str(number), clip(choice)])
        return texts
    if example.text_pair is None:
        return [["", clip(example.text)]]
    first_column, second_column = task.text_columns
    return [[first_column, clip(example.text)], [second_column, clip(example.text_pair)]]


def _texts_of_word(tokens: Sequence[str], number: int) -> Texts:
    """Return a word of a tagged sentence, and the words around it."""
    start = max(number - CONTEXT_WORDS, 0)
    end = number + CONTEXT_WORDS + 1
    return [["sentence", " ".join(tokens[start:end])], ["word", tokens[number]]]


# Predictions by the form of the task: (task, labelled examples, their predictions) -> JSON values


def _decision_facts(
    names: Sequence[str],
    gold: Sequence[int],
    predicted: Sequence[int],
    probabilities: Sequence[float],
    texts_of: Callable[[int], Texts],
) -> Facts:
    """Gather scores, calibration and errors of decisions for one class each.

    Args:
        names: Of the classes.
        gold: Number of the true class of each row.
        predicted: Number of the predicted class.
        probabilities: Of the predicted class.
        texts_of: Returns the texts of a row.
    """
    is_right = np.equal(gold, predicted)
    facts = class_facts(names, gold, predicted)
    facts["calibration"] = calibration(probabilities, is_right)
    shown = ShownPredictions(
        texts_of,
        [names[number] for number in predicted],
        [names[number] for number in gold],
        is_right,
        probabilities,
    )
    facts["first"] = shown.examples()
    facts["worst"] = shown.describe(most_confident(probabilities, is_right)[:NUM_ERRORS])
    return facts


def _class_facts(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Gather the facts of classes, or of choices, whose classes are their positions."""
    names: Sequence[str] = task.labels
    values: Sequence[Any] = task.labels
    if task.kind == "multiple_choice":
        most_choices = max(len(example.choices) for example in examples)
        names = [str(number) for number in range(1, most_choices + 1)]
        values = range(most_choices)
    return _decision_facts(
        names,
        gold=[int(example.label) for example in examples],
        predicted=[values.index(prediction.value) for prediction in predictions],
        probabilities=[prediction.probabilities[prediction.value] for prediction in predictions],
        texts_of=lambda row: _texts_of_example(task, examples[row]),
    )


def _tag_facts(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Gather the facts of words; with the task's metric "entities" also of complete entities."""
    words: list[tuple[Sequence[str], int]] = []
    gold: list[int] = []
    predicted: list[int] = []
    probabilities: list[float] = []
    for example, prediction in zip(examples, predictions, strict=True):
        words.extend((example.tokens, number) for number in range(len(example.tokens)))
        gold.extend(example.labels)
        predicted.extend(task.labels.index(label) for label in prediction.value)
        probabilities.extend(prediction.probabilities)

    facts = _decision_facts(
        task.labels,
        gold,
        predicted,
        probabilities,
        lambda row: _texts_of_word(*words[row]),
    )
    # The errors are words, the first examples sentences.
    facts["first"] = _first_sentences(task, examples, predictions)
    if "entities" in task.metrics:
        gold_labels = [_gold_labels(task, example) for example in examples]
        predicted_labels = [prediction.value for prediction in predictions]
        facts["entities"] = _entity_scores(count_entities(gold_labels, predicted_labels))
    return facts


def _first_sentences(
    task: Task, examples: Sequence[Any], predictions: Sequence[Any]
) -> list[Facts]:
    """Return the first sentences with the predicted and the true tags of all their words."""
    descriptions = []
    for row in range(min(NUM_EXAMPLES, len(examples))):
        tokens = examples[row].tokens
        gold = _gold_labels(task, examples[row])
        predicted = list(predictions[row].value)
        description = {
            "texts": [["", clip(" ".join(tokens))]],
            "said": clip(_name_tags(task, tokens, predicted)),
            "truth": clip(_name_tags(task, tokens, gold)),
            "is_right": predicted == gold,
        }
        descriptions.append(description)
    return descriptions


def _gold_labels(task: Task, example: Any) -> list[str]:
    return [task.labels[number] for number in example.labels]


def _name_tags(task: Task, words: Sequence[str], tags: Sequence[str]) -> str:
    """Return the entities of a sentence, or each word with its tag."""
    if not are_entities(task.labels):
        tagged_words = []
        for word, tag in zip(words, tags, strict=True):
            tagged_words.append(f"{word}/{tag}")
        return " ".join(tagged_words)
    entities = []
    for name, first, last in find_entities(tags):
        entity = " ".join(words[first : last + 1])
        entities.append(f"{entity} ({name})")
    return ", ".join(entities) or "none"


def _entity_scores(counts: dict[str, EntityCounts]) -> list[Facts]:
    """Return precision, recall, F1 and support of each type of entities, and of all."""
    rows = []
    for name, count in [*counts.items(), ("all", total_counts(counts))]:
        row = {
            "type": name,
            "precision": count.precision,
            "recall": count.recall,
            "f1": count.f1,
            "support": count.gold,
        }
        rows.append(row)
    return rows


def _multi_label_facts(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Gather the facts of labels that are decided one by one."""
    gold = np.zeros((len(examples), len(task.labels)), dtype=int)
    probabilities = np.zeros(gold.shape)
    for row, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        gold[row, list(example.label)] = 1
        probabilities[row] = [prediction.probabilities[name] for name in task.labels]

    predicted = (probabilities >= 0.5).astype(int)
    largest_errors = np.abs(probabilities - gold).max(axis=1)
    is_right = (predicted == gold).all(axis=1)
    shown = ShownPredictions(
        lambda row: _texts_of_example(task, examples[row]),
        _name_labels(task, predicted),
        _name_labels(task, gold),
        is_right,
    )
    mistakes = replace(shown, errors=largest_errors)
    return {
        "labels": list(task.labels),
        "classes": label_scores(gold, predicted, range(len(task.labels))),
        "calibration": calibration(probabilities.ravel(), gold.ravel()),
        "labels_are_apart": True,
        "first": shown.examples(),
        "worst": mistakes.describe(most_confident(largest_errors, is_right)[:NUM_ERRORS]),
    }


def _name_labels(task: Task, matrix: np.ndarray) -> list[str]:
    """Name the labels of each row of a 0/1 matrix."""
    texts = []
    for row in matrix:
        names = [task.labels[number] for number in np.flatnonzero(row)]
        texts.append(", ".join(names) or "none")
    return texts


def _regression_facts(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Gather the facts of predicted numbers."""
    gold = np.array([float(example.label) for example in examples])
    predicted = np.array([float(prediction.value) for prediction in predictions])
    errors = np.abs(predicted - gold)
    step = len(gold) // MOST_DOTS + 1
    shown = ShownPredictions(
        lambda row: _texts_of_example(task, examples[row]),
        [f"{number:.3f}" for number in predicted],
        [f"{number:.3f}" for number in gold],
    )
    return {
        "dots": [gold[::step].tolist(), predicted[::step].tolist()],
        "mean_absolute_error": float(errors.mean()),
        "error_of_the_mean": float(np.abs(gold - gold.mean()).mean()),
        "first": shown.examples(),
        "worst": shown.describe(np.argsort(-errors, kind="stable")[:NUM_ERRORS].tolist()),
    }


def _answer_facts(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Facts:
    """Gather the facts of answers; a probability is the fraction among the best answers."""
    answers = [str(prediction.value) for prediction in predictions]
    probabilities = [float(prediction.probabilities) for prediction in predictions]

    is_exact = []
    overlaps = []
    truths = []
    unspaced = are_unspaced(map(gold_texts, examples))
    for example, answer in zip(examples, answers, strict=True):
        scores = score_answer(task, example, answer, unspaced=unspaced)
        is_exact.append(scores.get("exact", scores.get("exact_match")) == 100)
        overlaps.append(scores["f1"] > 0)
        texts = dict.fromkeys(gold_answer.text for gold_answer in example.answers)
        truths.append(" / ".join(texts) or "no answer")

    shown = ShownPredictions(
        lambda row: _texts_of_example(task, examples[row]),
        [answer or "no answer" for answer in answers],
        truths,
        is_exact,
        probabilities,
    )
    facts: Facts = {
        "calibration": calibration(probabilities, is_exact),
        "first": shown.examples(),
        "worst": shown.describe(most_confident(probabilities, overlaps)[:NUM_ERRORS]),
    }
    if "squad_v2" in task.metrics:
        gold_is_empty = [int(not example.answers) for example in examples]
        is_empty = [int(answer == "") for answer in answers]
        facts.update(class_facts(["has an answer", "no answer"], gold_is_empty, is_empty))
    return facts


def gold_texts(example: Any) -> list[str]:
    """Return the texts of the gold answers of a question."""
    return [answer.text for answer in example.answers or ()]


def score_answer(task: Task, example: Any, answer: str, *, unspaced: bool) -> dict[str, float]:
    """Return the metrics of one answer, 0 to 100; `unspaced` is that of all examples."""
    score = squad_v2_scores if "squad_v2" in task.metrics else squad_scores
    return score({example.idx: gold_texts(example)}, {example.idx: answer}, unspaced=unspaced)


GATHER_BY_FORM: dict[str, Callable[[Task, Sequence[Any], Sequence[Any]], Facts]] = {
    "single_label_classification": _class_facts,
    "multi_label_classification": _multi_label_facts,
    "regression": _regression_facts,
    "token_classification": _tag_facts,
    "question_answering": _answer_facts,
    "multiple_choice": _class_facts,
}
