"""Pages: what they show of tables and figures, and that nothing in them is taken for HTML."""

from dataclasses import replace

from hyphash.benchmarks.pages import Page, Section
from hyphash.benchmarks.tables import Table

EVIL = "<script>alert('x & y')</script>"


def test_a_page_of_many_sections_has_a_list_of_them_and_folds_long_tables():
    rows = tuple((f"{i}",) for i in range(50))
    long = Table(name="long", title="Long", above="", columns=("n",), rows=rows)
    text = Page("All", "", tuple(Section(f"part {i}", tables=(long,)) for i in range(8))).html()
    assert text.count("<details><summary>all 50 rows</summary>") == 8
    assert [f'<a href="#s{i}">part {i}</a>' in text for i in range(8)] == [True] * 8
    assert '<h2 id="s7">part 7</h2>' in text
    short = Page("One", "", (Section("part", tables=(replace(long, rows=rows[:9]),)),)).html()
    assert "<details>" not in short
    assert "<nav>" not in short


def test_a_page_escapes_what_others_wrote():
    table = Table(name="t", title=EVIL, above=EVIL, columns=(EVIL,), rows=((EVIL,),), below=(EVIL,))
    text = Page(EVIL, EVIL, (Section(EVIL, tables=(table,)),), notes=(EVIL,), facts={EVIL: EVIL}).html()
    assert "<script" not in text
    assert text.count("alert(&#39;x &amp; y&#39;)") == 12  # the title twice: of the page and above it


def test_the_best_of_a_column_stands_out_and_words_stand_to_the_left():
    table = Table(name="t", title="T", columns=("a", "b"), rows=(("x", 0.5), ("y", "word")), best=frozenset({(0, 1)}))
    text = Page("P", "", (Section("S", tables=(table,)),)).html()
    assert "<td><b>0.500</b></td>" in text
    assert '<td class="text">word</td>' in text
    assert "<td>x</td>" in text
