"""The page of a study."""

import pytest

from hyphash.tuning import Score, Trial
from hyphash.tuning.page import questions_page, search_page


@pytest.fixture
def trials():
    def trial(rate, kind, *scores, **more):
        return Trial(settings={"rate": rate, "kind": kind}, scores=tuple(Score(s, s / 2) for s in scores), **more)

    return [
        trial(0.1, "a", 0.5, 0.6),
        trial(0.001, "b", 0.7, 0.8),
        trial(0.2, "a", 0.4),
        trial(9.0, "a", problem="NaN"),
    ]


def test_a_search_shows_the_best_first_and_what_mattered(trials, tmp_path):
    recipe = Trial(settings={}, scores=(Score(0.5, 0.5),) * 2)
    page = search_page(trials, folds=2, importances={"rate": 0.8, "kind": 0.2}, confirmed=(recipe, trials[1]))
    best = next(table for table in page.tables if table.name == "best")
    assert [row[0] for row in best.rows] == ["0.001", "0.1"]  # whole trials alone
    assert best.rows[0][2] == "0.3750 ± 0.0250"
    confirmed = page.tables[0]
    assert confirmed.rows[0][:2] == ("recipe's", "recipe's")
    assert [figure.name for figure in page.figures] == ["importance", "settings"]
    html = page.write(tmp_path).read_text()
    assert "queries and database were not looked at" in html
    assert html.count("<svg") == 2


def test_questions_have_a_table_each_and_say_what_is_shared_once(trials):
    asked = [Trial(settings=t.settings, scores=t.scores, question=q, problem=t.problem)
             for t, q in zip(trials, "xxyy", strict=True)]  # fmt: skip
    page = questions_page(asked, title="A study", folds=2)
    assert [table.title for table in page.tables] == ["x", "y"]
    assert page.tables[1].above == "kind a"
    assert page.tables[1].columns == ("rate", "strict", "paper", "seconds")
    assert page.tables[1].rows[1] == ("9", "–", "–", 0.0)
    assert page.tables[1].below == ("NaN",)
    assert page.tables[0].best == {(1, 2)}
