"""A card loads its model from the repository that the run is pushed to."""

import json

import pytest

from bert_recipes.config_file import read_tree
from bert_recipes.model_card import CardArguments, name_repository, write_card
from bert_recipes.own_card import is_own_card


@pytest.mark.parametrize(
    ("settings", "repository"),
    [
        ({"push_to_hub": True, "hub_model_id": "me/teller"}, "me/teller"),
        ({"push_to_hub": True, "hub_model_id": "me/teller", "hub_revision": "trial"}, None),
        ({"push_to_hub": False, "hub_model_id": "me/teller"}, None),
    ],
)
def test_the_card_of_a_run_that_is_pushed_loads_the_model_from_there(copy_of, settings, repository):
    folder = copy_of("pretraining")
    own = {name: value for name, value in read_tree(folder / "run.yaml")[0].items() if name not in settings}
    lines = [f"{name}: {json.dumps(value)}" for name, value in (own | settings).items()]
    (folder / "run.yaml").write_text("\n".join(lines) + "\n")
    text = write_card(folder).read_text()
    assert ('model="me/teller"' in text) is (repository is not None)
    assert ('model="."' in text) is (repository is None)
    assert f"# {folder.name if repository is None else 'teller'}\n" in text
    assert 'model="you/other"' in write_card(folder, CardArguments(repo_id="you/other")).read_text()


def test_a_push_tells_the_card_where_the_model_is(copy_of, caplog):
    folder = copy_of("sequence_classification")
    name_repository(folder, "me/sentences")
    text = (folder / "README.md").read_text()
    assert 'model="me/sentences"' in text
    assert "license: cc-by-sa-4.0" in text
    assert is_own_card(folder)
    name_repository(folder, "me/sentences")  # it has been said
    assert (folder / "README.md").read_text() == text
    (folder / "card.yaml").unlink()
    (folder / "README.md").write_text("# Mine\n")
    name_repository(folder, "me/sentences")
    assert (folder / "README.md").read_text() == "# Mine\n"
    assert not caplog.records
    name_repository(folder.parent, "me/sentences")  # no card, no run


@pytest.mark.parametrize("is_pushed_by_itself", [True, False])
def test_a_push_to_a_second_repository_tells_the_card_of_it(copy_of, caplog, is_pushed_by_itself):
    folder = copy_of("sequence_classification")
    if is_pushed_by_itself:
        lines = [
            line for line in (folder / "run.yaml").read_text().splitlines() if not line.startswith("push_to_hub:")
        ]
        (folder / "run.yaml").write_text("\n".join([*lines, "push_to_hub: true", "hub_model_id: me/test"]) + "\n")
        write_card(folder)
    else:
        name_repository(folder, "me/test")
    assert 'model="me/test"' in (folder / "README.md").read_text()
    name_repository(folder, "me/final")
    text = (folder / "README.md").read_text()
    assert 'model="me/final"' in text
    assert "# final\n" in text
    assert "me/test" not in text
    assert "license: cc-by-sa-4.0" in text
    assert is_own_card(folder)
    assert not caplog.records


def test_an_edited_card_that_names_another_repository_stays_with_a_warning(copy_of, caplog):
    folder = copy_of("sequence_classification")
    name_repository(folder, "me/test")
    card = folder / "README.md"
    card.write_text(card.read_text() + "Mine.\n")
    before = card.read_text()
    name_repository(folder, "me/test-2")
    assert card.read_text() == before
    (record,) = caplog.records
    assert f'`make card RUN={folder} ARGS="--repo_id me/test-2 --overwrite true"`' in record.getMessage()
    assert "the model is me/test, not me/test-2" in record.getMessage()
    caplog.clear()
    card.write_text(before.replace('"me/test"', '"me/test-2"'))  # the user has seen to it
    name_repository(folder, "me/test-2")
    assert not caplog.records
