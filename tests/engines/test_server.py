"""The parameter server: right sums under load, for slow workers too, and nothing for strangers."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch
import zmq

from ddlnb.engines.transports.push_pull import Header, Kind, PushPullTransport, Server, open_server
from ddlnb.plans.requests import PushPull
from ddlnb.plans.server_rules import BulkSynchronous


@pytest.fixture
def serving():
    """Starts servers in threads, and connects workers; all end with the test, whatever it did."""
    context, up = zmq.Context(), ExitStack()
    up.callback(context.destroy, linger=0)

    def start(workers, servers=1, timeout=20.0, rule=None):
        addresses = []
        for _ in range(servers):
            socket, address = open_server("127.0.0.1", context)
            server = Server(socket, workers, rule or BulkSynchronous(workers), "token", timeout)
            thread = threading.Thread(target=server.serve, daemon=True)
            thread.start()
            up.callback(socket.close, linger=0)
            up.callback(thread.join, 5)
            addresses.append(address)

        def connect(rank=0, seconds=5.0, placement=(0,)):
            transport = PushPullTransport(addresses, placement, rank, "token", seconds)
            return up.enter_context(transport)

        connect.address = addresses[0]
        return connect

    with up:
        yield start


def test_thousands_of_sums_are_right_whatever_the_pace_of_the_workers(serving):
    workers, messages, rounds = 3, 7, 150
    connect = serving(workers, servers=2)

    def work(rank):
        pace, wrong = random.Random(rank), []
        transport = connect(rank, 20, [message % 2 for message in range(messages)])
        for number in range(rounds):
            tensors = [
                torch.full((1 + 5000 * (message % 3),), float(rank + message + number))
                for message in range(messages)
            ]
            order = pace.sample(range(messages), messages)
            handles = {i: transport.start(i, PushPull(tensors[i])) for i in order}
            if pace.random() < 0.1:
                time.sleep(0.005)
            for message, handle in handles.items():
                expected = sum(other + message + number for other in range(workers))
                if not bool((handle.wait() == expected).all()):
                    wrong.append((rank, number, message))
        return wrong

    with ThreadPoolExecutor(workers) as pool:
        assert list(pool.map(work, range(workers))) == [[]] * workers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_floating_dtype_comes_back_as_it_went(serving, dtype):
    tensor = torch.tensor([1.5, -2.0, 0.25], dtype=dtype)
    assert torch.equal(serving(1)().start(0, PushPull(tensor.clone())).wait(), tensor)


class CountsBytes:
    """Answers a payload of bytes with how often each value was in it."""

    def push(self, worker, key, clock, value, now):
        self.counts = torch.bincount(value.int(), minlength=256).float()

    def pull(self, worker, key, clock):
        return self.counts


def test_a_payload_of_bytes_is_answered_with_numbers(serving):
    payload = torch.tensor([7, 7, 255], dtype=torch.uint8)
    answer = serving(1, rule=CountsBytes())().start(0, PushPull(payload)).wait()
    assert answer.dtype == torch.float32
    assert (answer[7].item(), answer[255].item(), answer.sum().item()) == (2.0, 1.0, 3.0)
    assert payload.tolist() == [7, 7, 255]


def test_a_push_is_released_before_the_others_have_pushed(serving):
    connect = serving(2)
    released, answered = threading.Event(), threading.Event()
    handle = connect(0).start(0, PushPull(torch.ones(3)), released.set, answered.set)
    assert released.wait(5)
    assert not answered.is_set()
    connect(1).start(0, PushPull(torch.ones(3))).wait()
    assert handle.wait().tolist() == [2.0, 2.0, 2.0]
    assert answered.wait(5)


def test_a_stranger_without_the_token_is_not_heard(serving):
    connect = serving(1)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.IDENTITY, b"guess:0")
        stranger.connect(connect.address)
        stranger.send_multipart([Header(Kind.BYE).pack()])
        stranger.send_multipart([b"nonsense"])
        assert not stranger.poll(200)
        stranger.close(linger=0)
    assert connect().start(0, PushPull(torch.ones(1))).wait().item() == 1.0


def test_a_server_that_does_not_answer_is_named(serving):
    connect = serving(2, timeout=2.0)
    handle = connect(0, seconds=0.5).start(0, PushPull(torch.ones(1)))
    with pytest.raises(TimeoutError, match=f"server {connect.address} did not answer message 0"):
        handle.wait()
    connect(1)  # to say goodbye


def test_a_silent_server_s_error_names_the_workers_that_are_still_there():
    context = zmq.Context()
    socket, _ = open_server("127.0.0.1", context)
    with pytest.raises(TimeoutError, match=r"workers \[0, 1\] have not said goodbye"):
        Server(socket, 2, BulkSynchronous(2), "token", 0.1).serve()
    context.destroy(linger=0)
