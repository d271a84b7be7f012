"""Random models under random valid plans: workers are threads, the network is a shared table."""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st

from ddlnb.engines.replica import Replica
from ddlnb.engines.scheduler import GradientMemory, MessageScheduler
from ddlnb.engines.settings import OPTIMIZERS
from ddlnb.errors import ModelError, PlanError
from ddlnb.plans.methods import METHODS
from ddlnb.plans.plan import Gate, Launch, Message, Order, Piece, Plan
from ddlnb.plans.requests import SPLIT, PushPull, answer_together
from ddlnb.workloads.task import Task, task as make_task
from ddlnb.workloads.tracing import trace
from tests.toy import COST, TOY, mlp, train_alone

WORKERS, STEPS, BATCH = 2, 3, 2


class Table(defaultdict):
    """What the workers bring, by message and round."""

    def __init__(self):
        super().__init__(list)
        self.lock = threading.Lock()


class ThreadTransport:
    """Sums of what the workers bring to a table; answers come from other threads."""

    bytes_sent = 0.0

    def __init__(self, table, rank=0):
        self.table, self.rank, self.rounds = table, rank, defaultdict(int)

    def start(self, message, request, released=None, answered=None):
        if released and isinstance(request, PushPull):
            threading.Thread(target=released).start()
            released = None
        key = (message, self.rounds[message])
        self.rounds[message] += 1
        answer = Answer(self.rank, request, released, answered)
        with self.table.lock:
            self.table[key].append(answer)
            is_last = len(self.table[key]) == WORKERS
        if is_last:
            complete = sorted(self.table[key], key=lambda other: other.rank)
            totals = answer_together([other.request for other in complete])
            for other, total in zip(complete, totals, strict=True):
                threading.Thread(target=other.finish, args=(total.clone(),)).start()
        return answer

    def close(self):
        pass


class Answer:
    def __init__(self, rank, request, *callbacks):
        self.rank, self.request, self.tensor = rank, request, request.tensor
        self.callbacks, self.finished = callbacks, threading.Event()

    def finish(self, total):
        self.tensor.copy_(total)
        self.finished.set()
        for callback in self.callbacks:
            if callback:
                callback()

    def wait(self):
        assert self.finished.wait(20)
        return self.tensor


@st.composite
def plans(draw, gradients):
    """Any valid plan: gradients cut anywhere, pieces grouped and listed in any order."""
    pieces = []
    for gradient in gradients:
        cuts = draw(st.sets(st.integers(1, gradient.elements), max_size=2)) | {gradient.elements}
        edges = sorted({0, *cuts})
        pairs = pairwise(edges)
        pieces += [Piece(gradient.name, start, stop) for start, stop in pairs]
    pieces = draw(st.permutations(pieces))
    messages = []
    while pieces:
        count = draw(st.integers(1, len(pieces)))
        messages.append(Message(tuple(pieces[:count]), draw(st.integers(0, 5))))
        pieces = pieces[count:]
    exchange = draw(st.sampled_from(["all_reduce", "push_pull", SPLIT]))
    with_servers = exchange == "push_pull"
    return Plan(
        method="random",
        gradients=tuple(gradients),
        messages=tuple(messages),
        exchange=exchange,
        launch=draw(st.sampled_from(Launch)),
        order=draw(st.sampled_from(Order)) if with_servers else Order.LISTED,
        gate=draw(st.sampled_from(Gate)),
        credit_bytes=None if exchange == SPLIT else draw(st.none() | st.integers(1, 200)),
        servers=int(with_servers),
        placement=(0,) * len(messages) if with_servers else (),
    )


def train_together(task, plan, make_optimizer, replans=None):
    """The parameters by rank; ``replans`` are plans that take over, by the step before which."""
    replans = replans or {}
    table = Table()
    tables = {step: Table() for step in replans}
    building = threading.Lock()

    def work(rank):
        with building:  # the seed is that of the process
            torch.manual_seed(0)
            module = task.build()
        transport = ThreadTransport(table, rank)
        replica = Replica(module, plan, transport, make_optimizer, WORKERS, 20)
        for step in range(STEPS):
            if step in replans:
                replica.replan(replans[step], ThreadTransport(tables[step], rank))
            batch = task.batch(BATCH, step * WORKERS + rank)
            replica.step(lambda batch=batch: task.loss(module, batch))
        replica.close()
        return {name: p.detach() for name, p in module.named_parameters()}

    return on_threads(work)


