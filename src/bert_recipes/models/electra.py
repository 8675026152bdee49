"""ELECTRA: a generator and a discriminator in one model.

Legend: B batch, S positions, V vocabulary, M masked tokens and N real tokens of the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from transformers.models.electra.modeling_electra import (
    ElectraDiscriminatorPredictions,
    ElectraGeneratorPredictions,
)
from transformers.utils.generic import can_return_tuple

from bert_recipes.models.bert import (
    IGNORE_INDEX,
    BertForPreTrainingOutput,
    PreTrainingModel,
    mean_cross_entropy,
    predicted_rows,
    rows_of_tokens,
    token_places,
)
from bert_recipes.models.bert_model import ElectraModel
from bert_recipes.models.sizes import HEAD_SIZE


# google-research/electra configure_pretraining.py.
DISCRIMINATOR_WEIGHT, GENERATOR_SIZE = 50.0, 0.25
GENERATOR_FOLDER, GENERATOR_PREFIX = "generator", "generator."


class ElectraForMaskedLM(PreTrainingModel, transformers.ElectraForMaskedLM):
    """ELECTRA's generator."""

    def __init__(self, config: Any) -> None:
        layers: dict[str, Callable[[Any], nn.Module]] = {
            "generator_predictions": ElectraGeneratorPredictions,
            "generator_lm_head": lambda own: nn.Linear(own.embedding_size, own.vocab_size),
        }
        self._build(config, electra=ElectraModel, **layers)

    @property
    def _passed_by(self) -> tuple[nn.Module, ...]:
        return (self.generator_predictions,)

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        return self.generator_predictions(rows)

    def _vocabulary_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.generator_lm_head(self._transform(hidden))


@dataclass
class ElectraForPreTrainingOutput(BertForPreTrainingOutput):
    """Output of `ElectraForPreTraining` for labels: `mlm_loss` and `prediction_logits` (M, V) are
    the generator's.
    """

    disc_loss: torch.Tensor | None = (
        None  # float (), binary cross-entropy of the discriminator, nats per real token
    )
    disc_logits: torch.Tensor | None = (
        None  # float32 (N,) for the real tokens, row after row: above 0 = replaced
    )
    replaced: torch.Tensor | None = None  # bool (N,)


def sample_words(
    logits: torch.Tensor, draws: torch.Tensor, random_share: torch.Tensor | None
) -> torch.Tensor:
    """Return int64 (M,), a word for each row of logits (M, V): as Gumbel noise draws, but a pure
    function of `draws`, float32 (M,) in [0, 1).

    Draws below `random_share` give any word of the vocabulary.
    """
    vocab_size = logits.shape[-1]
    heights = logits.softmax(-1).cumsum(-1)
    rest = draws if random_share is None else (draws - random_share) / (1 - random_share)
    words = torch.searchsorted(heights, rest[:, None] * heights[:, -1:], right=True)[:, 0]
    if random_share is not None:
        random_words = (draws / random_share * vocab_size).nan_to_num(0, 0).long()
        words = torch.where(draws < random_share, random_words, words)
    return words.clamp(max=vocab_size - 1)


