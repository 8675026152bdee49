"""RoBERTa, ALBERT and DistilBERT against stock: losses, logits, gradients, and the files."""

import copy

import pytest
import torch
import transformers

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.padding_free import plan_rows
from bert_recipes.models.sizes import count_parameters, pretraining_config
from bert_recipes.training.objectives import OBJECTIVES

from .packed_models import LENGTHS, VOCAB, assert_gradients_alike, count_packed_calls, make_batch


SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "max_position_embeddings": 66,
}
INNER = {
    "intermediate_size": 100,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.2,
}
STOCK = {
    "roberta": (
        transformers.RobertaForMaskedLM,
        transformers.RobertaConfig(
            **SIZES, **INNER, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=0
        ),
    ),
    "albert": (
        transformers.AlbertForPreTraining,
        transformers.AlbertConfig(
            **SIZES,
            **INNER,
            embedding_size=24,
            num_hidden_groups=2,
            hidden_act="gelu_new",
            classifier_dropout_prob=0.0,  # stock's head for pairs has it too
        ),
    ),
    "distilbert": (
        transformers.DistilBertForMaskedLM,
        transformers.DistilBertConfig(
            vocab_size=VOCAB,
            dim=48,
            n_layers=3,
            n_heads=3,
            hidden_dim=100,
            dropout=0.0,
            attention_dropout=0.0,
            initializer_range=0.2,
            max_position_embeddings=66,
        ),
    ),
}


def make_batch_for(name, lengths):
    batch = make_batch(lengths)
    if name == "roberta":
        batch["token_type_ids"] = torch.zeros_like(batch["token_type_ids"])
    if name != "albert":
        del batch["next_sentence_label"]
    return batch


def stock_losses(name, model, batch):
    """Stock's loss and logits, (B, S, V)."""
    batch = dict(batch)
    if name == "albert":
        batch["sentence_order_label"] = batch.pop("next_sentence_label")
    if name == "distilbert":
        del batch["token_type_ids"]
    output = model(**batch)
    return output.loss, output.prediction_logits if name == "albert" else output.logits


@pytest.mark.parametrize("fast_layers", ["off", "plain", "auto", "eager"])
@pytest.mark.parametrize("lengths", ["ragged", "full_rows", "one_token"])
@pytest.mark.parametrize("name", list(STOCK))
def test_loss_logits_and_gradients_are_those_of_stock(monkeypatch, name, lengths, fast_layers):
    calls = count_packed_calls(monkeypatch)
    kind, config = STOCK[name]
    torch.manual_seed(0)
    model = MEMBERS[name](config).train()
    stock = kind(config).train()
    stock.load_state_dict(model.state_dict())
    stock.tie_weights()
    batch = make_batch_for(name, LENGTHS[lengths])
    if not (batch["labels"] != IGNORE_INDEX).any():
        batch["labels"][0, 0] = 3
    model.base_model.use_fast_layers(fast_layers)
    # As a GPU has them: the collator has planned the rows.
    packing = (
        plan_rows(batch["attention_mask"], batch["labels"]) if fast_layers == "eager" else None
    )
    output = model(**batch, packing=packing)
    assert len(calls) == (fast_layers != "off")
    output.loss.backward()
    loss, _ = stock_losses(name, stock, batch)
    loss.backward()
    torch.testing.assert_close(output.loss, loss, rtol=1e-5, atol=1e-5)
    expected = {key: parameter.grad for key, parameter in stock.named_parameters()}
    assert_gradients_alike(
        {key: parameter.grad for key, parameter in model.named_parameters()}, expected, 1e-5
    )
    model.eval()
    stock.eval()
    real = batch["attention_mask"] == 1
    torch.testing.assert_close(
        model(**batch).prediction_logits[real],
        stock_losses(name, stock, batch)[1][real],
        rtol=1e-5,
        atol=2e-5,
    )


# Nothing passes: the result is the same in every draw, and depends on where the dropout is. Not
# quite 1, as what is kept is divided by the rest.
ALMOST_ALL = 1 - 2.0**-30


