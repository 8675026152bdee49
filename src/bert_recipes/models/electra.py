"""ELECTRA: a generator and a discriminator in one model.

Legend: B batch, S positions, V vocabulary, M masked tokens and N real tokens of the batch.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.models.electra.modeling_electra import (
    ElectraDiscriminatorPredictions,
    ElectraGeneratorPredictions,
)
from transformers.utils import CONFIG_NAME
from transformers.utils.generic import can_return_tuple
from transformers.utils.hub import cached_file

from bert_recipes.errors import InputError
from bert_recipes.models.bert import (
    BertForPreTrainingOutput,
    PreTrainingModel,
    mean_cross_entropy,
)
from bert_recipes.models.bert_model import ElectraModel
from bert_recipes.models.padding_free import IGNORE_INDEX, Packing
from bert_recipes.models.sizes import HEAD_SIZE


# google-research/electra configure_pretraining.py.
DISCRIMINATOR_WEIGHT = 50.0
GENERATOR_SIZE = 0.25
# The generator's folder in the discriminator's, and the beginning of its weights' names.
GENERATOR_FOLDER = "generator"
GENERATOR_PREFIX = "generator."
# Of from_pretrained: where a Hub name is looked up.
HUB_SETTINGS = ("cache_dir", "force_download", "local_files_only", "revision", "token")
SHARED_WEIGHTS = (
    "electra.embeddings.word_embeddings.weight",
    "electra.embeddings.position_embeddings.weight",
    "electra.embeddings.token_type_embeddings.weight",
    "electra.embeddings.LayerNorm.weight",
    "electra.embeddings.LayerNorm.bias",
)


class ElectraForMaskedLM(PreTrainingModel, transformers.ElectraForMaskedLM):
    """ELECTRA's generator."""

    def __init__(self, config: Any) -> None:
        PreTrainedModel.__init__(self, config)
        self.electra = ElectraModel(config)
        self.generator_predictions = ElectraGeneratorPredictions(config)
        self.generator_lm_head = nn.Linear(config.embedding_size, config.vocab_size)
        self.finish_init()

    @property
    def _bypassed_modules(self) -> tuple[nn.Module, ...]:
        return (self.generator_predictions,)

    def _transform(self, rows: torch.Tensor) -> torch.Tensor:
        return self.generator_predictions(rows)

    def token_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of the masked-LM head, (..., H) -> (..., V)."""
        return self.generator_lm_head(self._transform(hidden))


@dataclass
class ElectraForPreTrainingOutput(BertForPreTrainingOutput):
    """Output of `ElectraForPreTraining` for labels.

    `mlm_loss` and `prediction_logits` (M, V) are the generator's.
    """

    # float (), binary cross-entropy of the discriminator, nats per real token
    disc_loss: torch.Tensor | None = None
    # float32 (N,) for the real tokens, row after row: above 0 = replaced
    disc_logits: torch.Tensor | None = None
    replaced: torch.Tensor | None = None  # bool (N,)


class ElectraForPreTraining(PreTrainingModel, transformers.ElectraForPreTraining):
    """ELECTRA's discriminator with its generator, which share all embeddings.

    A saved folder is the discriminator's; the generator is in its folder `generator`.
    `config.generator_size` is the generator's width as a fraction of the discriminator's.

    Source: Clark et al. 2020; google-research/electra run_pretraining.py, `PretrainingModel`. There
    positions are drawn with replacement and those drawn twice count twice in the generator's loss;
    here each is predicted once.
    """

    # The embeddings are shared by both networks, whatever `config.tie_word_embeddings` says of the
    # generator's output layer.
    _tied_weights_keys = {GENERATOR_PREFIX + name: name for name in SHARED_WEIGHTS}  # noqa: RUF012  # as transformers declares it
    # The generator's weights are in a folder of their own (`load_generator`).
    _keys_to_ignore_on_load_missing = [rf"^{GENERATOR_PREFIX}"]  # noqa: RUF012

    def __init__(self, config: Any) -> None:
        PreTrainedModel.__init__(self, config)
        self.electra = ElectraModel(config)
        self.discriminator_predictions = ElectraDiscriminatorPredictions(config)
        self.generator = ElectraForMaskedLM(_generator_config(config))
        self.finish_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Add the embeddings, which are shared in any case, to stock's tied weights.

        The embeddings come first, as the generator's output layer follows its embeddings.
        """
        return {**self._tied_weights_keys, **super().get_expanded_tied_weights_keys(all_submodels)}

    @property
    def _bypassed_modules(self) -> tuple[nn.Module, ...]:
        return (self.discriminator_predictions,)

    @can_return_tuple
    def forward(  # noqa: PLR0913  # stock's arguments, its counts, draws and packing
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        num_tokens_in_batch: torch.Tensor | int | None = None,
        draws: torch.Tensor | None = None,
        random_share: torch.Tensor | None = None,
        packing: Packing | None = None,
        **kwargs: Any,
    ) -> Any:
        """Let the generator fill what is masked, and the discriminator find the tokens it changed.

        Without labels it is stock's discriminator.

        Args:
            input_ids: int64 (B, S), the masked text.
            attention_mask: int64 (B, S), 1 = token, 0 = padding.
            token_type_ids: int64 (B, S).
            labels: int64 (B, S), the id to predict, -100 where none is predicted.
            num_items_in_batch: Predicted tokens of the global batch; None = of this batch.
            num_tokens_in_batch: Real tokens of the global batch; None = of this batch.
            draws: float32 (B, S) in [0, 1), which decide the generator's samples; None: drawn here.
            random_share: float32 () in [0, 1), the share of the predicted tokens that any word of
                the vocabulary fills instead; None: 0.
            packing: The packing of this batch (`make_packing`); without it a GPU waits for the
                places of its tokens.
            kwargs: What else stock's `forward` takes; both networks get it.
        """
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            **kwargs,
        }
        if labels is None or input_ids is None:
            return transformers.ElectraForPreTraining.forward(self, **inputs)
        generated = self.generator._encode(inputs, packing, labels)
        predicted, targets = generated.predicted_rows(labels, packing)
        logits = self.generator.token_logits(generated.rows[predicted]).float()
        mlm_loss = mean_cross_entropy(logits, targets, num_items_in_batch)
        with torch.no_grad():
            if draws is None:
                draws = torch.rand(labels.shape, device=labels.device)
            places = generated.layout.places_of(predicted)
            sampled_ids = sample_tokens(logits, draws.flatten()[places], random_share)
            original_ids = torch.where(labels == IGNORE_INDEX, input_ids, labels)
            filled_ids = original_ids.flatten().index_copy(0, places, sampled_ids)
            filled_ids = filled_ids.view_as(original_ids)

        inputs["input_ids"] = filled_ids
        encoded = self._encode(inputs, packing)
        token_places = encoded.token_places(attention_mask)
        replaced = (filled_ids != original_ids).flatten()[token_places]
        token_rows = encoded.token_rows(attention_mask)
        disc_logits = self.discriminator_predictions(token_rows).float()
        disc_losses = F.binary_cross_entropy_with_logits(
            disc_logits, replaced.float(), reduction="sum"
        )
        num_tokens = len(replaced) if num_tokens_in_batch is None else num_tokens_in_batch
        disc_loss = disc_losses / num_tokens
        if num_tokens_in_batch is None and num_items_in_batch is not None:
            # Stock's Trainer passes the predicted tokens of a step alone: the mean of this
            # micro-batch is weighted by its share of those.
            disc_loss = disc_loss * (len(targets) / num_items_in_batch)
        return ElectraForPreTrainingOutput(
            loss=mlm_loss + DISCRIMINATOR_WEIGHT * disc_loss,
            mlm_loss=mlm_loss,
            disc_loss=disc_loss,
            prediction_logits=logits,
            disc_logits=disc_logits,
            replaced=replaced,
        )

    def save_pretrained(self, save_directory: Any, state_dict: Any = None, **kwargs: Any) -> Any:
        """Save the discriminator in the folder, the generator in its folder `generator`.

        Stock's classes load both folders. To push both, call `push_to_hub` of the model.
        """
        if kwargs.get("push_to_hub"):
            raise InputError(
                "save_pretrained(push_to_hub=True) would push ELECTRA without its generator; call "
                "model.push_to_hub(NAME)"
            )
        weights = self.state_dict() if state_dict is None else state_dict
        discriminator_weights = {}
        generator_weights = {}
        for name, weight in weights.items():
            if name.startswith(GENERATOR_PREFIX):
                generator_weights[name.removeprefix(GENERATOR_PREFIX)] = weight
            else:
                discriminator_weights[name] = weight
        if self.config.tie_word_embeddings:
            generator_weights.pop("generator_lm_head.weight", None)
        for name, weight in discriminator_weights.items():
            if name.startswith("electra.embeddings."):
                # Shared: engines leave out the second name of a weight.
                generator_weights.setdefault(name, weight)
        self.generator.config.vocab_size = self.config.vocab_size  # it may have been resized
        generator_folder = Path(save_directory) / GENERATOR_FOLDER
        self.generator.save_pretrained(generator_folder, state_dict=generator_weights, **kwargs)
        return super().save_pretrained(save_directory, state_dict=discriminator_weights, **kwargs)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *args: Any,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Open a discriminator as stock does, with its generator.

        The generator is in the state_dict that is given, beside the discriminator, or new.
        """
        name = pretrained_model_name_or_path
        model, info = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        state_dict = kwargs.get("state_dict") or {}
        has_generator = any(key.startswith(GENERATOR_PREFIX) for key in state_dict)
        if not has_generator and name is not None:
            hub_settings = {key: kwargs[key] for key in HUB_SETTINGS if key in kwargs}
            folder = PurePosixPath(kwargs.get("subfolder") or "", GENERATOR_FOLDER)
            has_generator = model.load_generator(name, str(folder), **hub_settings)
        if not has_generator:
            lacking = f"{GENERATOR_PREFIX}generator_predictions.dense.weight"
            info["missing_keys"] = {*info["missing_keys"], lacking}
        return (model, info) if output_loading_info else model

    def load_generator(
        self, name: str | Path, folder: str = GENERATOR_FOLDER, **hub_settings: Any
    ) -> bool:
        """Load the generator beside a discriminator; return whether it is there.

        Args:
            name: The discriminator's folder or Hub name.
            folder: Of the generator in it.
            hub_settings: Of `HUB_SETTINGS`.
        """
        config_file = cached_file(
            name,
            CONFIG_NAME,
            subfolder=folder,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=not hub_settings.get("local_files_only"),
            **hub_settings,
        )
        if config_file is None:  # google/electra-* are discriminators alone
            return False
        stock = transformers.ElectraForMaskedLM.from_pretrained(
            name, subfolder=folder, dtype=torch.float32, **hub_settings
        )
        self.generator.load_state_dict(stock.state_dict())
        return True


def _generator_config(config: Any) -> Any:
    """Return the generator's configuration, given the discriminator's."""
    size = getattr(config, "generator_size", GENERATOR_SIZE)
    hidden_size = max(8, int(config.hidden_size * size))
    generator_config = copy.deepcopy(config)
    generator_config.hidden_size = hidden_size
    generator_config.intermediate_size = 4 * hidden_size
    num_heads = max(1, hidden_size // HEAD_SIZE)
    while hidden_size % num_heads:  # heads must divide the width
        num_heads -= 1
    generator_config.num_attention_heads = num_heads
    return generator_config


def sample_tokens(
    logits: torch.Tensor, draws: torch.Tensor, random_share: torch.Tensor | None
) -> torch.Tensor:
    """Sample a token from each row of logits (M, V), int64 (M,).

    The distribution is that of the original's Gumbel noise, but the sample is a function of
    `draws`, float32 (M,) in [0, 1): the quantile of the softmax. Draws below `random_share` give
    any token of the vocabulary.
    """
    vocab_size = logits.shape[-1]
    cumulative = logits.softmax(-1).cumsum(-1)
    quantiles = draws
    if random_share is not None:
        quantiles = (draws - random_share) / (1 - random_share)
    quantiles = quantiles[:, None] * cumulative[:, -1:]  # the last sum is not exactly 1
    ids = torch.searchsorted(cumulative, quantiles, right=True)[:, 0]
    if random_share is not None:
        # A share of 0 divides by 0; nothing is drawn below it.
        random_ids = (draws / random_share * vocab_size).nan_to_num(0, 0).long()
        ids = torch.where(draws < random_share, random_ids, ids)
    return ids.clamp(max=vocab_size - 1)
