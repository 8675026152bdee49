"""Nothing in a step with a packing makes the host wait for a GPU: no number is read, no place is
looked for.
"""

import pytest
import torch
from packed_models import LENGTHS, VOCAB, make_batch, with_packing
from torch.utils._python_dispatch import TorchDispatchMode

from bert_recipes.models import vocabulary_loss
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.training.arguments import DistillationArguments, RunArguments
from bert_recipes.training.distillation import DistillationTrainer, make_student
from bert_recipes.training.objectives import OBJECTIVES


# What a GPU cannot do without telling the host a number.
WAITS = {
    "_local_scalar_dense",
    "nonzero",
    "is_nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_dim",
}


class WaitCounter(TorchDispatchMode):
    """Notes the operations for which a host waits on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        is_boolean_index = name in ("index", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if name in WAITS or is_boolean_index:
            self.waits.append(name)
        return function(*args, **(kwargs or {}))


@pytest.fixture
def as_on_gpu(monkeypatch):
    """The branches that a GPU takes; the operations are the CPU's."""
    monkeypatch.setattr(vocabulary_loss, "_is_on_gpu", lambda tensor: True)


def make_member(objective):
    row = OBJECTIVES[objective]
    torch.manual_seed(0)
    config = pretraining_config(
        "tiny",
        vocab_size=VOCAB,
        model_type=row.model_type,
        **row.new_model_config,
    )
    model = MEMBERS[row.model](config).train()
    enable_packed_layers(model, "eager")
    return model


def packed_batch(objective):
    batch = make_batch(LENGTHS["ragged"])
    if objective not in ("bert", "albert"):
        del batch["next_sentence_label"]
    return with_packing(batch)


def count_waits(batch, compute_loss):
    with WaitCounter() as counter:
        compute_loss(batch).backward()
    return counter.waits


@pytest.mark.parametrize(
    "objective", [name for name in OBJECTIVES if name not in ("distilbert", "tinybert")]
)
def test_a_step_of_a_member_waits_for_nothing(objective, as_on_gpu):
    model, batch = make_member(objective), packed_batch(objective)
    counts = {"num_items_in_batch": torch.tensor(30.0)}
    name = "num_tokens_in_batch" if objective == "electra" else "num_pairs_in_batch"
    counts[name] = counts["num_items_in_batch"]
    assert count_waits(batch, lambda batch: model(**batch, **counts).loss) == []
    del batch["packing"]  # the counter counts: the places of the tokens are looked for
    assert "nonzero" in count_waits(batch, lambda batch: model(**batch, **counts).loss)


def test_a_step_of_distillation_waits_for_nothing(as_on_gpu, tmp_path):
    teacher = make_member("bert").eval()
    settings = DistillationArguments(
        teacher="it", temperature=2.0, alpha_ce=5.0, alpha_mlm=2.0, alpha_cos=1.0
    )
    student = make_student(teacher, settings, seed=0).train()
    args = RunArguments(
        output_dir=str(tmp_path), use_cpu=True, fast_layers="eager", report_to="none"
    )
    trainer = DistillationTrainer(
        student, args, teacher=teacher, settings=settings, train_dataset=[0]
    )
    batch, counts = packed_batch("distilbert"), torch.tensor([30.0, 140.0])
    waits = count_waits(batch, lambda batch: trainer.micro_batch_loss(student, batch, counts)[0])
    assert waits == []
