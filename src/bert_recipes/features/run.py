"""From settings to a folder of features."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm
from transformers import PreTrainedModel

from bert_recipes.checkpoint_access import check_checkpoint
from bert_recipes.errors import InputError, saving
from bert_recipes.features.arguments import FeatureArguments
from bert_recipes.features.columns import Column, check_google_layers, choose_columns
from bert_recipes.features.extraction import FeatureExtractor, Part
from bert_recipes.features.folder import GOOGLE_FILE, FeatureFolder
from bert_recipes.features.frozen_encoder import choose_device, encoder_hash, make_fast, open_encoder
from bert_recipes.features.inputs import EncodedInput, Survey, encode_input, read_inputs, survey_inputs
from bert_recipes.features.parts import PartRecord, google_lines, write_parquet, write_safetensors
from bert_recipes.memory import keep_freed_memory
from bert_recipes.precision import choose_precision
from bert_recipes.whole_files import written_aside


logger = logging.getLogger(__name__)

BYTES_A_MB = 1_000_000
_SUFFIXES = {"parquet": ".parquet", "safetensors": ".safetensors", "google_jsonl": ".jsonl"}


@dataclass(frozen=True)
class Summary:
    """What an extraction has done.

    Attributes:
        num_inputs, num_tokens, num_truncated: Of all features in the folder.
        computed: Inputs of this call.
        seconds: That it took to compute and write them.
    """

    num_inputs: int
    num_tokens: int
    num_truncated: int
    computed: int
    seconds: float

    @property
    def inputs_per_second(self) -> float:
        """Rate of this call."""
        return self.computed / self.seconds if self.computed else 0.0


def extract_features(args: FeatureArguments) -> Summary:
    """Compute the vectors of all inputs, or those that an earlier call has not come to.

    Raises:
        InputError: A checkpoint, an input file, a layer or an output folder that does not fit; found before anything is
            computed.
    """
    check_checkpoint(args.model_name_or_path)
    device = choose_device(use_cpu=args.use_cpu)
    choose_precision(args.precision, use_cpu=device.type == "cpu")
    encoder, tokenizer = open_encoder(args.model_name_or_path)
    columns = _choose_columns(args, encoder)
    survey = survey_inputs(Path(args.input_file), args.text_columns)
    settings = {
        "model": encoder_hash(encoder),
        "tokenizer": tokenizer.fingerprint,
        "inputs": survey.fingerprint,
        "layers": {column.name: [column.join, *column.layers] for column in columns},
        **{name: getattr(args, name) for name in ("pooling", "max_seq_length", "dtype", "precision", "part_mb")},
        "format": args.format,
    }
    folder = FeatureFolder(Path(args.output_dir), _SUFFIXES[args.format], settings)
    is_complete = folder.claim(overwrite=args.overwrite)
    encoder = cast(PreTrainedModel, encoder.to(device).eval())
    make_fast(encoder, max(number for column in columns for number in column.layers), args.fast_layers)
    if device.type == "cpu":
        keep_freed_memory()
    extractor = FeatureExtractor(
        encoder=encoder,
        tokenizer=tokenizer,
        columns=columns,
        pooling=args.pooling,
        batch_size=args.batch_size,
        dtype=args.dtype,
        precision=args.precision,
    )
    return _Extraction(args, extractor, folder, survey).run(is_complete)


def _choose_columns(args: FeatureArguments, encoder: PreTrainedModel) -> list[Column]:
    if args.format == "google_jsonl":
        check_google_layers(args.wanted_layers)
    positions = getattr(encoder.config, "max_position_embeddings", args.max_seq_length)
    if args.max_seq_length > positions:
        raise InputError(f"max_seq_length is {args.max_seq_length}, the model has {positions} positions; lower it")
    return choose_columns(args.wanted_layers, args.join, encoder.config.num_hidden_layers)


class _Extraction:
    """One call: what it reads, computes and writes."""

    def __init__(
        self, args: FeatureArguments, extractor: FeatureExtractor, folder: FeatureFolder, survey: Survey
    ) -> None:
        self.args, self.extractor, self.folder, self.survey = args, extractor, folder, survey
        self.num_tokens, self.num_truncated = folder.counts

    def run(self, is_complete: bool) -> Summary:
        first, total = self.folder.next_row, self.survey.num_inputs
        if is_complete:
            logger.info("%s: finished before, kept", self.folder.folder)
        elif first:
            logger.info("%s: %d of %d inputs are there, the others follow", self.folder.folder, first, total)
        computed = 0 if is_complete else total - first
        start = time.perf_counter()
        if not is_complete:
            self.folder.write_index(self._facts(0.0, 0), is_complete=False)
            self._write(first)
        summary = Summary(total, self.num_tokens, self.num_truncated, computed, time.perf_counter() - start)
        if not is_complete:
            self.folder.write_index(self._facts(summary.seconds, computed), is_complete=True)
        if self.num_truncated:
            logger.warning(
                "%d of %d inputs are longer than %d positions and cut there; raise --max_seq_length",
                *(self.num_truncated, total, self.args.max_seq_length),
            )
        return summary

    def _facts(self, seconds: float, computed: int) -> dict[str, Any]:
        width = self.extractor.encoder.config.hidden_size
        return {
            "model": self.args.model_name_or_path,
            "input_file": self.args.input_file,
            "num_inputs": self.survey.num_inputs,
            "num_tokens": self.num_tokens,
            "num_truncated": self.num_truncated,
            "columns": [
                {"name": each.name, "layers": list(each.layers), "join": each.join, "size": each.size(width)}
                for each in self.extractor.columns
            ],
            "seconds": round(seconds, 3),
            "inputs_per_second": round(computed / seconds, 2) if computed else None,
        }

    def _parts(self, first: int) -> Iterator[Part]:
        args = self.args
        inputs = itertools.islice(read_inputs(Path(args.input_file), args.text_columns), first, None)
        with tqdm(total=self.survey.num_inputs, initial=first, unit="input", leave=False, disable=None) as bar:
            for part in self.extractor.parts(map(self._encode, inputs), args.part_mb * BYTES_A_MB, first):
                self.num_tokens += part.num_tokens
                self.num_truncated += int(part.is_truncated.sum())
                yield part
                bar.update(len(part))
                del part  # or it would be held while the next one is computed

    def _encode(self, each: Any) -> EncodedInput:
        return encode_input(each, self.extractor.tokenizer, self.args.max_seq_length)

    def _write(self, first: int) -> None:
        folder, tokenizer = self.folder, self.extractor.tokenizer
        if self.args.format == "google_jsonl":
            path = folder.folder / GOOGLE_FILE
            numbers = {column.name: column.layers[0] for column in self.extractor.columns}
            count = self.extractor.encoder.config.num_hidden_layers + 1
            indexes = {name: number - count for name, number in numbers.items()}
            with saving(path), written_aside(path) as aside, aside.open("w", encoding="utf-8") as file:
                for part in self._parts(first):
                    for line in google_lines(part, indexes, tokenizer.convert_ids_to_tokens):
                        file.write(line + "\n")
                    del part
            return
        write = write_parquet if self.args.format == "parquet" else write_safetensors
        for part in self._parts(first):
            path = folder.path_of(len(folder.records))
            record = PartRecord.of(part, folder.key)
            with saving(path), written_aside(path) as aside:
                write(aside, part, record, tokenizer.convert_ids_to_tokens)
            folder.records.append(record)
            del part
