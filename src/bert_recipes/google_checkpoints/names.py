"""The original's variables beside the names that stock transformers has for the same weights.

A dense layer's kernel is (inputs, outputs) in the original and (outputs, inputs) in torch; everything else keeps its shape.

Sources: google-research/bert modeling.py (`BertModel`, `embedding_postprocessor`, `transformer_model`), run_pretraining.py
(`get_masked_lm_output`, `get_next_sentence_output`), run_classifier.py and run_squad.py (`create_model`), optimization.py
(`AdamWeightDecayOptimizer`); transformers 4 modeling_bert.py (`load_tf_weights_in_bert`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.errors import InputError
from bert_recipes.tensor_bundle.entries import shown


# Letters of shapes: V vocabulary, H hidden size, P positions, T segment types, F feed-forward size, L labels; 2 is 2.
_EMBEDDINGS = [
    ("bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings.weight", "VH"),
    ("bert/embeddings/position_embeddings", "bert.embeddings.position_embeddings.weight", "PH"),
    ("bert/embeddings/token_type_embeddings", "bert.embeddings.token_type_embeddings.weight", "TH"),
    ("bert/embeddings/LayerNorm/gamma", "bert.embeddings.LayerNorm.weight", "H"),
    ("bert/embeddings/LayerNorm/beta", "bert.embeddings.LayerNorm.bias", "H"),
]
_DENSE_OF_LAYER = {
    "attention/self/query": "HH",
    "attention/self/key": "HH",
    "attention/self/value": "HH",
    "attention/output/dense": "HH",
    "intermediate/dense": "HF",
    "output/dense": "FH",
}
_NORMS_OF_LAYER = ("attention/output/LayerNorm", "output/LayerNorm")
_PARTS = {
    "pooler": [
        ("bert/pooler/dense/kernel", "bert.pooler.dense.weight", "HH"),
        ("bert/pooler/dense/bias", "bert.pooler.dense.bias", "H"),
    ],
    "masked_lm": [
        ("cls/predictions/transform/dense/kernel", "cls.predictions.transform.dense.weight", "HH"),
        ("cls/predictions/transform/dense/bias", "cls.predictions.transform.dense.bias", "H"),
        ("cls/predictions/transform/LayerNorm/gamma", "cls.predictions.transform.LayerNorm.weight", "H"),
        ("cls/predictions/transform/LayerNorm/beta", "cls.predictions.transform.LayerNorm.bias", "H"),
        ("cls/predictions/output_bias", "cls.predictions.bias", "V"),
    ],
    "next_sentence": [
        ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight", "2H"),
        ("cls/seq_relationship/output_bias", "cls.seq_relationship.bias", "2"),
    ],
    "classifier": [("output_weights", "classifier.weight", "LH"), ("output_bias", "classifier.bias", "L")],
    "squad": [
        ("cls/squad/output_weights", "qa_outputs.weight", "2H"),
        ("cls/squad/output_bias", "qa_outputs.bias", "2"),
    ],
}
# Heads -> the class of transformers that has them, and whether it needs the pooler. The original always has one; a class that has
# none leaves its weights in the file alone, and `AutoModel` takes them up.
_ARCHITECTURES: Mapping[frozenset[str], tuple[str, bool]] = {
    frozenset(): ("BertModel", False),
    frozenset({"masked_lm", "next_sentence"}): ("BertForPreTraining", True),
    frozenset({"masked_lm"}): ("BertForMaskedLM", False),
    frozenset({"next_sentence"}): ("BertForNextSentencePrediction", True),
    frozenset({"classifier"}): ("BertForSequenceClassification", True),
    frozenset({"squad"}): ("BertForQuestionAnswering", False),
}
ARCHITECTURES = tuple(name for name, _ in _ARCHITECTURES.values())
# What training adds: the two moments of each variable, and the number of steps.
_OPTIMIZER = re.compile(r"(^|/)(adam_m|adam_v|AdamWeightDecayOptimizer(_1)?)$")
_STEPS = "global_step"
_LAYER = re.compile(r"layer[_.](\d{1,4})[/.]")


@dataclass(frozen=True)
class Weight:
    """One weight in both worlds.

    Attributes:
        variable: Its name in the original.
        tensor: Its name in transformers.
        shape: In the original.
        part: "encoder", or one of the heads.
    """

    variable: str
    tensor: str
    shape: tuple[int, ...]
    part: str

    @property
    def is_kernel(self) -> bool:
        """Whether torch keeps it the other way around."""
        return self.variable.endswith("/kernel")

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Its shape in transformers."""
        return self.shape[::-1] if self.is_kernel else self.shape


def list_weights(sizes: Mapping[str, int], num_labels: int = 0) -> list[Weight]:
    """List every weight that a BERT of these sizes may have.

    Args:
        sizes: vocab_size, hidden_size, num_hidden_layers, intermediate_size, max_position_embeddings, type_vocab_size.
        num_labels: Rows of a classifier.
    """
    letters = {
        "V": sizes["vocab_size"],
        "H": sizes["hidden_size"],
        "P": sizes["max_position_embeddings"],
        "T": sizes["type_vocab_size"],
        "F": sizes["intermediate_size"],
        "L": num_labels,
        "2": 2,
    }
    rows = [(*row, "encoder") for row in _EMBEDDINGS]
    for layer in range(sizes["num_hidden_layers"]):
        rows += _rows_of_layer(f"bert/encoder/layer_{layer}", f"bert.encoder.layer.{layer}")
    rows += [(*row, part) for part, part_rows in _PARTS.items() for row in part_rows]
    return [
        Weight(variable, tensor, tuple(letters[letter] for letter in shape), part)
        for variable, tensor, shape, part in rows
    ]


