"""Fair queue, quotas and metrics."""

import asyncio
import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.serve.errors import APIError
from clearhead.serve.limits import Quota
from clearhead.serve.scheduler import FairQueue, FairThreads

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


# --- threads


def test_threads_take_turns_between_clients():
    async def run():
        threads = FairThreads(1, 100)
        order = []

        async def call(client, number):
            await threads.call(client, lambda: order.append((client, number)))

        flood = [call("a", number) for number in range(20)]
        await asyncio.gather(*flood, call("b", 0), call("c", 0))
        assert max(order.index((client, 0)) for client in "bc") <= 3
        assert [number for client, number in order if client == "a"] == [*range(20)]
        assert (threads.num_free, threads.queue.num_waiting) == (1, 0)
        assert not threads.queue.running

    asyncio.run(run())


@pytest.mark.parametrize("has_started", [False, True])
def test_cancelled_calls_free_their_turn_when_their_thread_ends(has_started):
    async def run():
        threads = FairThreads(1, 100)
        resume = threading.Event()
        blocking = asyncio.ensure_future(threads.call("a", resume.wait))
        await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(threads.call("b", lambda: None))
        after = asyncio.ensure_future(threads.call("c", lambda: "done"))
        await asyncio.sleep(0)
        cancelled = blocking if has_started else waiting
        cancelled.cancel()
        await asyncio.sleep(0.01)
        assert cancelled.cancelled()
        assert (threads.num_free, after.done()) == (0, False)
        resume.set()
        assert await after == "done"
        await asyncio.gather(blocking, waiting, return_exceptions=True)
        assert threads.num_free == 1
        assert not threads.queue.running

    asyncio.run(run())


def test_errors_of_calls_are_raised_and_free_their_turn():
    async def run():
        threads = FairThreads(1, 2)
        with pytest.raises(ZeroDivisionError):
            await threads.call("a", lambda: 1 / 0)
        calls = [asyncio.ensure_future(threads.call("a", lambda: None)) for _ in range(9)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert any(isinstance(result, APIError) for result in results)
        assert threads.num_free == 1

    asyncio.run(run())
