"""ELECTRA: the generator's masked LM and the discriminator's verdict on every token, in one run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.errors import InputError
from bert_recipes.models.electra import DISCRIMINATOR_WEIGHT, GENERATOR_FOLDER
from bert_recipes.training.bert_trainer import (
    BertTrainer,
    PreTrainingSums,
    TrainingPhase,
    predicted_and_real_tokens,
)
from bert_recipes.training.engines import NO_ENGINE
from bert_recipes.training.speed import BatchStats, training_flops


class ReplacedTokenSums(PreTrainingSums):
    """Sums over held-out batches, with those of the discriminator.

    The discriminator is right where its output is above 0 for a replaced token, and not above 0 for
    another one.
    """

    NAMES = (*PreTrainingSums.NAMES, "disc_loss", "disc_correct", "tokens", "replaced", "found")

    def _sums(self, output: Any, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        is_replaced = output.replaced
        verdicts = output.disc_logits > 0
        sums = super()._sums(output, batch)
        sums["disc_loss"] = output.disc_loss.double() * len(is_replaced)
        sums["disc_correct"] = (verdicts == is_replaced).sum()
        sums["tokens"] = len(is_replaced)
        sums["replaced"] = is_replaced.sum()
        sums["found"] = (verdicts & is_replaced).sum()
        return sums

    def metrics(self, prefix: str = "eval", pairs_task: str = "disc") -> dict[str, float]:
        """Return the metrics of both networks, with baselines that do not look at the text.

        The baseline of `disc_loss` (nats) is `base_rate_loss`, the loss of giving every token the
        fraction that is replaced. The baseline of `disc_accuracy` is `original_accuracy`, that of
        always saying original. `replaced_recall` is the fraction of the replaced tokens that is
        found.
        """
        metrics = super().metrics(prefix, pairs_task)
        sums = self.sums_by_name()
        tokens, replaced = sums["tokens"], sums["replaced"]
        base_rate = torch.tensor(replaced / tokens, dtype=torch.float64)
        disc_loss = sums["disc_loss"] / tokens
        disc_metrics = {
            "disc_loss": disc_loss,
            "base_rate_loss": F.binary_cross_entropy(base_rate, base_rate).item(),
            "disc_accuracy": sums["disc_correct"] / tokens,
            "original_accuracy": 1 - replaced / tokens,
            "replaced_recall": sums["found"] / max(replaced, 1),
        }
        for name, value in disc_metrics.items():
            metrics[f"{prefix}_{name}"] = value
        mlm_loss = metrics.get(f"{prefix}_mlm_loss", 0.0)
        metrics[f"{prefix}_loss"] = mlm_loss + DISCRIMINATOR_WEIGHT * disc_loss
        return metrics


class ElectraTrainer(BertTrainer):
    """`BertTrainer` for `ElectraForPreTraining`: both losses are means over the *global* batch."""

    trains_electra = True
    pairs_task = "disc"
    logged_losses = ("mlm_loss", "disc_loss")

    def _set_phase(self, phase: TrainingPhase) -> None:
        """Set the data of a phase, and add the random numbers of the generator's samples."""
        if not isinstance(phase.data_collator, DataCollatorForPreTraining):
            raise InputError(
                "data_collator: ElectraTrainer needs a DataCollatorForPreTraining, which draws the "
                "random numbers of the generator's samples"
            )
        super()._set_phase(phase)
        collator: Any = self.data_collator
        self.data_collator = replace(collator, has_draws=True)
        self.eval_collator = replace(self.eval_collator, has_draws=True)

    def new_sums(self) -> Any:
        """Return `ReplacedTokenSums`."""
        return ReplacedTokenSums(self.args.device, self.unigram, self.piece_lengths)

    def num_items(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the predicted tokens, and the real ones, int64 (2,)."""
        return predicted_and_real_tokens(batch)

    def micro_batch_loss(
        self, model: Any, inputs: Any, counts: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        """Return the sum of generator's and discriminator's loss, and the output."""
        masked, tokens = counts
        if self.args.random_replacements and model.training:
            inputs = {**inputs, "random_share": counts.new_full((), self.random_share)}
        output = model(**inputs, num_items_in_batch=masked, num_tokens_in_batch=tokens)
        return output.loss, output

    @property
    def random_share(self) -> float:
        """Return the share of the predicted tokens that random words fill.

        The share falls to 0 at the end of the run.
        """
        return self.args.random_replacements * max(0.0, 1 - self.progress)

    def flops_of(self, work: BatchStats) -> int:
        """Return the model FLOPs of both networks; only the generator predicts tokens."""
        model: Any = self.model
        generator_flops = training_flops(model.generator.config, work, nsp=False, pooler=False)
        work = replace(work, masked=0)
        return generator_flops + training_flops(model.config, work, nsp=False, pooler=False)

    def read_weights(self, checkpoint: Path) -> dict[str, torch.Tensor]:
        """Return the weights of both networks."""
        weights = super().read_weights(checkpoint)
        for name, weight in super().read_weights(checkpoint / GENERATOR_FOLDER).items():
            weights[f"generator.{name}"] = weight
        return weights

    def _load_from_checkpoint(self, resume_from_checkpoint: Any, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.engine == NO_ENGINE:
            self.model.load_generator(Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        super()._load_best_model()
        # Engines have loaded both; a run that is stopped keeps its own.
        if self.engine == NO_ENGINE and not self.stop_request.is_stopped:
            self.model.load_generator(Path(self.state.best_model_checkpoint))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        missing = [name for name in load_result.missing_keys if not name.startswith("generator.")]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))
