"""Clients take turns; there is always a place for someone new."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.serve.metrics import Metrics, make_labels
from clearhead.serve.middleware import APIError
from clearhead.serve.scheduler import FairQueue

asked = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), max_size=60
)  # so many more, or the next


@given(asked, st.integers(1, 12))
def test_nothing_is_lost_and_each_clients_own_stay_in_order(steps, most):
    line = FairQueue[tuple[str, int]](most)
    waiting = []
    number = 0
    for client, more in steps:
        if more:
            new = [(client, number + i) for i in range(more)]
            own = sum(one[0] == client for one in waiting)
            with suppress(APIError):
                line.put(client, *new)
                waiting += new
                assert own + more <= most - (
                    len(waiting) - more
                )  # not more than there were places left
            number += more
        elif waiting:
            found = line.pop()
            assert found == next(one for one in waiting if one[0] == found[0])
            waiting.remove(found)
            line.task_done(found[0])
        assert line.num_waiting == len(waiting) <= most
    assert not line.running


def test_who_has_least_under_way_is_next_then_who_had_no_turn_longest():
    line = FairQueue[str](100)
    line.put("a", "a1", "a2", "a3", "a4")
    line.put("b", "b1", "b2")
    line.put("c", "c1")
    assert [line.pop() for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
    line.put("a", "a5")
    line.put("c", "c2")
    assert line.pop() == "c2"  # a has four under way
    for _ in range(4):
        line.task_done("a")
    assert line.pop() == "a5"


def test_one_alone_fills_half_and_a_newcomer_finds_a_place():
    line = FairQueue[int](8)
    for i in range(4):
        line.put("a", i)
    with pytest.raises(APIError, match="4 of 8"):
        line.put("a", 9)
    line.put("b", 5)
    with pytest.raises(APIError, match="5 of 8") as refused:
        line.put("c", 1, 2, 3, 4)
    assert refused.value.status_code == 429
    with pytest.raises(APIError, match="9 texts are more than the 8 that may wait") as refused:
        line.put("c", *range(9))
    assert refused.value.status_code == 400  # it is no use to try again
    line.remove("a", lambda thing: thing < 3)
    assert line.num_waiting == 2
    assert [line.pop(), line.pop()] == [5, 3]


def test_prometheus_reads_what_is_counted():
    metrics = Metrics()
    metrics.requests.inc(path="/", status="200")
    metrics.requests.inc(path="/", status="200")
    for seconds in (0.01, 0.02, 99):
        metrics.time_to_first_token.observe(seconds, model='a"\\\n')
    lines = metrics.render({"now": ("A gauge.", [(make_labels(x="1"), 2.5), ((), 3)])}).splitlines()
    assert 'clearhead_requests_total{path="/",status="200"} 2' in lines
    buckets = [line for line in lines if line.startswith("clearhead_first_token_seconds_bucket")]
    assert buckets[0].endswith('{model="a\\"\\\\\\n",le="0.01"} 1')
    assert [int(line.rsplit(" ")[-1]) for line in buckets] == [1] + [2] * 11 + [3]
    assert 'clearhead_first_token_seconds_count{model="a\\"\\\\\\n"} 3' in lines
    assert lines[-4:] == ["# HELP now A gauge.", "# TYPE now gauge", 'now{x="1"} 2.5', "now 3"]
