"""Measure methods in processes that horovodrun started, on one machine or several.

    horovodrun -np 2 --gloo python -m ddlnb.cli.horovodrun --model small-conv --method MG-WFBP

With ``--mpi`` in place of ``--gloo`` MPI starts the processes and carries Horovod's gradients.
All processes run `ddlnb.measure` alike; where it asks its ranks for a run, they run it together.
"""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, cast

import typer

from ddlnb.cli.measure import (
    Baselines,
    Credit,
    Engines,
    Iterations,
    LocalBatch,
    Methods,
    Optimizer,
    Partition,
    Profile,
    Timeout,
    Warmup,
)
from ddlnb.cli.options import Model, print_table
from ddlnb.cli.run import run
from ddlnb.engines.settings import DEFAULTS, MeasurementSettings
from ddlnb.errors import MissingPart, require
from ddlnb.launch.options import Site
from ddlnb.launch.rank import Actions, RankContext, address_towards, prepare
from ddlnb.units import counted


class Slots:
    """The processes of this horovodrun in the shape of `Ranks`, seen from inside.

    Every process must make the same calls in the same order. Raises InputError in a process that
    horovodrun did not start.
    """

    def __init__(self, timeout_seconds: float):
        rendezvous = _rendezvous(timeout_seconds)
        self.count, rank = rendezvous.count, rendezvous.rank
        if rank == 0:
            rendezvous.announce(self._open_store(rendezvous.host))
        host, (store_host, port) = rendezvous.host, rendezvous.announced()
        with tempfile.TemporaryDirectory() as folder:
            prepare(folder, None, store_host)
        self._context = RankContext(
            rank=rank,
            count=self.count,
            store_host=store_host,
            store_port=port,
            prefix="",
            host=host,
            threads=1,
            timeout_seconds=timeout_seconds,
        )
        self._runs = 0
        hosts = self.run(_host)
        network = "loopback" if len(set(hosts)) == 1 else None
        self.site = Site("horovodrun", network=network)

    @property
    def rank(self) -> int:
        """The number of this process."""
        return self._context.rank

    def run(
        self,
        function: Callable,
        *args: Any,
        count: int | None = None,
        timeout_seconds: float | None = None,
        moments: Actions | None = None,
    ) -> list:
        """Return, in all processes, what function(context, *args) returned in 0 to count - 1.

        No process owns the others here, so there is nobody to act at ``moments`` of a run.
        """
        import torch

        count = self.count if count is None else count
        require(count <= self.count, f"{count} processes are needed; start them with -np {count}")
        require(not moments, "horovodrun changes nothing under a run; measure with ddlnb measure")
        torch.set_num_threads(self._context.threads)
        self._runs += 1
        seconds = timeout_seconds or self._context.timeout_seconds
        context = replace(
            self._context, count=count, prefix=f"run{self._runs}", timeout_seconds=seconds
        )
        store = context.store()
        if self.rank < count:
            result = function(context, *args)
            store.set(f"result {self.rank}", pickle.dumps(result))
        return [pickle.loads(store.get(f"result {rank}")) for rank in range(count)]

    def close(self) -> None:
        """Wait for the others: the store of process 0 ends with it."""
        self.run(_host)
        store = replace(self._context, prefix="end").store()
        store.set(f"gone {self.rank}", "")
        if self.rank == 0:
            store.wait([f"gone {rank}" for rank in range(self.count)])

    def _open_store(self, host: str) -> tuple[str, int]:
        """Return address and port of a store that this process holds."""
        from torch.distributed import TCPStore

        listener = socket.create_server((host, 0), backlog=512)
        port = listener.getsockname()[1]
        self._store = TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        return host, port


def _host(context: RankContext) -> str:
    return context.host


