"""Static against contextual vectors: of texts, under a logistic regression; of words that are
tagged as several types.

TF-IDF; word vectors by PPMI and SVD; a frozen BERT; and the figures of a fine-tuned one, read from
its run.

Legend: N texts, V words of the vocabulary, D size of a vector.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, ShuffleSplit
from sklearn.preprocessing import StandardScaler
from sklearn.utils.extmath import randomized_svd
from transformers import PreTrainedModel

from bert_recipes.data.corpus import iter_paragraphs
from bert_recipes.errors import InputError
from bert_recipes.features.arguments import FeatureArguments, StaticArguments
from bert_recipes.features.extract import (
    choose_device,
    encode_input,
    open_encoder,
    open_extractor,
    pool,
)
from bert_recipes.features.ner import word_features
from bert_recipes.files import read_json_object
from bert_recipes.finetuning.arguments import TaskArguments, check_access, read_model_config
from bert_recipes.finetuning.run import hash_of_examples
from bert_recipes.metrics.certainty import (
    jackknife_intervals,
    jackknife_replicates,
    wilson_interval,
)
from bert_recipes.metrics.classification import compute
from bert_recipes.tags import are_entities
from bert_recipes.tasks.examples import Split, TaggedExample, TextExample
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task import PROBLEM_TYPES, Task, figure_names, split_suffixes, with_suffix
from bert_recipes.training.resume import RESULTS_FILE


logger = logging.getLogger(__name__)

Splits = Sequence[Split]  # that of training first
Row = dict[str, Any]  # "vectors": whose row it is; "figures": name -> [value, low, high], 95 %


def compare(args: StaticArguments) -> dict[str, Any]:
    """Measure texts where the task has one class for each, and words where it has tags of
    entities.
    """
    given = {
        name: getattr(args, name)
        for name in ("task", "task_file", "model_name_or_path", "data_dir")
    }
    settings = TaskArguments(**given, max_seq_length=args.max_seq_length)
    task = check_access(settings)
    is_tagged = task.kind == "token_classification" and are_entities(task.labels)
    if not is_tagged and (
        task.kind != "sequence_classification" or task.problem_type != PROBLEM_TYPES[0]
    ):
        raise InputError(
            f"task {task.name} has neither one class per text nor tags O, B-X, I-X; try sst2, "
            "conll2003"
        )
    if not task.validation_splits:
        raise InputError(f"task {task.name} has no validation split to measure on; give it one")
    limits = {task.train_split: args.max_train_examples} | dict.fromkeys(
        task.validation_splits, args.max_eval_examples
    )
    splits = [
        load_split(task, name, data_dir=args.data_dir, max_examples=limit, need_labels=True)
        for name, limit in limits.items()
    ]
    name = str(settings.model_name_or_path)
    results = (
        compare_words(task, splits, name, args)
        if is_tagged
        else compare_texts(task, splits, name, args)
    )
    sizes = {split.name: len(split.examples) for split in splits}
    return {"task": task.name, "model": name, "examples": sizes, **results}


def _with_intervals(
    figures: Callable[[Sequence[int]], Mapping[str, float]], number: int
) -> dict[str, list[float]]:
    """Row numbers -> figures, of all rows; where no interval is known, low and high are the
    value.
    """
    values = figures(range(number))
    intervals = jackknife_intervals(values, jackknife_replicates(figures, number))
    if "accuracy" in values:
        intervals["accuracy"] = wilson_interval(values["accuracy"], number)
    return {name: [value, *intervals.get(name, (value, value))] for name, value in values.items()}


def make_table(rows: Sequence[Row]) -> str:
    """Markdown, a line for each row."""
    names = list(rows[0]["figures"])
    lines = [
        f"| vectors | size | C | {' | '.join(names)} |",
        "| --- | --: | --: |" + " --: |" * len(names),
    ]
    for row in rows:
        cells = [row["vectors"], *(f"{row[key]:,g}" if key in row else "" for key in ("size", "C"))]
        for value, low, high in (row["figures"][name] for name in names):
            cells.append(f"{value:.3f}" + f" ({low:.3f} to {high:.3f})" * (low < high))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


# Word vectors

_WORD = r"\w+"
# Of the contexts' frequencies: PMI is too large where they are rare (Levy et al. 2015, section
# 3.1).
_SMOOTHING = 0.75
_WINDOW = 5
_SEED = 0


@dataclass(frozen=True)
class WordVectors:
    """One vector per word, whatever stands around it."""

    numbers: Mapping[str, int]  # word in lower case -> row
    vectors: np.ndarray  # float64 (V, D)

    def mean(self, texts: Iterable[str]) -> np.ndarray:
        """Float64 (N, D): the mean over the known words of each text, 0 where there is none."""
        counter = CountVectorizer(token_pattern=_WORD, vocabulary=self.numbers)
        counts = sparse.csr_array(counter.transform(texts))
        return (counts @ self.vectors) / np.maximum(counts.sum(axis=1), 1)[:, None]


def count_neighbors(
    texts: Iterable[str], window: int, min_count: int
) -> tuple[dict[str, int], sparse.csr_array]:
    """Number the words that occur min_count times, and count (V, V) how often each stands within
    `window` of another.
    """
    analyze = CountVectorizer(token_pattern=_WORD).build_analyzer()
    gap = [""] * window  # so that no window reaches into the next text
    every: defaultdict[str, int] = defaultdict(lambda: len(every), {"": 0})
    ids = np.fromiter((every[word] for text in texts for word in analyze(text) + gap), np.int64)
    is_kept = np.bincount(ids, minlength=len(every)) >= min_count
    is_kept[0] = False
    words = [word for word, number in every.items() if is_kept[number]]
    # Rare words keep their places: a window is of words as they stand in the text.
    ids = np.where(is_kept, np.cumsum(is_kept) - 1, -1)[ids]
    counts = sparse.csr_array((len(words), len(words)))
    for distance in range(1, window + 1):
        first, second = ids[:-distance], ids[distance:]
        near = (first >= 0) & (second >= 0)
        counts += sparse.csr_array((np.ones(near.sum()), (first[near], second[near])), counts.shape)
    return {word: number for number, word in enumerate(words)}, counts + counts.T


def positive_pmi(counts: sparse.csr_array) -> sparse.csr_array:
    """Max of 0 and log P(w, c) / (P(w) P(c)), with smoothed P(c).

    Source: Levy, Goldberg and Dagan 2015, "Improving Distributional Similarity with Lessons Learned
    from Word Embeddings".
    """
    totals, table = counts.sum(axis=1), counts.tocoo()
    smoothed = totals**_SMOOTHING
    values = np.log(table.data * smoothed.sum() / (totals[table.row] * smoothed[table.col]))
    return sparse.csr_array((np.maximum(values, 0), (table.row, table.col)), counts.shape)


def train_word_vectors(texts: Iterable[str], args: StaticArguments) -> WordVectors:
    """Factorise the PPMI of --files, or else of `texts`: U times the root of the singular values
    (Levy et al., 3.3).
    """
    texts = texts if args.files is None else iter_paragraphs(args.files)
    numbers, counts = count_neighbors(texts, _WINDOW, args.min_count)
    if not counts.nnz:
        raise InputError(
            f"no two words that occur {args.min_count} times stand together; lower --min_count, "
            "or other --files"
        )
    size = min(args.vector_size, len(numbers))
    left, values, _ = randomized_svd(positive_pmi(counts), n_components=size, random_state=_SEED)
    return WordVectors(numbers, left * np.sqrt(values))


# Texts

STRENGTHS = tuple(10.0**power for power in range(-4, 4))
Features = tuple[str, list[Any]]  # name, and float (N, D) of every split, NumPy's or sparse


def static_features(splits: Splits, args: StaticArguments) -> Iterator[Features]:
    """Yield TF-IDF of words and pairs of words, and means of word vectors; of two texts u, v, |u -
    v| and u * v.

    Source of the latter: Conneau et al. 2017, section 3.1.
    """
    examples = [cast(Sequence[TextExample], split.examples) for split in splits]
    width = 1 if examples[0][0].text_pair is None else 2
    columns: list[list[Any]] = [
        list(zip(*((each.text, each.text_pair)[:width] for each in own), strict=True))
        for own in examples
    ]
    known = [text for column in columns[0] for text in column]
    words = train_word_vectors(known, args)
    weights = TfidfVectorizer(token_pattern=_WORD, ngram_range=(1, 2), sublinear_tf=True).fit(known)
    for name, compute_vectors, stack in (
        ("TF-IDF", lambda texts: sparse.csr_array(weights.transform(texts)), sparse.hstack),
        ("mean of word vectors", words.mean, np.hstack),
    ):
        found = []
        for first, *second in ([compute_vectors(column) for column in split] for split in columns):
            found.append(
                stack(
                    [
                        first,
                        *second,
                        *(part for v in second for part in (abs(first - v), first * v)),
                    ]
                )
            )
        yield name, found


# Vectors of a frozen BERT: its layers, and how those of the tokens become one.
FROZEN = {
    "frozen: [CLS] of the last layer": ("last", "cls"),
    "frozen: mean of the last layer": ("last", "mean_all"),
    "frozen: mean of the last four layers": ("sum_last_four", "mean_all"),
}


def frozen_features(splits: Splits, checkpoint: str, args: StaticArguments) -> Iterator[Features]:
    """Yield vectors of a frozen encoder, which reads two texts as one input."""
    layers = ["last"]
    if read_model_config(checkpoint).num_hidden_layers > 3:
        layers.append("sum_last_four")
    settings = FeatureArguments(
        checkpoint,
        "",
        layers=layers,
        max_seq_length=args.max_seq_length,
        use_cpu=args.use_cpu,
    )
    extractor = open_extractor(settings)
    sides = []
    for split in splits:
        inputs = []
        for example in cast(Sequence[TextExample], split.examples):
            texts = (example.text, example.text_pair)
            inputs.append(encode_input(texts, extractor.tokenizer, args.max_seq_length))
        vectors = defaultdict(list)
        for chunk in extractor.chunks(inputs):
            for name, (column, pooling) in FROZEN.items():
                for item, tokens in zip(chunk.inputs, chunk.vectors.get(column, ()), strict=False):
                    vectors[name].append(pool(tokens, item, pooling))
        sides.append(vectors)
    for name in sides[0]:
        yield name, [np.stack(vectors[name]) for vectors in sides]


def fit_classifier(features: Any, labels: np.ndarray, metric: str) -> GridSearchCV:
    """Choose C on a tenth of the training examples, then train on all of them."""
    search = GridSearchCV(
        LogisticRegression(max_iter=1000),
        {"C": STRENGTHS},
        cv=ShuffleSplit(1, test_size=0.1, random_state=_SEED),
        scoring=lambda model, rows, gold: compute([metric], model.predict(rows), gold)[metric],
    )
    return search.fit(features, labels)


def read_finetuned(folder: Path, task: Task, splits: Splits) -> Row:
    """The row of a finished fine-tuning run, which must have been measured on the same examples."""
    path = folder / RESULTS_FILE
    if not path.is_file():
        raise InputError(
            f"finetuned: {path} is missing; give the folder of a finished run of "
            "recipes/finetune.py"
        )
    results = read_json_object(path)
    for name, split in zip(("train", *task.validation_splits), splits, strict=True):
        if results.get("splits", {}).get(name, {}).get("sha256") != hash_of_examples(
            split.examples
        ):
            raise InputError(
                f"finetuned: {folder} has other examples than these {len(split.examples)} of "
                f"{split.source}"
            )
    figures = {}
    for name in figure_names(task.metrics, task.validation_splits):
        value = results[f"eval_{name}"]
        figures[name] = [value, *results["intervals"].get(name, (value, value))]
    return {"vectors": "fine-tuned", "run": str(folder), "figures": figures}


def _score(
    task: Task, gold: np.ndarray, predicted: np.ndarray, rows: Sequence[int]
) -> dict[str, float]:
    return compute(task.metrics, predicted[rows], gold[rows])


def compare_texts(
    task: Task, splits: Splits, checkpoint: str, args: StaticArguments
) -> dict[str, Any]:
    """Train and measure a classifier on each kind of vectors; the fine-tuned run is only read."""
    labels, *gold = (
        np.array([cast(TextExample, each).label for each in split.examples]) for split in splits
    )
    if len(np.unique(labels)) < 2:
        raise InputError(
            f"{splits[0].source}: all examples have one label; a classifier needs two, or more "
            "examples"
        )
    last = [] if args.finetuned is None else [read_finetuned(Path(args.finetuned), task, splits)]

    def row(name: str, predicted: Sequence[np.ndarray], **facts: Any) -> Row:
        logger.info("%s: measured", name)
        figures: dict[str, list[float]] = {}
        for suffix, truth, found in zip(
            split_suffixes(task.validation_splits), gold, predicted, strict=True
        ):
            own = _with_intervals(partial(_score, task, truth, found), len(truth))
            figures |= {with_suffix(suffix, name): figure for name, figure in own.items()}
        return {"vectors": name, **facts, "figures": figures}

    most = np.bincount(labels).argmax()
    rows = [row("none: the most frequent class", [np.full_like(truth, most) for truth in gold])]
    for ways in (static_features(splits, args), frozen_features(splits, checkpoint, args)):
        for name, vectors in ways:
            if not sparse.issparse(vectors[0]):
                scaler = StandardScaler().fit(vectors[0])
                vectors = [scaler.transform(each) for each in vectors]
            search = fit_classifier(vectors[0], labels, task.metrics[0])
            facts = {"size": vectors[0].shape[1], "C": search.best_params_["C"]}
            rows.append(row(name, [search.predict(each) for each in vectors[1:]], **facts))
    return {"rows": rows + last}


# Words

_NUM_NEIGHBORS = 5
# Word -> types of entity, and places among the words of all sentences.
Mentions = Mapping[str, Sequence[tuple[str, int]]]


def find_mentions(examples: Sequence[TaggedExample], labels: Sequence[str]) -> Mentions:
    """The words that are tagged B-X or I-X, X being the type."""
    found: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    words = (pair for each in examples for pair in zip(each.tokens, each.labels or (), strict=True))
    for place, (word, label) in enumerate(words):
        if labels[label] != "O":
            found[word].append((labels[label][2:], place))
    return found


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosines (N, M) of float (N, D) with (M, D); of equal vectors exactly 1, as their sums are
    taken alike.
    """
    first, second = first.astype(np.float64), second.astype(np.float64)
    norms = np.sqrt((first**2).sum(-1)[:, None] * (second**2).sum(-1))
    return np.array([(row * second).sum(-1) for row in first]) / norms


