"""The parameter server: right sums under load, for slow workers too, and nothing for strangers."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import zmq

from ddlnb.engines.transports.push_pull import Header, Kind, PushPullTransport, Server, open_server
from ddlnb.plans.requests import PushPull
from ddlnb.plans.server_rules import BulkSynchronous


@pytest.fixture
def open_servers():
    """Starts servers in threads; ends with the context, whatever the test did."""
    context = zmq.Context()
    threads, sockets = [], []

    def start(count, workers, timeout=20.0):
        addresses = []
        for _ in range(count):
            socket, address = open_server("127.0.0.1", context)
            sockets.append(socket)
            server = Server(socket, workers, BulkSynchronous(workers), "token", timeout)
            threads.append(threading.Thread(target=server.serve, daemon=True))
            threads[-1].start()
            addresses.append(address)
        return addresses

    yield start
    for thread in threads:
        thread.join(5)
    for socket in sockets:
        socket.close(linger=0)
    context.destroy(linger=0)


def test_thousands_of_sums_are_right_whatever_the_pace_of_the_workers(open_servers):
    workers, messages, rounds = 3, 7, 150
    addresses = open_servers(2, workers)
    placement = [message % 2 for message in range(messages)]

    def work(rank):
        pace = random.Random(rank)
        transport, wrong = PushPullTransport(addresses, placement, rank, "token", 20), []
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
        transport.close()
        return wrong

    with ThreadPoolExecutor(workers) as pool:
        assert list(pool.map(work, range(workers))) == [[]] * workers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_floating_dtype_comes_back_as_it_went(open_servers, dtype):
    (address,) = open_servers(1, 1)
    transport = PushPullTransport([address], [0], 0, "token", 5)
    tensor = torch.tensor([1.5, -2.0, 0.25], dtype=dtype)
    assert torch.equal(transport.start(0, PushPull(tensor.clone())).wait(), tensor)
    transport.close()


class CountsBytes:
    """Answers a payload of bytes with how often each value was in it."""

    def push(self, worker, key, clock, value, now):
        self.counts = torch.bincount(value.int(), minlength=256).float()

    def pull(self, worker, key, clock):
        return self.counts


def test_a_payload_of_bytes_is_answered_with_numbers():
    context = zmq.Context()
    socket, address = open_server("127.0.0.1", context)
    server = Server(socket, 1, CountsBytes(), "token", 5)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    transport = PushPullTransport([address], [0], 0, "token", 5)
    payload = torch.tensor([7, 7, 255], dtype=torch.uint8)
    answer = transport.start(0, PushPull(payload)).wait()
    assert answer.dtype == torch.float32
    assert (answer[7].item(), answer[255].item(), answer.sum().item()) == (2.0, 1.0, 3.0)
    assert payload.tolist() == [7, 7, 255]
    transport.close()
    thread.join(5)
    context.destroy(linger=0)


def test_a_push_is_released_before_the_others_have_pushed(open_servers):
    (address,) = open_servers(1, 2)
    transport = PushPullTransport([address], [0], 0, "token", 5)
    released, answered = threading.Event(), threading.Event()
    handle = transport.start(0, PushPull(torch.ones(3)), released.set, answered.set)
    assert released.wait(5)
    assert not answered.is_set()
    other = PushPullTransport([address], [0], 1, "token", 5)
    other.start(0, PushPull(torch.ones(3))).wait()
    assert handle.wait().tolist() == [2.0, 2.0, 2.0]
    assert answered.wait(5)
    for each in (transport, other):
        each.close()


def test_a_stranger_without_the_token_is_not_heard(open_servers):
    (address,) = open_servers(1, 1)
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.IDENTITY, b"guess:0")
    stranger.connect(address)
    stranger.send_multipart([Header(Kind.BYE).pack()])
    stranger.send_multipart([b"nonsense"])
    assert not stranger.poll(200)
    context.destroy(linger=0)
    transport = PushPullTransport([address], [0], 0, "token", 5)
    assert transport.start(0, PushPull(torch.ones(1))).wait().item() == 1.0
    transport.close()


def test_a_server_that_does_not_answer_is_named(open_servers):
    (address,) = open_servers(1, 2, timeout=2.0)
    transport = PushPullTransport([address], [0], 0, "token", 0.5)
    handle = transport.start(0, PushPull(torch.ones(1)))
    with pytest.raises(TimeoutError, match=f"server {address} did not answer message 0"):
        handle.wait()
    other = PushPullTransport([address], [0], 1, "token", 5)
    for each in (transport, other):
        each.close()


def test_a_silent_server_s_error_names_the_workers_that_are_still_there():
    context = zmq.Context()
    socket, _ = open_server("127.0.0.1", context)
    with pytest.raises(TimeoutError, match=r"workers \[0, 1\] have not said goodbye"):
        Server(socket, 2, BulkSynchronous(2), "token", 0.1).serve()
    context.destroy(linger=0)