@pytest.mark.parametrize("fast_layers", ["plain", "auto", "eager"])
@pytest.mark.parametrize("part", ["hidden", "attention"])
@pytest.mark.parametrize("name", list(STOCK))
def test_dropout_of_packed_rows_is_where_stock_has_it(monkeypatch, name, part, fast_layers):
    calls = count_packed_calls(monkeypatch)
    kind, config = STOCK[name]
    config = copy.deepcopy(config)
    fields = {"hidden": "hidden_dropout_prob", "attention": "attention_probs_dropout_prob"}
    if name == "distilbert":
        fields = {"hidden": "dropout", "attention": "attention_dropout"}
    setattr(config, fields[part], ALMOST_ALL)
    torch.manual_seed(0)
    model, stock = MEMBERS[name](config).train(), kind(config).train()
    stock.load_state_dict(model.state_dict())
    stock.tie_weights()
    batch = make_batch_for(name, LENGTHS["ragged"])
    model.base_model.use_fast_layers(fast_layers)
    packing = (
        plan_rows(batch["attention_mask"], batch["labels"]) if fast_layers == "eager" else None
    )
    loss = model(**batch, packing=packing).loss
    assert calls
    torch.testing.assert_close(loss, stock_losses(name, stock, batch)[0], rtol=1e-4, atol=1e-4)
    model.eval()
    assert abs(model(**batch).loss.item() - loss.item()) > 1e-3


@pytest.mark.parametrize("name", list(STOCK))
def test_a_saved_folder_is_stocks(tmp_path, name):
    kind, config = STOCK[name]
    model = MEMBERS[name](config)
    model.save_pretrained(tmp_path)
    stock, info = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert stock.config.architectures == [kind.__name__]
    again, info = MEMBERS[name].from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for (key, ours), theirs in zip(
        again.state_dict().items(), stock.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs), key


def test_layers_of_albert_share_all_or_nothing():
    """Lan et al. 2020, table 4, its first and its last row, by stock's number of groups."""
    num_layers, counts = 4, {}
    for share in (None, "all", "none"):
        config = pretraining_config(
            "mini", vocab_size=VOCAB, model_type="albert", share_layers=share
        )
        assert config.num_hidden_groups == (num_layers if share == "none" else 1)
        counts[share] = sum(
            p.numel()
            for p in MEMBERS["albert"](config).albert.encoder.albert_layer_groups.parameters()
        )
    assert counts["all"] == counts[None]
    assert counts["none"] == num_layers * counts["all"]


def test_alberts_classifier_has_the_originals_dropout_and_its_head_for_pairs_none(tmp_path):
    """Lan et al. 2020, Table 14: 0.1 before a classifier; google-research/albert run_pretraining.py
    has none before the head for pairs.
    """
    model = MEMBERS["albert"](
        pretraining_config("tiny", vocab_size=VOCAB, model_type="albert", dropout=0.0)
    ).train()
    batch = make_batch_for("albert", LENGTHS["full_rows"])
    first, second = (model(**batch) for _ in range(2))
    assert torch.equal(first.seq_relationship_logits, second.seq_relationship_logits)
    model.save_pretrained(tmp_path)
    assert transformers.AlbertForSequenceClassification.from_pretrained(tmp_path).dropout.p == 0.1
    again = MEMBERS["albert"].from_pretrained(tmp_path).train()
    assert torch.equal(again(**batch).loss, first.loss)


@pytest.mark.parametrize(
    ("member", "size", "expected"),
    [
        # Counted by stock classes; RoBERTa of fairseq's release, ALBERT of google-research/albert's
        # (12M, 18M, 60M, 222M in its paper's shapes).
        ("roberta", "base", 124_697_433),
        ("albert", "base", 11_813_810),
    ],
)
def test_published_sizes_have_their_parameters(member, size, expected):
    with torch.device("meta"):
        if member == "roberta":
            config = pretraining_config(
                size, vocab_size=50265, model_type="roberta", pad_token_id=1, hidden_act="gelu"
            )
        else:
            config = pretraining_config(size, vocab_size=30000, model_type="albert")
        model = MEMBERS[member](config)
    assert model.num_parameters() == expected
    assert sum(count_parameters(model).values()) == expected


