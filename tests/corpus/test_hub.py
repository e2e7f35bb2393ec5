import sys
from pathlib import Path
from typing import Any

import pytest

from fedmt.corpus import reader
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

DE_EN = Direction("de", "en")
ROWS = [{"de": "Hallo", "en": "Hello"}, {"de": "Welt", "en": "World"}]


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dataset_info.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CorpusError, match=r'reading a dataset needs an extra: pip install "fedmt\[hub\]"$'):
        next(reader.read(f"hub:{tmp_path}", DE_EN))


def test_a_folder_without_a_dataset_says_so(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="is no dataset saved on disk"):
        next(reader.read(f"hub:{tmp_path}", DE_EN))


@pytest.fixture
def datasets() -> Any:
    return pytest.importorskip("datasets", reason="the extra hub is not installed")


def test_each_shape_of_columns_is_read(tmp_path: Path, datasets: Any) -> None:
    tables = {
        "columns": ROWS,
        "nested": [{"id": number, "translation": row} for number, row in enumerate(ROWS)],
        "plain": [{"source": row["de"], "target": row["en"]} for row in ROWS],
    }
    for name, rows in tables.items():
        datasets.Dataset.from_list(rows).save_to_disk(tmp_path / name)
        assert reader.detect(str(tmp_path / name)) == "hub"
        assert list(reader.read(str(tmp_path / name), DE_EN)) == [Pair("Hallo", "Hello"), Pair("Welt", "World")]
    feature = datasets.Features({"translation": datasets.Translation(["de", "en"])})
    datasets.Dataset.from_list([{"translation": row} for row in ROWS], features=feature).save_to_disk(tmp_path / "t")
    assert list(reader.read(f"hub:{tmp_path}/t", Direction("en", "de"))) == [
        Pair("Hello", "Hallo"),
        Pair("World", "Welt"),
    ]


def test_train_is_meant_unless_a_split_is_named(tmp_path: Path, datasets: Any) -> None:
    splits = {"train": ROWS[:1], "test": ROWS[1:]}
    sets = {name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}
    datasets.DatasetDict(sets).save_to_disk(tmp_path / "all")
    assert list(reader.read(str(tmp_path / "all"), DE_EN)) == [Pair("Hallo", "Hello")]
    assert list(reader.read(f"hub:{tmp_path}/all#test", DE_EN)) == [Pair("Welt", "World")]
    with pytest.raises(CorpusError, match=r"say which split, .*, one of train, test"):
        next(reader.read(f"hub:{tmp_path}/all#dev", DE_EN))


def test_a_dataset_of_other_columns_says_which_it_has(tmp_path: Path, datasets: Any) -> None:
    datasets.Dataset.from_list([{"fr": "a", "en": "b"}]).save_to_disk(tmp_path / "x")
    with pytest.raises(CorpusError, match="no pair of de-en; its columns are fr, en"):
        next(reader.read(str(tmp_path / "x"), DE_EN))
    datasets.Dataset.from_list([{"de": 1, "en": "b"}]).save_to_disk(tmp_path / "y")
    with pytest.raises(CorpusError, match="row 0: de and en must be text"):
        next(reader.read(str(tmp_path / "y"), DE_EN))


def test_a_damaged_dataset_is_one_line(tmp_path: Path, datasets: Any) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "x")
    (tmp_path / "x" / "state.json").unlink()
    with pytest.raises(CorpusError, match="the dataset cannot be loaded") as caught:
        next(reader.read(str(tmp_path / "x"), DE_EN))
    assert "\n" not in str(caught.value)
