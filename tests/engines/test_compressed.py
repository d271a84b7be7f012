"""Compressed messages of a plan: merged ones have the bits of those alone, on ranks too."""

from dataclasses import replace

import pytest
import torch

from ddlnb.compression.base import Round, average_with_feedback
from ddlnb.compression.messages import MessageCompressing, compression_named, together
from ddlnb.engines.catalogue import ENGINES, require_runs
from ddlnb.engines.job import Job
from ddlnb.engines.settings import OPTIMIZERS
from ddlnb.engines.worker import run_job
from ddlnb.errors import InputError, MissingPart, ModelError, UnknownName
from ddlnb.plans.methods import METHODS
from ddlnb.plans.plan import Gate, Plan
from ddlnb.plans.plan_file import method_of
from ddlnb.plans.requests import lockstep
from ddlnb.search.space import Candidate
from ddlnb.survey.time_to_target import made_up_cluster
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import read_profile
from tests.toy import TOY
from tests.toy_exchange import normal

TEXTS = [
    "fp16",
    "top-k(0.1) + feedback",
    "qsgd",
    "signsgd",
    "random-k(0.1)",
    "powersgd(1) + feedback",
]
SHAPES = {"c": (7,), "b": (5, 6), "a": (3, 2, 2)}
WORKERS, STEPS, BATCH = 2, 3, 2


def averages(text: str, rank: int, step: int, memories: dict) -> dict:
    """The flow of every tensor alone, by its name."""
    compressor, feedback = compression_named(text)
    flows = {}
    for piece, (name, shape) in enumerate(SHAPES.items()):
        tensor = normal(*shape, seed=100 * step + 10 * rank + piece)
        round_, memory = Round(rank, 3, step, piece), memories.setdefault((rank, name), {})
        if feedback:
            flows[name] = average_with_feedback(compressor, tensor, round_, memory)
        else:
            flows[name] = compressor.average(tensor, round_, memory)
    return flows


@pytest.mark.parametrize("text", TEXTS)
def test_what_travels_together_gets_the_bits_of_what_travels_alone(text):
    merged: dict = {}
    apart: dict = {}
    for step in (1, 2, 3):
        both = lockstep(
            [together(list(averages(text, rank, step, merged).values())) for rank in range(3)]
        )
        flows = [averages(text, rank, step, apart) for rank in range(3)]
        for piece, name in enumerate(SHAPES):
            alone = lockstep([one[name] for one in flows])
            for rank in range(3):
                assert torch.equal(both[rank][piece].average, alone[rank].average)
                assert torch.equal(both[rank][piece].sent, alone[rank].sent)


def plan_of(workload, text: str, gate: Gate) -> Plan:
    """Three compressed messages and two dense ones."""
    count = len(workload.gradients)
    ends = (2, count // 3, count // 2, count - 3, count)
    plan = Candidate(ends, gate).plan(workload, made_up_cluster("1 Gb/s", "1 ms", 2), ())
    return replace(plan, compressions=(text, "", text, text, ""))


def alone(task, plan: Plan, seed: int = 0) -> dict[str, torch.Tensor]:
    """Parameters after training in one process, tensor by tensor, as the plan compresses them."""
    torch.manual_seed(seed)
    module = task.build()
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    optimizer = OPTIMIZERS["sgd"](list(parameters.values()))
    text_of = {
        piece.gradient: text
        for message, text in zip(plan.messages, plan.compressions, strict=True)
        for piece in message.pieces
    }
    memories = [{name: {} for name in parameters} for _ in range(WORKERS)]
    for step in range(STEPS):
        gradients = []
        for rank in range(WORKERS):
            module.zero_grad()
            batch = task.batch(BATCH, step * WORKERS + rank)
            task.loss(module, batch).backward()
            gradients.append({n: p.grad.clone() for n, p in parameters.items()})
        for piece, (name, parameter) in enumerate(parameters.items()):
            shares = [one[name] for one in gradients]
            if not text_of[name]:
                parameter.grad = sum(share / WORKERS for share in shares)
                continue
            compressor, feedback = compression_named(text_of[name])
            assert feedback
            flows = [
                average_with_feedback(
                    compressor,
                    share,
                    Round(rank, WORKERS, step + 1, piece, seed),
                    memories[rank][name],
                )
                for rank, share in enumerate(shares)
            ]
            parameter.grad = lockstep(flows)[0].average
        optimizer.step()
    return {name: parameter.detach() for name, parameter in parameters.items()}


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("text", "gate"),
    [("top-k(0.1) + feedback", Gate.OWN_LAYER), ("powersgd(1) + feedback", Gate.ALL_LAYERS)],
)
def test_a_compressed_plan_on_ranks_trains_as_tensor_by_tensor_in_one_process(
    six_ranks, text, gate
):
    task = get_task("small-conv")
    plan = plan_of(trace(task, BATCH), text, gate)
    job = Job(
        task=task,
        engine="torch",
        workers=WORKERS,
        local_batch=BATCH,
        iterations=STEPS,
        batches=STEPS,
        plan=plan,
        keep_parameters=True,
    )
    require_runs("torch", method_of(plan))
    reports = six_ranks.run(run_job, job, count=WORKERS, timeout_seconds=120)
    assert len({report.digest for report in reports}) == 1
    for name, value in alone(task, plan).items():
        torch.testing.assert_close(reports[0].parameters[name], value, rtol=1e-5, atol=1e-7)
    cluster = made_up_cluster("1 Gb/s", "1 ms", WORKERS)
    cost = iteration_cost(
        read_profile("small-conv_b64_cpu-1thread"), cluster, plan, compression="free"
    )
    assert reports[0].bytes_sent / STEPS == pytest.approx(cost.bytes_sent)


def test_what_cannot_run_a_compressed_plan_says_why():
    plan = replace(METHODS["WFBP-A2A"].plan(TOY), method="mine", compressions=("fp16", "", "fp16"))
    assert ENGINES["torch"].refuses(method_of(plan)) == ""
    with pytest.raises(InputError, match=r"the plan compresses messages by fp16; engines.*torch"):
        require_runs("horovod", method_of(plan))
    with pytest.raises(InputError, match="the method asks for all_reduce"):
        require_runs("byteps", method_of(plan))
    pairs = replace(plan, compressions=("gtop-k(0.1)", "", ""))
    with pytest.raises(InputError, match=r"gtop-k.* asks for Messages between some"):
        require_runs("torch", method_of(pairs))
    with pytest.raises(InputError, match="the plan has a credit besides"):
        require_runs("torch", method_of(replace(plan, credit_bytes=1000)))
    shapes = {gradient.name: (gradient.elements,) for gradient in TOY.gradients}
    with pytest.raises(ModelError, match="compressors take float32, and the model trains in"):
        MessageCompressing(plan, shapes, 0, 2, dtype=torch.float64)
    with pytest.raises(MissingPart, match="sent on CPUs only"):
        MessageCompressing(plan, shapes, 0, 2, device="cuda")
    with pytest.raises(UnknownName, match="unknown flag of a compression 'whole-model'"):
        compression_named("fp16 + whole-model")
