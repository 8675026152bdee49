"""Compare static with contextual vectors: of texts, and of words that are tagged as several types.

Texts meet a logistic regression on TF-IDF, on word vectors and on vectors of a frozen BERT, beside
the figures of a fine-tuned one, which are read from its run. Words are told apart by their
neighbours.

Legend: N texts, D size of a vector.
"""

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, ShuffleSplit
from sklearn.preprocessing import StandardScaler
from transformers import PreTrainedModel

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
from bert_recipes.features.results import check_results_folder, markdown_table
from bert_recipes.features.word_vectors import (
    WORD_PATTERN,
    WordVectors,
    train_word_vectors,
)
from bert_recipes.files import read_json_object
from bert_recipes.finetuning.arguments import TaskArguments, check_access, read_model_config
from bert_recipes.metrics.certainty import (
    jackknife_intervals,
    jackknife_replicates,
    wilson_interval,
)
from bert_recipes.metrics.classification import compute
from bert_recipes.run_folder import RESULTS_FILE
from bert_recipes.tags import are_entities, split_tag
from bert_recipes.tasks.examples import Split, TaggedExample, TextExample, hash_of_examples
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task import PROBLEM_TYPES, Task, figure_names, metric_prefixes, with_prefix
from bert_recipes.tasks.task_file import log_found_labels


logger = logging.getLogger(__name__)

SEED = 0
Splits = Sequence[Split]  # that of training first
Figures = dict[str, list[float]]  # name -> [value, low, high], 95 %
Row = dict[str, Any]  # "vectors": whose row it is; "figures"


def compare(args: StaticArguments) -> dict[str, Any]:
    """Measure texts where the task has one class for each, words where it has tags of entities."""
    settings = TaskArguments(
        task=args.task,
        task_file=args.task_file,
        model_name_or_path=args.model_name_or_path,
        data_dir=args.data_dir,
        max_seq_length=args.max_seq_length,
    )
    task = check_access(settings)
    log_found_labels(task)
    is_tagged = task.kind == "token_classification" and are_entities(task.labels)
    has_classes = task.kind == "sequence_classification" and task.problem_type == PROBLEM_TYPES[0]
    if not is_tagged and not has_classes:
        raise InputError(
            f"task {task.name} has neither one class per text nor tags O, B-X, I-X; try sst2, "
            "conll2003"
        )
    other = "finetuned" if is_tagged else "words"
    if getattr(args, other) is not None:
        raise InputError(f"{other} has no effect on task {task.name}: leave it out")
    if not task.validation_splits:
        raise InputError(f"task {task.name} has no validation split to measure on; give it one")
    # Compare with run.yaml, which names the checkpoint that was found.
    args.model_name_or_path = settings.model_name_or_path
    check_results_folder(args.folder(task.name), args)

    splits = []
    for name in (task.train_split, *task.validation_splits):
        limit = args.max_train_examples if name == task.train_split else args.max_eval_examples
        split = load_split(
            task,
            name,
            data_dir=args.data_dir,
            max_examples=limit,
            need_labels=True,
        )
        splits.append(split)

    checkpoint = str(settings.model_name_or_path)
    compare_vectors = compare_words if is_tagged else compare_texts
    return {
        "task": task.name,
        "model": checkpoint,
        "examples": {split.name: len(split.examples) for split in splits},
        **compare_vectors(task, splits, checkpoint, args),
    }


def with_intervals(score: Callable[[Sequence[int]], Mapping[str, float]], size: int) -> Figures:
    """Return figures over all rows with their intervals.

    Args:
        score: Numbers of rows -> figures. Where one has no interval, low and high are the value.
        size: Number of rows.
    """
    values = score(range(size))
    intervals = jackknife_intervals(values, jackknife_replicates(score, size))
    if "accuracy" in values:
        intervals["accuracy"] = wilson_interval(values["accuracy"], size)
    figures = {}
    for name, value in values.items():
        low, high = intervals.get(name, (value, value))
        figures[name] = [value, low, min(high, 1.0)]
    return figures