def on_threads(work):
    """What each worker's thread returns, by rank."""
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(work, range(WORKERS)))


def require_trains_as_alone(task, plan, optimizer):
    """Train; both workers must end with the same bits, which are one worker's but for rounding."""
    results = train_together(task, plan, OPTIMIZERS[optimizer])
    expected = train_alone(task, OPTIMIZERS[optimizer], WORKERS, BATCH, STEPS)
    for name, value in expected.items():
        assert torch.equal(results[0][name], results[1][name])
        torch.testing.assert_close(results[0][name], value, rtol=1e-9, atol=1e-12)


@settings(max_examples=60)
@given(st.data(), st.lists(st.integers(1, 6), max_size=3), st.sampled_from(["sgd", "adamw"]))
def test_any_valid_plan_trains_any_model_as_one_worker_would(data, widths, optimizer):
    task = mlp(widths)
    require_trains_as_alone(task, data.draw(plans(trace(task, BATCH).gradients)), optimizer)


@pytest.mark.thorough
@settings(max_examples=25)
@given(st.data(), st.lists(st.integers(1, 4), max_size=2), st.sampled_from(["sgd", "adamw"]))
def test_a_plan_that_takes_over_changes_no_bit(data, widths, optimizer):
    """From any plan to any other: gates, halves, servers and credits included."""
    task = mlp(widths)
    gradients = trace(task, BATCH).gradients
    first, second, third = (data.draw(plans(gradients)) for _ in range(3))
    kept = train_together(task, first, OPTIMIZERS[optimizer])
    replanned = train_together(task, first, OPTIMIZERS[optimizer], {1: second, 2: third})
    for rank in range(WORKERS):
        for name, value in kept[rank].items():
            assert torch.equal(replanned[rank][name], value)


def replica_of(module, plan, workers=1):
    return Replica(module, plan, ThreadTransport(Table()), OPTIMIZERS["sgd"], workers)


def test_a_plan_with_other_gradients_takes_nothing_over():
    plan, other = (METHODS["BSP-A2A"].plan(trace(mlp([width]), 2)) for width in (4, 5))
    with pytest.raises(PlanError, match="sends other gradients"):
        replica_of(mlp([4]).build(), plan).replan(other, ThreadTransport(Table()))


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (mlp([5]).build(), "make the plan from this model"),
        (mlp([4, 4]).build(), "make the plan from this model"),
        (mlp([4]).build().float(), "bytes per element"),
    ],
)
def test_a_plan_of_another_model_or_precision_is_refused(module, told):
    with pytest.raises(ModelError, match=told):
        replica_of(module, METHODS["BSP-A2A"].plan(trace(mlp([4]), 2)))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["MG-WFBP", "DeAR", "BSP-A2A"])
def test_a_backward_pass_that_no_step_follows_is_no_silent_loss(name, last):
    """What is added to a gradient whose message is under way would differ from rank to rank."""
    task = mlp([4])
    module = task.build()
    replica = replica_of(module, METHODS[name].plan(trace(task, BATCH), cost=COST))
    replica.accumulates = True  # first, as `no_sync` does
    task.loss(module, task.batch(BATCH, 3)).backward()
    replica.accumulates = False
    task.loss(module, task.batch(BATCH, 0)).backward()
    replica.accumulates = last  # afterwards it would be lost
    with pytest.raises(ModelError, match=r"gradient '.*' came a second time without a step"):
        task.loss(module, task.batch(BATCH, 1)).backward()


