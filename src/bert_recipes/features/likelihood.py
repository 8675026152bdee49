"""How likely sentences are to a masked LM, and BLiMP: does it prefer the grammatical of two.

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
from bert_recipes.finetuning.checkpoints import open_complete, open_tokenizer
from bert_recipes.finetuning.kind import join_texts
from bert_recipes.metrics.certainty import wilson_interval
from bert_recipes.models.bert import PreTrainingModel
from bert_recipes.models.checkpoints import MASKED_LM_HEADS, MEMBERS, open_checkpoint
from bert_recipes.models.sizes import num_positions
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
        encoded = [
            self._encode(sentence) for sentence in Progress(sentences, desc="encode", leave=False)
        ]
        pieces = np.array([len(words) for _, words in encoded])
        sums = np.zeros(len(sentences))
        order = sorted(np.flatnonzero(pieces).tolist(), key=lambda number: pieces[number])
        with Progress(total=len(sentences), desc="score", unit=" sentences", leave=False) as bar:
            for numbers in self._batches(order, pieces):
                batch = [self._mask(*encoded[number]) for number in numbers]
                losses = self._losses(
                    *(np.concatenate(arrays) for arrays in zip(*batch, strict=True))
                )
                np.subtract.at(sums, np.repeat(numbers, pieces[numbers]), losses)
                bar.update(len(numbers))
        if not np.isfinite(sums).all():
            raise InputError(
                f"{self.args.model_name_or_path}: the model's outputs are not finite; it has "
                "diverged"
            )
        return [SentenceScore(*each) for each in zip(sums.tolist(), pieces.tolist(), strict=True)]

    def _encode(self, sentence: str) -> tuple[np.ndarray, np.ndarray]:
        """Return [CLS] sentence [SEP], int32 (S,), and the number of each piece's word."""
        pieces = self.tokenizer(
            sentence, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        ids, longest = pieces["input_ids"], num_positions(self.model.config, 512)
        text = np.array(
            join_texts(self.tokenizer, ids, None, len(ids) + longest)["input_ids"], np.int32
        )
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
        first, number = len(self.tokenizer.layout.prefix), np.arange(len(words))
        own = slice(first, first + len(words))
        if getattr(self.model.config, "is_decoder", False):
            labels = np.full((1, len(text)), IGNORE_INDEX, np.int64)
            labels[0, first - 1 : first - 1 + len(words)] = text[own]
            return text[None].astype(np.int64), labels
        hidden = number[:, None] == number
        if self.args.whole_words:
            hidden = (words[:, None] == words) & (number >= number[:, None])
        inputs = np.tile(text.astype(np.int64), (len(words), 1))
        inputs[:, own][hidden] = self.tokenizer.mask_token_id
        labels = np.full(inputs.shape, IGNORE_INDEX, np.int64)
        labels[number, first + number] = text[own]
        return inputs, labels

    def _batches(self, order: Sequence[int], pieces: np.ndarray) -> Iterator[list[int]]:
        """Yield numbers of sentences of one length, about `batch_tokens` tokens together."""
        for length, numbers in itertools.groupby(order, key=lambda number: int(pieces[number])):
            size = max(1, self.args.batch_tokens // (length * (length + 2)))
            alike = list(numbers)
            yield from (alike[start : start + size] for start in range(0, len(alike), size))

    @torch.no_grad()
    def _losses(self, input_ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return float (M,): minus log p of each label, in the order of the rows."""
        device = self.model.device
        ids, targets = torch.from_numpy(input_ids).to(device), torch.from_numpy(labels).to(device)
        is_label = targets != IGNORE_INDEX
        with torch.autocast(device.type, torch.bfloat16, enabled=self.args.precision == "bf16"):
            if isinstance(self.model, PreTrainingModel):
                # Only what is predicted meets the vocabulary.
                hidden = self.model.encode_tokens(ids, torch.ones_like(ids), torch.zeros_like(ids))
                logits = self.model.token_logits(hidden[is_label.flatten()])
            else:
                logits = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[
                    is_label
                ]
        return F.cross_entropy(logits.float(), targets[is_label], reduction="none").cpu().numpy()


def open_scorer(args: LikelihoodArguments) -> SentenceScorer:
    """Open a checkpoint, ours or stock, by its folder or Hub name."""
    name = args.model_name_or_path
    cached_only, device = check_checkpoint(name), choose_device(use_cpu=args.use_cpu)
    choose_precision(args.precision, use_cpu=device.type == "cpu")
    tokenizer = open_tokenizer(name)
    with opening(name):
        config = AutoConfig.from_pretrained(name, local_files_only=cached_only)
    if config.model_type in {kind.config_class.model_type for kind in MEMBERS.values()}:
        with opening(name):
            model, new = open_checkpoint(name, cached_only=cached_only)
        if lost := [key for key in new if key.startswith(MASKED_LM_HEADS)]:
            raise InputError(
                f"{name} has no masked-LM head (no weights for {min(lost)}): it cannot tell what "
                "is likely"
            )
        model = getattr(
            model, "generator", model
        )  # ELECTRA's; the discriminator predicts no tokens
        model.base_model.use_fast_layers(args.fast_layers if device.type == "cpu" else "off")
    else:
        model = open_complete(name, AutoModelForMaskedLM)
    check_vocabulary(name, model.config.vocab_size, tokenizer)
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
    verdicts: dict[str, list[bool]] = {}
    by_phenomenon: defaultdict[str, list[bool]] = defaultdict(list)
    for paradigm in paradigms:
        is_right = []
        for _ in paradigm.pairs:
            good, bad = next(scores), next(scores)
            is_right.append(good.log_likelihood > bad.log_likelihood)
        verdicts[paradigm.name] = is_right
        by_phenomenon[paradigm.phenomenon] += is_right
    return {
        "model": args.model_name_or_path,
        "overall": _accuracy(list(itertools.chain(*verdicts.values()))),
        "phenomena": {name: _accuracy(group) for name, group in sorted(by_phenomenon.items())},
        "paradigms": {
            paradigm.name: {
                **_accuracy(verdicts[paradigm.name]),
                "phenomenon": paradigm.phenomenon,
            }
            for paradigm in paradigms
        },
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
    rows = [("**all**", results["overall"])]
    for group in ("phenomena", "paradigms"):
        rows += sorted(results[group].items(), key=lambda item: -item[1]["accuracy"])
    lines = ["| pairs of | accuracy | 95 % interval | pairs |", "| --- | --: | --: | --: |"]
    for name, row in rows:
        low, high = row["interval"]
        lines.append(
            f"| {name} | {row['accuracy']:.1%} | {low:.1%} to {high:.1%} | {row['pairs']:,} |"
        )
    return "\n".join(lines) + "\n"