def make_table(rows: Sequence[Row]) -> str:
    """Return Markdown, a line for each row."""
    names = list(rows[0]["figures"])
    lines = []
    for row in rows:
        size = ""
        if "size" in row:
            size = f"{row['size']:,}"
        strength = ""
        if "C" in row:
            strength = f"{row['C']:g}"
        cells = [row["vectors"], size, strength]
        for name in names:
            value, low, high = row["figures"][name]
            interval = f" ({low:.3f} to {high:.3f})" if low < high else ""
            cells.append(f"{value:.3f}{interval}")
        lines.append(cells)
    return markdown_table(["vectors", "size", "C", *names], lines)


# Texts

STRENGTHS = tuple(10.0**power for power in range(-4, 4))
# Vectors of a frozen BERT: its layers, and how those of the tokens become one.
FROZEN = {
    "frozen: [CLS] of the last layer": ("last", "cls"),
    "frozen: mean of the last layer": ("last", "mean_all"),
    "frozen: mean of the last four layers": ("sum_last_four", "mean_all"),
}

# Name of the vectors, and float (N, D) of every split, NumPy's or sparse.
Vectors = tuple[str, list[Any]]


def compare_texts(
    task: Task,
    splits: Splits,
    checkpoint: str,
    args: StaticArguments,
) -> dict[str, Any]:
    """Train and measure a classifier on each kind of vectors; the fine-tuned run is only read.

    Args:
        task: With one class per text.
        splits: That of training first.
        checkpoint: Of the frozen encoder.
        args: The recipe's settings.
    """
    labels = []
    for split in splits:
        labels.append(np.array([cast(TextExample, example).label for example in split.examples]))

    train_labels = labels[0]
    gold = labels[1:]
    if len(np.unique(train_labels)) < 2:
        raise InputError(
            f"{splits[0].source}: all examples have one label; a classifier needs two, or more "
            "examples"
        )

    finetuned_rows = []
    if args.finetuned is not None:
        finetuned_rows.append(read_finetuned(Path(args.finetuned), task, splits))

    majority = np.bincount(train_labels).argmax()
    predicted = [np.full_like(split_labels, majority) for split_labels in gold]
    figures = _measure_texts(task, gold, predicted)
    rows: list[Row] = [{"vectors": "none: the most frequent class", "figures": figures}]
    static = static_features(splits, args)
    frozen = frozen_features(splits, checkpoint, args)

    for name, vectors in itertools.chain(static, frozen):
        if not sparse.issparse(vectors[0]):
            scaler = StandardScaler().fit(vectors[0])
            vectors = [scaler.transform(split_vectors) for split_vectors in vectors]
        search = fit_classifier(vectors[0], train_labels, task.metrics[0])
        predicted = [search.predict(split_vectors) for split_vectors in vectors[1:]]
        row = {
            "vectors": name,
            "size": vectors[0].shape[1],
            "C": search.best_params_["C"],
            "figures": _measure_texts(task, gold, predicted),
        }
        rows.append(row)
        logger.info("%s: measured", name)
    return {"rows": rows + finetuned_rows}


def fit_classifier(vectors: Any, labels: np.ndarray, metric: str) -> GridSearchCV:
    """Choose C on a tenth of the training examples, then train on all of them.

    Args:
        vectors: float (N, D), NumPy's or sparse.
        labels: int (N,).
        metric: By which C is chosen.
    """
    split = ShuffleSplit(1, test_size=0.1, random_state=SEED)
    fitted, _ = next(split.split(labels))
    if len(set(labels[fitted].tolist())) < 2:
        raise InputError(
            f"C is chosen on a tenth of the {len(labels)} training examples, and all the others "
            "have one label; give more examples"
        )
    search = GridSearchCV(
        LogisticRegression(max_iter=1000),
        {"C": STRENGTHS},
        cv=split,
        scoring=lambda model, rows, gold: compute([metric], model.predict(rows), gold)[metric],
    )
    return search.fit(vectors, labels)


