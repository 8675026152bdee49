"""RoBERTa, ALBERT and DistilBERT against stock: losses, logits, gradients, and the files."""

import pytest
import torch
import transformers
from member_models import CONFIGS, DISTILBERT, SIZES, batch_for, build, build_stock, stock_batch
from packed_models import (
    LENGTHS,
    VOCAB,
    assert_gradients_alike,
    assert_near,
    count_packed_calls,
    encoder_inputs,
    gradients_of,
    make_batch,
)
from torch.nn import functional as F

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.padding_free import make_packing
from bert_recipes.models.sizes import count_parameters, pretraining_config
from bert_recipes.training.objectives import OBJECTIVES


NAMES = ["RobertaForMaskedLM", "AlbertForPreTraining", "DistilBertForMaskedLM"]


def packing_for(batch, fast_layers):
    """What a collator adds for a GPU."""
    if fast_layers != "eager":
        return None
    return make_packing(batch["attention_mask"], batch["labels"])


@pytest.mark.parametrize("fast_layers", ["off", "plain", "auto", "eager"])
@pytest.mark.parametrize("lengths", ["ragged", "full_rows", "one_token"])
@pytest.mark.parametrize("name", NAMES)
def test_loss_logits_and_gradients_are_those_of_stock(monkeypatch, name, lengths, fast_layers):
    calls = count_packed_calls(monkeypatch)
    model, batch = build(name), batch_for(name, LENGTHS[lengths])
    stock = build_stock(model)
    if not (batch["labels"] != IGNORE_INDEX).any():
        batch["labels"][0, 0] = 3
    model.base_model.use_fast_layers(fast_layers)
    loss = model(**batch, packing=packing_for(batch, fast_layers)).loss
    assert len(calls) == (fast_layers != "off")
    loss.backward()
    expected = stock(**stock_batch(name, batch)).loss
    expected.backward()
    assert_near(loss, expected, atol=1e-5)
    assert_gradients_alike(gradients_of(model), gradients_of(stock), 1e-5)

    logits = model.eval()(**batch).prediction_logits
    _, expected_logits, *_ = stock.eval()(**stock_batch(name, batch)).to_tuple()
    is_token = batch["attention_mask"] == 1
    torch.testing.assert_close(
        logits[is_token],
        expected_logits[is_token],
        rtol=1e-5,
        atol=2e-5,
    )


# Nothing passes: the result is the same in every draw, and depends on where the dropout is. Not
# quite 1, as what passes is divided by its share.
ALMOST_ALL = 1 - 2.0**-30


@pytest.mark.parametrize("fast_layers", ["plain", "auto", "eager"])
@pytest.mark.parametrize("place", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
@pytest.mark.parametrize("name", NAMES)
def test_dropout_of_packed_rows_is_where_stock_has_it(monkeypatch, name, place, fast_layers):
    calls = count_packed_calls(monkeypatch)
    if name.startswith("DistilBert"):
        place = "dropout" if place.startswith("hidden") else "attention_dropout"
    model, batch = build(name, **{place: ALMOST_ALL}), batch_for(name, LENGTHS["ragged"])
    stock = build_stock(model)
    model.base_model.use_fast_layers(fast_layers)
    loss = model(**batch, packing=packing_for(batch, fast_layers)).loss
    assert calls
    expected = stock(**stock_batch(name, batch)).loss
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)
    assert abs(model.eval()(**batch).loss.item() - loss.item()) > 1e-3


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_saved_folder_is_stocks_with_the_output_layer_tied_or_not(tmp_path, name, is_tied):
    model, batch = build(name, tie_word_embeddings=is_tied).eval(), make_batch(LENGTHS["ragged"])
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    model.save_pretrained(tmp_path)
    is_token = batch["attention_mask"] == 1
    logits = model(**inputs, return_dict=False)[0][is_token]
    weights = model.state_dict()
    for kind in (type(model), getattr(transformers, name)):
        loaded, info = kind.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(info.values())
        for key, weight in loaded.state_dict().items():
            assert torch.equal(weight, weights[key]), key
        loaded_logits = loaded.eval()(**inputs, return_dict=False)[0][is_token]
        torch.testing.assert_close(loaded_logits, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("share", "num_groups"), [(None, 1), ("all", 1), ("none", 4)])
def test_layers_of_albert_share_all_or_nothing(share, num_groups):
    """Lan et al. 2020, table 4, its first and its last row, by stock's number of groups."""
    config = pretraining_config("mini", vocab_size=VOCAB, model_type="albert", share_layers=share)
    groups = MEMBERS["albert"](config).albert.encoder.albert_layer_groups
    assert len(groups) == config.num_hidden_groups == num_groups


def test_alberts_classifier_has_the_originals_dropout_and_its_head_for_pairs_none(tmp_path):
    """Lan et al. 2020, Table 14: 0.1 before a classifier; google-research/albert run_pretraining.py
    has none before the head for pairs.
    """
    config = pretraining_config("tiny", vocab_size=VOCAB, model_type="albert", dropout=0.0)
    model = MEMBERS["albert"](config).train()
    batch = batch_for("AlbertForPreTraining", LENGTHS["full_rows"])
    output = model(**batch)
    assert torch.equal(model(**batch).seq_relationship_logits, output.seq_relationship_logits)
    model.save_pretrained(tmp_path)
    assert transformers.AlbertForSequenceClassification.from_pretrained(tmp_path).dropout.p == 0.1
    loaded = MEMBERS["albert"].from_pretrained(tmp_path).train()
    assert torch.equal(loaded(**batch).loss, output.loss)


