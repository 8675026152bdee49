"""A softmax over a part of the vocabulary, for training on a CPU.

Source: Bengio and Senécal 2003, "Quick Training of Probabilistic Neural Nets by Importance
Sampling". That all frequent pieces count, and which are frequent, is ours.

Legend: M predicted tokens, V vocabulary, K pieces of the softmax.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from bert_recipes.models.kernels.plain import Kernels
from bert_recipes.models.vocabulary_loss import TiedGradient, TiedRows, vocabulary_loss


# The frequent pieces are this share of the text: 4,000 of 30,522 in English books.
FREQUENT_SHARE = 0.92
# In each step one of so many rare pieces is drawn.
RARE_PIECES_PER_DRAWN = 12


class SampledSoftmax:
    """The softmax over all frequent pieces and, in each step, a sample of the rare ones.

    Each drawn piece stands for several rare ones, so that the sum over the vocabulary is right in
    expectation. It is for tokens that are frequent pieces: the caller takes the full softmax for
    the rest.
    """

    def __init__(
        self,
        counts: np.ndarray,
        seed: int,
        frequent_share: float = FREQUENT_SHARE,
        rare_pieces_per_drawn: int = RARE_PIECES_PER_DRAWN,
    ) -> None:
        """Choose the frequent pieces by their counts in the text, int64 (V,)."""
        self._seed = seed
        order = np.argsort(-counts, kind="stable")
        covered = np.cumsum(counts[order]) / counts.sum()
        self.num_frequent = int(np.searchsorted(covered, frequent_share)) + 1
        self._frequent = torch.from_numpy(order[: self.num_frequent])
        self._rare = order[self.num_frequent :]
        num_rare = len(self._rare)
        self.num_drawn = math.ceil(num_rare / rare_pieces_per_drawn)

        self.is_frequent = torch.zeros(len(counts), dtype=torch.bool)
        self.is_frequent[self._frequent] = True
        # Piece -> its place among those of the softmax; the frequent ones come first.
        self._places = torch.zeros(len(counts), dtype=torch.int64)
        self._places[self._frequent] = torch.arange(self.num_frequent)
        # A drawn piece stands for num_rare / num_drawn pieces.
        self._logit_corrections = torch.zeros(self.num_frequent + self.num_drawn)
        if num_rare:
            self._logit_corrections[self.num_frequent :] = math.log(num_rare / self.num_drawn)
        self.draw(0)

    def draw(self, step: int) -> None:
        """Draw the pieces of a step: a function of seed and step."""
        rng = np.random.default_rng([self._seed, step])
        drawn = rng.choice(self._rare, self.num_drawn, replace=False)
        self.pieces = torch.cat([self._frequent, torch.from_numpy(drawn)])

    def frequent_loss(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        targets: torch.Tensor,
        count: float | torch.Tensor,
        kernels: Kernels,
        tied_gradient: TiedGradient | None = None,
    ) -> torch.Tensor:
        """Return the loss of tokens whose targets are frequent pieces, as `vocabulary_loss` does.

        Targets below 0 are ignored.
        """
        # `vocabulary_loss` detaches a tied weight: its gradient goes through `tied_gradient`.
        tied_rows = None if tied_gradient is None else TiedRows(tied_gradient, self.pieces)
        part_weight = weight.index_select(0, self.pieces)
        part_bias = bias.index_select(0, self.pieces) + self._logit_corrections
        places = torch.where(targets < 0, targets, self._places[targets.clamp(min=0)])
        return vocabulary_loss(hidden, part_weight, part_bias, places, count, kernels, tied_rows)
