"""Fair queue, quotas and metrics."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.serve.errors import APIError
from clearhead.serve.limits import Quota
from clearhead.serve.scheduler import FairQueue

# (client, number of items to put; 0: pop)
OPERATIONS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), max_size=60)


@given(OPERATIONS, st.integers(1, 12))
def test_items_are_neither_lost_nor_reordered(operations, max_size):
    queue = FairQueue[tuple[str, int]](max_size)
    waiting = []
    number = 0
    for client, count in operations:
        if count:
            items = [(client, number + i) for i in range(count)]
            number += count
            with suppress(APIError):
                queue.put(client, *items)
                waiting += items
        elif waiting:
            item = queue.pop()
            assert item == next(other for other in waiting if other[0] == item[0])
            waiting.remove(item)
            queue.task_done(item[0])
        assert queue.num_waiting == len(waiting) <= max_size
    assert not queue.running


def test_next_is_the_client_with_the_fewest_running_items():
    queue = FairQueue[str](100)
    queue.put("a", "a1", "a2", "a3", "a4")
    queue.put("b", "b1", "b2")
    queue.put("c", "c1")
    assert [queue.pop() for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
    queue.put("a", "a5")
    queue.put("c", "c2")
    assert queue.pop() == "c2"  # a has four running
    for _ in range(4):
        queue.task_done("a")
    assert queue.pop() == "a5"


@given(st.integers(2, 500))
def test_one_client_gets_most_of_a_quota_and_a_new_one_finds_room(limit):
    """A classroom behind one address is one client."""
    quota = Quota(limit)
    while quota.fits("a", 1):
        quota.acquire("a", 1)
    assert limit // 2 <= quota.used < limit
    if limit >= 9:
        assert quota.used >= limit * 8 // 9
    assert quota.fits("b", 1)
    quota.release("a", quota.used)
    assert not quota.used_by_client


def test_a_full_queue_rejects_all_items_of_a_request():
    queue = FairQueue[int](8)
    for i in range(7):
        queue.put("a", i)
    with pytest.raises(APIError, match="7 of 8") as error:
        queue.put("a", 9)
    assert error.value.status_code == 429
    queue.put("b", 5)
    with pytest.raises(APIError, match="queue size 8") as error:
        queue.put("c", *range(9))
    assert error.value.status_code == 400  # retrying would not help
    queue.remove("a", lambda item: item < 6)
    assert queue.num_waiting == 2
    assert [queue.pop(), queue.pop()] == [5, 6]
