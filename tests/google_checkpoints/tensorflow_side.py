"""What only TensorFlow can do: run by an interpreter that has it, never imported by a test.

It makes and trains the checkpoints in tests/fixtures/google by the code of google-research/bert,
and computes their outputs:

    uv venv --python 3.11 tfvenv
    VIRTUAL_ENV=tfvenv uv pip install tensorflow-cpu==2.15.1 bert-tensorflow==1.0.1
    tfvenv/bin/python tests/google_checkpoints/tensorflow_side.py tests/fixtures/google

bert-tensorflow is google-research/bert as a package. It is of TensorFlow 1; the one thing that it
needs and TensorFlow 2 does not have, tf.contrib.layers.layer_norm, is given to it below.
"""

import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from fixture_parts import CONFIG, INPUTS, PIECES


warnings.filterwarnings("ignore", category=UserWarning, module="bert")
tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)

HEADS = ("pretraining", "classifier", "squad")
NUM_LABELS = 3


def layer_norm(inputs: Any, begin_norm_axis: int, begin_params_axis: int, scope: str | None) -> Any:
    """As tf.contrib.layers.layer_norm of TensorFlow 1.15: over the last dimension, beta then gamma,
    variance_epsilon 1e-12.
    """
    assert begin_norm_axis == begin_params_axis == -1
    with tf.variable_scope(scope, "LayerNorm", [inputs]):
        shape = inputs.shape[-1:]
        beta = tf.get_variable("beta", shape, initializer=tf.zeros_initializer())
        gamma = tf.get_variable("gamma", shape, initializer=tf.ones_initializer())
        mean, variance = tf.nn.moments(inputs, [-1], keepdims=True)
        return tf.nn.batch_normalization(
            inputs, mean, variance, offset=beta, scale=gamma, variance_epsilon=1e-12
        )


def google_code() -> tuple[Any, Any, Any]:
    """modeling, optimization and run_pretraining of google-research/bert."""
    tf.contrib = types.SimpleNamespace(layers=types.SimpleNamespace(layer_norm=layer_norm))
    sys.modules["tensorflow"] = tf
    from bert import modeling, optimization

    sys.modules["modeling"], sys.modules["optimization"] = modeling, optimization
    from bert import run_pretraining

    return modeling, optimization, run_pretraining


def build(
    config: dict, inputs: dict[str, np.ndarray], head: str, *, partitions: int = 0
) -> dict[str, Any]:
    """The graph of Google's code for these inputs: its outputs by name, and the loss of
    pre-training.
    """
    modeling, _, run_pretraining = google_code()
    partitioner = tf.fixed_size_partitioner(partitions) if partitions else None
    bert_config = modeling.BertConfig.from_dict(config)
    ids, mask, types_ = (
        tf.constant(inputs[name], tf.int32)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    with tf.variable_scope(tf.get_variable_scope(), partitioner=partitioner):
        model = modeling.BertModel(
            config=bert_config,
            is_training=False,
            input_ids=ids,
            input_mask=mask,
            token_type_ids=types_,
        )
        found = {"hidden": model.get_sequence_output(), "pooled": model.get_pooled_output()}
        if head == "pretraining":
            rows, length = inputs["input_ids"].shape
            positions = np.tile(np.arange(length), (rows, 1))
            loss, _, log_probs = run_pretraining.get_masked_lm_output(
                bert_config,
                model.get_sequence_output(),
                model.get_embedding_table(),
                tf.constant(positions, tf.int32),
                ids,
                tf.cast(mask, tf.float32),
            )
            labels = tf.zeros([rows], tf.int32)
            next_loss, _, next_log_probs = run_pretraining.get_next_sentence_output(
                bert_config, model.get_pooled_output(), labels
            )
            found |= {
                "masked_lm": log_probs,
                "next_sentence": next_log_probs,
                "loss": loss + next_loss,
            }
        else:
            # As in run_classifier.py and run_squad.py, `create_model`, whose other halves are of
            # the training on TPUs.
            scope, rows = ("", NUM_LABELS) if head == "classifier" else ("cls/squad/", 2)
            features = (
                found["pooled"]
                if head == "classifier"
                else tf.reshape(found["hidden"], [-1, config["hidden_size"]])
            )
            weights = tf.get_variable(f"{scope}output_weights", [rows, config["hidden_size"]])
            bias = tf.get_variable(
                f"{scope}output_bias", [rows], initializer=tf.zeros_initializer()
            )
            found[head] = tf.nn.bias_add(tf.matmul(features, weights, transpose_b=True), bias)
    return found


def make_fixture(
    folder: Path,
    name: str,
    head: str,
    *,
    train_steps: int = 0,
    partitions: int = 0,
    sharded: bool = False,
) -> None:
    """A checkpoint of Google's model with random weights, and its outputs."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(name) + HEADS.index(head))
    places = iter(range(1 << 20))
    place = (
        (
            lambda op: (
                f"/cpu:{next(places) % 2}"
                if op.type == "VarHandleOp" or "Variable" in op.type
                else "/cpu:0"
            )
        )
        if sharded
        else None
    )
    with tf.Graph().as_default(), tf.device(place):
        found = build(CONFIG, INPUTS, head, partitions=partitions)
        trained = None
        if train_steps:
            trained = google_code()[1].create_optimizer(found["loss"], 1e-3, 100, 0, use_tpu=False)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(tf.global_variables_initializer())
            for variable in tf.trainable_variables():
                variable.load(
                    rng.normal(scale=0.5, size=variable.shape.as_list()).astype(np.float32), session
                )
            for _ in range(train_steps):
                session.run(trained)
            computed = session.run({key: value for key, value in found.items() if key != "loss"})
            tf.train.Saver(sharded=sharded).save(
                session, str(folder / name), write_meta_graph=False, write_state=False
            )
    (folder / "bert_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    np.savez_compressed(folder / "outputs.npz", **(INPUTS if partitions else computed))
    if partitions:
        # What the original's scripts compute, whose variables are whole: layers of parts do not
        # give quite the same numbers.
        outputs(str(folder), str(folder / "outputs.npz"))


def make_fixtures(folder: Path) -> None:
    """All of them."""
    make_fixture(folder / "pretraining", "model.ckpt-3", "pretraining", train_steps=3)
    make_fixture(folder / "classifier", "bert_model.ckpt", "classifier", partitions=3)
    make_fixture(folder / "squad", "bert_model.ckpt", "squad", sharded=True)


def outputs(folder: str, file: str) -> None:
    """Load a checkpoint as the original's scripts do, and compute; the file gets what comes out."""
    config = json.loads((Path(folder) / "bert_config.json").read_text())
    inputs = dict(np.load(file))
    prefix = str(Path(folder) / "bert_model.ckpt")
    names = {name for name, _ in tf.train.list_variables(prefix)}
    head = (
        "classifier"
        if "output_weights" in names
        else "squad"
        if "cls/squad/output_weights" in names
        else "pretraining"
    )
    with tf.Graph().as_default():
        found = build(config, inputs, head)
        modeling = google_code()[0]
        assignment, _ = modeling.get_assignment_map_from_checkpoint(
            tf.trainable_variables(), prefix
        )
        assert {
            name for name in names if not name.endswith(("adam_m", "adam_v", "global_step"))
        } == set(assignment)
        assert len(assignment) == len(tf.trainable_variables())
        tf.train.init_from_checkpoint(prefix, assignment)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            computed = session.run({key: value for key, value in found.items() if key != "loss"})
    np.savez_compressed(file, **computed)


if __name__ == "__main__":
    make_fixtures(Path(sys.argv[1]))
