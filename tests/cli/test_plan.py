"""`hyphash plan`"""

import json
from dataclasses import asdict

from hyphash.planning import Wish


def test_plan_prints_a_formula_beside_each_figure(run):
    ran = run("plan", "--photos", "1e9", "--bits", 64, "--qps", 500)
    assert ran.code == 0, ran.err
    assert "latency p50" in ran.out
    assert "1,000,000,000 ×" in ran.out
    ran = run("plan", "--photos", "2e6", "--node-memory", "256GB", "--replicas", 2, "--k", 100, "--markdown")
    assert ran.out.startswith("| engine | what | estimate | formula |")


def test_plan_as_json(run):
    told = json.loads(run("plan", "--photos", "1e6", "--json").out)
    assert told["wish"]["photos"] == 1_000_000
    (local,) = [engine for engine in told["engines"] if engine["engine"] == "local"]
    assert {"memory", "disk", "nodes", "latency p50"} <= {figure["name"] for figure in local["figures"]}
    assert all(figure["formula"] for figure in local["figures"] + told["encoding"])


def test_the_command_wishes_for_what_the_library_does(run):
    told = json.loads(run("plan", "--photos", "1e6", "--json").out)
    assert told["wish"] == asdict(Wish(photos=1_000_000))


def test_nonsense_is_one_line_and_exit_2(run):
    for args in (
        *(["--photos", photos] for photos in ("0", "nan", "inf", "1e400", "-5", "1e300", "many")),
        *(["--photos", "1e6", "--node-memory", size] for size in ("much", "64", "nan", "-1GB")),
    ):
        ran = run("plan", *args)
        assert ran.code == 2
        assert len(ran.err.strip().splitlines()) == 1, ran.err
