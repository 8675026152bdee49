"""Score sentences by how likely a masked LM finds them, and BLiMP, pairs with a grammatical one.

Source: Salazar et al. 2020, "Masked Language Model Scoring"; whole words: Kauf and Ivanova 2023, "A
Better Way to Do Masked Language Model Scoring".
"""

import itertools
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForMaskedLM

from bert_recipes.checkpointing import check_checkpoint, opening
from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.errors import InputError
from bert_recipes.features.arguments import LikelihoodArguments, SentenceArguments
from bert_recipes.features.extract import choose_device
from bert_recipes.features.results import markdown_table
from bert_recipes.finetuning.checkpoints import open_complete, open_tokenizer
from bert_recipes.metrics.certainty import wilson_interval
from bert_recipes.models.bert import PreTrainingModel
from bert_recipes.models.checkpoints import MASKED_LM_HEADS, MEMBERS, open_checkpoint
from bert_recipes.models.sizes import num_positions, reads_left_to_right
from bert_recipes.progress import Progress
from bert_recipes.rows import column_text, read_table
from bert_recipes.tokenization.loading import check_vocabulary
from bert_recipes.training.arguments import choose_precision
from bert_recipes.training.speed import keep_freed_memory


logger = logging.getLogger(__name__)


class SentenceScore(NamedTuple):
    """Hold the sum of log p(piece | all others), in nats, and the number of pieces."""

    log_likelihood: float
    num_pieces: int