class Tied(torch.nn.Module):
    """Decodes with the embedding's weights, and attends: no module reads just its own."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 4, dtype=torch.float64)
        self.attend = torch.nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
        self.decode = torch.nn.Linear(4, 7, bias=False, dtype=torch.float64)
        self.decode.weight = self.embed.weight

    def forward(self, tokens):
        hidden = self.embed(tokens)
        hidden, _ = self.attend(hidden, hidden, hidden)
        return self.decode(hidden)


def _tokens(count, seed):
    return (torch.randint(0, 7, (count, 3), generator=torch.Generator().manual_seed(seed)),)


def _next_token(module, batch):
    return torch.nn.functional.cross_entropy(module(batch[0])[:, :-1].mT, batch[0][:, 1:])


@pytest.mark.parametrize("name", ["ByteScheduler-PS", "MG-WFBP"])
def test_shared_parameters_and_attention_wait_for_their_update(name):
    """Either trap would let a forward pass read a parameter before its update."""
    torch.manual_seed(2)
    task = make_task(Tied(), batch=_tokens, loss=_next_token, name="tied")
    plan = METHODS[name].tuned(partition="64 B", credit="64 B").plan(trace(task, 2), cost=COST)
    require_trains_as_alone(task, plan, "adamw")


def _numbers(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 5, generator=generator, dtype=torch.float64), torch.zeros(count, 3)


def _normed():
    return torch.nn.utils.weight_norm(torch.nn.Linear(5, 3, dtype=torch.float64))


def _square(module, batch):
    return ((module(batch[0]) - batch[1]) ** 2).mean()


@pytest.mark.parametrize("name", ["ByteScheduler-PS", "ByteScheduler-A2A", "WFBP-A2A"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_other_hooks_of_a_module_see_the_updated_parameters(name):
    """weight_norm computes the weight in a hook of its own, before the forward pass."""
    task = Task("normed", _normed, _numbers, _square, 2, "samples", "weight normalisation")
    plan = METHODS[name].plan(trace(task, 2), cost=COST)
    require_trains_as_alone(task, plan, "sgd")


class Alternating(torch.nn.Module):
    """Reads shared weights through one module in every other step, through another between."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(5, 3, dtype=torch.float64)
        self.two = torch.nn.Linear(5, 3, dtype=torch.float64)
        self.two.weight, self.two.bias = self.one.weight, self.one.bias
        self.steps = 0

    def forward(self, inputs):
        self.steps += 1
        return (self.one if self.steps % 2 else self.two)(inputs)


def test_a_layer_that_is_not_entered_is_not_left_without_its_update():
    task = make_task(Alternating(), batch=_numbers, loss=_square, name="alternating")
    plan = METHODS["ByteScheduler-PS"].plan(trace(task, 2))
    with pytest.raises(ModelError, match="layer 'one' was not entered"):
        train_together(task, plan, OPTIMIZERS["sgd"])


def test_closing_takes_every_hook_off_the_model():
    task = mlp([4])
    module = task.build()
    plan = METHODS["ByteScheduler-PS"].plan(trace(task, 2))
    replica = replica_of(module, plan, WORKERS)
    other = METHODS["ByteScheduler-A2A"].plan(trace(task, 2), cost=COST)
    replica.replan(other, ThreadTransport(Table()))
    replica.close()
    task.loss(module, task.batch(2, 0)).backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    assert all(not child._forward_pre_hooks for child in module.modules())


@pytest.mark.parametrize("name", ["ByteScheduler-PS", "ByteScheduler-A2A"])
def test_workers_whose_gradients_come_in_different_orders_do_not_wait_for_ever(name):
    """With credit for one message, each worker's first push must not wait for the other's."""
    method = METHODS[name].tuned(partition="520 B", credit="1 B")
    plan = method.plan(TOY, cost=COST)
    table = Table()

    def work(rank):
        memory = GradientMemory(plan, torch.float32)
        scheduler = MessageScheduler(plan, memory, ThreadTransport(table), timeout_seconds=5)
        positions = range(len(plan.gradients))
        for position in positions if rank else reversed(positions):
            memory.gradient(plan.gradients[position].name).fill_(rank + 1)
            scheduler.gradient_ready(position)
        assert scheduler.backward_done() == []
        for message in range(len(plan.messages)):
            scheduler.wait(message)
        return [memory.gradient(g.name).unique().item() for g in plan.gradients]

    assert on_threads(work) == [[3.0, 3.0, 3.0]] * WORKERS