def _measure_texts(
    task: Task, gold: Sequence[np.ndarray], predicted: Sequence[np.ndarray]
) -> Figures:
    """Return the task's metrics on each validation split.

    Args:
        task: Of the texts.
        gold: Labels (N,) of each split.
        predicted: The same of the predictions.
    """
    figures: Figures = {}
    for number, prefix in enumerate(metric_prefixes(task.validation_splits)):
        score = partial(_score, task, gold[number], predicted[number])
        for name, figure in with_intervals(score, len(gold[number])).items():
            figures[with_prefix(prefix, name)] = figure
    return figures


def _score(
    task: Task,
    gold: np.ndarray,
    predicted: np.ndarray,
    rows: Sequence[int],
) -> dict[str, float]:
    return compute(task.metrics, predicted[rows], gold[rows])


def static_features(splits: Splits, args: StaticArguments) -> Iterator[Vectors]:
    """Yield TF-IDF of words and pairs of words, and means of word vectors."""
    columns = [_text_columns(split) for split in splits]
    train_texts = list(itertools.chain(*columns[0]))
    words = train_word_vectors(train_texts, args)
    tfidf = TfidfVectorizer(
        token_pattern=WORD_PATTERN,
        ngram_range=(1, 2),
        sublinear_tf=True,
    )
    tfidf.fit(train_texts)

    def weigh(texts: list[str]) -> sparse.csr_array:
        # Of arrays `*` multiplies number by number; of scikit-learn's matrices it does not.
        return sparse.csr_array(tfidf.transform(texts))

    yield "TF-IDF", [_join_columns(weigh, texts) for texts in columns]
    yield "mean of word vectors", [_join_columns(words.mean, texts) for texts in columns]


def _text_columns(split: Split) -> list[list[str]]:
    """Return the first texts of a split, and the second ones where its examples are pairs."""
    examples = cast(Sequence[TextExample], split.examples)
    columns = [[example.text for example in examples]]
    if examples[0].text_pair is not None:
        columns.append([str(example.text_pair) for example in examples])
    return columns


def _join_columns(vectorize: Callable[[list[str]], Any], columns: list[list[str]]) -> Any:
    """Return the vectors of single texts, or u, v, |u - v| and u * v of two.

    Source: Conneau et al. 2017, section 3.1.
    """
    first = vectorize(columns[0])
    if len(columns) == 1:
        return first
    second = vectorize(columns[1])
    parts = [first, second, abs(first - second), first * second]
    if sparse.issparse(first):
        return sparse.hstack(parts)
    return np.hstack(parts)


def frozen_features(splits: Splits, checkpoint: str, args: StaticArguments) -> Iterator[Vectors]:
    """Yield vectors of a frozen encoder, which reads two texts as one input.

    Args:
        splits: Texts or pairs.
        checkpoint: Of the encoder.
        args: The recipe's settings.
    """
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

    vectors_of_splits = []
    num_truncated = 0
    for split in splits:
        inputs = []
        for example in cast(Sequence[TextExample], split.examples):
            texts = (example.text, example.text_pair)
            inputs.append(encode_input(texts, extractor.tokenizer, args.max_seq_length))
        vectors = defaultdict(list)
        for chunk in extractor.chunks(inputs):
            for name, (column, pooling) in FROZEN.items():
                if column not in layers:
                    continue
                for item, tokens in zip(chunk.inputs, chunk.vectors[column], strict=True):
                    vectors[name].append(pool(tokens, item, pooling))
        vectors_of_splits.append(vectors)
        num_truncated += sum(item.is_truncated for item in inputs)
    if num_truncated:
        logger.warning(
            "%d texts are longer than %d positions: the encoder reads their beginning, the other "
            "vectors all of them; raise --max_seq_length, if the model has more positions",
            num_truncated,
            args.max_seq_length,
        )

    for name in vectors_of_splits[0]:
        yield name, [np.stack(vectors[name]) for vectors in vectors_of_splits]


