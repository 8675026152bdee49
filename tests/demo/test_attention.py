"""The attention that is shown is that of stock transformers."""

import re

import numpy as np
import pytest
import torch
import transformers

from bert_recipes.demo.attention import look_at_attention
from bert_recipes.demo.attention_drawing import MAX_DRAWN, draw_lines, draw_matrix, draw_overview
from bert_recipes.demo.views import show_attention
from bert_recipes.errors import InputError


def stock_attention(folder, *texts):
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(*texts, return_tensors="pt")
    with torch.no_grad():
        layers = model(**inputs, output_attentions=True).attentions
    return tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist()), torch.stack(layers)[:, 0].numpy()


@pytest.mark.parametrize("texts", [("the a b c",), ("the cat, of 7", "dog and 9!")])
def test_the_weights_are_those_of_stock_transformers(demo_model, tiny_checkpoint, texts):
    seen = look_at_attention(demo_model.encoder, demo_model.tokenizer, *texts)
    pieces, weights = stock_attention(tiny_checkpoint, *texts)
    assert seen.pieces == pieces
    assert seen.weights.shape == (2, 2, len(pieces), len(pieces))
    np.testing.assert_allclose(seen.weights, weights, atol=1e-6)
    assert (seen.num_read, seen.num_positions) == (len(pieces), len(pieces))


@pytest.mark.parametrize("kind", ["sequence_classification", "question_answering"])
def test_so_are_those_of_a_fine_tuned_run(fine_tuned, tiny_runs, kind):
    model = fine_tuned(kind)
    seen = look_at_attention(model.encoder, model.tokenizer, "the a b", "c d")
    _, weights = stock_attention(tiny_runs(kind), "the a b", "c d")
    np.testing.assert_allclose(seen.weights, weights, atol=1e-6)
    assert weights.std() > 1e-3, "the heads must differ, or any picture would do"


def test_a_long_text_is_cut_to_the_positions_and_only_the_first_are_kept(demo_model):
    seen = look_at_attention(demo_model.encoder, demo_model.tokenizer, "a " * 300, most=10)
    whole = look_at_attention(demo_model.encoder, demo_model.tokenizer, "a " * 126)
    assert (seen.num_read, seen.num_positions, len(seen.pieces)) == (128, 302, 10)
    np.testing.assert_allclose(seen.weights, whole.weights[:, :, :10, :10], atol=1e-7)


def test_every_line_and_square_says_its_weight(words_of):
    pieces = ["[CLS]", "<b>", "x"]
    weights = np.array([[0.5, 0.5, 0.0], [0.001, 0.25, 0.749], [0.0, 0.0, 1.0]])
    lines = draw_lines(pieces, weights)
    assert lines.count("<line ") == 5  # those below 0.01 are left out
    assert 'stroke-opacity="0.749"' in lines
    assert "<b> looks at x: 0.749" in words_of(lines)
    matrix = draw_matrix(pieces, weights)
    assert re.findall(r'fill-opacity="([\d.]+)"', matrix) == [f"{weight:.3f}" for weight in weights.flatten()]
    assert "x looks at [CLS]: 0.000" in words_of(matrix)


def test_the_overview_frames_the_chosen_head():
    import base64
    import io

    from matplotlib.image import imread

    weights = np.zeros((3, 2, 8, 8), np.float32)
    weights[2, 1] = 1.0
    image = draw_overview(weights, layer=0, head=1)
    picture = imread(io.BytesIO(base64.b64decode(image.split("base64,")[1].split('"')[0])))[..., :3]
    size = 8 * 8  # a tile; 4 between two
    assert picture.shape == (3 * (size + 4) + 4, 2 * (size + 4) + 4, 3)
    middle = size // 2
    assert np.allclose(picture[4 + middle, 4 + middle], 1.0)  # nothing: white
    dark = picture[4 + 2 * (size + 4) + middle, 4 + size + 4 + middle]
    assert np.allclose(dark, np.array([49, 46, 129]) / 255, atol=0.01)
    framed = picture[4 + middle, 4 + size + 1], picture[4 + 2 * (size + 4) + middle, 4 + size + 1]
    assert framed[0][0] > 0.9 > framed[0][2]
    assert np.ptp(framed[1]) < 0.01  # grey


def test_the_mean_of_a_layer_and_the_limits(demo_model, words_of):
    assert "Layer 2, mean of its heads" in words_of(show_attention(demo_model, "the a", "", 2, 0))
    assert "Layer 1, head 2" in words_of(show_attention(demo_model, "the a", None, 1, 2))
    for layer in (0, 3, None, "2", 1.5, float("nan"), True):
        with pytest.raises(InputError, match=r"the layer is .*; give a whole number from 1 to 2"):
            show_attention(demo_model, "the a", "", layer, 1)
    for head in (-1, 3, None):
        with pytest.raises(InputError, match=r"the head .* is .*; give a whole number from 0 to 2"):
            show_attention(demo_model, "the a", "", 1, head)


def test_a_long_text_says_what_is_drawn(demo_model, words_of):
    html = show_attention(demo_model, "a " * 300, "", 1, 1)
    words = words_of(html)
    assert "302 positions; the model reads 128" in words
    assert f"the first {MAX_DRAWN} of the 128" in words
    assert html.count("<rect") == MAX_DRAWN + MAX_DRAWN**2