class ElectraForPreTraining(PreTrainingModel, transformers.ElectraForPreTraining):
    """ELECTRA's discriminator with its generator, which share all embeddings.

    A saved folder is the discriminator's; the generator is in its folder `generator`.
    `config.generator_size` is the generator's width as a fraction of the discriminator's.

    Source: Clark et al. 2020; google-research/electra run_pretraining.py, `PretrainingModel`. There
    positions are drawn with replacement and those drawn twice count twice in the generator's loss;
    here each is predicted once.
    """

    # They are one block in both networks, whatever `config.tie_word_embeddings` says of the
    # generator's output layer.
    _tied_weights_keys = {  # noqa: RUF012  # as transformers declares it
        f"{GENERATOR_PREFIX}electra.embeddings.{name}": f"electra.embeddings.{name}"
        for name in (
            "word_embeddings.weight",
            "position_embeddings.weight",
            "token_type_embeddings.weight",
            "LayerNorm.weight",
            "LayerNorm.bias",
        )
    }
    # They are in a folder of their own (`load_generator`).
    _keys_to_ignore_on_load_missing = [rf"^{GENERATOR_PREFIX}"]  # noqa: RUF012

    def __init__(self, config: Any) -> None:
        heads = {
            "discriminator_predictions": ElectraDiscriminatorPredictions,
            "generator": self._make_generator,
        }
        self._build(config, electra=ElectraModel, **heads)

    def _make_generator(self, config: Any) -> ElectraForMaskedLM:
        hidden = max(8, int(config.hidden_size * getattr(config, "generator_size", GENERATOR_SIZE)))
        generator_config = copy.deepcopy(config)
        generator_config.update(
            {
                "hidden_size": hidden,
                "intermediate_size": 4 * hidden,
                "num_attention_heads": max(1, hidden // HEAD_SIZE),
            }
        )
        return ElectraForMaskedLM(generator_config)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """With the embeddings, which are shared in any case; first, as the generator's output layer
        follows its embeddings.
        """
        return {**self._tied_weights_keys, **super().get_expanded_tied_weights_keys(all_submodels)}

    @property
    def _passed_by(self) -> tuple[nn.Module, ...]:
        return (self.discriminator_predictions,)

    @can_return_tuple
    def forward(  # noqa: PLR0913  # stock's, and the counts and draws of pre-training
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        num_tokens_in_batch: torch.Tensor | int | None = None,
        draws: torch.Tensor | None = None,
        random_share: torch.Tensor | None = None,
        packing: Mapping[str, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Let the generator fill what is masked, and the discriminator tell which tokens are not
        the text's; without labels as stock.

        Args:
            input_ids: int64 (B, S), the masked text.
            labels: int64 (B, S), the id to predict, -100 where none is predicted.
            num_items_in_batch: Predicted tokens of the global batch; None = of this batch.
            num_tokens_in_batch: Real tokens of the global batch; None = of this batch.
            draws: float32 (B, S) in [0, 1), which decide the generator's samples; None: drawn here.
            random_share: float32 () in [0, 1), the share of the predicted tokens that any word of
                the vocabulary fills instead; None: 0.
            packing: What `plan_rows` says of this batch; without it a GPU waits for the places of
                its tokens.
        """
        if labels is None or input_ids is None:
            inputs = {
                "input_ids": input_ids,
                "attention_mask": attention_mask,
                "token_type_ids": token_type_ids,
            }
            return transformers.ElectraForPreTraining.forward(self, **inputs, **kwargs)
        encoded, _ = self.generator._encode(
            (input_ids, attention_mask, token_type_ids, None), {}, packing
        )
        predicted, targets = predicted_rows(encoded, labels, packing)
        places = encoded.layout.places_of(predicted)
        logits = self.generator.token_logits(encoded.rows[predicted]).float()
        mlm_loss = mean_cross_entropy(logits, targets, num_items_in_batch)
        with torch.no_grad():
            draws = torch.rand(labels.shape, device=labels.device) if draws is None else draws
            words = sample_words(logits, draws.flatten()[places], random_share)
            text = torch.where(labels == IGNORE_INDEX, input_ids, labels)
            shown = text.flatten().index_copy(0, places, words).view_as(text)
        replaced = (shown != text).flatten()[token_places(encoded, attention_mask)]
        encoded, _ = self._encode((shown, attention_mask, token_type_ids, None), {}, packing)
        verdicts = self.discriminator_predictions(rows_of_tokens(encoded, attention_mask)).float()
        total = F.binary_cross_entropy_with_logits(verdicts, replaced.float(), reduction="sum")
        disc_loss = total / (len(replaced) if num_tokens_in_batch is None else num_tokens_in_batch)
        return ElectraForPreTrainingOutput(
            loss=mlm_loss + DISCRIMINATOR_WEIGHT * disc_loss,
            mlm_loss=mlm_loss,
            disc_loss=disc_loss,
            prediction_logits=logits,
            disc_logits=verdicts,
            replaced=replaced,
        )

    def save_pretrained(self, save_directory: Any, state_dict: Any = None, **kwargs: Any) -> Any:
        """The discriminator in the folder, the generator in its folder `generator`; both load in
        stock's classes.
        """
        weights = self.state_dict() if state_dict is None else state_dict
        of_generator = {
            name.removeprefix(GENERATOR_PREFIX): each
            for name, each in weights.items()
            if name.startswith(GENERATOR_PREFIX)
        }
        if self.config.tie_word_embeddings:
            of_generator.pop("generator_lm_head.weight", None)
        for name, weight in weights.items():
            if name.startswith(
                "electra.embeddings."
            ):  # shared: engines leave out the second name of a weight
                of_generator.setdefault(name, weight)
        self.generator.config.vocab_size = self.config.vocab_size  # it may have been resized
        self.generator.save_pretrained(
            Path(save_directory) / GENERATOR_FOLDER, state_dict=of_generator, **kwargs
        )
        discriminator = {}
        for name, weight in weights.items():
            if not name.startswith(GENERATOR_PREFIX):
                discriminator[name] = weight
        return super().save_pretrained(save_directory, state_dict=discriminator, **kwargs)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *args: Any,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Open a discriminator as stock does, with the generator that is given or lies in its
        folder, or a new one.
        """
        name = pretrained_model_name_or_path
        model, info = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        is_given = any(key.startswith(GENERATOR_PREFIX) for key in kwargs.get("state_dict") or ())
        if not is_given and (name is None or not model.load_generator(Path(name))):
            info["missing_keys"] = {
                *info["missing_keys"],
                f"{GENERATOR_PREFIX}generator_predictions.dense.weight",
            }
        return (model, info) if output_loading_info else model

    def load_generator(self, folder: Path) -> bool:
        """Take the generator's weights from the folder of a discriminator; whether they are
        there.
        """
        if not (folder / GENERATOR_FOLDER).is_dir():
            return False
        stock = transformers.ElectraForMaskedLM.from_pretrained(
            folder / GENERATOR_FOLDER, dtype=torch.float32
        )
        self.generator.load_state_dict(stock.state_dict())
        return True