class _OverGloo:
    """Processes that find one another by the server of horovodrun, which keeps what they put."""

    def __init__(self, timeout_seconds: float):
        address, port = (os.environ[f"HOROVOD_GLOO_RENDEZVOUS_{name}"] for name in ("ADDR", "PORT"))
        self.count, self.rank = int(os.environ["HOROVOD_SIZE"]), int(os.environ["HOROVOD_RANK"])
        self.host = address_towards(address)
        self._bulletin = f"http://{address}:{port}/ddlnb/store"
        self._timeout = timeout_seconds

    def announce(self, store: tuple[str, int]) -> None:
        """Tell the others where the store is."""
        place = f"{store[0]} {store[1]}".encode()
        request = urllib.request.Request(self._bulletin, place, method="PUT")
        urllib.request.urlopen(request).close()

    def announced(self) -> tuple[str, int]:
        """Return where the store is."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                with urllib.request.urlopen(self._bulletin) as answer:
                    host, port = answer.read().decode().split()
                    return host, int(port)
            except urllib.error.HTTPError:  # not there yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


class _OverMpi:
    """Processes that MPI started, and that hear of the store by its broadcast."""

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise MissingPart(
                f"horovodrun --mpi needs mpi4py ({error}); install it beside MPI: "
                f"pip install mpi4py"
            ) from error

        self._processes = MPI.COMM_WORLD
        self.count, self.rank = self._processes.Get_size(), self._processes.Get_rank()
        hosts = self._processes.allgather(MPI.Get_processor_name())
        together = len(set(hosts)) == 1
        self.host = "127.0.0.1" if together else socket.gethostbyname(socket.gethostname())
        self._store: tuple[str, int] | None = None
        os.environ["HOROVOD_CONTROLLER"] = "mpi"

    def announce(self, store: tuple[str, int]) -> None:
        self._store = store

    def announced(self) -> tuple[str, int]:
        return self._processes.bcast(self._store, root=0)


def _rendezvous(timeout_seconds: float) -> _OverGloo | _OverMpi:
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ:
        return _OverGloo(timeout_seconds)
    require(
        any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")),
        "this process has no slot of horovodrun; start it with "
        "horovodrun -np 2 --gloo python -m ddlnb.cli.horovodrun",
    )
    return _OverMpi()


def main(
    model: Model,
    method: Methods = None,
    engine: Engines = None,
    baselines: Baselines = False,
    profile: Profile = None,
    batch: LocalBatch = None,
    iterations: Iterations = DEFAULTS.iterations,
    warmup: Warmup = DEFAULTS.warmup,
    optimizer: Optimizer = "sgd",
    partition: Partition = None,
    credit: Credit = None,
    out: Annotated[str | None, typer.Option(help="Results file (.csv) to add the runs to.")] = None,
    timeout: Timeout = DEFAULTS.timeout_seconds,
) -> None:
    """Train with every method once on all processes of horovodrun, and print the throughput."""
    from ddlnb.engines.measure import measure
    from ddlnb.launch.ranks import Ranks
    from ddlnb.results.rows import ResultsFile
    from ddlnb.results.schema import CELL

    slots = Slots(timeout)
    settings = MeasurementSettings(
        workers=slots.count,
        engine=engine or "horovod",
        baselines=baselines,
        local_batch=batch,
        iterations=iterations,
        warmup=warmup,
        repetitions=1,
        optimizer=optimizer,
        partition=partition,
        credit=credit,
        timeout_seconds=timeout,
    )
    results = ResultsFile(out) if slots.rank == 0 else None
    rows = measure(model, method or "all", settings=settings, ranks=cast(Ranks, slots))
    if results is not None:
        for row in rows.to_dict("records"):
            run = {str(column): value for column, value in row.items()}
            number = 0
            while results.has({name: run[name] for name in CELL}, number):
                number += 1
            results.add({**run, "repetition": number})
        shown = rows[["method", "engine", "gpus", "messages"]].assign(
            samples_per_s=rows["throughput_samples_per_s"].round(1),
            ms_per_iteration=(rows["iteration_seconds"] * 1e3).round(2),
            ms_waiting=(rows["exposed_communication_seconds"] * 1e3).round(2),
        )
        title = f"{model} in {counted(slots.count, 'process', 'processes')} of horovodrun"
        print_table(shown.to_dict("records"), csv=False, title=title)
    slots.close()


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(main)

if __name__ == "__main__":
    run(app, "horovodrun")
