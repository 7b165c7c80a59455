"""`hyphash plan`"""

import json


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


def test_nonsense_is_one_line_and_exit_2(run):
    for args in (["--photos", "0"], ["--photos", "1e6", "--node-memory", "much"], ["--photos", "nan"]):
        ran = run("plan", *args)
        assert ran.code == 2
        assert len(ran.err.strip().splitlines()) == 1, ran.err