def vote(similarities: Iterable[np.ndarray], types: Sequence[str]) -> list[str]:
    """The most frequent type of the nearest mentions, for each row; of equally frequent ones the
    nearest's.

    All that are as near as the last of them vote, too: with one vector per word, all mentions.
    """
    found = []
    for row in similarities:
        order = np.argsort(-row, kind="stable")
        nearest = order[row[order] >= row[order][:_NUM_NEIGHBORS][-1]]
        found.append(Counter(types[number] for number in nearest).most_common(1)[0][0])
    return found


def measure_words(
    train: Mentions, held_out: Mentions, tables: Mapping[str, np.ndarray]
) -> dict[str, list[float]]:
    """Cosines of held-out with training mentions (means of the words' means), and how many types
    their neighbours tell.

    Args:
        tables: Word -> cosines (held-out mentions, training mentions).
    """
    pairs, hits = [], []
    for word, table in tables.items():
        types, gold = [kind for kind, _ in train[word]], [kind for kind, _ in held_out[word]]
        usual, same = Counter(types).most_common(1)[0][0], np.equal.outer(gold, types)
        hits += [
            (kind == found, kind == usual)
            for kind, found in zip(gold, vote(table, types), strict=True)
        ]
        if same.any() and not same.all():
            pairs.append((table[same].mean(), table[~same].mean()))
    cosine, right = np.array(pairs), np.array(hits, float)

    def of_mentions(rows: Sequence[int]) -> dict[str, float]:
        accuracy, majority = right[rows].mean(0).tolist()
        return {"accuracy": accuracy, "beyond the majority": accuracy - majority}

    def of_words(rows: Sequence[int]) -> dict[str, float]:
        same, other = cosine[rows].mean(0).tolist()
        return {"cosine, same type": same, "beyond another type": same - other}

    return (_with_intervals(of_words, len(pairs)) if pairs else {}) | _with_intervals(
        of_mentions, len(hits)
    )