def read_finetuned(folder: Path, task: Task, splits: Splits) -> Row:
    """Return the row of a fine-tuning run, which must have been measured on the same examples.

    Args:
        folder: Of the run.
        task: Whose metrics are read.
        splits: That of training first.
    """
    path = folder / RESULTS_FILE
    if not path.is_file():
        raise InputError(
            f"finetuned: {path} is missing; give the folder of a finished run of "
            "recipes/finetune.py"
        )

    results = read_json_object(path)
    run_splits = results.get("splits", {})

    for name, split in zip(("train", *task.validation_splits), splits, strict=True):
        run_hash = run_splits.get(name, {}).get("sha256")
        if run_hash != hash_of_examples(split.examples):
            raise InputError(
                f"finetuned: {folder} has other examples than these {len(split.examples)} of "
                f"{split.source}"
            )

    figures = {}
    for name in figure_names(task.metrics, task.validation_splits):
        value = results[f"eval_{name}"]
        if value is None:
            raise InputError(f"finetuned: {folder} has diverged: its {name} is not defined")
        low, high = results["intervals"].get(name, (value, value))
        figures[name] = [value, low, high]

    return {
        "vectors": "fine-tuned",
        "run": str(folder),
        "figures": figures,
    }


# Words

NUM_NEIGHBORS = 5
# Word -> types of entity, and places among the words of all sentences.
Mentions = Mapping[str, Sequence[tuple[str, int]]]


def compare_words(
    task: Task,
    splits: Splits,
    checkpoint: str,
    args: StaticArguments,
) -> dict[str, Any]:
    """Measure the words of two types or more by static vectors and by every layer of an encoder.

    Args:
        task: With tags of entities.
        splits: That of training first; of the others only the next one is measured.
        checkpoint: Of the encoder.
        args: The recipe's settings.
    """
    train_examples = cast(Sequence[TaggedExample], splits[0].examples)
    test_examples = cast(Sequence[TaggedExample], splits[1].examples)
    static = train_word_vectors((" ".join(example.tokens) for example in train_examples), args)
    counts = {}
    for word, mentions in find_mentions(train_examples, task.labels).items():
        counts[word] = Counter(kind for kind, _ in mentions)

    held_out = find_mentions(test_examples, task.labels)
    words = _choose_words(
        counts,
        held_out,
        static,
        splits,
        args,
    )

    # Each sentence alone: in a document, other mentions of a word would be its context.
    train_sentences = _with_mentions(train_examples, words, task)
    test_sentences = _with_mentions(test_examples, words, task)
    train = find_mentions(train_sentences, task.labels)
    test = find_mentions(test_sentences, task.labels)
    encoder, tokenizer = open_encoder(checkpoint, args.max_seq_length)
    encoder = cast(PreTrainedModel, encoder.to(choose_device(use_cpu=args.use_cpu)))

    def vectors_of(sentences: Sequence[TaggedExample]) -> dict[str, np.ndarray]:
        """Return name -> vectors (W, D) of all words: static, then every hidden state."""
        features = word_features(encoder, tokenizer, sentences, max_seq_length=args.max_seq_length)
        tokens: list[str] = []
        for sentence in sentences:
            tokens.extend(sentence.tokens)
        vectors = {"word vector": static.mean(tokens)}
        for layer, states in enumerate(features.vectors):
            name = "BERT, embeddings with positions" if layer == 0 else f"BERT, layer {layer}"
            vectors[name] = states
        return vectors

    train_vectors = vectors_of(train_sentences)
    test_vectors = vectors_of(test_sentences)
    rows = []
    for name, vectors in train_vectors.items():
        tables = {}
        for word in words:
            train_places = [place for _, place in train[word]]
            test_places = [place for _, place in test[word]]
            tables[word] = cosines(test_vectors[name][test_places], vectors[train_places])
        figures = measure_words(train, test, tables)
        rows.append({"vectors": name, "size": vectors.shape[1], "figures": figures})

    return {
        "words": {word: counts[word] for word in words},
        "mentions": sum(len(test[word]) for word in words),
        "rows": rows,
    }