@pytest.mark.parametrize(
    ("member", "settings", "expected"),
    [
        # Counted by stock classes; RoBERTa of fairseq's release, ALBERT of google-research/albert's
        # (12M, 18M, 60M, 222M in its paper's shapes).
        ("roberta", {"vocab_size": 50265, "pad_token_id": 1, "hidden_act": "gelu"}, 124_697_433),
        ("albert", {"vocab_size": 30000}, 11_813_810),
    ],
)
def test_published_sizes_have_their_parameters(member, settings, expected):
    with torch.device("meta"):
        model = MEMBERS[member](pretraining_config("base", model_type=member, **settings))
    assert model.num_parameters() == expected
    assert sum(count_parameters(model).values()) == expected


# From left to right


@pytest.mark.parametrize("fast_loss", ["off", "plain", "auto"])
def test_left_to_right_is_stocks_causal_model(fast_loss):
    config = transformers.BertConfig(**SIZES, is_decoder=True)
    model, batch = MEMBERS["bert_ltr"](config).train(), make_batch(LENGTHS["ragged"])
    assert not model.base_model.use_fast_layers(fast_loss)
    stock = transformers.BertLMHeadModel(config).train()
    stock.load_state_dict(model.state_dict())
    stock.tie_weights()
    inputs = encoder_inputs(batch)
    labels = torch.where(batch["attention_mask"] == 1, batch["input_ids"], IGNORE_INDEX)
    next_tokens = F.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
    output, expected = model(**inputs, labels=next_tokens), stock(**inputs, labels=labels)
    assert (output.prediction_logits is None) == (model.base_model.loss_kernels is not None)
    output.loss.backward()
    expected.loss.backward()
    assert_near(output.loss, expected.loss, atol=1e-5)
    assert_gradients_alike(gradients_of(model), gradients_of(stock), 1e-5)


def test_the_last_token_stands_for_a_text_that_is_read_from_left_to_right():
    """Its first token has seen nothing but itself."""
    config = transformers.BertConfig(**SIZES, is_decoder=True)
    model = transformers.BertForSequenceClassification(config).eval()
    enable_packed_layers(model, "auto")
    inputs = encoder_inputs(make_batch(LENGTHS["ragged"]))
    rows, last = torch.arange(6), torch.tensor(LENGTHS["ragged"]) - 1
    with torch.no_grad():
        logits, hidden = model(**inputs).logits, model.bert(**inputs).last_hidden_state
        pooled = model.bert.pooler.dense(hidden[rows, last]).tanh()
        torch.testing.assert_close(logits, model.classifier(pooled))
        inputs["input_ids"][:, 0] += 1
        inputs["input_ids"][rows, last] += 1
        assert (model(**inputs).logits != logits).any(1).all()

    # Wherever the pads are.
    ids = torch.randint(5, 49, (1, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[0, 1, 0, 1, 1, 0]])
    with torch.no_grad():
        hidden = model.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = model.bert.pooler.dense(hidden[:, 4]).tanh()
        logits = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(logits, model.classifier(pooled))


# DDP need not look for parameters without a gradient in these (`RecipeTrainer`).

IDS = torch.randint(5, 49, (4, 6), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "distilbert"])
def test_every_parameter_of_a_member_learns_in_each_pass(objective):
    row = OBJECTIVES[objective]
    settings = {"model_type": row.model_type, "pad_token_id": 1, **row.new_model_config}
    model = MEMBERS[row.model](pretraining_config("tiny", vocab_size=50, **settings)).train()
    batch = {
        "input_ids": IDS,
        "attention_mask": torch.ones_like(IDS),
        "token_type_ids": torch.zeros_like(IDS),
        "labels": torch.where(IDS < 20, IDS, IGNORE_INDEX),
    }
    if objective in ("bert", "albert"):
        batch["next_sentence_label"] = torch.zeros(4, dtype=torch.long)
    model(**batch).loss.backward()
    assert gradients_of(model).keys() == dict(model.named_parameters()).keys()


def labels_for(head, mask):
    zeros = torch.zeros(4 if head != "MultipleChoice" else 2, dtype=torch.long)
    if head == "QuestionAnswering":
        return {"start_positions": zeros, "end_positions": zeros + 1}
    if head == "TokenClassification":
        return {"labels": torch.where(mask == 1, 0, IGNORE_INDEX)}
    return {"labels": zeros}


@pytest.mark.parametrize(
    "head", ["SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice"]
)
@pytest.mark.parametrize("family", ["Bert", "Roberta", "Albert", "Electra", "DistilBert"])
def test_heads_use_every_parameter_and_hand_the_packing_to_the_encoder(family, head):
    """On a GPU the packing of a batch reaches the encoder through stock's heads."""
    torch.manual_seed(0)
    sizes = DISTILBERT if family == "DistilBert" else SIZES
    config = getattr(transformers, f"{family}Config")(**sizes)
    model = getattr(transformers, f"{family}For{head}")(config).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    mask = (torch.arange(6) < torch.tensor([6, 2, 5, 3])[:, None]).long()
    packing = make_packing(mask)
    batch = {"input_ids": IDS, "attention_mask": mask} | labels_for(head, mask)
    if head == "MultipleChoice":  # two questions with two choices
        batch |= {"input_ids": IDS.view(2, 2, 6), "attention_mask": mask.view(2, 2, 6)}
    expected = model(**batch).loss
    expected.backward()
    stock_gradients = gradients_of(model)
    assert stock_gradients.keys() == dict(model.named_parameters()).keys()
    model.zero_grad()
    enable_packed_layers(model, "eager")
    packings = []
    encode = model.base_model.encode_rows
    model.base_model.encode_rows = lambda *args: packings.append(args[-1]) or encode(*args)
    loss = model(**batch, packing=packing).loss
    assert packings == [packing]
    loss.backward()
    torch.testing.assert_close(loss, expected)
    assert_gradients_alike(gradients_of(model), stock_gradients, 1e-4)