def _rows_of_layer(variable: str, tensor: str) -> list[tuple[str, str, str, str]]:
    rows = []
    for place, shape in _DENSE_OF_LAYER.items():
        dotted = place.replace("/", ".")
        rows.append((f"{variable}/{place}/kernel", f"{tensor}.{dotted}.weight", shape, "encoder"))
        rows.append((f"{variable}/{place}/bias", f"{tensor}.{dotted}.bias", shape[1], "encoder"))
    for place in _NORMS_OF_LAYER:
        dotted = place.replace("/", ".")
        rows.append((f"{variable}/{place}/gamma", f"{tensor}.{dotted}.weight", "H", "encoder"))
        rows.append((f"{variable}/{place}/beta", f"{tensor}.{dotted}.bias", "H", "encoder"))
    return rows


def check_layers(names: Collection[str], num_layers: int, where: str, config_file: Path) -> None:
    """See that a checkpoint is a BERT, and has as many layers as its configuration says.

    Args:
        names: Of its variables, or of its tensors.
        num_layers: num_hidden_layers.
        where: The checkpoint, for messages.
        config_file: Its configuration, for messages.

    Raises:
        InputError: No weight is the original's, or there are more or fewer layers.
    """
    if not any(re.match("bert[/.]", name) for name in names):
        what = f"its first is {shown(min(names))}" if names else "it is empty"
        raise InputError(f"{where}: none of the original's weights, whose names begin with bert, is in it; {what}")
    numbers = [int(match[1]) for match in map(_LAYER.search, names) if match]
    found = max(numbers, default=-1) + 1
    if found != num_layers:
        raise InputError(
            f"{where} has {found} layers, {config_file} says num_hidden_layers {num_layers}; they do not belong together"
        )


def check_shape(weight: Weight, shape: tuple[int, ...], where: str, config_file: Path, *, by_tensor: bool) -> None:
    """See that a weight is of the shape that the configuration says.

    Args:
        weight: By the configuration.
        shape: In the checkpoint.
        where: The checkpoint, for the message.
        config_file: Its configuration, for the message.
        by_tensor: It is the tensor's shape.

    Raises:
        InputError: It is not.
    """
    name, wanted = (weight.tensor, weight.tensor_shape) if by_tensor else (weight.variable, weight.shape)
    if shape != wanted:
        raise InputError(
            f"{where}: {name} is {list(shape)}, by {config_file} it is {list(wanted)}; they do not belong together"
        )


def check_skipped(skipped: Collection[str], names: Collection[str], where: str) -> None:
    """See that what is left out is there.

    Raises:
        InputError: It is not.
    """
    for name in skipped:
        if not any(is_chosen(each, [name]) for each in names):
            raise InputError(f"skip_variables: {where} has nothing that is called {shown(name)}")


def is_of_optimizer(variable: str) -> bool:
    """Whether a variable is not the model's but its training's."""
    return variable == _STEPS or _OPTIMIZER.search(variable) is not None


def is_chosen(name: str, skipped: Collection[str]) -> bool:
    """Whether a name is, or lies below, one that the user leaves out."""
    return any(name == start or name.startswith((f"{start}/", f"{start}.")) for start in skipped)


def select_weights(weights: Iterable[Weight], names: Collection[str], where: str, *, by_tensor: bool) -> list[Weight]:
    """Pick the weights that a checkpoint has, and see that they make up a model: none missing, none unknown.

    Args:
        weights: `list_weights`.
        names: A set or mapping of its variables, or of its tensors.
        where: The checkpoint, for messages.
        by_tensor: They are tensors'.

    Raises:
        InputError: A weight is missing, one is unknown, or the heads are those of no single model.
    """
    known = {weight.tensor if by_tensor else weight.variable: weight for weight in weights}
    unknown = sorted(name for name in names if name not in known)
    if unknown:
        raise InputError(
            f"{where}: {_some(unknown)} not of the original's model; leave such out with --skip_variables {shown(unknown[0])}"
        )
    parts = {known[name].part for name in names} | {"encoder"}
    if architecture_of(parts, where)[1]:
        parts.add("pooler")
    chosen = {name: weight for name, weight in known.items() if weight.part in parts}
    missing = [name for name in chosen if name not in names]
    if missing:
        raise InputError(f"{where}: {_some(missing)} missing; the checkpoint is not whole")
    return list(chosen.values())


def architecture_of(parts: Iterable[str], where: str) -> tuple[str, bool]:
    """The class of transformers that has these heads, and whether it needs the pooler.

    Args:
        parts: Of the weights.
        where: The checkpoint, for the message.

    Raises:
        InputError: None has them.
    """
    heads = frozenset(parts) - {"encoder", "pooler"}
    if heads not in _ARCHITECTURES:
        raise InputError(
            f"{where}: heads for {', '.join(sorted(heads))}, and no model has all of them; leave some out with "
            "--skip_variables: cls/predictions, cls/seq_relationship, cls/squad, or output_weights output_bias"
        )
    return _ARCHITECTURES[heads]


def _some(names: list[str]) -> str:
    return f"{shown(names[0])}{f' and {len(names) - 1} more are' if len(names) > 1 else ' is'}"