def _choose_words(
    counts: Mapping[str, Counter[str]],
    held_out: Mentions,
    static: WordVectors,
    splits: Splits,
    args: StaticArguments,
) -> list[str]:
    """Return the words that can be measured, of `args.words` where there are such.

    Args:
        counts: Word -> training mentions of each type.
        held_out: Mentions to be measured.
        static: Vectors of words.
        splits: For the message.
        args: The limits.
    """
    words = []
    for word in sorted(counts):
        num_types = sum(count >= args.min_mentions for count in counts[word].values())
        if num_types > 1 and word in held_out and static.mean([word]).any():
            words.append(word)

    missing = sorted(set(args.words or ()) - set(words))
    if missing or not words:
        raise InputError(
            f"words: {', '.join(missing) or 'none'} not tagged as two types, {args.min_mentions} "
            f"times each, in {splits[0].source}, tagged in {splits[1].source} and given a word "
            "vector; lower --min_mentions or --min_count, "
            f"or take {', '.join(words[:20]) or 'more examples'}"
        )
    return [word for word in words if not args.words or word in args.words]


def find_mentions(examples: Sequence[TaggedExample], labels: Sequence[str]) -> Mentions:
    """Return word -> its mentions: type of entity, and place among the words of all sentences."""
    mentions: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    place = 0
    for example in examples:
        for word, label in zip(example.tokens, example.labels or (), strict=True):
            if labels[label] != "O":
                _, entity_type = split_tag(labels[label])
                mentions[word].append((entity_type, place))
            place += 1
    return mentions


def _with_mentions(
    examples: Sequence[TaggedExample], words: Sequence[str], task: Task
) -> list[TaggedExample]:
    """Return the sentences that mention one of the words, each a document of its own."""
    sentences = []
    for number, example in enumerate(examples):
        mentions = find_mentions([example], task.labels)
        if not mentions.keys().isdisjoint(words):
            sentences.append(replace(example, document=number))
    return sentences


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosines (N, M) of float (N, D) with (M, D).

    Those of equal vectors are exactly 1, as their sums are taken alike.
    """
    first = first.astype(np.float64)
    second = second.astype(np.float64)
    squares_of_first = np.sum(first**2, axis=-1)
    squares_of_second = np.sum(second**2, axis=-1)
    squares = squares_of_first[:, None] * squares_of_second
    norms = np.sqrt(squares)

    products = np.empty_like(norms)
    for number, row in enumerate(first):
        products[number] = np.sum(row * second, axis=-1)
    return products / norms


def vote(similarities: Iterable[np.ndarray], types: Sequence[str]) -> list[str]:
    """Return the most frequent type of the nearest mentions, for each row.

    Of equally frequent ones it is the nearest's. All that are as near as the last of them vote,
    too: with one vector per word, all mentions.
    """
    winners = []
    for row in similarities:
        order = np.argsort(-row, kind="stable")
        least_similarity = row[order[:NUM_NEIGHBORS]].min()
        nearest = order[row[order] >= least_similarity]
        votes = Counter(types[number] for number in nearest)
        winners.append(votes.most_common(1)[0][0])
    return winners


def measure_words(train: Mentions, test: Mentions, tables: Mapping[str, np.ndarray]) -> Figures:
    """Return how near mentions of one type are, and how many types their neighbours tell.

    Args:
        train: Training mentions.
        test: Held-out mentions.
        tables: Word -> cosines (held-out mentions, training mentions).
    """
    word_cosines = []
    hits = []
    for word, table in tables.items():
        types = [kind for kind, _ in train[word]]
        gold = [kind for kind, _ in test[word]]
        majority = Counter(types).most_common(1)[0][0]
        for kind, winner in zip(gold, vote(table, types), strict=True):
            hits.append((kind == winner, kind == majority))
        is_same = np.equal.outer(gold, types)
        if is_same.any() and not is_same.all():
            word_cosines.append((table[is_same].mean(), table[~is_same].mean()))

    def score_words(rows: Sequence[int]) -> dict[str, float]:
        same, different = np.array(word_cosines)[rows].mean(0).tolist()
        return {"cosine, same type": same, "beyond another type": same - different}

    def score_mentions(rows: Sequence[int]) -> dict[str, float]:
        accuracy, majority_accuracy = np.array(hits, float)[rows].mean(0).tolist()
        return {"accuracy": accuracy, "beyond the majority": accuracy - majority_accuracy}

    figures: Figures = {}
    if word_cosines:
        figures.update(with_intervals(score_words, len(word_cosines)))
    figures.update(with_intervals(score_mentions, len(hits)))
    return figures