def compare_words(
    task: Task, splits: Splits, checkpoint: str, args: StaticArguments
) -> dict[str, Any]:
    """Measure the words of two types or more with a static vector each, and with every layer of a
    frozen encoder.
    """
    sentences = [cast(Sequence[TaggedExample], split.examples) for split in splits[:2]]
    static = train_word_vectors((" ".join(each.tokens) for each in sentences[0]), args)
    found, held_out = (find_mentions(each, task.labels) for each in sentences)
    counts = {word: Counter(kind for kind, _ in places) for word, places in found.items()}
    words = [
        word
        for word in counts
        if sum(count >= args.min_mentions for count in counts[word].values()) > 1
    ]
    words = sorted(word for word in words if word in held_out and static.mean([word]).any())
    unknown = sorted({*(args.words or ())} - {*words})
    if unknown or not words:
        raise InputError(
            f"words: {', '.join(unknown) or 'none'} not tagged as two types, {args.min_mentions} "
            "times each, in "
            f"{splits[0].source}, tagged in {splits[1].source} and given a word vector; lower "
            "--min_mentions or --min_count, "
            f"or take {', '.join(words[:20]) or 'more examples'}"
        )
    words = [word for word in words if not args.words or word in args.words]
    # Each sentence alone: in a document, other mentions of a word would be its context.
    chosen = [
        [
            replace(each, document=number)
            for number, each in enumerate(own)
            if not {*words}.isdisjoint(find_mentions([each], task.labels))
        ]
        for own in sentences
    ]
    train, test = (find_mentions(each, task.labels) for each in chosen)
    encoder, tokenizer = open_encoder(checkpoint, args.max_seq_length)
    encoder = cast(PreTrainedModel, encoder.to(choose_device(use_cpu=args.use_cpu)))
    sides = []
    for own in chosen:
        features = word_features(encoder, tokenizer, own, max_seq_length=args.max_seq_length)
        sides.append([static.mean(word for each in own for word in each.tokens), *features.vectors])
    rows = []
    for number, (there, here) in enumerate(zip(*sides, strict=True)):
        tables = {
            word: cosines(
                here[[place for _, place in test[word]]], there[[place for _, place in train[word]]]
            )
            for word in words
        }
        name = (
            ("word vector", "BERT, embeddings with positions")[number]
            if number < 2
            else f"BERT, layer {number - 1}"
        )
        rows.append(
            {"vectors": name, "size": there.shape[1], "figures": measure_words(train, test, tables)}
        )
    return {
        "words": {word: counts[word] for word in words},
        "mentions": sum(len(test[word]) for word in words),
        "rows": rows,
    }