@pytest.mark.parametrize("fast_loss", ["off", "plain", "auto"])
def test_left_to_right_is_stocks_causal_model(fast_loss):
    config = transformers.BertConfig(**SIZES, **INNER, is_decoder=True)
    torch.manual_seed(0)
    model, batch = MEMBERS["bert_ltr"](config).train(), make_batch(LENGTHS["ragged"])
    assert not model.base_model.use_fast_layers(fast_loss)
    stock = transformers.BertLMHeadModel(config).train()
    stock.load_state_dict(model.state_dict())
    stock.tie_weights()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    labels = torch.where(batch["attention_mask"] == 1, batch["input_ids"], IGNORE_INDEX)
    following = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
    output, expected = model(**inputs, labels=following), stock(**inputs, labels=labels)
    assert (output.prediction_logits is None) == (model.base_model.loss_kernels is not None)
    output.loss.backward()
    expected.loss.backward()
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-5, atol=1e-5)
    gradients = {key: parameter.grad for key, parameter in stock.named_parameters()}
    assert_gradients_alike(
        {key: parameter.grad for key, parameter in model.named_parameters()}, gradients, 1e-5
    )


def test_the_last_token_stands_for_a_text_that_is_read_from_left_to_right():
    """Its first token has seen nothing but itself."""
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(**SIZES, **INNER, is_decoder=True)
    ).eval()
    enable_packed_layers(model, "auto")
    batch = make_batch(LENGTHS["ragged"])
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        logits, hidden = model(**inputs).logits, model.bert(**inputs).last_hidden_state
        lengths = batch["attention_mask"].sum(1)
        last = torch.stack(
            [row[length - 1] for row, length in zip(hidden, lengths.tolist(), strict=True)]
        )
        torch.testing.assert_close(logits, model.classifier(model.bert.pooler.dense(last).tanh()))
        inputs["input_ids"] = inputs["input_ids"].clone()
        inputs["input_ids"][:, 0] += 1
        inputs["input_ids"][torch.arange(len(lengths)), lengths - 1] += 1
        assert (model(**inputs).logits != logits).any(1).all()


# DDP need not look for parameters without a gradient in these (`RecipeTrainer`).

IDS = torch.randint(5, 49, (4, 6), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "distilbert"])
def test_every_parameter_of_a_member_learns_in_each_pass(objective):
    own = OBJECTIVES[objective]
    config = pretraining_config(
        "tiny", vocab_size=50, model_type=own.model_type, pad_token_id=1, **own.config
    )
    model = MEMBERS[own.model](config).train()
    batch = {
        "input_ids": IDS,
        "attention_mask": torch.ones_like(IDS),
        "token_type_ids": torch.zeros_like(IDS),
    }
    if objective in ("bert", "albert"):
        batch["next_sentence_label"] = torch.zeros(4, dtype=torch.long)
    model(**batch, labels=torch.where(IDS < 20, IDS, IGNORE_INDEX)).loss.backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


@pytest.mark.parametrize(
    "head", ["SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice"]
)
@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Albert", "Electra", "DistilBert"])
def test_heads_use_every_parameter_and_hand_the_plan_to_the_encoder(kind, head):
    """On a GPU the packing of a batch reaches the encoder through stock's heads."""
    sizes = (
        {"dim": 48, "n_layers": 2, "n_heads": 3, "hidden_dim": 100}
        if kind == "DistilBert"
        else SIZES | INNER
    )
    config = getattr(transformers, f"{kind}Config")(**sizes | {"vocab_size": 50})
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}For{head}")(config).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids = IDS[None].repeat(2, 1, 1) if head == "MultipleChoice" else IDS
    mask = (
        (torch.arange(6) < torch.tensor([6, 2, 5, 3])[:, None])
        .long()
        .expand(ids.shape)
        .contiguous()
    )
    first = torch.zeros(len(ids), dtype=torch.long)
    labels = {"labels": first}
    if head == "QuestionAnswering":
        labels = {"start_positions": first, "end_positions": first + 1}
    if head == "TokenClassification":
        labels = {"labels": torch.where(mask == 1, 0, IGNORE_INDEX)}
    batch = {"input_ids": ids, "attention_mask": mask, **labels}
    expected = model(**batch).loss
    expected.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert None not in gradients.values()
    model.zero_grad()
    enable_packed_layers(model, "eager")
    plans = []
    encode = model.base_model.encode_rows
    model.base_model.encode_rows = lambda *args: plans.append(args[-1]) or encode(*args)
    plan = plan_rows(mask.flatten(0, -2))
    loss = model(**batch, packing=plan).loss
    assert plans == [plan]
    loss.backward()
    torch.testing.assert_close(loss, expected)
    assert_gradients_alike(
        {name: parameter.grad for name, parameter in model.named_parameters()}, gradients, 1e-4
    )