@dataclass(frozen=True)
class SentenceScorer:
    """Score with a masked LM, or a BERT that reads from left to right, in evaluation mode."""

    model: Any
    tokenizer: Any
    args: LikelihoodArguments

    def score(self, sentences: Sequence[str]) -> list[SentenceScore]:
        """Score sentences, those of one length together; a sentence without a piece has 0."""
        progress = Progress(sentences, desc="encode", leave=False)
        encoded = [self._encode(sentence) for sentence in progress]
        num_pieces = np.array([len(words) for _, words in encoded])

        sums = np.zeros(len(sentences))
        with Progress(
            total=len(sentences),
            desc="score",
            unit=" sentences",
            leave=False,
        ) as bar:
            for numbers in self._batches(num_pieces):
                inputs = []
                labels = []
                for number in numbers:
                    sentence_inputs, sentence_labels = self._mask(*encoded[number])
                    inputs.append(sentence_inputs)
                    labels.append(sentence_labels)
                losses = self._losses(np.concatenate(inputs), np.concatenate(labels))
                losses_of_sentences = losses.reshape(len(numbers), -1)  # they have equally many
                sums[numbers] -= losses_of_sentences.sum(axis=1, dtype=np.float64)
                bar.update(len(numbers))
        if not np.isfinite(sums).all():
            raise InputError(
                f"{self.args.model_name_or_path}: the model's outputs are not finite; it has "
                "diverged"
            )
        return list(map(SentenceScore, sums.tolist(), num_pieces.tolist()))

    def _encode(self, sentence: str) -> tuple[np.ndarray, np.ndarray]:
        """Return [CLS] sentence [SEP], int32 (S,), and the number of each piece's word."""
        pieces = self.tokenizer(
            sentence,
            add_special_tokens=False,
            split_special_tokens=True,
            verbose=False,
        )
        layout = self.tokenizer.layout
        text = np.array([*layout.prefix, *pieces["input_ids"], *layout.suffix], np.int32)
        longest = num_positions(self.model.config, 512)
        if len(text) > longest:
            raise InputError(
                f"'{sentence:.60}' has {len(text)} tokens, the model reads {longest}; cut it into "
                "sentences"
            )
        return text, np.array(pieces.word_ids(), np.int32)

    def _mask(self, text: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs that a sentence of N pieces becomes, and their labels, int64 (N, S).

        Labels are -100 where nothing is predicted. Each piece is hidden in turn. A model that reads
        from left to right has one input, the sentence.
        """
        num_pieces = len(words)
        start = len(self.tokenizer.layout.prefix)
        end = start + num_pieces
        text = text.astype(np.int64)
        pieces = text[start:end]
        if reads_left_to_right(self.model.config):
            labels = np.full((1, len(text)), IGNORE_INDEX)
            labels[0, start - 1 : end - 1] = pieces
            return text[None], labels

        is_hidden = np.eye(num_pieces, dtype=bool)
        if self.args.whole_words:
            is_hidden = np.triu(words[:, None] == words)
        inputs = np.tile(text, (num_pieces, 1))
        pieces_of_inputs = inputs[:, start:end]  # a view
        pieces_of_inputs[is_hidden] = self.tokenizer.mask_token_id

        labels = np.full(inputs.shape, IGNORE_INDEX)
        numbers = np.arange(num_pieces)
        labels[numbers, start + numbers] = pieces
        return inputs, labels

    def _batches(self, num_pieces: np.ndarray) -> Iterator[np.ndarray]:
        """Yield numbers of sentences of one length, about `batch_tokens` tokens together."""
        lengths = np.unique(num_pieces[num_pieces > 0])
        for length in lengths.tolist():
            numbers = np.flatnonzero(num_pieces == length)
            num_tokens = length + 2  # with special ones
            if not reads_left_to_right(self.model.config):
                num_tokens *= length  # an input for each piece
            size = max(1, self.args.batch_tokens // num_tokens)
            for start in range(0, len(numbers), size):
                yield numbers[start : start + size]

    def _losses(self, input_ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return float (M,): minus log p of each label, in the order of the rows.

        A long sentence is more than `batch_tokens`, and is computed in parts.
        """
        num_rows = max(1, self.args.batch_tokens // input_ids.shape[1])
        losses = []
        for start in range(0, len(input_ids), num_rows):
            rows = slice(start, start + num_rows)
            losses.append(self._losses_of_rows(input_ids[rows], labels[rows]))
        return np.concatenate(losses)

    @torch.no_grad()
    def _losses_of_rows(self, input_ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        device = self.model.device
        ids = torch.from_numpy(input_ids).to(device)
        targets = torch.from_numpy(labels).to(device)
        is_label = targets != IGNORE_INDEX

        with torch.autocast(device.type, torch.bfloat16, enabled=self.args.precision == "bf16"):
            if isinstance(self.model, PreTrainingModel):
                # Only what is predicted meets the vocabulary.
                hidden = self.model.encode_tokens(ids, torch.ones_like(ids), torch.zeros_like(ids))
                logits = self.model.token_logits(hidden[is_label.flatten()])
            else:
                output = self.model(input_ids=ids, attention_mask=torch.ones_like(ids))
                logits = output.logits[is_label]

        losses = F.cross_entropy(logits.float(), targets[is_label], reduction="none")
        return losses.cpu().numpy()


def open_scorer(args: LikelihoodArguments) -> SentenceScorer:
    """Open a checkpoint, ours or stock, by its folder or Hub name."""
    name = args.model_name_or_path
    cached_only = check_checkpoint(name)
    device = choose_device(use_cpu=args.use_cpu)
    choose_precision(args.precision, use_cpu=device.type == "cpu")
    tokenizer = open_tokenizer(name)

    with opening(name):
        config = AutoConfig.from_pretrained(
            name, local_files_only=cached_only, trust_remote_code=False
        )
    if config.model_type in {kind.config_class.model_type for kind in MEMBERS.values()}:
        with opening(name):
            model, new_weights = open_checkpoint(name, cached_only=cached_only)
        missing = [key for key in new_weights if key.startswith(MASKED_LM_HEADS)]
        if missing:
            raise InputError(
                f"{name} has no masked-LM head (no weights for {min(missing)}): it cannot tell "
                "what is likely"
            )
        # ELECTRA's discriminator predicts no tokens.
        model = getattr(model, "generator", model)
        model.base_model.use_fast_layers(args.fast_layers if device.type == "cpu" else "off")
    else:
        model = open_complete(name, AutoModelForMaskedLM)
    check_vocabulary(name, model.config.vocab_size, tokenizer)
    if args.whole_words and reads_left_to_right(model.config):
        raise InputError(
            f"--whole_words hides the pieces of a word together; {name} reads from left to right "
            "and hides none: leave it out"
        )
    if device.type == "cpu":
        keep_freed_memory()
    return SentenceScorer(model.to(device).eval(), tokenizer, args)


# BLiMP

# The paper's 12 phenomena: the files keep two of its paradigms of argument structure apart.
_PHENOMENA = {"s-selection": "argument_structure"}


class Paradigm(NamedTuple):
    """Hold pairs of a sentence and one that breaks a rule, and the phenomenon of that rule."""

    name: str
    phenomenon: str
    pairs: list[tuple[str, str]]


def read_paradigm(file: Path, max_pairs: int | None) -> Paradigm:
    """Read a file of BLiMP, or its first pairs."""
    table = read_table(file)
    pairs = []
    phenomenon = ""
    for number, row in itertools.islice(table.rows, max_pairs):
        where = table.where(number)
        good = column_text(row, "sentence_good", where)
        bad = column_text(row, "sentence_bad", where)
        phenomenon = column_text(row, "linguistics_term", where)
        pairs.append((good, bad))
    if not pairs:
        raise InputError(f"{file}: no pair in it")
    return Paradigm(file.stem, _PHENOMENA.get(phenomenon, phenomenon), pairs)


def measure_blimp(args: SentenceArguments) -> dict[str, Any]:
    """Return the shares of the pairs whose good sentence is the likelier one (a tie is none).

    They have 95 % intervals, and are given over all pairs, by phenomenon and by paradigm.

    Source: Warstadt et al. 2020, "BLiMP: The Benchmark of Linguistic Minimal Pairs for English".
    """
    files = sorted(Path(str(args.blimp_dir)).glob("*.jsonl"))
    if not files:
        raise InputError(
            f"blimp_dir {args.blimp_dir}: no .jsonl in it; give the folder data/ of "
            "https://github.com/alexwarstadt/blimp"
        )

    paradigms = [read_paradigm(file, args.max_pairs) for file in files]

    sentences: list[str] = []
    for paradigm in paradigms:
        for pair in paradigm.pairs:
            sentences.extend(pair)

    scores = iter(open_scorer(args).score(sentences))

    all_verdicts: list[bool] = []
    by_phenomenon: defaultdict[str, list[bool]] = defaultdict(list)
    by_paradigm = {}
    for paradigm in paradigms:
        verdicts = []
        for _ in paradigm.pairs:
            good = next(scores)
            bad = next(scores)
            verdicts.append(good.log_likelihood > bad.log_likelihood)
        all_verdicts.extend(verdicts)
        by_phenomenon[paradigm.phenomenon].extend(verdicts)
        by_paradigm[paradigm.name] = {**_accuracy(verdicts), "phenomenon": paradigm.phenomenon}

    return {
        "model": args.model_name_or_path,
        "overall": _accuracy(all_verdicts),
        "phenomena": {name: _accuracy(by_phenomenon[name]) for name in sorted(by_phenomenon)},
        "paradigms": by_paradigm,
    }


def _accuracy(verdicts: Sequence[bool]) -> dict[str, Any]:
    accuracy = sum(verdicts) / len(verdicts)
    return {
        "accuracy": accuracy,
        "interval": wilson_interval(accuracy, len(verdicts)),
        "pairs": len(verdicts),
    }


def blimp_table(results: dict[str, Any]) -> str:
    """Return Markdown: all pairs, the phenomena and the paradigms, the best first."""
    lines = [_blimp_line("**all**", results["overall"])]
    for group in ("phenomena", "paradigms"):
        scores = results[group]
        for name in sorted(scores, key=lambda name: -scores[name]["accuracy"]):
            line = _blimp_line(name, scores[name])
            lines.append(line)
    return markdown_table(["pairs of", "accuracy", "95 % interval", "pairs"], lines)


def _blimp_line(name: str, score: dict[str, Any]) -> list[str]:
    low, high = score["interval"]
    interval = f"{low:.1%} to {high:.1%}"
    return [name, f"{score['accuracy']:.1%}", interval, f"{score['pairs']:,}"]
