"""A proxy's target as a share of the way to its plateau."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support import proxy_runs as made

from wattune.errors import WorkloadError
from wattune.proxy import estimate
from wattune.proxy.plateau import differing
from wattune.records import EfficiencyPoint, LearningCurve, ProxyLevel, SampleEfficiency


def workload(target="auto", **changes):
    return made.workload(proxy=made.workload("proxy", data=made.other_points, target=target, **changes))


@pytest.mark.parametrize("strategy", ["full", "pooled"])
def test_the_target_lies_at_the_share_of_the_way_and_no_run_is_made_twice(tmp_path, strategy):
    lines: list[str] = []
    seeds = 1 if strategy == "full" else None
    how = {"seeds": seeds, "folder": tmp_path, "processes": 1, "progress": lambda *line: lines.append(line[2])}
    got = estimate(workload(), **how)
    long = LearningCurve.load(tmp_path / "plateau" / "b032-s0.json")
    assert (long.target, long.samples) == (None, 2048)
    metrics = [one.metric for one in long.evaluations]
    best = max(sum(metrics[at : at + 3]) / 3 for at in range(len(metrics) - 2))
    proxy = workload().proxy
    first = proxy.evaluate(proxy.model(0))
    assert got.target == pytest.approx(first + 0.8 * (best - first), rel=1e-4)
    assert got.target_share == 0.8
    # The long run is the first one of the estimate, cut where it would have ended.
    cut = LearningCurve.load(tmp_path / "b032-s0.json")
    assert cut.reached
    assert cut.evaluations == long.evaluations[: len(cut.evaluations)]
    assert [one.metric >= got.target for one in cut.evaluations] == [False] * (len(cut.evaluations) - 1) + [True]
    assert not any("batch size 32, seed 0: reached" in line for line in lines)
    # It is the estimate with that number as the target.
    number = estimate(workload(got.target), **{**how, "folder": tmp_path / "number"})
    fresh = {"provenance": number.provenance, "target_share": None, "levels": ()}
    assert got.model_copy(update=fresh) == number
    # Lower levels are those of the same runs.
    assert [level.target_share for level in got.levels] == pytest.approx([0.4, 0.6])
    assert all(level.target < got.target and level.relative_samples[32] == 1 for level in got.levels)
    assert SampleEfficiency.parse(got.dump()) == got
    lines.clear()
    again = estimate(workload(), **how)
    assert again.levels == got.levels
    assert not any("to train" in line for line in lines)


def test_a_metric_that_falls_has_a_plateau_too():
    got = estimate(workload("90%", metric="loss"), seeds=1, processes=1)
    assert got.target_share == 0.9
    assert all(level.target > got.target for level in got.levels)


def test_a_proxy_that_does_not_learn_is_refused():
    with pytest.raises(WorkloadError, match=r"does not get better at batch size 32.*write its target as a number"):
        estimate(workload(metric=made.Metric("none", "max", made.no_score)), seeds=1, processes=1)


@pytest.mark.parametrize("target", ["soon", "0%", "100%", "-5%", "80", ""])
def test_a_share_that_is_none_is_refused(target):
    with pytest.raises(WorkloadError, match=r"^target.*auto.*90%"):
        workload(target)


def test_only_a_proxy_has_a_share_and_a_number_takes_its_place():
    with pytest.raises(WorkloadError, match="target: 80% of the way to the plateau; allowed: a number"):
        estimate(replace(made.with_proxy(), target=None, target_share=0.8))
    proxy = workload("95%").proxy
    assert (proxy.target, proxy.target_share) == (None, 0.95)
    assert replace(proxy, target=0.5).target_share is None
    assert len({workload(target).proxy.fingerprint() for target in ("95%", "90%", None)}) == 3


def test_the_level_that_is_farthest_out_of_the_band_is_named_once():
    points = (
        EfficiencyPoint(batch_size=8, relative_samples=0.9, low=0.8, high=1.0),
        EfficiencyPoint(batch_size=16, relative_samples=0.9, low=0.8, high=1.0),
        EfficiencyPoint(batch_size=32, relative_samples=1.0, low=1.0, high=1.0),
    )

    def record(*relative):
        levels = (
            ProxyLevel(target_share=0.6, target=0.5, relative_samples=dict(zip((8, 16, 32), relative, strict=True))),
        )
        shares = {"target_share": 0.8, "levels": levels}
        return SampleEfficiency(workload="points", reference_batch_size=32, points=points, **shares)

    assert differing(record(0.85, 0.95, 1.0)) is None
    text = differing(record(0.5, 0.7, 1.0))
    assert text.startswith("the level of the target matters: at batch size 8 the proxy needs 0.50 times")
    assert 'write target = "60%"' in text
